//! Clients that come by TCP: where their messages end, and how long they may take.

mod connections;
mod frame;

pub(crate) use connections::{Connections, StreamLimits};
pub(crate) use frame::{Frame, STRANGER_LEN_MAX};
