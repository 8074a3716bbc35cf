//! Stateless nonces: each is an authenticated cookie, so that the server stores nothing for a challenge (V-21).
//!
//! A nonce is 28 characters: the nonce cookie of RFC 8489 §9.2 (`obMatJos2` and the security features in base64), then 15
//! characters of base64 over
//!
//! ```text
//! issued (2 bytes, seconds since 1970 modulo 2^16) | random (2 bytes) | tag (7 bytes)
//! ```
//!
//! The tag is a truncated HMAC-SHA256 over everything a nonce is bound to: the security features, the password algorithms offered
//! with it, the realm, the time, the random part, the client's address and port, and the listener's. So a nonce taken from another
//! client or realm is invalid, and so is one whose feature bits were changed on the path (V-22, V-27). The whole time is in the
//! tag, so a nonce of 18 hours ago is not taken for one of now. Seven bytes of tag can be guessed only by asking the server, which
//! takes a thousand years at a million guesses a second. A forged nonce gains no more than an issued one: one request. The random
//! part makes two nonces of one client in one second differ, and the next one unpredictable (V-20).
//!
//! Plain nonces are for whoever wants coturn's of 16 characters: base64 over the same without the cookie, with a tag of 8 bytes. They
//! announce no feature.
//!
//! It is that short because a challenge goes to sources that proved nothing, and should have at most three times the bytes of its
//! request (V-40).

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use turnbuckle_wire::PasswordAlgorithm;

use crate::address::canonical_ip;
use crate::random::Random;
use crate::refusal::Refusal;

/// The first characters of every nonce cookie (RFC 8489 §9.2).
const COOKIE_PREFIX: &[u8; 9] = b"obMatJos2";
const COOKIE_LEN: usize = COOKIE_PREFIX.len() + 4;
const ISSUED_LEN: usize = 2;
const RANDOM_LEN: usize = 2;
const TAG_LEN: usize = 7;
const RAW_LEN: usize = ISSUED_LEN + RANDOM_LEN + TAG_LEN;
/// A plain nonce has one byte more of the tag, so that its base64 has 16 characters.
const PLAIN_RAW_LEN: usize = RAW_LEN + 1;

/// A client whose nonce is dated this far ahead of this server's clock comes from a server of the same fleet with a faster clock.
const CLOCK_SKEW_S: u64 = 60;

/// The value of a NONCE attribute.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce {
    /// Zeros behind `len`.
    bytes: [u8; Self::LEN],
    len: usize,
}

impl Nonce {
    /// The length of a nonce, in bytes; a plain one is shorter.
    pub const LEN: usize = 28;

    /// Returns the attribute's value.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Nonce({})", self.as_bytes().escape_ascii())
    }
}

const _: () = assert!(COOKIE_LEN + (RAW_LEN * 4).div_ceil(3) == Nonce::LEN);

/// The STUN security features of RFC 8489 §18.1, 24 bits of which two are assigned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SecurityFeatures {
    /// Bit 0: the challenge carries PASSWORD-ALGORITHMS.
    pub(crate) password_algorithms: bool,
    /// Bit 1: USERHASH is understood.
    pub(crate) username_anonymity: bool,
}

impl SecurityFeatures {
    /// Returns the features that a NONCE attribute announces, or `None` if it does not begin with a nonce cookie.
    pub(crate) fn of(nonce: &[u8]) -> Option<Self> {
        let (prefix, rest) = nonce.split_at_checked(COOKIE_PREFIX.len())?;
        let encoded = rest.get(..4)?;
        if prefix != COOKIE_PREFIX {
            return None;
        }
        let mut bits = [0; 3];
        let len = STANDARD_NO_PAD.decode_slice(encoded, &mut bits).ok()?;
        (len == 3).then_some(Self {
            password_algorithms: bits[0] & 0x80 != 0,
            username_anonymity: bits[0] & 0x40 != 0,
        })
    }

    /// Returns the 13 characters of the nonce cookie.
    fn cookie(self) -> [u8; COOKIE_LEN] {
        let bits = u8::from(self.password_algorithms) << 7 | u8::from(self.username_anonymity) << 6;
        // Only the first two of 24 bits are ever set, so the first of four base64 characters determines the others.
        let first = match bits {
            0xc0 => b'w',
            0x80 => b'g',
            0x40 => b'Q',
            _ => b'A',
        };
        let mut cookie = *b"obMatJos2AAAA";
        cookie[COOKIE_PREFIX.len()] = first;
        cookie
    }
}

/// How long a nonce is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NonceLifetime(Option<Duration>);

impl NonceLifetime {
    /// The longest that RFC 8656 §5 recommends.
    pub const MAX: Duration = Duration::from_secs(3600);

    /// No expiry (coturn's `stale-nonce=0`). A captured request can be replayed from the same address as long as the key is in use.
    pub const UNLIMITED: Self = Self(None);

