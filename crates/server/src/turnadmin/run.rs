//! What the commands of `turnadmin` do.

use std::path::{Path, PathBuf};

use turnbuckle_wire::long_term_key_md5;

use super::arguments::{Arguments, Command};
use super::encrypted::{decrypted, encrypted, hashed, hexadecimal, write_key};
use super::failure::Failure;
use crate::users::{Database, text};

/// Where Debian's and coturn's own packages keep the database.
const USUAL_PLACES: [&str; 3] = [
    "/var/db/turndb",
    "/usr/local/var/db/turndb",
    "/var/lib/turn/turndb",
];

/// Carries out the command and returns what it prints.
pub(super) fn run(given: &Arguments) -> Result<String, Failure> {
    match &given.command {
        Command::HashPassword => {
            let password = given
                .password
                .as_ref()
                .ok_or_else(|| Failure::Usage("-P needs a password".to_owned()))?;
            Ok(hashed(password.expose())? + "\n")
        }
        Command::PrintKey => {
            // Without a realm the key is that of the realm without a name.
            let realm = given.realm.as_deref().unwrap_or_default();
            let (user, password) = (given.user()?, given.password()?);
            Ok(format!("0x{}\n", user_key(user, realm, password)))
        }
        Command::WriteKey(path) => write_key(path).map(|()| String::new()),
        Command::Encrypt => Ok(encrypted(given.key_file()?, given.password()?)? + "\n"),
        Command::Decrypt(text) => {
            let plain = decrypted(given.key_file()?, text.expose())?;
            Ok(String::from_utf8_lossy(&plain).into_owned() + "\n")
        }
        Command::AddUser => {
            let (user, realm) = (storable(given.user()?)?, given.realm()?);
            let key = user_key(user, realm, given.password()?);
            given.change(
                "insert or replace into turnusers_lt (realm,name,hmackey) values(?1,?2,?3)",
                &[realm, user, &key],
            )
        }
        Command::DeleteUser => {
            let (user, realm) = (given.user()?, given.realm()?);
            given.change(
                "delete from turnusers_lt where name=?1 and realm=?2",
                &[user, realm],
            )
        }
        Command::ListUsers => given.list("select name,realm from turnusers_lt", |name, realm| {
            format!("{name}[{realm}]")
        }),
        Command::AddAdmin => {
            let user = storable(given.user()?)?;
            let password = hashed(given.password()?)?;
            let realm = given.realm.as_deref().unwrap_or_default();
            given.change(
                "insert or replace into admin_user (realm,name,password) values(?1,?2,?3)",
                &[realm, user, &password],
            )
        }
        Command::DeleteAdmin => {
            given.change("delete from admin_user where name=?1", &[given.user()?])
        }
        Command::ListAdmins => {
            given.every(
                "select name,realm from admin_user",
                |name, realm| match realm {
                    "" => name.to_owned(),
                    realm => format!("{name}[{realm}]"),
                },
            )
        }
        Command::AddSecret(secret) => given.change(
            "insert or replace into turn_secret (realm,value) values(?1,?2)",
            &[given.realm()?, said(secret.expose())?],
        ),
        Command::DeleteSecret(secret) => given.change(
            "delete from turn_secret where realm=?1 and value=?2",
            &[given.realm()?, said(secret.expose())?],
        ),
        Command::DeleteAllSecrets => {
            given.change("delete from turn_secret where realm=?1", &[given.realm()?])
        }
        Command::ListSecrets => given
            .list("select value,realm from turn_secret", |value, realm| {
                format!("{value}[{realm}]")
            }),
        Command::AddOrigin => {
            let (origin, realm) = (given.origin()?, given.realm()?);
            given.change(
                "insert or replace into turn_origin_to_realm (origin,realm) values(?1,?2)",
                &[origin, realm],
            )
        }
        Command::DeleteOrigin => given.change(
            "delete from turn_origin_to_realm where origin=?1",
            &[given.origin()?],
        ),
        Command::ListOrigins => given.list(
            "select origin,realm from turn_origin_to_realm",
            |origin, realm| format!("{origin} ==>> {realm}"),
        ),
        Command::SetRealmOptions => given.set_realm_options(),
        // No name of an option holds `=`; what follows the first one is the value.
        Command::ListRealmOptions => given.list(
            "select opt || '=' || value,realm from turn_realm_option",
            |option, realm| match option.split_once('=') {
                Some((name, value)) => format!("{name}[{realm}]={value}"),
                None => format!("{option}[{realm}]="),
            },
        ),
    }
}

