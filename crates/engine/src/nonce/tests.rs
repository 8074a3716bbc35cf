//! Issuing and verifying nonces.

use std::collections::HashSet;

use proptest::prelude::*;
use sha2::Digest as _;

use super::*;
use crate::random::seeded::Seeded;

const NOW: u64 = 1_800_000_000;

const ALL: SecurityFeatures = SecurityFeatures {
    password_algorithms: true,
    username_anonymity: true,
};

const OFFERED: &[PasswordAlgorithm] = &[PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5];

fn path(client: &str, listener: &str) -> Scope<'static> {
    Scope {
        client: client.parse().unwrap(),
        listener: listener.parse().unwrap(),
        realm: "north.gov",
        features: ALL,
        offered: OFFERED,
    }
}

fn usual() -> Scope<'static> {
    path("198.51.100.7:40000", "203.0.113.1:3478")
}

fn nonces(key: &NonceKey) -> Nonces {
    Nonces::new(key.clone(), None, NonceLifetime::default())
}

fn ours() -> Nonces {
    nonces(&NonceKey::from_secret(b"north"))
}

#[test]
fn a_nonce_is_twenty_eight_characters_that_announce_the_features() {
    //= STUN-040
    //= STUN-041
    //= STUN-082
    //= V-40
    for (password_algorithms, username_anonymity, cookie) in [
        (false, false, "obMatJos2AAAA"),
        (true, false, "obMatJos2gAAA"),
        (false, true, "obMatJos2QAAA"),
        (true, true, "obMatJos2wAAA"),
    ] {
        let features = SecurityFeatures {
            password_algorithms,
            username_anonymity,
        };
        let key = NonceKey::from_secret(b"north");
        let scope = Scope {
            features,
            ..usual()
        };
        let nonce = nonces(&key).issue(NOW, &mut Seeded(1), scope);
        assert_eq!(&nonce.as_bytes()[..13], cookie.as_bytes());
        assert_eq!(nonce.as_bytes().len(), 28);
        assert!(nonce.as_bytes().iter().all(u8::is_ascii_graphic));
        assert_eq!(SecurityFeatures::of(nonce.as_bytes()), Some(features));
    }
}

#[test]
fn features_are_read_only_from_a_whole_cookie() {
    for nonce in [
        "",
        "obMatJos2",
        "obMatJos2wAA",
        "obMatJos3wAAA",
        "obMatJos2w!AA",
        "f//499k954d6OL34oL9FSTvy64sA",
    ] {
        assert_eq!(SecurityFeatures::of(nonce.as_bytes()), None, "{nonce}");
    }
    let unassigned = SecurityFeatures::of(b"obMatJos2P///").unwrap();
    assert_eq!(unassigned, SecurityFeatures::default());
}

#[test]
fn a_nonce_is_fresh_for_its_lifetime_and_stale_after() {
    //= STUN-053
    //= V-22
    let nonces = ours();
    let nonce = nonces.issue(NOW, &mut Seeded(1), usual());
    let verify = |unix_s| nonces.verify(unix_s, nonce.as_bytes(), usual());
    assert_eq!(verify(NOW), NonceState::Fresh);
    assert_eq!(verify(NOW + 599), NonceState::Fresh);
    assert_eq!(verify(NOW + 600), NonceState::Stale);
    assert_eq!(verify(NOW + 65_000), NonceState::Stale);
    assert_eq!(
        verify(NOW - 60),
        NonceState::Fresh,
        "a faster clock in the fleet"
    );
    assert_ne!(verify(NOW - 61), NonceState::Fresh);
}

#[test]
fn a_nonce_of_days_ago_is_not_taken_for_one_of_now() {
    //= V-22
    // Two bytes of the time stand in a nonce, and they come again after 65,536 s; the tag covers all of it.
    let nonces = ours();
    let nonce = nonces.issue(NOW, &mut Seeded(1), usual());
    for rounds in 1..1_000 {
        for offset in [0, 1, 599, 600] {
            let state = nonces.verify(NOW + rounds * 65_536 + offset, nonce.as_bytes(), usual());
            assert_eq!(state, NonceState::Invalid, "{rounds} rounds and {offset} s");
        }
    }
}

