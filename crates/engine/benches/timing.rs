//! Looks for differences in time that would tell an attacker something (V-25, V-26, V-93), in the manner of dudect (Reparaz, Balasch,
//! Verbauwhede: "dude, is my code constant time?"): two classes of requests in random order, Welch's t-test on the times,
//! the slowest measurements left out at several thresholds, and the largest |t| reported.
//!
//! Every request has a name drawn anew. Two given names always differ by a few nanoseconds, whatever they are, because the search
//! among the users takes other turns through the caches; what must not show is which names are users.
//!
//! An |t| that stays below 4.5 as the number of samples grows is no evidence of a difference. The last line is a control with a
//! real difference; it shows that this machine is quiet enough to see one.
//!
//! `cargo bench -p turnbuckle-engine --bench timing -- [SAMPLES [USERS]]`; a million samples and 100 users by default. Nothing is asserted: what a
//! machine measures beside other work proves nothing.

#![expect(
    clippy::print_stdout,
    reason = "a measuring tool prints what it measured"
)]
#![expect(
    clippy::unwrap_used,
    reason = "a measuring tool stops where it cannot go on"
)]
#![expect(clippy::disallowed_methods, reason = "time is what is measured")]

use std::hint::black_box;
use std::time::Instant;

use turnbuckle_engine::{Asks, AuthConfig, Authenticator, Now, Random, Time};
use turnbuckle_wire::{
    AttributeType, Class, IntegrityKey, Message, MessageWriter, Method, TransactionId,
    long_term_key_md5, userhash,
};

const REALM: &str = "example.org";
/// All users have it.
const PASSWORD: &[u8] = b"password";
/// The length of every name.
const NAME_LEN: usize = 11;
/// Configured users, if nothing else is said.
const USERS: u64 = 100;
const NOW: Now = Now {
    time: Time::ZERO,
    unix_s: 1_800_000_000,
};

/// splitmix64; the order of the classes has to be random, not secret.
struct Seeded(u64);

impl Seeded {
    fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Random for Seeded {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let number = self.u64().to_le_bytes();
            chunk.copy_from_slice(number.get(..chunk.len()).unwrap());
        }
    }
}

/// An authenticator and what it needs to be asked.
struct Server {
    authenticator: Authenticator,
    random: Seeded,
    users: u64,
}

impl Server {
    fn new(users: u64, secrets: u32, asks: Asks) -> Self {
        let mut config = AuthConfig::new(REALM).unwrap();
        let names: Vec<_> = (0..users)
            .map(|number| format!("user{number:07}"))
            .collect();
        let keys = names.iter().map(|name| {
            let key = long_term_key_md5(name.as_bytes(), REALM.as_bytes(), PASSWORD);
            (name.as_str(), key)
        });
        config.add_users_by_md5_key(keys);
        config.asks = asks;
        for number in 0..secrets {
            config.add_rest_secret(&number.to_be_bytes()).unwrap();
        }
        let mut random = Seeded(1);
        Self {
            authenticator: Authenticator::new(&config, &mut random),
            random,
            users,
        }
    }

    fn answers(&mut self, by: By, bytes: &[u8]) -> bool {
        if by == By::Password {
            let (name, password) = bytes.split_at(NAME_LEN);
            let [name, password] = [name, password].map(|text| str::from_utf8(text).unwrap());
            let result = (self.authenticator).check_password(NOW, REALM, name, password, false);
            return black_box(result).is_ok();
        }
        let message = Message::parse(bytes).unwrap();
        let client = "198.51.100.7:40000".parse().unwrap();
        let listener = "203.0.113.1:3478".parse().unwrap();
        let result =
            self.authenticator
                .authenticate(NOW, &mut self.random, client, listener, &message);
        black_box(result).is_ok()
    }

    /// Returns a request, right but for one changed byte of its MESSAGE-INTEGRITY or its password.
    fn request(&mut self, name: &str, by: By, wrong_byte: Option<usize>) -> Vec<u8> {
        if by == By::Password {
            let mut buffer = [name.as_bytes(), PASSWORD].concat();
            if let Some(wrong) = wrong_byte {
                *buffer.get_mut(NAME_LEN + wrong).unwrap() ^= 1;
            }
            return buffer;
        }
        let client = "198.51.100.7:40000".parse().unwrap();
        let listener = "203.0.113.1:3478".parse().unwrap();
        let challenge = self
            .authenticator
            .challenge(NOW, &mut self.random, client, listener);
        let mut buffer = vec![0; 512];
        let id = TransactionId::new([7; 12]);
        let mut writer = MessageWriter::new(&mut buffer, Class::Request, Method::ALLOCATE, id);
        if by == By::Userhash {
            writer.userhash(&userhash(name.as_bytes(), REALM.as_bytes()));
        } else {
            writer.username(name.as_bytes());
        }
        writer.realm(REALM.as_bytes());
        writer.bytes(AttributeType::NONCE, challenge.nonce.as_bytes());
        let key = long_term_key_md5(name.as_bytes(), REALM.as_bytes(), PASSWORD);
        writer.integrity(&IntegrityKey::sha1(&key));
        let len = writer.finish().unwrap();
        buffer.truncate(len);
        if let Some(wrong) = wrong_byte {
            *buffer.get_mut(len - 20 + wrong).unwrap() ^= 1;
        }
        buffer
    }
}

