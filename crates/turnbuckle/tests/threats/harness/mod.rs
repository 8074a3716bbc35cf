//! What every test needs: the running binary, a place of its own in the address space, a client, peers, canaries.

mod call;
mod canary;
mod client;
mod crowd;
mod dtls;
mod icmp;
mod message;
mod names;
mod namespace;
mod quic;
mod server;
mod site;
mod stream;
mod tap;
mod tls;

pub(crate) use call::{Call, Holders, TICK, tick};
pub(crate) use canary::Canary;
pub(crate) use client::{Client, Inbound, Mechanism, channel, peer_receives, peer_socket, relayed};
pub(crate) use crowd::{Crowd, message};
pub(crate) use dtls::{Dtls, DtlsLink, read_message_or_end};
pub(crate) use icmp::{ABOUT_TCP, ABOUT_UDP, forge_icmp, forge_icmp_about};
pub(crate) use message::{Answer, replace_fingerprint, xor_address};
pub(crate) use names::{NameServer, Record, always, first_then};
pub(crate) use namespace::{Namespace, World};
pub(crate) use quic::QuicLink;
pub(crate) use server::{Accounting, OTHER_USER, PASSWORD, REALM, Server, USER};
pub(crate) use site::Site;
pub(crate) use stream::{StreamLink, connect, connect_from};
pub(crate) use tap::{Tap, send_marked};
pub(crate) use tls::{Authority, Key, Tls};
pub(crate) use turnbuckle_client::blocking::{append as append_raw, plain};