#[test]
fn a_lifetime_is_an_hour_at_most() {
    //= TURN-004
    let seconds = |seconds| NonceLifetime::new(Duration::from_secs(seconds));
    assert!(seconds(1).is_some() && seconds(3600).is_some());
    assert!(seconds(0).is_none() && seconds(3601).is_none());
}

#[test]
fn an_unlimited_nonce_never_gets_stale() {
    let key = NonceKey::from_secret(b"north");
    let nonces = Nonces::new(key, None, NonceLifetime::UNLIMITED);
    let nonce = nonces.issue(NOW, &mut Seeded(1), usual());
    let much_later = NOW + 1_000_000_000;
    assert_eq!(
        nonces.verify(much_later, nonce.as_bytes(), usual()),
        NonceState::Fresh
    );
}

#[test]
fn a_nonce_is_good_for_one_client_and_one_listener() {
    //= STUN-043
    //= V-22
    let nonces = ours();
    let nonce = nonces.issue(NOW, &mut Seeded(1), usual());
    for (client, listener) in [
        ("198.51.100.7:40001", "203.0.113.1:3478"),
        ("198.51.100.8:40000", "203.0.113.1:3478"),
        ("[2606:4700::7]:40000", "203.0.113.1:3478"),
        ("198.51.100.7:40000", "203.0.113.1:3479"),
        ("198.51.100.7:40000", "203.0.113.2:3478"),
        ("203.0.113.1:3478", "198.51.100.7:40000"),
    ] {
        let state = nonces.verify(NOW, nonce.as_bytes(), path(client, listener));
        assert_eq!(state, NonceState::Invalid, "{client} {listener}");
    }
    let mapped = path("[::ffff:198.51.100.7]:40000", "[::ffff:203.0.113.1]:3478");
    assert_eq!(
        nonces.verify(NOW, nonce.as_bytes(), mapped),
        NonceState::Fresh
    );
}

#[test]
fn every_bit_of_a_nonce_counts() {
    //= V-22
    //= V-27
    let nonces = ours();
    let nonce = nonces.issue(NOW, &mut Seeded(1), usual());
    for bit in 0..Nonce::LEN * 8 {
        let mut changed = *nonce.as_bytes().as_array::<28>().unwrap();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(
            nonces.verify(NOW, &changed, usual()),
            NonceState::Invalid,
            "bit {bit}"
        );
    }
    for len in 0..Nonce::LEN {
        assert_eq!(
            nonces.verify(NOW, &nonce.as_bytes()[..len], usual()),
            NonceState::Invalid
        );
    }
    let longer = [nonce.as_bytes(), b"A"].concat();
    assert_eq!(nonces.verify(NOW, &longer, usual()), NonceState::Invalid);
}

#[test]
fn feature_bits_are_covered_by_the_tag() {
    //= V-27
    // Same key, same everything, but another server of the fleet that offers less: its cookie cannot be put on this nonce.
    let nonce = ours().issue(NOW, &mut Seeded(1), usual());
    let mut stripped = *nonce.as_bytes().as_array::<28>().unwrap();
    stripped[..13].copy_from_slice(b"obMatJos2AAAA");
    let weak = Scope {
        features: SecurityFeatures::default(),
        ..usual()
    };
    assert_eq!(ours().verify(NOW, &stripped, weak), NonceState::Invalid);
}

