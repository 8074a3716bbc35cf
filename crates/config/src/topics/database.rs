//! User databases (coturn inventory §1.9).

use turnbuckle_users::{RedisAddress, Source};

use crate::entry::{Group, Need};
use crate::row::{Row, Setting, Topic, Written, each, one};
use crate::value::Kind;

const DATABASES: &str = "databases other than SQLite and Redis are";

/// The given values about the database.
#[derive(Default)]
pub(crate) struct GivenDatabase {
    pub(crate) source: Option<Source>,
    no_peer_rules: bool,
    no_realms: bool,
}

/// A database with coturn's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserDatabase {
    /// Where it is.
    pub source: Source,
    /// Users are read from it.
    pub has_users: bool,
    /// Secrets are read from it.
    pub has_secrets: bool,
    /// Peer address rules are read from it.
    pub has_peer_rules: bool,
    /// Realms by origin, quotas and rates are read from it.
    pub has_realms: bool,
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
         second, for requests to come.",
    )
    .aliases(&["db"])
    .short('b')
    .stricter(
        "users of the database, users of the configuration and secrets work together; a user who \
         is removed cannot refresh either; peer rules as for allowed-peer-ip and denied-peer-ip",
    )
    .example("/var/lib/turn/turndb")
    .works(Setting {
        take: |given, written| {
            let path = written.value.text().into();
            given.take(written, Source::Sqlite(path));
            Ok(())
        },
        show: |database| {
            let path = database
                .iter()
                .filter_map(|database| match &database.source {
                    Source::Sqlite(path) => Some(path.display()),
                    Source::Redis(_) => None,
                });
            each(path)
        },
    }),
    Key::new(
        "O-151",
        "psql-userdb",
        Group::Databases,
        Kind::Text(1024),
        "PostgreSQL connection.",
    )
    .aliases(&["sql-userdb"])
    .short('e')
    .secret()
    .not_yet(DATABASES),
    Key::new(
        "O-152",
        "mysql-userdb",
        Group::Databases,
        Kind::Text(1024),
        "MySQL or MariaDB connection.",
    )
    .short('M')
    .secret()
    .not_yet(DATABASES),
    Key::new(
        "O-153",
        "secret-key-file",
        Group::Databases,
        Kind::File,
        "File with the key that decrypts the password of mysql-userdb.",
    )
    .not_yet(DATABASES),
    Key::new(
        "O-154",
        "mongo-userdb",
        Group::Databases,
        Kind::Text(1024),
        "MongoDB connection.",
    )
    .short('J')
    .secret()
    .not_yet(DATABASES),
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
                    Source::Sqlite(_) => None,
                });
            each(address)
        },
    }),
    Key::new(
        "O-156",
        "redis-statsdb",
        Group::Databases,
        Kind::Text(1024),
        "Redis connection for session events.",
    )
    .short('O')
    .secret()
    .not_yet("session events to Redis are"),
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
    .no_effect("the database is followed by a thread of its own, and no request asks it anything"),
];

/// Returns the settings of the database, if one is named.
pub(crate) fn finish(
    given: GivenDatabase,
    takes_secrets: bool,
    users_beside_secrets: bool,
) -> Option<UserDatabase> {
    Some(UserDatabase {
        source: given.source?,
        has_users: !takes_secrets || users_beside_secrets,
        has_secrets: takes_secrets,
        has_peer_rules: !given.no_peer_rules,
        has_realms: !given.no_realms,
    })
}
