//! User databases (coturn inventory §1.9).

use std::path::{Path, PathBuf};

use turnbuckle_users::{MongoSource, MysqlSource, PostgresSource, RedisAddress, Source};

use crate::entry::{Group, Need};
use crate::file;
use crate::findings::Findings;
use crate::problem::{Note, Origin};
use crate::row::{Row, Setting, Topic, Written, each, one};
use crate::value::Kind;

/// The keys that each name a database.
pub(crate) const SOURCES: [&str; 5] = [
    "userdb",
    "psql-userdb",
    "mysql-userdb",
    "redis-userdb",
    "mongo-userdb",
];

/// The given values about the database.
#[derive(Default)]
pub(crate) struct GivenDatabase {
    /// The one that was given last.
    pub(crate) source: Option<Source>,
    password_key: Option<PathBuf>,
    no_peer_rules: bool,
    no_realms: bool,
    asks: Option<bool>,
}

/// A database with coturn's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserDatabase {
    /// Where it is.
    pub source: Source,
    /// The file with the key that the password of [`Source::Mysql`] was decrypted with.
    pub password_key: Option<PathBuf>,
    /// Users are read from it.
    pub has_users: bool,
    /// Secrets are read from it.
    pub has_secrets: bool,
    /// Peer address rules are read from it.
    pub has_peer_rules: bool,
    /// Realms by origin, quotas and rates are read from it.
    pub has_realms: bool,
    /// It is asked before a request of an unknown user, or with a wrong password, is refused.
    pub asks: bool,
}

impl Topic for GivenDatabase {
    type Settings = Option<UserDatabase>;
}

impl GivenDatabase {
    /// Notes the database. There is one at a time, and as in coturn the last that is named.
    fn take(&mut self, written: &mut Written<'_>, source: Source) {
        let before = self.source.as_ref().map(Source::kind);
        if before.is_some_and(|kind| kind != source.kind()) {
            written.note("one user database is used: this one, and none that is named before it");
        }
        self.source = Some(source);
    }
}