#[test]
fn the_offered_algorithms_and_the_realm_are_covered_by_the_tag() {
    //= STUN-050
    //= V-34
    let nonce = ours().issue(NOW, &mut Seeded(1), usual());
    for other in [
        Scope {
            offered: &[PasswordAlgorithm::Md5],
            ..usual()
        },
        Scope {
            offered: &[],
            ..usual()
        },
        Scope {
            realm: "crinna.org",
            ..usual()
        },
        Scope {
            realm: "",
            ..usual()
        },
    ] {
        let state = ours().verify(NOW, nonce.as_bytes(), other);
        assert_eq!(state, NonceState::Invalid, "{other:?}");
    }
}

#[test]
fn a_configured_key_survives_a_restart_and_a_random_one_does_not() {
    //= V-20
    //= V-22
    let nonce = ours().issue(NOW, &mut Seeded(1), usual());
    assert_eq!(
        ours().verify(NOW, nonce.as_bytes(), usual()),
        NonceState::Fresh
    );
    let (one, other) = (
        NonceKey::random(&mut Seeded(1)),
        NonceKey::random(&mut Seeded(2)),
    );
    let nonce = nonces(&one).issue(NOW, &mut Seeded(1), usual());
    assert_eq!(
        nonces(&other).verify(NOW, nonce.as_bytes(), usual()),
        NonceState::Invalid
    );
}

#[test]
fn one_previous_key_generation_is_accepted() {
    //= V-22
    let mut nonces = ours();
    let first = nonces.issue(NOW, &mut Seeded(1), usual());
    nonces.rotate(NonceKey::from_secret(b"east"));
    let second = nonces.issue(NOW, &mut Seeded(1), usual());
    assert_eq!(
        nonces.verify(NOW, first.as_bytes(), usual()),
        NonceState::Fresh
    );
    assert_eq!(
        nonces.verify(NOW, second.as_bytes(), usual()),
        NonceState::Fresh
    );
    nonces.rotate(NonceKey::from_secret(b"east"));
    assert_eq!(
        nonces.verify(NOW, first.as_bytes(), usual()),
        NonceState::Fresh,
        "no rotation"
    );
    nonces.rotate(NonceKey::from_secret(b"south"));
    assert_eq!(
        nonces.verify(NOW, first.as_bytes(), usual()),
        NonceState::Invalid
    );
    assert_eq!(
        nonces.verify(NOW, second.as_bytes(), usual()),
        NonceState::Fresh
    );
}

#[test]
fn a_successor_accepts_what_its_predecessor_issued() {
    let before = ours();
    let nonce = before.issue(NOW, &mut Seeded(1), usual());
    for (keep_key, key) in [(true, "west"), (false, "west"), (false, "north")] {
        let mut after = nonces(&NonceKey::from_secret(key.as_bytes()));
        after.succeed(&before, keep_key);
        assert_eq!(
            after.verify(NOW, nonce.as_bytes(), usual()),
            NonceState::Fresh,
            "{keep_key} {key}"
        );
    }
}

/// A cryptographic generator with a seed: SHA-256 of a counter.
struct Strong(u64);

impl Random for Strong {
    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(32) {
            self.0 += 1;
            let block = Sha256::digest(self.0.to_be_bytes());
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
    }
}

/// Returns the random part of a nonce.
fn random_part(nonce: &Nonce) -> [u8; RANDOM_LEN] {
    let raw = STANDARD_NO_PAD
        .decode(&nonce.as_bytes()[COOKIE_LEN..])
        .unwrap();
    raw[ISSUED_LEN..ISSUED_LEN + RANDOM_LEN].try_into().unwrap()
}

