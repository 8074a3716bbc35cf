//! The command line of `turnadmin`.

use std::ffi::OsString;
use std::path::PathBuf;

use turnbuckle_users::{MongoSource, MysqlSource, PostgresSource, RedisAddress, Source};

use super::failure::Failure;
use crate::config::Secret;

/// What the command line asks for.
#[derive(Debug)]
pub(super) enum Wish {
    Help,
    Run(Box<Arguments>),
}

/// What is to be done.
#[derive(Debug, Clone)]
pub(super) enum Command {
    AddAdmin,
    AddOrigin,
    AddSecret(Secret),
    AddUser,
    Decrypt(Secret),
    DeleteAdmin,
    DeleteAllSecrets,
    DeleteOrigin,
    DeleteSecret(Secret),
    DeleteUser,
    Encrypt,
    HashPassword,
    ListAdmins,
    ListOrigins,
    ListRealmOptions,
    ListSecrets,
    ListUsers,
    PrintKey,
    SetRealmOptions,
    WriteKey(PathBuf),
}

/// The command with everything said beside it.
#[derive(Debug)]
pub(super) struct Arguments {
    pub(super) command: Command,
    pub(super) user: Option<String>,
    pub(super) realm: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) origin: Option<String>,
    pub(super) database: Option<Source>,
    pub(super) key_file: Option<PathBuf>,
    /// Names of realm options with their values; 0 removes one.
    pub(super) realm_options: Vec<(&'static str, u64)>,
}

