//! The peers: how the other side of a relay is reached. By UDP that is a socket, whose datagrams [`Hub::peer_message`](super::hub::Hub::peer_message)
//! routes ([`udp`]); by TCP (RFC 6062) a socket that listens, and connections ([`tcp`]).

pub(in crate::shard) mod sockets;
pub(in crate::shard) mod tcp;
pub(in crate::shard) mod udp;