#[test]
fn the_next_nonce_cannot_be_told_from_a_hundred_thousand_before() {
    //= V-20
    // CVE-2025-69217: nonces made with random() gave away the generator's state, which is linear over GF(2).
    let nonces = ours();
    let mut random = Strong(0);
    let issued: Vec<_> = (0..100_000_u32)
        .map(|client| {
            let ip = core::net::Ipv4Addr::from_bits(0x0A00_0000 + client);
            let scope = Scope {
                client: SocketAddr::new(ip.into(), 40000),
                ..usual()
            };
            nonces.issue(NOW, &mut random, scope)
        })
        .collect();
    let distinct: HashSet<_> = issued.iter().collect();
    assert_eq!(distinct.len(), issued.len(), "nonces of one second");
    let parts: Vec<_> = issued.iter().map(random_part).collect();

    // The shortest linear recurrence that yields n random bits has length n / 2, give or take a few. The largest linear
    // generator in use, MT19937, would show as 19,937.
    let bits: Vec<bool> = parts
        .iter()
        .take(41_000)
        .map(|part| part[0] & 1 == 1)
        .collect();
    let complexity = linear_complexity(&bits);
    assert!(complexity.abs_diff(20_500) < 64, "{complexity}");
}

#[test]
fn a_linear_generator_would_be_found_out() {
    // The control of the test above.
    let mut state = 0x1234_5678_9abc_def1_u64;
    let bits: Vec<bool> = (0..1000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state & 1 == 1
        })
        .collect();
    assert!(linear_complexity(&bits) <= 64);
}

/// Returns the length of the shortest linear recurrence over GF(2) that yields `bits` (Berlekamp and Massey).
fn linear_complexity(bits: &[bool]) -> usize {
    let words = bits.len() / 64 + 2;
    let (mut current, mut last) = (vec![0_u64; words], vec![0_u64; words]);
    (current[0], last[0]) = (1, 1);
    // The bits seen, newest first, so that a discrepancy is one AND along the recurrence.
    let mut seen = vec![0_u64; words];
    let (mut complexity, mut shift) = (0, 1);
    for (index, &bit) in bits.iter().enumerate() {
        let used = index / 64 + 1;
        let mut carry = u64::from(bit);
        for word in &mut seen[..used] {
            (*word, carry) = (*word << 1 | carry, *word >> 63);
        }
        let ones: u32 = current[..used]
            .iter()
            .zip(&seen)
            .map(|(a, b)| (a & b).count_ones())
            .sum();
        if ones.is_multiple_of(2) {
            shift += 1;
            continue;
        }
        let before = (2 * complexity <= index).then(|| current.clone());
        for word in (shift / 64..words).rev() {
            let low = last[word - shift / 64] << (shift % 64);
            let high = match (shift % 64, word.checked_sub(shift / 64 + 1)) {
                (1.., Some(from)) => last[from] >> (64 - shift % 64),
                _ => 0,
            };
            current[word] ^= low | high;
        }
        match before {
            Some(before) => (last, complexity, shift) = (before, index + 1 - complexity, 1),
            None => shift += 1,
        }
    }
    complexity
}

#[test]
fn secrets_are_not_printed() {
    //= V-74
    assert_eq!(
        format!("{:?}", NonceKey::from_secret(b"north")),
        "NonceKey(..)"
    );
}

proptest! {
    #[test]
    fn what_was_issued_is_fresh_for_its_client_only(
        client: [u8; 16], port: u16, other: [u8; 16], other_port: u16, issued in 0_u64..1 << 33, age in 0_u64..1200, seed: u64,
    ) {
        let nonces = ours();
        let at = |ip: [u8; 16], port| {
            Scope { client: SocketAddr::new(core::net::Ipv6Addr::from(ip).into(), port), ..usual() }
        };
        let nonce = nonces.issue(issued, &mut Seeded(seed), at(client, port));
        let expected = if age < 600 { NonceState::Fresh } else { NonceState::Stale };
        prop_assert_eq!(nonces.verify(issued + age, nonce.as_bytes(), at(client, port)), expected);
        if (client, port) != (other, other_port) {
            let state = nonces.verify(issued + age, nonce.as_bytes(), at(other, other_port));
            prop_assert_eq!(state, NonceState::Invalid);
        }
    }

    #[test]
    fn no_bytes_are_a_nonce_by_chance(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(ours().verify(NOW, &bytes, usual()), NonceState::Invalid);
    }
}
