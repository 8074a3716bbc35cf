//! User databases (coturn inventory §1.9).

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

const GROUP: Group = Group::Databases;
const DATABASES: &str = "databases other than SQLite are";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-150",
        "userdb",
        GROUP,
        Kind::File,
        "SQLite file with coturn's tables: users, secrets, peer address rules and quotas of the realms, the realms of origins, and keys of authorization servers. It is made if there is none, and so are tables \
         that are missing. What changes in it takes effect within a second, for requests to come.",
    )
    .aliases(&["db"])
    .short('b')
    .stricter(
        "users of the database, users of the configuration and secrets work together; a user who is removed cannot refresh either; peer rules \
         as for allowed-peer-ip and denied-peer-ip",
    )
    .works(
        |draft, value, _| {
            draft.user_database = Some(value.text().into());
            Ok(())
        },
        |config| config.authentication.database.iter().map(|database| database.path.display().to_string()).collect(),
    ),
    Entry::new(
        "O-151",
        "psql-userdb",
        GROUP,
        Kind::Text(1024),
        "PostgreSQL connection.",
    )
    .aliases(&["sql-userdb"])
    .short('e')
    .secret()
    .not_yet(DATABASES),
    Entry::new(
        "O-152",
        "mysql-userdb",
        GROUP,
        Kind::Text(1024),
        "MySQL or MariaDB connection.",
    )
    .short('M')
    .secret()
    .not_yet(DATABASES),
    Entry::new(
        "O-153",
        "secret-key-file",
        GROUP,
        Kind::File,
        "File with the key that decrypts the password of mysql-userdb.",
    )
    .not_yet(DATABASES),
    Entry::new(
        "O-154",
        "mongo-userdb",
        GROUP,
        Kind::Text(1024),
        "MongoDB connection.",
    )
    .short('J')
    .secret()
    .not_yet(DATABASES),
    Entry::new(
        "O-155",
        "redis-userdb",
        GROUP,
        Kind::Text(1024),
        "Redis connection.",
    )
    .short('N')
    .secret()
    .not_yet(DATABASES),
    Entry::new(
        "O-156",
        "redis-statsdb",
        GROUP,
        Kind::Text(1024),
        "Redis connection for session events.",
    )
    .short('O')
    .secret()
    .not_yet("session events to Redis are"),
];
