//! What clients show in place of passwords: tokens as an authorization server gives them (RFC 7635), and such as have to be refused.

use aes_gcm::aead::{AeadInOut as _, KeyInit as _};
use aes_gcm::{Aes256Gcm, Nonce};

use crate::random::Seeded;

/// The name that the authorization server has for the relay.
pub(super) const SERVER_NAME: &str = "relay.test";
/// A name that no key has.
const UNKNOWN_KEY: &str = "east";
/// Seconds that a token is good, more than the clock is ever wrong.
const LIFETIME_S: u32 = 10 * 86_400;
/// How long ago one that has expired was given out, in seconds: longer than its lifetime and all that the clock is ever wrong.
const LONG_AGO_S: u64 = 30 * 86_400;
const MAC_KEY_LEN: usize = 20;
const NONCE_LEN: usize = 12;

/// A token, and who is said to have given it out.
#[derive(Clone, Debug)]
pub(super) struct Pass {
    /// The name of the key, which stands in USERNAME.
    pub(super) key_name: &'static str,
    /// The value of ACCESS-TOKEN.
    pub(super) token: Vec<u8>,
    pub(super) mac_key: [u8; MAC_KEY_LEN],
    /// Which of the keys of that name it is sealed with; `None` if it has to be refused.
    pub(super) key: Option<u64>,
    /// Whether it takes the place of another one, which the server has not heard of yet.
    pub(super) is_renewal: bool,
}

/// What is wrong with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Expired,
    OtherKey,
    OtherServer,
    UnknownKey,
}

impl Pass {
    /// Returns a token under key number `key` of the name `key_name`, given out at `unix_s`; a few have something wrong with them.
    pub(super) fn draw(key_name: &'static str, key: u64, unix_s: u64, random: &mut Seeded) -> Self {
        let faults = [
            Fault::Expired,
            Fault::OtherKey,
            Fault::OtherServer,
            Fault::UnknownKey,
        ];
        let is_bad = random.one_in(4);
        let fault = random.choose(&faults).copied().filter(|_| is_bad);
        let mut mac_key = [0; MAC_KEY_LEN];
        random.fill_bytes(&mut mac_key);
        let mut nonce = [0; NONCE_LEN];
        random.fill_bytes(&mut nonce);
        let (issued_s, lifetime_s) = match fault {
            Some(Fault::Expired) => (unix_s - LONG_AGO_S, 3600),
            _ => (unix_s, LIFETIME_S),
        };
        let sealed_with = match fault {
            Some(Fault::OtherKey) => [0xFF; 32],
            _ => key_bytes(key),
        };
        let server_name = match fault {
            Some(Fault::OtherServer) => UNKNOWN_KEY,
            _ => SERVER_NAME,
        };
        let mut content = Vec::new();
        content.extend([0, 20]);
        content.extend(mac_key);
        // 48 bits of seconds and 16 of fractions.
        content.extend((issued_s << 16).to_be_bytes());
        content.extend(lifetime_s.to_be_bytes());
        let tag = Aes256Gcm::new(&sealed_with.into())
            .encrypt_inout_detached(
                &Nonce::from(nonce),
                server_name.as_bytes(),
                content.as_mut_slice().into(),
            )
            .expect("a token is short");
        let token = [&[0, 12], &nonce[..], &content, &tag[..]].concat();
        Self {
            key_name: match fault {
                Some(Fault::UnknownKey) => UNKNOWN_KEY,
                _ => key_name,
            },
            token,
            mac_key,
            key: fault.is_none().then_some(key),
            is_renewal: false,
        }
    }
}

/// Returns a key that the authorization server shares with the relay.
pub(super) fn key_bytes(key: u64) -> [u8; 32] {
    let mut bytes = [0; 32];
    Seeded::new(key)
        .fork("key of tokens")
        .fill_bytes(&mut bytes);
    bytes
}
