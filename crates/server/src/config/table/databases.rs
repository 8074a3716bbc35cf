//! User databases (coturn inventory §1.9).

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

const GROUP: Group = Group::Databases;
const DATABASES: &str = "user databases are";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new("O-150", "userdb", GROUP, Kind::File, "SQLite file.")
        .aliases(&["db"])
        .short('b')
        .not_yet(DATABASES),
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