    /// Makes a lifetime of 1 s to [`Self::MAX`]; returns `None` outside.
    pub fn new(lifetime: Duration) -> Option<Self> {
        let bounds = Duration::from_secs(1)..=Self::MAX;
        bounds.contains(&lifetime).then_some(Self(Some(lifetime)))
    }
}

impl NonceLifetime {
    /// Returns how long a request can be valid after it first arrived: no server of a fleet accepts a nonce for longer. For nonces
    /// that do not expire it is an hour.
    pub fn replay_memory(self) -> Duration {
        self.0.unwrap_or(Self::MAX) + Duration::from_secs(CLOCK_SKEW_S)
    }
}

impl Default for NonceLifetime {
    /// Returns 600 s, as coturn's `stale-nonce`.
    fn default() -> Self {
        Self(Some(Duration::from_secs(600)))
    }
}

/// The key that nonces are authenticated with.
#[derive(Clone, PartialEq, Eq)]
pub struct NonceKey([u8; 32]);

impl NonceKey {
    /// Returns a key derived from a configured secret of any length. It is the same in every process with that secret.
    pub fn from_secret(secret: &[u8]) -> Self {
        let mut mac = mac(secret);
        mac.update(b"turnbuckle nonce key");
        Self(mac.finalize().into_bytes().into())
    }

    /// Returns a random key, which exists in this process only.
    pub fn random(random: &mut impl Random) -> Self {
        let mut key = [0; 32];
        random.fill(&mut key);
        Self(key)
    }

    /// Returns the key of another process ([`Self::to_bytes`]).
    pub fn from_bytes(key: [u8; 32]) -> Self {
        Self(key)
    }

    /// Returns the key itself, for another process of the same server.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }
}

impl fmt::Debug for NonceKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("NonceKey(..)")
    }
}

/// The validity of a nonce that a client sent back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonceState {
    /// Issued by this key to this client, and not too old.
    Fresh,
    /// Issued by this key to this client, too long ago, though not by 18 hours.
    Stale,
    /// Not issued to this client, or not by this server, or longer ago than that.
    Invalid,
}

impl NonceState {
    /// Returns why a request with such a nonce is refused, for the operator.
    pub(crate) const fn refusal(self) -> Option<Refusal> {
        match self {
            Self::Fresh => None,
            Self::Stale => Some(Refusal::NonceStale),
            Self::Invalid => Some(Refusal::NonceForeign),
        }
    }
}

/// The scope of a challenge: its two ends, and what is sent with its nonce.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope<'r> {
    pub client: SocketAddr,
    pub listener: SocketAddr,
    pub realm: &'r str,
    pub features: SecurityFeatures,
    /// The password algorithms that are offered.
    pub offered: &'r [PasswordAlgorithm],
}

/// Issues and verifies nonces.
pub(crate) struct Nonces {
    current: Hmac<Sha256>,
    key: NonceKey,
    /// The generation before the current one, still accepted.
    previous: Option<Hmac<Sha256>>,
    lifetime: NonceLifetime,
    /// Whether nonces have no cookie, and announce no feature.
    pub(crate) is_plain: bool,
}

impl Nonces {
    pub(crate) fn new(key: NonceKey, previous: Option<&NonceKey>, lifetime: NonceLifetime) -> Self {
        Self {
            current: mac(&key.0),
            previous: previous.map(|key| mac(&key.0)),
            key,
            lifetime,
            is_plain: false,
        }
    }

    /// Begins a new key generation. Nonces of the generation now current are accepted until the next rotation.
    pub(crate) fn rotate(&mut self, key: NonceKey) {
        if key != self.key {
            self.previous = Some(core::mem::replace(&mut self.current, mac(&key.0)));
            self.key = key;
        }
    }

    /// Goes on where `before` left off: with its random key if `keep_key`, else with its key as the previous generation.
    pub(crate) fn succeed(&mut self, before: &Self, keep_key: bool) {
        if keep_key {
            self.key = before.key.clone();
            self.current = before.current.clone();
            self.previous = before.previous.clone();
        } else if self.key == before.key {
            self.previous = self.previous.take().or_else(|| before.previous.clone());
        } else {
            self.previous = Some(before.current.clone());
        }
    }

