//! Datagrams: received into slots, sent as trains.

pub(crate) mod backend;
pub(crate) mod calls;
pub(crate) mod flush;
pub(crate) mod grown;
pub(crate) mod pack;
pub(crate) mod receive;
pub(crate) mod undelivered;
