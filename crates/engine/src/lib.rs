//! The rules of TURN, without sockets, threads or clocks.
//!
//! The host passes to an [`Engine`] what arrived and what time it is. The engine answers where data goes
//! ([`Engine::route_channel_data`], [`Engine::route_from_peer`]) and what else is to be done ([`Engine::with_commands`]). One
//! engine belongs to one thread; what the engines of a server share is in [`Commons`].
//!
//! The invariant of the whole crate: before a request has been authenticated, the engine allocates nothing and stores nothing for
//! it.
//!
//! Read `engine.rs` for the entry points and the dispatch, then one file per method of RFC 8656. The state that a topic has in an
//! allocation is in `allocation/`.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod account;
mod address;
mod allocate;
mod allocation;
mod allocations;
mod auth;
mod bandwidth;
mod belongings;
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
mod held;
mod icmp;
mod id;
mod judging;
mod listeners;
mod mobility;
mod nonce;
mod opening;
mod out;
mod outbox;
mod peer_index;
mod permission;
mod policies;
mod policy;
mod ports;
mod proof;
mod quota;
mod random;
mod redirect;
mod refresh;
mod refusal;
mod reject;
mod reply;
mod request;
mod reservation;
mod resume;
mod rules;
mod send;
mod served;
mod session;
mod shared;
mod table;
mod tcp;
mod ticket;
mod time;
mod timers;
mod tombstone;
mod tunnel;
mod tunnel_end;
mod unverified;

pub use crate::address::{Embedding, Nat64Prefix, ParseNat64PrefixError, PeerAddress};
pub use crate::auth::{
    Asks, AuthConfig, Authenticator, CanonicalOrigin, Challenge, CredentialExpiry, Dialect,
    PasswordAlgorithmChoice, Proof, Realm, Rejection, ThirdParties, TokenCipher, UsersAdded,
    WrongPassword,
};
pub use crate::bandwidth::{Direction, Meters};
pub use crate::belongings::Belongings;
pub use crate::change::{
    Brought, Change, Created, EndCause, Ended, Moved, Path, Relayed, Reserved, Resumed, Traffic,
    Unasked, Usage,
};
pub use crate::command::{
    ClientRoute, Command, Flow, Framing, IcmpError, Outcome, PeerRoute, Question, SendRoute,
    TunnelTarget,
};
pub use crate::commons::Commons;
pub use crate::config::{
    AnswerConfig, Bandwidth, BindingConfig, Config, DefaultFamily, Fingerprint, Lifetimes, Limits,
    MobilityConfig, RealmConfig, RealmLimits, RelayAddress, RelayConfig, Service, SharedRelays,
    TcpRelays,
};
pub use crate::credential::{CredentialError, User, UserRecord};
pub use crate::discovery::{Alternates, Discovery};
pub use crate::drop_reason::DropReason;
pub use crate::engine::{Engine, Statistics};
pub use crate::held::{HeldPort, Opened};
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
pub use crate::redirect::alternates::{Alternate, Redirection};
pub use crate::refusal::{Limit, Refusal, RelayOpenError};
pub use crate::reservation::ReservationToken;
pub use crate::session::Session;
pub use crate::tcp::Way;
pub use crate::tcp::handover::Handover;
pub use crate::tcp::peer_end::PeerEnd;
pub use crate::ticket::TicketKey;
pub use crate::time::{Now, Time};
pub use crate::timers::Wheel;
pub use crate::tunnel::{TunnelRefusal, TunnelSession};
pub use crate::tunnel_end::TunnelEnd;
pub use crate::unverified::{Rate, UnverifiedBudget, UnverifiedLimits};
pub use turnbuckle_wire::{ChannelNumber, TransactionId};