    pub(crate) fn issue(&self, unix_s: u64, random: &mut impl Random, scope: Scope<'_>) -> Nonce {
        let mut raw = [0; PLAIN_RAW_LEN];
        let (issued, rest) = raw.split_at_mut(ISSUED_LEN);
        let (unique, tag) = rest.split_at_mut(RANDOM_LEN);
        issued.copy_from_slice(&wrapping_seconds(unix_s).to_be_bytes());
        // guard: V-20-nonce
        random.fill(unique);
        tag.copy_from_slice(&self.tag(&self.current, self.whole_time(unix_s), unique, scope));

        let mut bytes = [0; Nonce::LEN];
        let (cookie_len, raw_len) = self.lens();
        let (cookie, encoded) = bytes.split_at_mut(cookie_len);
        for (to, from) in cookie.iter_mut().zip(scope.features.cookie()) {
            *to = from;
        }
        let (raw, _) = raw.split_at(raw_len);
        // Cannot fail: the constant assertion above says that the lengths fit.
        let encoded_len = STANDARD_NO_PAD.encode_slice(raw, encoded).unwrap_or(0);
        Nonce {
            bytes,
            len: cookie_len + encoded_len,
        }
    }

    /// Returns how many bytes of cookie a nonce has, and how many its base64 stands for.
    fn lens(&self) -> (usize, usize) {
        match self.is_plain {
            true => (0, PLAIN_RAW_LEN),
            false => (COOKIE_LEN, RAW_LEN),
        }
    }

    pub(crate) fn verify(&self, unix_s: u64, nonce: &[u8], scope: Scope<'_>) -> NonceState {
        let (cookie_len, raw_len) = self.lens();
        let Some((cookie, encoded)) = nonce.split_at_checked(cookie_len) else {
            return NonceState::Invalid;
        };
        let mut raw = [0; PLAIN_RAW_LEN];
        // guard: V-27-features
        if !self.is_plain && cookie != scope.features.cookie()
            || STANDARD_NO_PAD.decode_slice(encoded, &mut raw) != Ok(raw_len)
        {
            return NonceState::Invalid;
        }
        let (issued, rest) = raw.split_at(ISSUED_LEN);
        let (unique, tag) = rest.split_at(RANDOM_LEN);
        let issued = issued.try_into().map_or(0, u16::from_be_bytes);
        // The latest time of these low bits that a clock in the fleet may show.
        let latest = unix_s.wrapping_add(CLOCK_SKEW_S);
        let behind_latest = wrapping_seconds(latest).wrapping_sub(issued);
        let issued_s = latest.wrapping_sub(behind_latest.into());
        let covered = self.whole_time(issued_s);
        let is_ours = |key| bool::from(self.tag(key, covered, unique, scope).ct_eq(tag));
        // guard: V-22-tag
        if !is_ours(&self.current) && !self.previous.as_ref().is_some_and(is_ours) {
            return NonceState::Invalid;
        }
        let is_ahead = u64::from(behind_latest) <= CLOCK_SKEW_S;
        match self.lifetime.0 {
            None => NonceState::Fresh,
            // guard: V-22-age
            Some(lifetime) if is_ahead || unix_s.wrapping_sub(issued_s) < lifetime.as_secs() => {
                NonceState::Fresh
            }
            // mutant: nonce-for-ever
            Some(_) => NonceState::Stale,
        }
    }

    /// Returns the part of the time that the tag of a nonce issued at `issued_s` covers. It is the whole time; where nonces do not
    /// expire, it is only the part that the nonce contains, because the rest cannot be known when the nonce comes back.
    fn whole_time(&self, issued_s: u64) -> u64 {
        match self.lifetime.0 {
            // guard: V-22-time
            Some(_) => issued_s,
            None => wrapping_seconds(issued_s).into(),
        }
    }

    fn tag(
        &self,
        key: &Hmac<Sha256>,
        issued_s: u64,
        unique: &[u8],
        scope: Scope<'_>,
    ) -> [u8; TAG_LEN + 1] {
        let mut mac = key.clone();
        mac.update(&scope.features.cookie());
        mac.update(&issued_s.to_be_bytes());
        mac.update(unique);
        // guard: V-22-address
        update_address(&mut mac, scope.client);
        update_address(&mut mac, scope.listener);
        mac.update(&[17]); // UDP
        mac.update(&scope.offered.len().to_be_bytes());
        for algorithm in scope.offered {
            mac.update(&algorithm.number().to_be_bytes());
        }
        // Of variable length, therefore last.
        // guard: V-34-nonce
        mac.update(scope.realm.as_bytes());
        let mut tag = [0; TAG_LEN + 1];
        let full = mac.finalize().into_bytes();
        let len = TAG_LEN + usize::from(self.is_plain);
        for (to, from) in tag.iter_mut().zip(full).take(len) {
            *to = from;
        }
        tag
    }
}

/// Adds 18 bytes, whatever the family.
fn update_address(mac: &mut Hmac<Sha256>, address: SocketAddr) {
    let ip = match canonical_ip(address.ip()) {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    mac.update(&ip.octets());
    mac.update(&address.port().to_be_bytes());
}

#[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
fn mac(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes keys of every length")
}

#[expect(clippy::cast_possible_truncation, reason = "times in nonces wrap")]
fn wrapping_seconds(unix_s: u64) -> u16 {
    unix_s as u16
}

#[cfg(test)]
mod tests;
