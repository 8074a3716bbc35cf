//! What the commands of `turnadmin` do.

use std::path::{Path, PathBuf};

use turnbuckle_users::{
    Change, Connection as DatabaseConnection, Listed, Listing, Source, USUAL_FILES, decrypted,
    encrypted, hashed, hexadecimal, write_key,
};
use turnbuckle_wire::long_term_key_md5;

use super::arguments::{Arguments, Command};
use super::failure::Failure;

/// Carries out the command and returns what it prints.
pub(super) fn run(given: &Arguments) -> Result<String, Failure> {
    match &given.command {
        Command::HashPassword => {
            let password = given
                .password
                .as_ref()
                .ok_or_else(|| Failure::Usage("-P needs a password".to_owned()))?;
            Ok(hashed(password.expose()).map_err(Failure::Refused)? + "\n")
        }
        Command::PrintKey => {
            // Without a realm the key is that of the realm without a name.
            let realm = given.realm.as_deref().unwrap_or_default();
            let (user, password) = (given.user()?, given.password()?);
            Ok(format!("0x{}\n", user_key(user, realm, password)))
        }
        Command::WriteKey(path) => write_key(path)
            .map(|()| String::new())
            .map_err(Failure::Refused),
        Command::Encrypt => encrypted(given.key_file()?, given.password()?)
            .map(|text| text + "\n")
            .map_err(Failure::Refused),
        Command::Decrypt(text) => {
            let plain = decrypted(given.key_file()?, text.expose()).map_err(Failure::Refused)?;
            Ok(String::from_utf8_lossy(&plain).into_owned() + "\n")
        }
        Command::AddUser => {
            let (name, realm) = (storable(given.user()?)?, given.realm()?);
            let key = user_key(name, realm, given.password()?);
            let key = &key;
            given.change(Change::PutUser { realm, name, key })
        }
        Command::DeleteUser => {
            let (name, realm) = (given.user()?, given.realm()?);
            given.change(Change::DeleteUser { realm, name })
        }
        Command::ListUsers => given.list(Listing::Users, named),
        Command::AddAdmin => {
            let name = storable(given.user()?)?;
            let password = hashed(given.password()?).map_err(Failure::Refused)?;
            given.change(Change::PutAdmin {
                name,
                realm: given.realm.as_deref().unwrap_or_default(),
                password: &password,
            })
        }
        Command::DeleteAdmin => given.change(Change::DeleteAdmin {
            name: given.user()?,
        }),
        Command::ListAdmins => given.lines(Listing::Admins, None, |row| match row.realm.as_str() {
            "" => row.name.clone(),
            _ => named(row),
        }),
        Command::AddSecret(secret) => given.change(Change::AddSecret {
            realm: given.realm()?,
            secret: said(secret.expose())?,
        }),
        Command::DeleteSecret(secret) => given.change(Change::DeleteSecret {
            realm: given.realm()?,
            secret: said(secret.expose())?,
        }),
        Command::DeleteAllSecrets => given.change(Change::DeleteSecrets {
            realm: given.realm()?,
        }),
        Command::ListSecrets => given.list(Listing::Secrets, named),
        Command::AddOrigin => given.change(Change::PutOrigin {
            origin: given.origin()?,
            realm: given.realm()?,
        }),
        Command::DeleteOrigin => given.change(Change::DeleteOrigin {
            origin: given.origin()?,
        }),
        Command::ListOrigins => given.list(Listing::Origins, |row| given.origin_line(row)),
        Command::SetRealmOptions => {
            let realm = given.realm()?;
            let options = given.realm_options.as_slice();
            if options.is_empty() {
                return Err(missing("a realm option"));
            }
            given.change(Change::PutRealmOptions { realm, options })
        }
        Command::ListRealmOptions => {
            given.list(Listing::RealmOptions, |row| given.realm_option_line(row))
        }
    }
}

fn named(row: &Listed) -> String {
    format!("{}[{}]", row.name, row.realm)
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

    /// Returns the line of an origin. coturn writes the realm first where the database is MongoDB's.
    fn origin_line(&self, row: &Listed) -> String {
        let Listed { name, realm, .. } = row;
        match self.database {
            Some(Source::Mongo(_)) => format!("{realm} ==>> {name}"),
            _ => format!("{name} ==>> {realm}"),
        }
    }

    /// Returns the line of a realm's option. coturn writes the key where the database is Redis.
    fn realm_option_line(&self, row: &Listed) -> String {
        match self.database {
            Some(Source::Redis(_)) => format!("{}/{} = {}", row.realm, row.name, row.value),
            _ => format!("{}={}", named(row), row.value),
        }
    }

    fn change(&self, change: Change<'_>) -> Result<String, Failure> {
        self.open()?.change(change)?;
        Ok(String::new())
    }

    /// Returns the rows of the realm, or of all realms if none is given, in order.
    fn list(&self, listing: Listing, line: impl Fn(&Listed) -> String) -> Result<String, Failure> {
        let realm = self.realm.as_deref().filter(|realm| !realm.is_empty());
        self.lines(listing, realm, line)
    }

    fn lines(
        &self,
        listing: Listing,
        realm: Option<&str>,
        line: impl Fn(&Listed) -> String,
    ) -> Result<String, Failure> {
        let rows = self.open()?.list(listing, realm)?;
        Ok(rows.iter().map(|row| line(row) + "\n").collect())
    }

    fn open(&self) -> Result<DatabaseConnection, Failure> {
        let usual = || {
            USUAL_FILES
                .iter()
                .map(PathBuf::from)
                .find(|path| path.exists())
        };
        let usual = || usual().map(Source::Sqlite);
        let source = self.database.clone().or_else(usual).ok_or_else(|| {
            Failure::Refused(format!(
                "no user database: give -b, -e, -M or -N (none of {} exists)",
                USUAL_FILES.join(", ")
            ))
        })?;
        Ok(DatabaseConnection::open(&source)?)
    }
}

/// Returns the MD5 hash of `user:realm:password` in hexadecimal digits (RFC 8489 §9.2.2).
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

/// Returns a name that coturn's server accepts from a client too; refuses one with blanks, quotes or backslashes.
fn storable(name: &str) -> Result<&str, Failure> {
    if name.contains([' ', '\t', '\'', '"', '\\']) {
        return Err(Failure::Refused(format!(
            "ERROR: Wrong user name structure or symbols, choose another name: {}",
            name.escape_debug()
        )));
    }
    Ok(name)
}

/// Returns a secret as the text that it came as.
fn said(secret: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(secret)
        .ok()
        .filter(|secret| !secret.is_empty())
        .ok_or_else(|| missing("the secret"))
}