type Key = Row<GivenDatabase>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-150",
        "userdb",
        Group::Databases,
        Kind::File,
        "SQLite file with coturn's tables: users, secrets, peer address rules and quotas of the \
         realms, the realms of origins, and keys of authorization servers. It is made if there \
         is none, and so are tables that are missing. What changes in it takes effect within a \
         second, for requests to come. Without a database turnserver uses the first that is there \
         of /var/db/turndb, /usr/local/var/db/turndb and /var/lib/turn/turndb.",
    )
    .aliases(&["db"])
    .short('b')
    .stricter(
        "users of the database, users of the configuration and secrets work together; a user who \
         is removed cannot refresh either; peer rules as for allowed-peer-ip and denied-peer-ip",
    )
    .example("/var/lib/turn/turndb")
    .live()
    .works(Setting {
        take: |given, written| {
            let path = written.value.text().into();
            given.take(written, Source::Sqlite(path));
            Ok(())
        },
        show: |database| match source(database) {
            Some(Source::Sqlite(path)) => one(path.display()),
            _ => Vec::new(),
        },
    }),
    Key::new(
        "O-151",
        "psql-userdb",
        Group::Databases,
        Kind::Text(1024),
        "PostgreSQL database with coturn's tables: libpq's words, or a URI that begins with \
         postgresql://. What changes in it takes effect within a second, for requests to come.",
    )
    .aliases(&["sql-userdb"])
    .short('e')
    .secret()
    .stricter(
        "as for userdb; a word that has no effect here is refused by name, `service` and GSSAPI \
         among them; users stay as they were read last while the database is gone",
    )
    .example(
        "host=db.example.org dbname=coturn user=turn password=a-long-secret \
              sslmode=verify-full sslrootcert=/etc/ssl/certs/ca-certificates.crt",
    )
    .live()
    .works(Setting {
        take: |given, written| {
            let source = PostgresSource::parse(written.value.text())?;
            given.take(written, Source::Postgres(source));
            Ok(())
        },
        show: |database| match source(database) {
            Some(Source::Postgres(source)) => one(source),
            _ => Vec::new(),
        },
    }),
    Key::new(
        "O-152",
        "mysql-userdb",
        Group::Databases,
        Kind::Text(1024),
        "MySQL or MariaDB database with coturn's tables: host, dbname, user, password, port, \
         connect_timeout, read_timeout, ca, capath, cert, key. `localhost` is the Unix socket. \
         What changes in it takes effect within two seconds and the time to read it, for \
         requests to come.",
    )
    .short('M')
    .secret()
    .stricter(
        "as for userdb; a word that is not known is refused by name; users stay as they were \
         read last while the database is gone",
    )
    .example("host=localhost dbname=coturn user=turn password=a-long-secret")
    .live()
    .works(Setting {
        take: |given, written| {
            let source = MysqlSource::parse(written.value.text())?;
            given.take(written, Source::Mysql(source));
            Ok(())
        },
        show: |database| match source(database) {
            Some(Source::Mysql(source)) => one(source),
            _ => Vec::new(),
        },
    }),
    Key::new(
        "O-153",
        "secret-key-file",
        Group::Databases,
        Kind::File,
        "File with the key that decrypts the password of `mysql-userdb`, which \
         `turnadmin -E` has encrypted.",
    )
    .example("/etc/turnserver.key")
    .live()
    .works(Setting {
        take: |given, written| {
            given.password_key = Some(written.value.text().into());
            Ok(())
        },
        show: |database| {
            let keys = database
                .iter()
                .filter_map(|database| database.password_key.as_ref());
            each(keys.map(|path| path.display()))
        },
    }),
    Key::new(
        "O-154",
        "mongo-userdb",
        Group::Databases,
        Kind::Text(1024),
        "MongoDB database with coturn's collections: a URI, mongodb:// or mongodb+srv://; the \
         database is that of its path, or turn. What changes in it takes effect at once on a \
         replica set; on any other server within a second where users come or go, and else \
         within half a minute. Only a program that was built with the feature mongo has it.",
    )
    .short('J')
    .secret()
    .stricter(
        "as for userdb; an option that is not known is refused by name; users stay as they were \
         read last while the database is gone",
    )
    .example("mongodb://turn:a-long-secret@db.example.org/coturn?tls=true")
    .live()
    .works(Setting {
        take: |given, written| {
            let source = MongoSource::parse(written.value.text())?;
            given.take(written, Source::Mongo(source));
            Ok(())
        },
        show: |database| match source(database) {
            Some(Source::Mongo(source)) => one(source),
            _ => Vec::new(),
        },
    }),
    Key::new(
        "O-155",
        "redis-userdb",
        Group::Databases,
        Kind::Text(1024),
        "Redis or Valkey server with coturn's keys for all that userdb holds. Words `key=value` \
         with blanks between them: ip (127.0.0.1), port (6379), dbname (0), user, password, \
         connect_timeout (5 seconds, for each answer too), tls (false), ca, capath, cert, \
         clientkey, sni, verify (peer; none checks no certificate), and coturn's other names for \
         them. The server tells of changes from version 6 on, and they take effect within a \
         second; an older one is read again and again.",
    )
    .short('N')
    .secret()
    .stricter(
        "a key that is unknown is refused; by TLS the certificate must be good for sni, or else \
         for ip; keys are found by SCAN where coturn stops the server with KEYS, and no change \
         has the server save its data; the rest as for userdb",
    )
    .example("ip=127.0.0.1 dbname=2 password=turn connect_timeout=30")
    .live()
    .works(Setting {
        take: |given, written| {
            let address = RedisAddress::parse(written.value.text());
            let address = address.map_err(|error| error.to_string())?;
            given.take(written, Source::Redis(address));
            Ok(())
        },
        show: |database| {
            let address = database
                .iter()
                .filter_map(|database| match &database.source {
                    Source::Redis(address) => Some(address),
                    _ => None,
                });
            each(address)
        },
    }),
    Key::own(
        "O-155",
        "userdb-ask",
        Group::Databases,
        Kind::Flag,
        "Asks the user database before a request with an unknown name or a wrong password is \
         refused, so that a new user is served at once. Such a request may wait 300 ms; no other \
         one waits. The database gets at most 500 such questions a second, of one address at most \
         10. Where it is on, only MD5 is offered as password algorithm.",
    )
    .default("(true, but for userdb)")
    .example("false")
    .needs(Need::Database)
    .live()
    .works(Setting {
        take: |given, written| {
            given.asks = Some(written.value.flag());
            Ok(())
        },
        show: |database| each(database.iter().map(|database| database.asks)),
    }),
    Key::new(
        "O-048",
        "no-dynamic-ip-list",
        Group::Authentication,
        Kind::Flag,
        "No peer address rules from the database.",
    )
    .default("false")
    .stricter(
        "the value counts; coturn ignores it and always switches on. The rules are read again \
         within a second of a change",
    )
    .always_on_in_coturn()
    .needs(Need::Database)
    .live()
    .works(Setting {
        take: |given, written| {
            given.no_peer_rules = written.value.flag();
            Ok(())
        },
        show: |database| {
            one(database
                .as_ref()
                .is_some_and(|database| !database.has_peer_rules))
        },
    }),
    Key::new(
        "O-049",
        "no-dynamic-realms",
        Group::Authentication,
        Kind::Flag,
        "No realms by ORIGIN and no realm options from the database.",
    )
    .default("false")
    .stricter(
        "the value counts; coturn ignores it and always switches on. A rate that changes counts \
         for allocations to come",
    )
    .always_on_in_coturn()
    .needs(Need::Database)
    .live()
    .works(Setting {
        take: |given, written| {
            given.no_realms = written.value.flag();
            Ok(())
        },
        show: |database| {
            one(database
                .as_ref()
                .is_some_and(|database| !database.has_realms))
        },
    }),
    Key::new(
        "O-047",
        "no-auth-pings",
        Group::Authentication,
        Kind::Flag,
        "No periodic test queries to the user database.",
    )
    .default("true")
    .always_on_in_coturn()
    .no_effect(
        "the database is followed by a thread of its own, which notices by itself when it \
                is gone",
    ),
];

