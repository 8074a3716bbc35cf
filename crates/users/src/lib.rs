//! User databases as coturn keeps them: their rows in neutral form, and for each database a driver.
//!
//! A driver has the three verbs of [`Database`]: *follow* says what has changed since it was asked last, *ask* is one query about one user, and
//! *change* is what `turnadmin` writes. [`Driver`] names them; a new database is a file that implements it, a [`Source`] and an arm in [`Database`].
//!
//! Nothing here knows STUN, the engine or HTTP. Rows are handed over as they stand: who uses them judges ranges, origins and numbers.
#![forbid(unsafe_code)]

mod asking;
mod change;
mod comparison;
mod connection;
mod database;
mod driver;
mod encrypted;
mod error;
mod follow;
mod mongo;
mod mysql;
mod postgres;
mod realm_users;
mod records;
mod redis;
mod rest;
mod secret;
mod source;
mod sql;
mod sqlite;
mod tls;
mod words;

pub use asking::{CONFIRMED_AFTER, QUESTIONS_MAX, Question, Questions};
pub use change::{Change, Listed, Listing};
pub use connection::Connection;
pub use database::Database;
pub use driver::Driver;
pub use encrypted::{decrypted, encrypted, hashed, hexadecimal, is_hashed, is_password, write_key};
pub use error::DatabaseError;
pub use follow::{Follower, Notice, Read, Silence, Target, Then};
#[cfg(feature = "mongo")]
pub use mongo::Mongo;
pub use mongo::MongoSource;
pub use mysql::{Mysql, MysqlSource};
pub use postgres::{Postgres, PostgresSource};
pub use realm_users::{RealmUsers, UserRows};
pub use records::{
    Answer, Changed, Delta, Names, News, RealmOption, Records, Tables, TokenKeyRow, UserKey, Users,
    Wanted, user_key,
};
pub use redis::{Redis, RedisAddress, RedisAddressError, RedisError, RedisStore, RedisWrite};
pub use secret::{MASK, Secret};
pub use source::{Source, USUAL_FILES};
pub use sqlite::Sqlite;
