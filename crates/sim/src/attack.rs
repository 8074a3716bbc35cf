//! Attackers: off the path with forged sources, on the path with captured datagrams, and insiders
//! with an account.

use std::collections::VecDeque;
use std::net::SocketAddr;

use turnbuckle_wire::{AttributeType, Message, Method, TransactionId};

use crate::check::Datagram;
use crate::client::{Client, Signalling};
use crate::features::{Feature, Features};
use crate::link::corrupt;
use crate::message::{Attribute, Credentials, Draft, REALM, channel_data};
use crate::model::Tuple;
use crate::plan;
use crate::queue::{MS, SECOND};
use crate::random::Seeded;
use crate::scenario::Scenario;

/// What attackers on the path have seen of clients.
#[derive(Debug, Default)]
pub struct Captured {
    latest: VecDeque<(Tuple, Vec<u8>)>,
    /// Proven requests that make, move or end an allocation: the ones worth playing back (V-22).
    requests: VecDeque<(Tuple, Vec<u8>)>,
}

impl Captured {
    /// Datagrams of each kind that are remembered.
    const COUNT_MAX: usize = 48;

    /// Remembers a datagram; forgets the oldest one when there are too many.
    pub fn note(&mut self, tuple: Tuple, bytes: &[u8]) {
        let acts = Message::parse(bytes).is_ok_and(|message| {
            let ends = message.method() == Method::REFRESH && message.lifetime() == Ok(Some(0));
            let moves = message.method() == Method::REFRESH && message.mobility_ticket().is_some();
            let proven = message.has_integrity_sha1() || message.has_integrity_sha256();
            proven && (ends || moves || message.method() == Method::ALLOCATE)
        });
        let ring = if acts {
            &mut self.requests
        } else {
            &mut self.latest
        };
        if ring.len() == Self::COUNT_MAX {
            ring.pop_front();
        }
        ring.push_back((tuple, bytes.to_vec()));
    }

    /// Yields every request that was worth playing back, for when the server may have forgotten it.
    pub fn requests(&self) -> impl Iterator<Item = Datagram> {
        let requests = self.requests.iter();
        requests.map(|(tuple, bytes)| datagram(tuple.client, tuple.server, bytes.clone()))
    }

    fn choose(&self, random: &mut Seeded) -> Option<&(Tuple, Vec<u8>)> {
        let acts = random.one_in(2);
        let ring = if acts { &self.requests } else { &self.latest };
        ring.get(random.index(ring.len()))
    }
}

/// Everybody with bad intentions.
#[derive(Debug)]
pub struct Attackers {
    features: Features,
    random: Seeded,
    /// The insider's account.
    account: (String, String),
}

