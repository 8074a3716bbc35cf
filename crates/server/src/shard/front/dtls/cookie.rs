//! Cookies that prove where a client is before anything is kept about it (RFC 6347 §4.2.1).
//!
//! A cookie is 17 bytes: the low byte of the minute it was made in, and a tag, HMAC-SHA256 cut to 16 bytes, over that minute, the addresses
//! of both sides and the random number of the hello. It is good in its minute and the next one. All shards share the key, so that a
//! client whom the kernel moves between its two hellos goes on.

use std::net::{IpAddr, SocketAddr};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
#[cfg(test)]
use turnbuckle_engine::Random as _;
use turnbuckle_engine::Time;

const TAG_LEN: usize = 16;
/// Bytes of a cookie.
pub(super) const COOKIE_LEN: usize = 1 + TAG_LEN;
const PERIOD_S: u64 = 60;

/// The key of this process's cookies.
#[derive(Clone)]
pub(crate) struct CookieKey(Hmac<Sha256>);

/// Whom a cookie is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) random: &'a [u8; 32],
}

impl CookieKey {
    /// Returns a random key.
    #[cfg(test)]
    pub(crate) fn random() -> Self {
        let mut key = [0; 32];
        crate::random::Randomness::of_system().fill(&mut key);
        Self(keyed(&key))
    }

    /// Returns the key that is made of these bytes.
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(keyed(key))
    }

    pub(super) fn cookie(&self, now: Time, subject: Subject<'_>) -> [u8; COOKIE_LEN] {
        self.of_period(period(now), subject)
    }

    /// Returns whether `cookie` was made for `subject`, in this period or the last.
    pub(super) fn is_valid(&self, now: Time, subject: Subject<'_>, cookie: &[u8]) -> bool {
        let [made, ..] = *cookie else { return false };
        let now = period(now);
        let periods = [Some(now), now.checked_sub(1)];
        let made = periods
            .into_iter()
            .flatten()
            .find(|period| low(*period) == made);
        made.is_some_and(|period| self.of_period(period, subject)[..].ct_eq(cookie).into())
    }

    fn of_period(&self, period: u64, subject: Subject<'_>) -> [u8; COOKIE_LEN] {
        let mut mac = self.0.clone();
        mac.update(&period.to_be_bytes());
        // guard: V-42-cookie-address
        for address in [subject.local, subject.remote] {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            mac.update(&ip.octets());
            mac.update(&address.port().to_be_bytes());
        }
        mac.update(subject.random);
        let mut cookie = [0; COOKIE_LEN];
        cookie[0] = low(period);
        cookie[1..].copy_from_slice(&mac.finalize().into_bytes()[..TAG_LEN]);
        cookie
    }
}

fn keyed(key: &[u8; 32]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

fn period(now: Time) -> u64 {
    // guard: V-42-cookie-age
    now.as_nanos() / 1_000_000_000 / PERIOD_S
}

/// Returns the last of its bytes.
fn low(period: u64) -> u8 {
    period.to_be_bytes()[7]
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANDOM: [u8; 32] = [7; 32];

    fn subject<'a>(remote: &str, random: &'a [u8; 32]) -> Subject<'a> {
        Subject {
            local: "192.0.2.1:3478".parse().unwrap(),
            remote: remote.parse().unwrap(),
            random,
        }
    }

    fn second(n: u64) -> Time {
        Time::from_secs(6000 + n)
    }

    //= DTLS-08
    #[test]
    fn a_cookie_is_good_for_its_client_alone_and_for_two_minutes_at_most() {
        let key = CookieKey::random();
        let client = subject("198.51.100.1:4000", &RANDOM);
        let cookie = key.cookie(second(59), client);
        assert!(key.is_valid(second(59), client, &cookie));
        assert!(key.is_valid(second(119), client, &cookie));
        assert!(!key.is_valid(second(120), client, &cookie), "too old");
        assert!(
            !key.is_valid(second(59 + 256 * 60), client, &cookie),
            "its minute has the same last byte"
        );
        for other in ["198.51.100.1:4001", "198.51.100.2:4000", "[::1]:4000"] {
            assert!(!key.is_valid(second(59), subject(other, &RANDOM), &cookie));
        }
        let elsewhere = Subject {
            local: "192.0.2.1:5349".parse().unwrap(),
            ..client
        };
        assert!(!key.is_valid(second(59), elsewhere, &cookie));
        let again = subject("198.51.100.1:4000", &[8; 32]);
        assert!(!key.is_valid(second(59), again, &cookie));
        assert!(!CookieKey::random().is_valid(second(59), client, &cookie));
    }

    #[test]
    fn no_bit_of_a_cookie_may_change_and_none_may_be_missing() {
        let key = CookieKey::random();
        let client = subject("[2001:db8::1]:4000", &RANDOM);
        let cookie = key.cookie(second(0), client);
        for bit in 0..COOKIE_LEN * 8 {
            let mut changed = cookie;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.is_valid(second(0), client, &changed), "bit {bit}");
        }
        for len in 0..COOKIE_LEN {
            assert!(!key.is_valid(second(0), client, &cookie[..len]));
        }
        let longer = [&cookie[..], &[0]].concat();
        assert!(!key.is_valid(second(0), client, &longer));
    }
}
