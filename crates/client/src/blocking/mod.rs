//! A client that waits for each response, and sends what its caller asks for, valid or not.
//!
//! [`Session`] is a client with credentials; a [`Link`] carries its messages, by any transport. Its parts send what no correct client sends:
//! raw bytes, connections that stay silent or send slowly ([`tcp`], [`tcp_from`]), a ClientHello without the rest ([`Contexts::client_hello`],
//! [`dtls::DtlsSession::send_client_hello`]), PROXY protocol headers in front of datagrams.

pub mod dtls;

mod http3;
mod link;
mod message;
mod received;
mod session;
mod stream;
mod target;
mod tls;
mod tunnel;

pub use http3::Http3;
pub use link::{Datagrams, Link, dtls_from, udp};
pub use message::{Answer, append, code, plain};
pub use received::Received;
pub use session::{Retransmission, Session};
pub use stream::{Carrier, Stream, tcp, tcp_from};
pub use target::{Observed, Target};
pub use tls::Contexts;
pub use tunnel::{Tunnel, TunnelAnswer};
