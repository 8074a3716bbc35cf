//! The operator's configuration, in the engine's own terms. The code that reads the configuration file validates it.

mod answers;
mod limits;
mod relays;

use std::collections::BTreeMap;

pub use self::answers::{AnswerConfig, BindingConfig, Fingerprint, Service};
pub use self::limits::{Bandwidth, Lifetimes, Limits, RealmLimits};
pub use self::relays::{DefaultFamily, RelayAddress, RelayConfig, SharedRelays, TcpRelays};
use crate::auth::AuthConfig;
use crate::id::RelayProtocol;
use crate::policy::PolicyRules;
use crate::redirect::alternates::Redirection;
use crate::ticket::TicketKey;
use crate::unverified::UnverifiedLimits;

/// Everything the engine has to know before the first datagram.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Realms, users and secrets, nonces.
    pub auth: AuthConfig,
    /// Which peers clients may reach.
    pub policy: PolicyRules,
    /// Bytes that may go to sources that proved nothing.
    pub unverified: UnverifiedLimits,
    /// Which of STUN and TURN this server offers.
    pub service: Service,
    /// How requests are answered, whatever they ask for.
    pub answers: AnswerConfig,
    /// How Binding requests are answered.
    pub binding: BindingConfig,
    /// Relayed transport addresses.
    pub relays: RelayConfig,
    /// Allocations that outlive their 5-tuple.
    pub mobility: MobilityConfig,
    /// Realms with rules of their own.
    pub realms: RealmConfig,
    /// The lifetimes of allocations, permissions, channels and reservations.
    pub lifetimes: Lifetimes,
    /// Upper bounds.
    pub limits: Limits,
    /// Servers that clients are sent to instead of being served here.
    pub redirection: Redirection,
}

impl Config {
    /// Returns whether data is relayed over `protocol`, whether a client asks by TURN or for a tunnel.
    pub(crate) fn relays_over(&self, protocol: RelayProtocol) -> bool {
        // guard: V-89-switches
        self.service != Service::StunOnly
            && match protocol {
                RelayProtocol::Tcp => self.relays.tcp.is_some(),
                RelayProtocol::Udp => self.relays.udp,
            }
    }
}

/// Allocations that outlive their 5-tuple (RFC 8016).
#[derive(Clone, Debug, Default)]
pub struct MobilityConfig {
    /// The key of mobility tickets (RFC 8016); `None` forbids mobility.
    pub key: Option<TicketKey>,
    /// Whether a Refresh request with a ticket that is good may carry a nonce that was given out on the old 5-tuple, as coturn takes
    /// it. Who captures such a request on its way and is faster than its client can have the client's data sent elsewhere; with a
    /// nonce of the new 5-tuple nobody can.
    pub resume_with_old_nonce: bool,
}

/// The settings of single realms that replace the general ones.
#[derive(Clone, Debug, Default)]
pub struct RealmConfig {
    /// Realms with quotas and a rate of their own, by name.
    pub limits: BTreeMap<Box<str>, RealmLimits>,
    /// Realms with peer rules of their own, by name; [`Config::policy`] is that of all others.
    pub policies: BTreeMap<Box<str>, PolicyRules>,
}
