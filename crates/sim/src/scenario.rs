//! One run's world, drawn from its seed: who takes part, how the paths behave, what the operator
//! configured.

use std::time::Duration;

use turnbuckle_engine::{
    AuthConfig, Config, Limits, MobilityConfig, NonceKey, NonceLifetime, Rate, RelayAddress,
    RelayConfig, TicketKey, UnverifiedLimits,
};

use crate::features::{Feature, Features};
use crate::link::Faults;
use crate::message::REALM;
use crate::model::{Bounds, Lifetimes, Nonces, Rules, Secrets};
use crate::plan;
use crate::queue::{MS, SECOND};
use crate::random::Seeded;

/// Users of the configuration file: name and password.
const USERS: [(&str, &str); 4] = [
    ("alice", "correct horse"),
    ("bertil", "battery staple"),
    ("carla", "p:ss:word"),
    ("dörte", "Größe"),
];

/// The secret shared with a web service, and usernames that the service has signed: name, password,
/// last second. Made by another program, so that the simulator shares no code with the engine here.
const REST_SECRET: &[u8] = b"a secret that the web service knows";
const REST_USERS: [(&str, &str, u64); 5] = [
    ("1800000900:ann", "V3TzeP8TN3cPoUpaDTO8mSMJrw8=", 1800000900),
    ("1800005400:bob", "CO37d7aeJfenLgIJMQxB9DbYvXU=", 1800005400),
    ("1800040000:cid", "yc5JYXH0VXKGs7b1Bdx8TORObaE=", 1800040000),
    ("1804000000:dan", "rT7dZWDy+0f1ctcRHKPETbrnMxM=", 1804000000),
    ("1804000100:ann", "e76BiDo36J9kvtvHLaLCpzl7Onc=", 1804000100),
];

/// Everything that makes one run differ from another.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed that all of it is drawn from.
    pub seed: u64,
    /// What can happen.
    pub features: Features,
    /// Engines of the server.
    pub shard_count: usize,
    /// Honest clients.
    pub client_count: usize,
    /// Between clients and the server.
    pub client_path: Faults,
    /// Between the server and peers.
    pub peer_path: Faults,
    /// The operator's configuration.
    pub config: Config,
    /// The same for the model.
    pub rules: Rules,
    /// The users, for the model and for the clients.
    pub secrets: Secrets,
    /// The seconds for which nonces are good.
    pub nonce_lifetime_s: u64,
}

impl Scenario {
    /// Draws the world of `seed`.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let features = Features::draw(&mut Seeded::new(seed).fork("features"));
        Self::with_features(seed, features)
    }

    /// Draws the world of `seed` with other features than the seed's own: for reducing a failure.
    #[must_use]
    pub fn with_features(seed: u64, features: Features) -> Self {
        let mut random = Seeded::new(seed).fork("scenario");
        let client_path = path(&mut random, features);
        let peer_path = path(&mut random, features);
        let nonce_lifetime_s = if features.has(Feature::ShortNonces) {
            random.between(5, 120)
        } else {
            600
        };
        let rules = rules(&mut random, features);
        let secrets = secrets(features);
        let config = config(&rules, &secrets, features, nonce_lifetime_s);
        Self {
            seed,
            features,
            shard_count: 1 + random.index(3),
            client_count: 2 + random.index(5),
            client_path,
            peer_path,
            config,
            rules,
            secrets,
            nonce_lifetime_s,
        }
    }

    /// Returns a random stream for one part of the run.
    #[must_use]
    pub fn random(&self, label: &str) -> Seeded {
        Seeded::new(self.seed).fork(label)
    }

    /// Returns the nonces of a server that has given none away.
    #[must_use]
    pub fn nonces(&self) -> Nonces {
        Nonces::new(self.nonce_lifetime_s)
    }

    /// Returns name and password of the client with this number; some share an account.
    #[must_use]
    pub fn user(&self, client: usize) -> (String, String) {
        let mut users = self.secrets.passwords.iter();
        let index = client % self.secrets.passwords.len().max(1);
        users
            .nth(index)
            .map(|(name, password)| (name.clone(), password.clone()))
            .unwrap_or_default()
    }
}

fn path(random: &mut Seeded, features: Features) -> Faults {
    let mut ppm = |feature: Feature, most: u64| {
        let drawn = random.between(1_000, most);
        if features.has(feature) {
            u32::try_from(drawn).unwrap_or(0)
        } else {
            0
        }
    };
    let (loss_ppm, duplicate_ppm) = (
        ppm(Feature::Loss, 200_000),
        ppm(Feature::Duplicate, 150_000),
    );
    let (reorder_ppm, corrupt_ppm) = (
        ppm(Feature::Reorder, 200_000),
        ppm(Feature::Corrupt, 100_000),
    );
    Faults {
        loss_ppm,
        duplicate_ppm,
        reorder_ppm,
        corrupt_ppm,
        delay_min: random.between(1, 60) * MS,
        jitter: random.between(0, 30) * MS,
    }
}