impl Arguments {
    fn user(&self) -> Result<&str, Failure> {
        set("user", self.user.as_deref())
    }

    fn realm(&self) -> Result<&str, Failure> {
        set("realm", self.realm.as_deref())
    }

    fn origin(&self) -> Result<&str, Failure> {
        set("origin", self.origin.as_deref())
    }

    fn password(&self) -> Result<&[u8], Failure> {
        let password = self.password.as_ref().map(crate::config::Secret::expose);
        password
            .filter(|password| !password.is_empty())
            .ok_or_else(|| missing("the password"))
    }

    fn key_file(&self) -> Result<&Path, Failure> {
        self.key_file
            .as_deref()
            .ok_or_else(|| missing("the file of the key (-f)"))
    }

    fn set_realm_options(&self) -> Result<String, Failure> {
        let realm = self.realm()?;
        if self.realm_options.is_empty() {
            return Err(missing("a realm option"));
        }
        let database = self.open()?;
        database.at_once(|database| {
            for (option, value) in &self.realm_options {
                database.change(
                    "delete from turn_realm_option where realm=?1 and opt=?2",
                    [realm, option],
                )?;
                if *value > 0 {
                    database.change(
                        "insert into turn_realm_option (realm,opt,value) values(?1,?2,?3)",
                        [realm, option, &value.to_string()],
                    )?;
                }
            }
            Ok(())
        })?;
        Ok(String::new())
    }

    fn change(&self, statement: &str, values: &[&str]) -> Result<String, Failure> {
        self.open()?.change(statement, turnadmin_values(values))?;
        Ok(String::new())
    }

    /// The rows of the realm, or of all realms if none is given, in order.
    fn list(&self, query: &str, line: impl Fn(&str, &str) -> String) -> Result<String, Failure> {
        match self.realm.as_deref() {
            None | Some("") => self.every(query, line),
            Some(realm) => self.lines(
                &format!("{query} where realm=?1 order by 1"),
                &[realm],
                line,
            ),
        }
    }

    fn every(&self, query: &str, line: impl Fn(&str, &str) -> String) -> Result<String, Failure> {
        self.lines(&format!("{query} order by 2,1"), &[], line)
    }

    fn lines(
        &self,
        query: &str,
        values: &[&str],
        line: impl Fn(&str, &str) -> String,
    ) -> Result<String, Failure> {
        let rows = self.open()?.rows(query, turnadmin_values(values), |row| {
            Ok((text(row, 0)?, text(row, 1)?))
        })?;
        Ok(rows
            .iter()
            .map(|(first, realm)| line(first, realm) + "\n")
            .collect())
    }

    fn open(&self) -> Result<Database, Failure> {
        let usual = || {
            USUAL_PLACES
                .iter()
                .map(PathBuf::from)
                .find(|path| path.exists())
        };
        let path = self.database.clone().or_else(usual).ok_or_else(|| {
            Failure::Refused(format!(
                "no user database: give -b FILE (none of {} exists)",
                USUAL_PLACES.join(", ")
            ))
        })?;
        Ok(Database::open(&path)?)
    }
}

fn turnadmin_values<'a>(values: &'a [&'a str]) -> impl rusqlite::Params + use<'a> {
    rusqlite::params_from_iter(values)
}

/// MD5 of `user:realm:password` in hexadecimal digits (RFC 8489 §9.2.2).
fn user_key(user: &str, realm: &str, password: &[u8]) -> String {
    hexadecimal(&long_term_key_md5(
        user.as_bytes(),
        realm.as_bytes(),
        password,
    ))
}

fn set<'a>(what: &str, value: Option<&'a str>) -> Result<&'a str, Failure> {
    value
        .filter(|value| !value.is_empty())
        .ok_or_else(|| missing(&format!("the {what}")))
}

fn missing(what: &str) -> Failure {
    Failure::Refused(format!(
        "The operation cannot be completed: {what} must be set."
    ))
}

/// A name that coturn's server accepts from a client too: without blanks, quotes and backslashes.
fn storable(name: &str) -> Result<&str, Failure> {
    if name.contains([' ', '\t', '\'', '"', '\\']) {
        return Err(Failure::Refused(format!(
            "ERROR: Wrong user name structure or symbols, choose another name: {}",
            name.escape_debug()
        )));
    }
    Ok(name)
}

/// A secret as the text that it came as.
fn said(secret: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(secret)
        .ok()
        .filter(|secret| !secret.is_empty())
        .ok_or_else(|| missing("the secret"))
}