/// Reads the arguments in their order. Of several commands the last counts.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Wish, Failure> {
    use lexopt::Arg;

    let mut command = None;
    let mut found = Arguments {
        command: Command::ListUsers,
        user: None,
        realm: None,
        password: None,
        origin: None,
        database: None,
        key_file: None,
        realm_options: Vec::new(),
    };
    let mut parser = lexopt::Parser::from_args(arguments);
    while let Some(argument) = parser.next().map_err(wrong)? {
        let name = match argument {
            Arg::Short(letter) => letter.to_string(),
            Arg::Long(name) => name.to_owned(),
            Arg::Value(_) => {
                return Err(Failure::Usage(
                    "an argument does not belong to an option".to_owned(),
                ));
            }
        };
        let mut text = || -> Result<String, Failure> {
            let value = parser.value().map_err(wrong)?;
            value
                .into_string()
                .map_err(|_| Failure::Usage("a value is not UTF-8".to_owned()))
        };
        let chosen = match name.as_str() {
            "h" | "help" => return Ok(Wish::Help),
            "P" | "generate-encrypted-password" => Command::HashPassword,
            "E" | "generate-encrypted-password-aes" => Command::Encrypt,
            "k" | "key" => Command::PrintKey,
            "a" | "add" => Command::AddUser,
            "d" | "delete" => Command::DeleteUser,
            "l" | "list" => Command::ListUsers,
            "A" | "add-admin" => Command::AddAdmin,
            "D" | "delete-admin" => Command::DeleteAdmin,
            "L" | "list-admin" => Command::ListAdmins,
            "s" | "set-secret" => Command::AddSecret(secret(text()?)),
            "S" | "show-secret" => Command::ListSecrets,
            "X" | "delete-secret" => Command::DeleteSecret(secret(text()?)),
            "delete-all-secrets" | "delete-all" => Command::DeleteAllSecrets,
            "O" | "add-origin" => Command::AddOrigin,
            "R" | "del-origin" => Command::DeleteOrigin,
            "I" => Command::ListOrigins,
            "list-origins" => {
                // coturn's table wants a value here and then takes no notice of it.
                if parser.optional_value().is_none() {
                    let mut rest = parser.raw_args().map_err(wrong)?;
                    let is_value =
                        |word: &std::ffi::OsStr| word.as_encoded_bytes().first() != Some(&b'-');
                    if rest.peek().is_some_and(is_value) {
                        drop(rest.next());
                    }
                }
                Command::ListOrigins
            }
            "g" | "set-realm-option" => Command::SetRealmOptions,
            "G" | "list-realm-option" | "list-realm-options" => Command::ListRealmOptions,
            "x" | "key-path" => Command::WriteKey(text()?.into()),
            "v" | "verify" => Command::Decrypt(secret(text()?)),
            option => {
                match option {
                    "u" | "user" => found.user = Some(prepared("user", &text()?)?),
                    "r" | "realm" => found.realm = Some(prepared("realm", &text()?)?),
                    "p" | "password" => {
                        found.password = Some(secret(prepared("password", &text()?)?));
                    }
                    "o" | "origin" => {
                        found.origin = Some(crate::users::canonical(&text()?));
                    }
                    "b" | "db" | "userdb" => found.database = Some(Source::Sqlite(text()?.into())),
                    "N" | "redis-userdb" => {
                        let address = RedisAddress::parse(&text()?);
                        let address = address.map_err(wrong_words("redis-userdb"))?;
                        found.database = Some(Source::Redis(address));
                    }
                    "e" | "psql-userdb" | "sql-userdb" => {
                        let source = PostgresSource::parse(&text()?);
                        let source = source.map_err(wrong_words("psql-userdb"))?;
                        found.database = Some(Source::Postgres(source));
                    }
                    "M" | "mysql-userdb" => {
                        let source = MysqlSource::parse(&text()?);
                        let source = source.map_err(wrong_words("mysql-userdb"))?;
                        found.database = Some(Source::Mysql(source));
                    }
                    "f" | "file-key-path" => found.key_file = Some(text()?.into()),
                    "max-bps" => found.realm_options.push(("max-bps", number(&text()?)?)),
                    "total-quota" => {
                        found.realm_options.push(("total-quota", number(&text()?)?));
                    }
                    "user-quota" => {
                        found.realm_options.push(("user-quota", number(&text()?)?));
                    }
                    "J" | "mongo-userdb" => {
                        let source = MongoSource::parse(&text()?);
                        let source = source.map_err(wrong_words("mongo-userdb"))?;
                        found.database = Some(Source::Mongo(source));
                    }
                    unknown => {
                        let dashes = if unknown.chars().nth(1).is_some() {
                            "--"
                        } else {
                            "-"
                        };
                        let unknown =
                            format!("invalid option '{dashes}{}'", unknown.escape_debug());
                        return Err(Failure::Usage(unknown));
                    }
                }
                continue;
            }
        };
        // The key is written before whatever else the line says, and nothing else is done.
        if !matches!(command, Some(Command::WriteKey(_))) {
            command = Some(chosen);
        }
    }
    found.command = command.ok_or_else(|| Failure::Usage("no command is given".to_owned()))?;
    if let (Some(Source::Mysql(source)), Some(file)) = (&mut found.database, &found.key_file) {
        source.decrypt(file).map_err(Failure::Refused)?;
    }
    Ok(Wish::Run(Box::new(found)))
}

/// Says what is wrong with the words of a connection.
fn wrong_words<E: std::fmt::Display>(option: &str) -> impl Fn(E) -> Failure {
    move |what| Failure::Refused(format!("{option}: {what}"))
}

fn secret(text: String) -> Secret {
    Secret::new(text.into_bytes())
}

fn number(text: &str) -> Result<u64, Failure> {
    text.trim().parse().map_err(|_| {
        Failure::Refused(format!(
            "`{}` is not a number from 0 to {}",
            text.escape_debug(),
            u64::MAX
        ))
    })
}

/// Prepares a name, a realm or a password as coturn does: a soft hyphen is left out, a no-break space is a space, control characters are refused.
fn prepared(what: &str, text: &str) -> Result<String, Failure> {
    if text.chars().any(char::is_control) {
        return Err(Failure::Refused(format!(
            "the {what} holds a control character"
        )));
    }
    let text = text.replace('\u{AD}', "").replace('\u{A0}', " ");
    Ok(text)
}

/// Returns what lexopt says, without the values, which may be passwords.
fn wrong(error: lexopt::Error) -> Failure {
    Failure::Usage(match error {
        lexopt::Error::MissingValue {
            option: Some(option),
        } => {
            format!("option '{option}' requires an argument")
        }
        lexopt::Error::UnexpectedValue { option, .. } => {
            format!("option '{option}' takes no value")
        }
        _ => "the command line cannot be read".to_owned(),
    })
}
