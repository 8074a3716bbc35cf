//! MongoDB, with coturn's collections.
//!
//! A replica set tells of changes by a change stream: users whom it names are read again, and all of them where one is gone. Any other server is
//! asked each second how many documents there are, and everything is read and compared each half minute.
//!
//! The driver is there with the feature `mongo` alone; connection strings are read without it too.

#[cfg(feature = "mongo")]
mod connect;
#[cfg(feature = "mongo")]
mod documents;
#[cfg(feature = "mongo")]
mod driver;
#[cfg(feature = "mongo")]
mod events;
mod words;

#[cfg(feature = "mongo")]
pub(crate) use self::connect::hosts;
#[cfg(feature = "mongo")]
pub use self::driver::Mongo;
pub use self::words::MongoSource;
#[cfg(not(feature = "mongo"))]
pub(crate) use self::words::WITHOUT;
