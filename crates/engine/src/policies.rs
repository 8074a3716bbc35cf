//! The peer policies of an engine: the one that most realms have, those of the others, and how far what is there has been judged by them.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use crate::address::PeerAddress;
use crate::config::{Config, RelayAddress, SharedRelays};
use crate::credential::User;
use crate::id::AllocationId;
use crate::policy::{InterfaceAddress, OwnAddresses, OwnRelay, Policy};

/// Which peers the users of each realm may reach.
pub(crate) struct Policies {
    /// The rules of realms without their own.
    pub(crate) usual: Policy,
    by_realm: BTreeMap<Box<str>, Policy>,
    own: OwnAddresses,
    /// The shared relay sockets of all engines, among the services.
    shared: Vec<SocketAddr>,
    /// The first slot of the table whose permissions and channels have not yet been checked against the current policies.
    pub(crate) unjudged_from: Option<u32>,
}

impl Policies {
    /// Makes the policies of `config`, for a server without listeners.
    pub(crate) fn new(config: &Config) -> Self {
        let shared = config.relays.shared.iter();
        // guard: V-07-shared.start
        let shared: Vec<_> = shared.flat_map(SharedRelays::all).collect();
        let own = OwnAddresses {
            services: shared.clone(),
            interfaces: Vec::new(),
            relays: config.relays.all().map(own_relay).collect(),
            relay_ports: config.relays.ports.clone(),
        };
        let mut policies = Self {
            usual: Policy::new(config.policy.clone()),
            by_realm: by_realm(config),
            own,
            shared,
            unjudged_from: None,
        };
        policies.tell_own_addresses();
        policies
    }

    /// Returns the peer policy that applies to a user.
    pub(crate) fn of(&self, user: &User) -> &Policy {
        let own = self.by_realm.get(&user.realm);
        // mutant: shards-forget-rules-of-realms
        own.unwrap_or(&self.usual)
    }

    /// Returns whether the policy forbids `peer` to an allocation of `user` whose permissions and channels have not yet been
    /// checked against it.
    #[inline]
    pub(crate) fn forbids_by_now(&self, id: AllocationId, user: &User, peer: PeerAddress) -> bool {
        // guard: V-07-judged-on-use
        self.unjudged_from.is_some_and(|from| from <= id.index) && self.forbids(user, peer)
    }

    #[cold]
    fn forbids(&self, user: &User, peer: PeerAddress) -> bool {
        self.of(user).check(peer.address()).is_err()
    }

    /// Knows `relays` as addresses of relay sockets too.
    pub(crate) fn add_relays(&mut self, relays: &[RelayAddress]) {
        for relay in relays {
            let own = own_relay(relay);
            if !self.own.relays.contains(&own) {
                self.own.relays.push(own);
            }
        }
        self.tell_own_addresses();
    }

    /// Knows one more address of this server.
    pub(crate) fn add_service(&mut self, local: SocketAddr) {
        self.own.services.push(local);
        self.tell_own_addresses();
    }

    /// Replaces the host's addresses, except those of relay sockets.
    pub(crate) fn set_own(
        &mut self,
        interfaces: Vec<InterfaceAddress>,
        mut services: Vec<SocketAddr>,
    ) {
        // guard: V-07-shared.interfaces
        services.extend(&self.shared);
        self.own.interfaces = interfaces;
        self.own.services = services;
        self.tell_own_addresses();
    }

    /// Takes over the rules of `config`. Returns whether any are other than before.
    pub(crate) fn reconfigure(&mut self, config: &Config) -> bool {
        let own = self.by_realm.iter();
        let is_same = *self.usual.rules() == config.policy
            && own
                .map(|(realm, policy)| (realm, policy.rules()))
                .eq(config.realms.policies.iter());
        if !is_same {
            self.usual = Policy::new(config.policy.clone());
            self.by_realm = by_realm(config);
            self.tell_own_addresses();
        }
        !is_same
    }

    fn tell_own_addresses(&mut self) {
        for policy in self.by_realm.values_mut().chain([&mut self.usual]) {
            policy.set_own_addresses(&self.own);
        }
    }
}

fn own_relay(relay: &RelayAddress) -> OwnRelay {
    OwnRelay {
        local: relay.local,
        external: relay.external,
    }
}

fn by_realm(config: &Config) -> BTreeMap<Box<str>, Policy> {
    let policies = config.realms.policies.iter();
    policies
        .map(|(realm, rules)| (realm.clone(), Policy::new(rules.clone())))
        .collect()
}