fn source(database: &Option<UserDatabase>) -> Option<&Source> {
    database.as_ref().map(|database| &database.source)
}

/// Returns the key that names the database, as far as one is given.
pub(crate) fn given_as(findings: &Findings) -> Option<&'static str> {
    let mut given = SOURCES.into_iter().filter(|key| findings.is_given(key));
    given.find(|key| findings.origin(key) != Origin::Usual)
}

/// Returns the setting that stands for a database at one of coturn's usual places, where none is named.
pub(crate) fn usual(path: &Path, findings: &mut Findings) -> file::Setting {
    findings.notes.push(Note {
        is_error: false,
        origin: None,
        key: "userdb".to_owned(),
        text: format!(
            "no user database is named: {} is used, as by coturn",
            path.display()
        ),
    });
    file::Setting {
        origin: Origin::Usual,
        typed: "userdb".to_owned(),
        key: "userdb".to_owned(),
        value: Some(path.display().to_string()),
    }
}

/// Returns the settings of the database, if one is named. Reports a password that cannot be decrypted.
pub(crate) fn finish(
    mut given: GivenDatabase,
    takes_secrets: bool,
    users_beside_secrets: bool,
    findings: &mut Findings,
) -> Option<UserDatabase> {
    match (&mut given.source, &given.password_key) {
        (Some(Source::Mysql(source)), Some(file)) => {
            if let Err(what) = source.decrypt(file) {
                findings.unreadable(
                    "secret-key-file",
                    format!("{what}; give the file that `turnadmin -x` has written"),
                );
            }
        }
        (_, Some(_)) => findings.note(
            "secret-key-file",
            "has no effect without `mysql-userdb`, whose password it decrypts",
        ),
        (_, None) => {}
    }
    let source = given.source?;
    let is_file = source.is_file();
    Some(UserDatabase {
        source,
        password_key: given.password_key,
        has_users: !takes_secrets || users_beside_secrets,
        has_secrets: takes_secrets,
        has_peer_rules: !given.no_peer_rules,
        has_realms: !given.no_realms,
        asks: given.asks.unwrap_or(!is_file),
    })
}
