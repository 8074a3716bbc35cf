//! What the operator of the simulated shards does, how they are configured, and what the machine's other programs do.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;

use turnbuckle_engine::{
    AuthConfig, Bandwidth, Config, Limits, MobilityConfig, NonceKey, Now, Rate, Realm, RealmConfig,
    RealmLimits, RelayAddress, RelayConfig, SharedRelays, TcpRelays, ThirdParties, TicketKey, Time,
    TokenCipher, UnverifiedLimits,
};
use turnbuckle_server::simulation::{Clock, Server};

use super::super::client::origin;
use super::super::host::Owner;
use super::super::pass::{SERVER_NAME, key_bytes};
use super::places::{BOUNDED_REALM, OTHER_REALM};
use super::rules::Rules;
use super::{
    AHEAD_MAX_S, BEGIN_S, BEGIN_UNIX_S, Event, FIRST_PORT, Phase, STRANGERS, ShardsWorld, Way,
};
use crate::message::REALM;
use crate::plan::{RELAY_V4, RELAY_V6};
use crate::queue::{MS, SECOND};
use crate::violation::Violation;

/// The addresses of relays.
const RELAYS: [IpAddr; 2] = [RELAY_V4, RELAY_V6];
/// The first of the ports that allocations share.
const SHARED_PORT: u16 = 40_000;
/// Peers of an allocation on a shared port.
const PEERS_MAX: u16 = 2;

/// What the operator has in hand.
pub(super) struct Operator {
    pub(super) server: Server,
    pub(super) clock: Clock,
    /// Where the wall clock stands, in seconds from [`AHEAD_MAX_S`] before what it should show.
    pub(super) ahead_s: u64,
    pub(super) relays: Relays,
    /// How many users there are.
    pub(super) users: usize,
    pub(super) rules: Rules,
    pub(super) way: Way,
}

/// Where relayed addresses come from.
pub(super) struct Relays {
    /// How many ports there are.
    pub(super) ports: u16,
    /// Bytes per second of an allocation, if they are bounded.
    pub(super) rate: Option<NonZeroU32>,
    /// How many sessions with tunnels a user may have at a time, if they are bounded.
    pub(super) sessions: Option<u32>,
    /// The shards' relay sockets, by family, each shared by its allocations; none where each allocation has its own.
    pub(super) shared: Vec<[SocketAddr; 2]>,
}

impl Relays {
    /// Returns the addresses of the relay sockets of so many shards.
    pub(super) fn shared_by(shards: usize) -> Vec<[SocketAddr; 2]> {
        let ports = (SHARED_PORT..).take(shards);
        let addresses = ports.map(|port| RELAYS.map(|ip| SocketAddr::new(ip, port)));
        addresses.collect()
    }

    /// Returns the addresses of the relay sockets that the allocations of a shard share.
    pub(super) fn shared_of(&self, shard: usize) -> Vec<SocketAddr> {
        let shared = self.shared.get(shard).copied();
        shared.map(Vec::from).unwrap_or_default()
    }
}

impl Operator {
    /// Has the clocks show a time.
    pub(super) fn show(&self, now: u64) {
        let now = now_at(now);
        self.clock.set(Now {
            unix_s: now.unix_s - AHEAD_MAX_S + self.ahead_s,
            ..now
        });
    }
}

impl ShardsWorld {
    /// Has the operator set the wall clock, change the rules, or allow or forbid further allocations.
    pub(super) fn operate(&mut self) -> Result<(), Violation> {
        if self.phase != Phase::Faults {
            return Ok(());
        }
        match self.random.below(20) {
            0 => self.drain(),
            1..5 => self.undrain(),
            5..8 => {
                self.seen.coverage.count("steps of the clock", 0);
                self.operator.ahead_s = self.random.below(2 * AHEAD_MAX_S);
            }
            _ => self.change_rules()?,
        }
        let delay = self.random.between(100, 1500) * MS;
        self.queue.after(delay, Event::Operator);
        Ok(())
    }

    /// Has the operator change which peers are refused, and who is known. No shard needs a turn to end what is forbidden then.
    fn change_rules(&mut self) -> Result<(), Violation> {
        self.seen.coverage.count("reconfigurations", 0);
        let (now, peers) = (self.queue.now(), self.peers.len());
        self.operator.rules.change(now, peers, &mut self.random);
        let config = config(&self.operator.relays, &self.operator.rules).into();
        for running in &mut self.shards {
            running.shard.reconfigure(&config);
            running.agrees()?;
        }
        self.operator
            .rules
            .tell(&mut self.clients, &mut self.guests.by_stream);
        Ok(())
    }

