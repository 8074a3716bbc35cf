//! The operator's rules, which change while clients are served: who is known, which peers the users of each realm may reach, whether allocations are
//! made. What is forbidden is over at once, in user space and in the kernel.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use turnbuckle_engine::{Action, AddressRange, PolicyRules, Rule};

use super::super::client::{Client, Terms, User};
use super::super::pass::Pass;
use super::super::payload::{Payload, Sender};
use super::guest::Guest;
use super::places::{BOUNDED_REALM, OTHER_REALM, PEER_PORT, TURN_USERS, USERS, peer_at};
use crate::message::REALM;
use crate::plan;
use crate::random::Seeded;
use crate::violation::{Violation, ensure};

/// The rules of one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    /// Peers that must not be reached: the realm, and the peer's number.
    refused: BTreeSet<(&'static str, usize)>,
    /// What holds for clients of each user.
    terms: [Terms; USERS.len()],
    /// When which peers are refused was changed last.
    changed: u64,
    /// Which key tokens are sealed with, and since when.
    key: u64,
    key_since: u64,
}

impl Rules {
    /// Returns what holds for clients of a user.
    pub(super) fn terms(&self, user: usize) -> Terms {
        self.terms[user]
    }

    /// Returns which key tokens are sealed with.
    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Returns what holds for a client of a user who shows this, if it is no password.
    pub(super) fn terms_with(&self, user: usize, pass: Option<&Pass>) -> Terms {
        let mut terms = self.terms[user];
        if let Some(pass) = pass
            && pass.key != Some(self.key)
        {
            let since = pass.key.map_or(0, |_| self.key_since);
            terms.unknown_since = Some(terms.unknown_since.unwrap_or(since).min(since));
        }
        terms
    }

    /// Returns the users that are known.
    pub(super) fn known(&self) -> impl Iterator<Item = (usize, User)> {
        let all = USERS.into_iter().enumerate();
        all.filter(|(user, _)| self.terms[*user].unknown_since.is_none())
    }

    /// Returns which peers the users of a realm may reach.
    pub(super) fn of_peers(&self, realm: &str) -> PolicyRules {
        let refused = self.refused.iter().filter(|(of, _)| *of == realm);
        let rules = refused.map(|(_, number)| {
            let ip = peer_at(*number, 0).ip();
            Rule {
                action: Action::Deny,
                range: AddressRange::new(ip, ip).expect("one address is a range"),
            }
        });
        PolicyRules {
            rules: rules.collect(),
            ..PolicyRules::default()
        }
    }

    /// Draws which peers are refused and who is known from `now` on.
    pub(super) fn change(&mut self, now: u64, peers: usize, random: &mut Seeded) {
        self.refused.clear();
        self.changed = now;
        for realm in [REALM, OTHER_REALM] {
            for number in (0..peers).filter(|_| random.one_in(5)) {
                self.refused.insert((realm, number));
                if realm == REALM {
                    self.refused.insert((BOUNDED_REALM, number));
                }
            }
        }
        if random.one_in(3) {
            (self.key, self.key_since) = (self.key + 1, now);
        }
        let unknown = random.one_in(3).then(|| random.index(TURN_USERS));
        for (user, terms) in self.terms.iter_mut().enumerate() {
            // Whoever is no client of TURN is unknown together with one that is.
            if Some(user % TURN_USERS) == unknown {
                terms.unknown_since.get_or_insert(now);
            } else if terms.unknown_since.take().is_some() {
                terms.known_since = now;
            }
        }
    }

    /// Sets since when no allocations are made.
    pub(super) fn drain(&mut self, since: Option<u64>) {
        for terms in &mut self.terms {
            terms.draining_since = since.map(|since| terms.draining_since.unwrap_or(since));
        }
    }

    /// Has clients know what holds for them.
    pub(super) fn tell(&self, clients: &mut [Client], guests: &mut [Guest]) {
        for guest in guests {
            guest.terms = self.terms(user_of(guest.owner));
        }
        for client in clients {
            let user = user_of(client.owner);
            let terms = self.terms_with(user, client.special.pass.as_ref());
            client.take_terms(terms);
            client.give_up(|peer| self.refuses(USERS[user].realm, peer));
        }
    }

    /// Checks that what leaves a shard or the kernel neither goes to a peer that is refused, nor comes from one.
    pub(super) fn allow(&self, relayed: &Datagram) -> Result<(), Violation> {
        let realm = USERS[user_of(relayed.owner)].realm;
        ensure(!self.refuses(realm, relayed.peer), "policy", || {
            format!("{relayed:?}, although {realm} must not reach that peer")
        })
    }

    /// Returns whether a peer has been refused to the users of a realm all the time since then.
    pub(super) fn has_refused(&self, realm: &'static str, peer: SocketAddr, since: u64) -> bool {
        self.changed < since && self.refuses(realm, peer)
    }

    /// Returns whether a peer may have been refused to them at some time since then.
    pub(super) fn may_have_refused(
        &self,
        realm: &'static str,
        peer: SocketAddr,
        since: u64,
    ) -> bool {
        self.changed >= since || self.refuses(realm, peer)
    }

    fn refuses(&self, realm: &'static str, peer: SocketAddr) -> bool {
        match plan::place(peer) {
            plan::Place::Peer(number) => self.refused.contains(&(realm, number)),
            _ => false,
        }
    }
}

/// A datagram that leaves a shard or the kernel with data in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    /// The client whose data it is.
    pub(super) owner: u32,
    pub(super) peer: SocketAddr,
    /// The relayed address.
    pub(super) by: SocketAddr,
}

impl Datagram {
    /// Reads a datagram, whichever way it goes; `None` if that is not to be said, or not to be judged at this moment.
    pub(super) fn of(
        clients: &[Client],
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Option<Self> {
        let payload = Payload::relayed(bytes)?;
        match (plan::place(to), payload.sender) {
            (plan::Place::Peer(_), Sender::Client(owner)) => Some(Self {
                owner,
                peer: to,
                by: from,
            }),
            (plan::Place::Client(number) | plan::Place::Proxy(number), Sender::Peer(peer)) => {
                let client = clients.get(number).filter(|it| it.hears_at() == to)?;
                // What a client's home has let pass may have been on its way between two shards.
                (!client.special.has_moved).then_some(Self {
                    owner: client.owner,
                    peer: peer_at(peer, PEER_PORT),
                    by: payload.to,
                })
            }
            _ => None,
        }
    }
}

/// Returns the name of a client: the number of its address, and its user.
pub(super) fn owner(address: u16, user: usize) -> u32 {
    u32::from(address) << 4 | u32::try_from(user).unwrap_or(0)
}

fn user_of(owner: u32) -> usize {
    (owner & 15) as usize
}