fn main() {
    // `cargo test --all-targets` starts benches too, without this argument: then only see that it runs.
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let samples = numbers
        .next()
        .unwrap_or(if is_bench { 1_000_000 } else { 1_000 });
    let users = numbers.next().map_or(USERS, |users| users as u64);
    println!("{samples} samples each, {users} users; |t| below 4.5 is no evidence of a difference");

    // The last ones are asked about: the refusal says so, and nothing else is done here.
    for (secrets, asks) in [(0, Asks::Never), (4, Asks::Never), (0, Asks::Users)] {
        let mut server = Server::new(users, secrets, asks);
        for (name, one, other) in [
            ("identical requests", KNOWN, KNOWN),
            (
                "first or last byte of the integrity wrong",
                KNOWN,
                LAST_BYTE,
            ),
            ("known or unknown username", KNOWN, UNKNOWN),
            ("known or unknown userhash", HASHED, HASHED_UNKNOWN),
            (
                "known or unknown username with a password",
                BASIC,
                BASIC_UNKNOWN,
            ),
        ] {
            let asked = if asks == Asks::Never {
                ""
            } else {
                ", asked about"
            };
            let name = format!("{name}, {secrets} secrets{asked}");
            compare(&mut server, samples, &name, one, other);
        }
    }
    let mut server = Server::new(users, 0, Asks::Never);
    for (name, wrong) in [
        ("control: right or wrong password", KNOWN),
        ("control: right or wrong password that is sent", BASIC),
    ] {
        let right = Kind {
            wrong_byte: None,
            ..wrong
        };
        compare(&mut server, samples, name, right, wrong);
    }
}

/// How a request says who asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// By the name and the password themselves, as in HTTP (RFC 7617).
    Password,
    /// By the hash of the name, and a proof of the password.
    Userhash,
    /// By the name, and a proof of the password.
    Username,
}

/// Requests that differ in the user only.
#[derive(Clone, Copy)]
struct Kind {
    is_known: bool,
    by: By,
    wrong_byte: Option<usize>,
}

const KNOWN: Kind = Kind {
    is_known: true,
    by: By::Username,
    wrong_byte: Some(0),
};
const LAST_BYTE: Kind = Kind {
    wrong_byte: Some(19),
    ..KNOWN
};
const UNKNOWN: Kind = Kind {
    is_known: false,
    ..KNOWN
};
const HASHED: Kind = Kind {
    by: By::Userhash,
    ..KNOWN
};
const BASIC: Kind = Kind {
    by: By::Password,
    ..KNOWN
};
const BASIC_UNKNOWN: Kind = Kind {
    is_known: false,
    ..BASIC
};
const HASHED_UNKNOWN: Kind = Kind {
    is_known: false,
    ..HASHED
};

impl Kind {
    /// Returns the request of the user of this number, of a name that only this number has.
    fn request(self, server: &mut Server, number: u64) -> Vec<u8> {
        let prefix = if self.is_known { "user" } else { "none" };
        let name = format!(
            "{prefix}{:07}",
            number
                % if self.is_known {
                    server.users
                } else {
                    1_000_000
                }
        );
        server.request(&name, self.by, self.wrong_byte)
    }
}

/// Measures both kinds in random order and prints what sets them apart.
fn compare(server: &mut Server, samples: usize, name: &str, one: Kind, other: Kind) {
    let (mut order, by) = (Seeded(99), one.by);
    let mut times: Vec<(bool, f64)> = Vec::with_capacity(samples);
    // Both kinds are made and read every time, and written to one place without a branch, or the caches and the branch predictor
    // would tell them apart before the server is asked.
    let mut buffer = one.request(server, 0);
    for _ in 0..samples {
        let class = order.u64() & 1 == 1;
        let (one, other) = (
            one.request(server, order.u64()),
            other.request(server, order.u64()),
        );
        let mask = black_box(if class { 0xff } else { 0 });
        for ((byte, one), other) in buffer.iter_mut().zip(&one).zip(&other) {
            *byte = (one & !mask) | (other & mask);
        }
        let begin = Instant::now();
        black_box(server.answers(by, black_box(&buffer)));
        let nanos = u32::try_from(begin.elapsed().as_nanos()).unwrap_or(u32::MAX);
        times.push((class, nanos.into()));
    }
    let mut sorted: Vec<f64> = times.iter().map(|&(_, nanos)| nanos).collect();
    sorted.sort_by(f64::total_cmp);
    let median = sorted.get(samples / 2).copied().unwrap_or(0.0);
    let mut largest = Difference { t: 0.0, nanos: 0.0 };
    for percent in [50, 75, 90, 95, 99, 100] {
        let limit = sorted
            .get((samples * percent / 100).saturating_sub(1))
            .copied();
        let found = welch(&times, limit.unwrap_or(f64::MAX));
        if found.t.abs() > largest.t.abs() {
            largest = found;
        }
    }
    let Difference { t, nanos } = largest;
    println!("{name:60} t {t:8.2}   difference {nanos:6.2} ns of {median:5.0} ns");
}

/// How far the means of two classes are apart.
struct Difference {
    /// In standard errors.
    t: f64,
    nanos: f64,
}

/// Returns Welch's t over the measurements up to `limit`.
fn welch(times: &[(bool, f64)], limit: f64) -> Difference {
    let moments = |class: bool| {
        let of_class = || {
            times
                .iter()
                .filter(move |&&(c, nanos)| c == class && nanos <= limit)
        };
        let count = of_class().map(|_| 1.0).sum::<f64>();
        let mean = of_class().map(|&(_, nanos)| nanos).sum::<f64>() / count;
        let squares: f64 = of_class().map(|&(_, nanos)| (nanos - mean).powi(2)).sum();
        (mean, squares / (count - 1.0) / count)
    };
    let ((mean_a, spread_a), (mean_b, spread_b)) = (moments(false), moments(true));
    let spread = (spread_a + spread_b).sqrt();
    let nanos = mean_b - mean_a;
    let t = if spread > 0.0 { nanos / spread } else { 0.0 };
    Difference { t, nanos }
}
