//! Reading sockets into slots.