    /// Has the operator forbid further allocations.
    fn drain(&mut self) {
        self.seen.coverage.count("drains", 0);
        for running in &mut self.shards {
            running.shard.drain();
        }
        self.guests.quic.drained();
        self.operator.rules.drain(Some(self.queue.now()));
        self.operator
            .rules
            .tell(&mut self.clients, &mut self.guests.by_stream);
    }

    /// Has the operator allow allocations again.
    fn undrain(&mut self) {
        for running in &mut self.shards {
            running.shard.undrain();
        }
        self.operator.rules.drain(None);
        self.operator
            .rules
            .tell(&mut self.clients, &mut self.guests.by_stream);
    }

    /// Has another program take a port, or give back what it has.
    pub(super) fn other_program(&mut self) {
        let port = FIRST_PORT + self.random.between_u16(0, 48);
        let relay = RELAYS[self.random.index(RELAYS.len())];
        let address = SocketAddr::new(relay, port);
        self.other_listener(address);
        if self.host.owner(address) == Some(Owner::Other) {
            self.host.give_back(address);
        } else if self.phase == Phase::Faults && self.random.one_in(4) {
            let is_taken = self.host.take(address, Owner::Other).is_ok();
            self.seen
                .coverage
                .count("ports of others", u16::from(is_taken));
        }
        let delay = self.random.between(100, 3000) * MS;
        self.queue.after(delay, Event::OtherProgram);
    }

    /// Has another program take a port for connections, or give it back.
    fn other_listener(&mut self, address: SocketAddr) {
        let mut host = self.host.lock();
        if host.others.remove(&address) {
            return;
        }
        let is_free = !host.relays.contains_key(&address);
        if self.phase == Phase::Faults && is_free && self.random.one_in(4) {
            host.others.insert(address);
            self.seen.coverage.count("ports of others", 2);
        }
    }
}

pub(super) fn now_at(nanos: u64) -> Now {
    Now {
        time: Time::from_nanos(nanos),
        unix_s: BEGIN_UNIX_S + nanos / SECOND - BEGIN_S,
    }
}

pub(super) fn config(relays: &Relays, rules: &Rules) -> Config {
    let mut auth = AuthConfig::new(REALM).expect("the realm is sound");
    let mut other = Realm::new(OTHER_REALM).expect("the realm is sound");
    let mut bounded = Realm::new(BOUNDED_REALM).expect("the realm is sound");
    let mut third_parties = ThirdParties::new(SERVER_NAME).expect("the name is sound");
    for (_, user) in rules.known() {
        let key = key_bytes(rules.key());
        let added = match (user.password, user.realm) {
            (None, _) => third_parties.add_key(user.name, TokenCipher::Aes256Gcm, &key, None, None),
            (Some(password), OTHER_REALM) => other.add_user(user.name, password),
            (Some(password), BOUNDED_REALM) => bounded.add_user(user.name, password),
            (Some(password), _) => auth.add_user(user.name, password),
        };
        added.expect("the user is sound");
    }
    auth.third_parties = Some(third_parties);
    auth.add_realm(other);
    auth.add_realm(bounded);
    auth.add_origin(&origin(OTHER_REALM), OTHER_REALM)
        .expect("the realm is there");
    let shared = relays.shared.iter().map(|it| it.map(Some));
    let bounds = RealmLimits {
        user_quota: relays.sessions,
        bytes_per_s: relays.rate,
        ..RealmLimits::default()
    };
    auth.nonce_key = Some(NonceKey::from_secret(b"the same in every world"));
    Config {
        auth,
        policy: rules.of_peers(REALM),
        realms: RealmConfig {
            policies: [OTHER_REALM, BOUNDED_REALM]
                .map(|realm| (realm.into(), rules.of_peers(realm)))
                .into(),
            limits: [(BOUNDED_REALM.into(), bounds)].into(),
        },
        mobility: MobilityConfig {
            key: Some(TicketKey::from_secret(b"the same in every world")),
            ..MobilityConfig::default()
        },
        limits: Limits {
            bandwidth: Bandwidth {
                bytes_per_s: relays.rate,
                capacity_bytes_per_s: None,
            },
            ..Limits::default()
        },
        relays: RelayConfig {
            addresses: RELAYS
                .map(|local| RelayAddress {
                    local,
                    external: None,
                })
                .into(),
            ports: FIRST_PORT..=FIRST_PORT + relays.ports,
            shared: (!relays.shared.is_empty()).then(|| SharedRelays {
                addresses: shared.collect(),
                peers_per_allocation: PEERS_MAX,
            }),
            tcp: Some(TcpRelays::default()),
            ..RelayConfig::default()
        },
        unverified: UnverifiedLimits {
            buckets: 4096,
            excess: Rate {
                burst: 1 << 20,
                per_s: 1 << 20,
            },
            bytes: STRANGERS,
            answers_per_s: None,
        },
        ..Config::default()
    }
}