impl Attackers {
    /// Makes the attackers of a scenario.
    #[must_use]
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            features: scenario.features,
            random: scenario.random("attackers"),
            account: scenario.user(2),
        }
    }

    /// Draws how long they rest.
    pub fn pause(&mut self) -> u64 {
        match self.random.below(4) {
            0 => MS,
            1 => self.random.between(10, 900) * MS,
            2 => self.random.between(1, 20) * SECOND,
            _ => self.random.between(20, 300) * SECOND,
        }
    }

    /// Attacks once, with one of the means that the run allows.
    pub fn act(
        &mut self,
        clients: &[Client],
        captured: &Captured,
        signalling: &Signalling,
    ) -> Vec<Datagram> {
        const MEANS: [Feature; 7] = [
            Feature::BadCredentials,
            Feature::ForgedPeers,
            Feature::Hijack,
            Feature::Junk,
            Feature::Mutation,
            Feature::Replay,
            Feature::SpoofedRequests,
        ];
        let means = MEANS[self.random.index(MEANS.len())];
        if !self.features.has(means) {
            return Vec::new();
        }
        let victim = self.random.choose(clients).map(|client| Tuple {
            server: client.listener,
            client: client.address,
        });
        let seen = captured.choose(&mut self.random);
        match (means, victim, seen) {
            (Feature::SpoofedRequests, Some(victim), _) => self.spoof(victim),
            (Feature::BadCredentials, Some(victim), seen) => self.guess(victim, seen),
            (Feature::Replay, _, Some((tuple, bytes))) => {
                let from = if self.random.one_in(3) {
                    self.somewhere(tuple.client.is_ipv6())
                } else {
                    tuple.client
                };
                vec![datagram(from, tuple.server, bytes.clone())]
            }
            (Feature::Mutation, _, Some((tuple, bytes))) => {
                let mut bytes = bytes.clone();
                corrupt(&mut self.random, &mut bytes);
                vec![datagram(tuple.client, tuple.server, bytes)]
            }
            (Feature::Junk, Some(victim), _) => {
                let len = self.random.index(200);
                let mut bytes = self.random.bytes(len);
                if let Some(first) = bytes.first_mut() {
                    *first = [*first, *first & 3, *first & 0x0F | 0x40][self.random.index(3)];
                }
                let to = match self.random.choose(&signalling.relayed) {
                    Some(relayed) if self.random.one_in(2) => *relayed,
                    _ => victim.server,
                };
                vec![datagram(self.somewhere(to.is_ipv6()), to, bytes)]
            }
            (Feature::Hijack, Some(victim), Some(seen)) => self.hijack(victim, seen),
            (Feature::ForgedPeers, ..) => {
                let Some(relayed) = self.random.choose(&signalling.relayed).copied() else {
                    return Vec::new();
                };
                let len = self.random.index(64);
                let bytes = self.random.bytes(len);
                vec![datagram(self.somewhere(relayed.is_ipv6()), relayed, bytes)]
            }
            _ => Vec::new(),
        }
    }

    /// Returns requests without credentials, in bursts, from one forged source: a victim of reflection.
    fn spoof(&mut self, victim: Tuple) -> Vec<Datagram> {
        let from = if self.random.one_in(3) {
            victim.client
        } else {
            self.somewhere(victim.client.is_ipv6())
        };
        let burst = [1, 1, 1, 8, 150][self.random.index(5)];
        (0..burst)
            .map(|_| {
                let methods = [Method::ALLOCATE, Method::REFRESH, Method::BINDING];
                let mut draft = Draft::request(methods[self.random.index(3)]);
                if self.random.one_in(2) {
                    draft = draft.with(Attribute::Transport(17));
                }
                if self.random.one_in(8) {
                    draft = draft.with(Attribute::Raw(0x7777, vec![1, 2, 3]));
                }
                datagram(from, victim.server, draft.write(self.id(), None))
            })
            .collect()
    }

    /// Returns a request whose proof fails in one of the ways it can.
    fn guess(&mut self, victim: Tuple, seen: Option<&(Tuple, Vec<u8>)>) -> Vec<Datagram> {
        let nonce = match seen.and_then(|(_, bytes)| nonce_of(bytes)) {
            Some(nonce) if self.random.one_in(2) => nonce,
            _ => self.random.bytes(40),
        };
        let mut credentials = Credentials {
            user: self.account.0.clone(),
            password: self.account.1.clone(),
            realm: REALM.to_owned(),
            nonce,
            algorithms: None,
            anonymous: false,
            mac_key: None,
        };
        match self.random.below(5) {
            0 => credentials.user = "nobody".to_owned(),
            1 => credentials.password = "guess".to_owned(),
            2 => credentials.realm = "elsewhere.test".to_owned(),
            3 => credentials.algorithms = Some(vec![0, 1, 0, 0]),
            _ => {} // the insider with a nonce that was not given to this address
        }
        let from = if self.random.one_in(2) {
            victim.client
        } else {
            self.somewhere(victim.client.is_ipv6())
        };
        let draft = Draft::request(Method::ALLOCATE).with(Attribute::Transport(17));
        vec![datagram(
            from,
            victim.server,
            draft.write(self.id(), Some(&credentials)),
        )]
    }

    /// Returns what an insider on the path sends in the name of a client's 5-tuple (V-28), or somebody without an allocation who tries that of another (V-29).
    fn hijack(&mut self, victim: Tuple, seen: &(Tuple, Vec<u8>)) -> Vec<Datagram> {
        let peer = plan::peer(3, false, 4000);
        let number = 0x4000 + self.random.between_u16(0, 5);
        let stranger = self.somewhere(victim.client.is_ipv6());
        if self.random.one_in(4) {
            return vec![datagram(
                stranger,
                victim.server,
                channel_data(number, b"mine"),
            )];
        }
        if self.random.one_in(4) {
            let send = Draft::send(peer, b"mine").write(self.id(), None);
            return vec![datagram(stranger, victim.server, send)];
        }
        let (tuple, bytes) = seen;
        let Some(nonce) = nonce_of(bytes) else {
            return Vec::new();
        };
        let credentials = Credentials {
            user: self.account.0.clone(),
            password: self.account.1.clone(),
            realm: REALM.to_owned(),
            nonce,
            algorithms: None,
            anonymous: false,
            mac_key: None,
        };
        let stolen = Message::parse(bytes).ok();
        let stolen = stolen.and_then(|message| message.mobility_ticket().map(<[u8]>::to_vec));
        let draft = match self.random.below(5) {
            4 => {
                Draft::request(Method::REFRESH).with(Attribute::Ticket(stolen.unwrap_or_default()))
            } // V-30
            0 => Draft::request(Method::REFRESH).with(Attribute::Lifetime(0)),
            1 => Draft::request(Method::CREATE_PERMISSION).with(Attribute::Peer(peer)),
            2 => Draft::request(Method::CHANNEL_BIND)
                .with(Attribute::Channel(number))
                .with(Attribute::Peer(peer)),
            _ => Draft::request(Method::ALLOCATE).with(Attribute::Transport(17)),
        };
        vec![datagram(
            tuple.client,
            tuple.server,
            draft.write(self.id(), Some(&credentials)),
        )]
    }

    /// Draws an address of the attackers' own, now and then one that cannot be a client's.
    fn somewhere(&mut self, v6: bool) -> SocketAddr {
        let port = self.random.between_u16(1, 65_535);
        match self.random.below(40) {
            0 => plan::stranger(0, v6, 0),
            1 if !v6 => SocketAddr::from(([224, 0, 0, 9], port)),
            _ => plan::stranger(self.random.index(3), v6, port),
        }
    }

    fn id(&mut self) -> TransactionId {
        let mut id = [0; 12];
        self.random.fill_bytes(&mut id);
        TransactionId::new(id)
    }
}

fn datagram(from: SocketAddr, to: SocketAddr, bytes: Vec<u8>) -> Datagram {
    Datagram { from, to, bytes }
}

/// Returns the nonce in a captured message.
fn nonce_of(bytes: &[u8]) -> Option<Vec<u8>> {
    let message = Message::parse(bytes).ok()?;
    message.raw(AttributeType::NONCE).map(<[u8]>::to_vec)
}
