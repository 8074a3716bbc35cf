//! Sockets: opening and closing them, their state, and the event queues that report when they are ready.

pub(crate) mod budget;
pub(crate) mod device;
pub(crate) mod epolls;
pub(crate) mod kept;
pub(crate) mod opening;
pub(crate) mod socket;
pub(crate) mod table;
pub(crate) mod waker;
