//! The Redis server that is told what happens to sessions (coturn inventory §1.9, §3.4).

use turnbuckle_users::RedisAddress;

use crate::entry::Group;
use crate::row::{Row, Setting, Topic, each};
use crate::value::Kind;

/// Whom the server tells what happens to sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatsDatabase {
    /// Where it is; `None` if nobody is told.
    pub redis: Option<RedisAddress>,
}

impl Topic for StatsDatabase {
    type Settings = Self;
}

type Key = Row<StatsDatabase>;

pub(crate) const ROWS: &[Key] = &[Key::new(
    "O-156",
    "redis-statsdb",
    Group::Databases,
    Kind::Text(1024),
    "Redis or Valkey server that has the status of each session under coturn's keys, and is told \
     of its beginning, its refreshes, its traffic and its end. The words are those of \
     redis-userdb.",
)
.short('O')
.secret()
.stricter(
    "as for redis-userdb; a status that was left is deleted only if its local address is one of \
     this server's, where coturn deletes those of all servers; all are deleted when the server \
     stops, and mended when Redis comes back; DEL has the key alone",
)
.example("ip=127.0.0.1 dbname=3 password=turn connect_timeout=30")
.live()
.works(Setting {
    take: |statsdb, written| {
        let address = RedisAddress::parse(written.value.text());
        statsdb.redis = Some(address.map_err(|error| error.to_string())?);
        Ok(())
    },
    show: |statsdb| each(&statsdb.redis),
})];