fn rules(random: &mut Seeded, features: Features) -> Rules {
    let small = features.has(Feature::SmallLimits);
    let mut bound = |usual: u64, least: u64, most: u64| {
        let drawn = random.between(least, most);
        usize::try_from(if small { drawn } else { usual }).unwrap_or(usize::MAX)
    };
    // In the order in which they are drawn.
    let bounds = Bounds {
        user_quota: bound(1000, 1, 3),
        total_quota: bound(100_000, 2, 6),
        shard: bound(1000, 1, 4),
        permissions: bound(100, 2, 4),
        channels: bound(100, 1, 3),
        reservations: bound(100, 1, 2),
    };
    let few = features.has(Feature::FewPorts);
    let first = 50_000 + random.between_u16(0, 3);
    let last = first + if few { random.between_u16(1, 5) } else { 400 };
    let mut relays = vec![plan::RELAY_V4];
    if !features.has(Feature::NoIpv6) {
        relays.push(plan::RELAY_V6);
    }
    Rules {
        lifetimes: Lifetimes {
            allocation: 600 * SECOND,
            allocation_max: 3600 * SECOND,
            permission: 300 * SECOND,
            channel: 600 * SECOND,
            reservation: random.between(30, 90) * SECOND,
        },
        bounds,
        relays,
        channels: if features.has(Feature::OldChannels) {
            0x4000..=0x7FFF
        } else {
            0x4000..=0x4FFF
        },
        ports: first..=last,
        dont_fragment: !features.has(Feature::NoDontFragment),
        mobility: features.has(Feature::Mobility),
    }
}

fn secrets(features: Features) -> Secrets {
    let mut secrets = Secrets {
        realm: REALM.to_owned(),
        ..Secrets::default()
    };
    for (name, password) in USERS {
        secrets
            .passwords
            .insert(name.to_owned(), password.to_owned());
    }
    if features.has(Feature::RestUsers) {
        for (name, password, last_s) in REST_USERS {
            secrets
                .passwords
                .insert(name.to_owned(), password.to_owned());
            secrets.ends_unix_s.insert(name.to_owned(), last_s);
        }
    }
    secrets
}

fn config(rules: &Rules, secrets: &Secrets, features: Features, nonce_lifetime_s: u64) -> Config {
    let mut auth = AuthConfig::new(REALM).expect("the realm is sound");
    for (name, password) in USERS {
        auth.add_user(name, password).expect("the user is sound");
    }
    if !secrets.ends_unix_s.is_empty() {
        auth.add_rest_secret(REST_SECRET)
            .expect("the secret is sound");
    }
    auth.nonce_key = Some(NonceKey::from_secret(
        b"the same in every life of the server",
    ));
    auth.nonce_lifetime =
        NonceLifetime::new(Duration::from_secs(nonce_lifetime_s)).expect("a sound lifetime");
    let bound = |limit: usize| u32::try_from(limit).unwrap_or(u32::MAX);
    let small = |limit: usize| u16::try_from(limit).unwrap_or(u16::MAX);
    let relays = rules.relays.iter().map(|relay| {
        let inside = relay.is_ipv4() && features.has(Feature::ExternalAddress);
        RelayAddress {
            local: if inside {
                plan::RELAY_V4_INSIDE
            } else {
                *relay
            },
            external: inside.then_some(*relay),
        }
    });
    let mut config = Config {
        auth,
        relays: RelayConfig {
            addresses: relays.collect(),
            ports: rules.ports.clone(),
            dont_fragment: rules.dont_fragment,
            rfc5766_channel_numbers: rules.channels.contains(&0x7FFF),
            ..RelayConfig::default()
        },
        limits: Limits {
            allocations: bound(rules.bounds.shard),
            user_quota: Some(bound(rules.bounds.user_quota)),
            total_quota: Some(bound(rules.bounds.total_quota)),
            permissions_per_allocation: small(rules.bounds.permissions),
            channels_per_allocation: small(rules.bounds.channels),
            reservations: bound(rules.bounds.reservations),
            relay_open_attempts: 3,
            timeouts_per_call: 4,
            ..Limits::default()
        },
        unverified: UnverifiedLimits {
            buckets: 512, // the usual table would take longer to make than a run takes
            excess: Rate {
                burst: 8 * 1024,
                per_s: 2 * 1024,
            },
            bytes: Rate {
                burst: 16 * 1024,
                per_s: 8 * 1024,
            },
            answers_per_s: None,
        },
        mobility: MobilityConfig {
            key: rules
                .mobility
                .then(|| TicketKey::from_secret(b"the same in every life of the server")),
            ..MobilityConfig::default()
        },
        ..Config::default()
    };
    config.lifetimes.reservation = Duration::from_nanos(rules.lifetimes.reservation);
    config
}
