//! The rules of TURN, without sockets, threads or clocks.
//!
//! An [`Engine`] is told what arrived and what time it is, and says where data goes ([`Engine::route_channel_data`],
//! [`Engine::route_from_peer`]) and what else is to be done ([`Engine::with_commands`]). One engine belongs to one thread;
//! what the engines of a server share is in [`Commons`].
//!
//! The invariant of the whole crate: before a request has proved who sent it, nothing is allocated and nothing is remembered.
//!
//! Read `engine.rs` for the entry points and the dispatch, then one file per method of RFC 8656.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod address;
mod allocate;
mod allocation;
mod auth;
mod bandwidth;
mod binding;
mod change;
mod channel;
mod classic;
mod command;
mod commons;
mod config;
mod credential;
mod discovery;
mod drop_reason;
mod ending;
mod engine;
mod icmp;
mod id;
mod mobility;
mod nonce;
mod outbox;
mod permission;
mod policy;
mod ports;
mod quota;
mod random;
mod rebuild;
mod redirect;
mod refresh;
mod reject;
mod reply;
mod reservation;
mod send;
mod table;
mod tcp;
mod ticket;
mod time;
mod timers;
mod tombstone;
mod unverified;

pub use crate::address::{Embedding, Nat64Prefix, ParseNat64PrefixError, PeerAddress};
pub use crate::auth::{
    AuthConfig, Authenticator, CanonicalOrigin, Challenge, ExpiryCheck, PasswordAlgorithmChoice,
    Proof, Realm, Rejection, ThirdParties, TokenCipher,
};
pub use crate::bandwidth::Bandwidth;
pub use crate::change::{
    Change, Created, EndCause, Ended, Moved, Path, Relayed, Reserved, Resumed, Traffic, Usage,
};
pub use crate::command::{
    ClientRoute, Command, Framing, IcmpError, Outcome, PeerRoute, RelayOpenError, SendRoute,
};
pub use crate::commons::Commons;
pub use crate::config::{
    Config, DefaultFamily, Fingerprint, Lifetimes, Limits, RealmLimits, RelayAddress, Service,
    TcpRelays,
};
pub use crate::credential::{CredentialError, User};
pub use crate::discovery::{Alternates, Discovery};
pub use crate::drop_reason::DropReason;
pub use crate::engine::{Engine, Statistics};
pub use crate::id::{
    AllocationId, ClientTuple, Connection, ConnectionId, Endpoint, Family, RelayHandle,
    RelayProtocol, RelayRequest, Transport,
};
pub use crate::nonce::{Nonce, NonceKey, NonceLifetime};
pub use crate::policy::{
    Action, AddressRange, AllowedPeer, Explanation, Forbidden, InterfaceAddress, OwnAddresses,
    OwnRelay, Policy, PolicyRules, RangeError, Rule,
};
pub use crate::ports::PortCounts;
pub use crate::random::{BufferedRandom, RANDOM_BUFFER_LEN, Random};
pub use crate::redirect::{Alternate, Redirection};
pub use crate::reservation::ReservationToken;
pub use crate::tcp::{Handover, PeerEnd, Way};
pub use crate::ticket::TicketKey;
pub use crate::time::{Now, Time};
pub use crate::timers::Wheel;
pub use crate::unverified::{Rate, UnverifiedBudget, UnverifiedLimits};
pub use turnbuckle_wire::{ChannelNumber, TransactionId};
