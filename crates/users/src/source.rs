//! Where a database is, as the configuration names it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::mongo::MongoSource;
use crate::mysql::MysqlSource;
use crate::postgres::PostgresSource;
use crate::redis::RedisAddress;

/// How long a name server may take.
const RESOLVE_MAX: Duration = Duration::from_secs(5);

/// Where Debian's and coturn's own packages keep the database, in the order in which it is looked for.
pub const USUAL_FILES: [&str; 3] = [
    "/var/db/turndb",
    "/usr/local/var/db/turndb",
    "/var/lib/turn/turndb",
];

/// Names a database with everything that it takes to connect to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file (`userdb`).
    Sqlite(PathBuf),
    /// A Redis or Valkey server (`redis-userdb`).
    Redis(RedisAddress),
    /// A PostgreSQL server (`psql-userdb`).
    Postgres(PostgresSource),
    /// A MySQL or MariaDB server (`mysql-userdb`).
    Mysql(MysqlSource),
    /// A MongoDB server (`mongo-userdb`).
    Mongo(MongoSource),
}

impl Source {
    /// Returns the name of the kind of database, as coturn writes it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "SQLite",
            Self::Redis(_) => "Redis",
            Self::Postgres(_) => "PostgreSQL",
            Self::Mysql(_) => "MySQL",
            Self::Mongo(_) => "MongoDB",
        }
    }

    /// Returns whether it is a file, which is there or not and never hangs.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Returns the names or addresses of the hosts on which the database runs, without those that are reached in another way than by a network.
    #[must_use]
    pub fn hosts(&self) -> Vec<String> {
        match self {
            Self::Sqlite(_) => Vec::new(),
            Self::Redis(address) => vec![address.host().to_owned()],
            Self::Postgres(source) => source.hosts(),
            Self::Mysql(source) => source.hosts(),
            Self::Mongo(source) => source.hosts(),
        }
    }

    /// Returns [`Self::hosts`], and those that a name server names where that is left to it.
    async fn all_hosts(&self) -> Vec<String> {
        #[cfg(feature = "mongo")]
        if let Self::Mongo(source) = self {
            return crate::mongo::hosts(source).await;
        }
        self.hosts()
    }

    /// Returns the addresses of [`Self::all_hosts`]. Names that nobody answers for have none.
    pub(crate) async fn addresses(&self) -> Vec<IpAddr> {
        let mut addresses = Vec::new();
        for host in self.all_hosts().await {
            let found =
                tokio::time::timeout(RESOLVE_MAX, tokio::net::lookup_host((host.as_str(), 0)))
                    .await;
            if let Ok(Ok(found)) = found {
                addresses.extend(found.map(|address| address.ip()));
            }
        }
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

impl fmt::Display for Source {
    /// Names the database without its secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => path.display().fmt(f),
            Self::Redis(address) => write!(f, "redis {address}"),
            Self::Postgres(source) => source.fmt(f),
            Self::Mysql(source) => source.fmt(f),
            Self::Mongo(source) => source.fmt(f),
        }
    }
}
