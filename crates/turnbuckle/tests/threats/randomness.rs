//! V-20: nonces and relayed ports that nobody can foresee.
//!
//! The bounds are fixed and lie six standard deviations or more from what true randomness gives, so that chance does not fail a
//! test. They are there for generators that count, repeat, follow a linear recurrence, or prefer some values.

use std::collections::HashSet;

use turnbuckle_wire::{Class, IntegrityKey, Method, long_term_key_md5};

use crate::harness::{Answer, Crowd, PASSWORD, REALM, Server, Site, USER, message};

const NONCES: u32 = 1_000_000;
const PORTS: u32 = 100_000;
/// Allocations that live at the same time while ports are collected.
const HOLDERS: u32 = 500;
/// RFC 8656 §7.2: 49152 to 65535.
const RANGE: usize = 16_384;
/// Bits given to the linear predictor: more than twice the state of the largest common generator (19,937).
const PREDICTOR_BITS: usize = 45_000;

/// Base64 characters of a nonce before the part that differs from one to the next (RFC 8489 §9.2).
const COOKIE_LEN: usize = 13;
/// Bytes of a nonce after the cookie: the time it was issued, randomness, a tag over both.
const ISSUED_LEN: usize = 2;
const RANDOM_LEN: usize = 2;

fn relay(site: Site) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    // One shard, whose one generator is seen without another's values in between.
    Server::start(site.server(), &[&relay_ip, "--relay-threads=1"])
}

//= V-20
//= TURN-004
#[test]
fn nonces_are_unpredictable() {
    let site = Site::new();
    let server = relay(site);
    let samples = collect_nonces(&server, NONCES);
    assert_eq!(samples.len(), NONCES as usize);

    // Two bytes repeat by chance, four consecutive pairs of them hardly ever.
    let runs: HashSet<_> = samples.windows(4).collect();
    assert_eq!(
        runs.len(),
        samples.len() - 3,
        "the random parts never repeat"
    );

    for index in 0..RANDOM_LEN {
        let values = samples.iter().map(|sample| usize::from(sample[index]));
        assert_uniform(values, 256, &format!("byte {index} of the random part"));
        let steps = samples
            .windows(2)
            .map(|pair| usize::from(pair[1][index].wrapping_sub(pair[0][index])));
        assert_uniform(steps, 256, &format!("steps of byte {index}"));
    }
    // A recurrence shows in any bit that follows it; the lowest are the weakest of most generators.
    for (index, bit) in [(0, 0), (0, 7), (RANDOM_LEN - 1, 0)] {
        let bits = samples.iter().map(|sample| sample[index] >> bit & 1 == 1);
        assert_not_linear(bits, &format!("bit {bit} of byte {index}"));
    }
}

//= V-20
#[test]
fn two_processes_started_together_share_no_randomness() {
    let sites = [Site::new(), Site::new()];
    let servers = sites.map(relay);
    let [one, two] = servers
        .each_ref()
        .map(|server| collect_nonces(server, 2_000));
    let one: HashSet<_> = one.windows(4).collect();
    assert_eq!(two.windows(4).filter(|run| one.contains(run)).count(), 0);
}

//= V-20
//= TURN-045
#[test]
fn relayed_ports_are_unpredictable() {
    let site = Site::new();
    let server = relay(site);
    let ports = collect_ports(&server);
    assert!(ports.len() >= PORTS as usize);

    assert_uniform(ports.iter().copied(), RANGE, "ports");
    let steps = ports
        .windows(2)
        .map(|pair| (pair[1] + RANGE - pair[0]) % RANGE / 16);
    assert_uniform(steps, RANGE / 16, "steps from one port to the next");
    for bit in [0, 6, 13] {
        let bits = ports.iter().map(|port| port >> bit & 1 == 1);
        assert_not_linear(bits, &format!("bit {bit} of the port"));
    }
    // A request for each and one to give it back, perhaps more than once on a busy machine.
    assert!(server.stop().received >= 2 * u64::from(PORTS));
}

/// Returns the random parts of nonces, one to a client address, in the order they arrived.
fn collect_nonces(server: &Server, count: u32) -> Vec<[u8; RANDOM_LEN]> {
    let mut samples = Vec::new();
    Crowd::new(server.address()).exchange(
        0..count,
        |_, id| {
            message(Class::Request, Method::ALLOCATE, id, |writer| {
                writer.requested_transport(17);
            })
        },
        |_, answer| {
            let nonce = answer.expect(401).nonce();
            let bytes = base64(&nonce[COOKIE_LEN..]);
            samples.push(
                bytes[ISSUED_LEN..][..RANDOM_LEN]
                    .try_into()
                    .expect("a nonce of the documented length"),
            );
        },
    );
    samples
}

/// Returns the relayed ports as offsets into the range, in the order they were given out.
fn collect_ports(server: &Server) -> Vec<usize> {
    let crowd = Crowd::new(server.address());
    let key = IntegrityKey::sha1(&long_term_key_md5(
        USER.as_bytes(),
        REALM.as_bytes(),
        PASSWORD.as_bytes(),
    ));
    let mut nonces = vec![Vec::new(); HOLDERS as usize];
    crowd.exchange(
        0..HOLDERS,
        |_, id| {
            message(Class::Request, Method::ALLOCATE, id, |writer| {
                writer.requested_transport(17);
            })
        },
        |client, answer| nonces[client as usize] = answer.expect(401).nonce(),
    );
    let mut ports = Vec::new();
    for _ in 0..PORTS.div_ceil(HOLDERS) {
        let request = |method, build: fn(&mut turnbuckle_wire::MessageWriter<'_>)| {
            let (nonces, key) = (&nonces, &key);
            move |client: u32, id| {
                message(Class::Request, method, id, |writer| {
                    build(writer);
                    writer
                        .username(USER.as_bytes())
                        .realm(REALM.as_bytes())
                        .nonce(&nonces[client as usize]);
                    writer.integrity(key);
                })
            }
        };
        let allocate = request(Method::ALLOCATE, |writer| {
            writer.requested_transport(17);
        });
        crowd.exchange(0..HOLDERS, allocate, |_, answer| {
            ports.push(relayed_port(&answer.expect(200)))
        });
        let delete = request(Method::REFRESH, |writer| {
            writer.lifetime(0);
        });
        crowd.exchange(0..HOLDERS, delete, |_, answer| {
            answer.expect(200);
        });
    }
    ports
}

fn relayed_port(answer: &Answer) -> usize {
    let relayed = answer
        .message()
        .xor_relayed_address()
        .expect("well formed")
        .expect("a relayed address");
    usize::from(relayed.port())
        .checked_sub(49_152)
        .expect("a dynamic port (RFC 8656 §7.2)")
}

/// Fails unless Pearson's chi-square over `bins` equally likely values is within six and a half standard deviations of its expectation on both sides: too even
/// is no more random than too uneven.
#[track_caller]
fn assert_uniform(values: impl Iterator<Item = usize>, bins: usize, what: &str) {
    let mut counts = vec![0_u32; bins];
    values.for_each(|value| counts[value] += 1);
    let total: u32 = counts.iter().sum();
    let as_f64 = |count: usize| f64::from(u32::try_from(count).expect("a small number"));
    let expected = f64::from(total) / as_f64(bins);
    let chi_square: f64 = counts
        .iter()
        .map(|&count| (f64::from(count) - expected).powi(2) / expected)
        .sum();
    let freedom = as_f64(bins - 1);
    let deviations = (chi_square - freedom) / (2.0 * freedom).sqrt();
    println!(
        "{what}: chi-square {chi_square:.0} over {bins} bins of {expected:.1}, {deviations:+.1} deviations"
    );
    assert!(
        deviations.abs() < 6.5,
        "{what}: {deviations:+.1} deviations from uniform"
    );
}

/// Fails if the bits follow a linear recurrence over GF(2), as those of `random()`, xorshift and Mersenne Twister do. The
/// shortest such recurrence that makes n random bits has a length of about n / 2 (Berlekamp and Massey).
#[track_caller]
fn assert_not_linear(bits: impl Iterator<Item = bool>, what: &str) {
    let bits: Vec<bool> = bits.take(PREDICTOR_BITS).collect();
    let complexity = linear_complexity(&bits);
    let half = bits.len() / 2;
    assert!(
        complexity.abs_diff(half) < 100,
        "{what}: {} bits from a recurrence of {complexity}",
        bits.len()
    );
}

/// Returns the length of the shortest linear feedback shift register that makes `bits`.
fn linear_complexity(bits: &[bool]) -> usize {
    let words = bits.len().div_ceil(64) + 1;
    let set = |vector: &mut [u64], index: usize| vector[index / 64] |= 1 << (index % 64);
    // The connection polynomial, the one before the last change of length, and the bits so far, newest first.
    let (mut current, mut before, mut history) =
        (vec![0_u64; words], vec![0_u64; words], vec![0_u64; words]);
    set(&mut current, 0);
    set(&mut before, 0);
    let (mut length, mut since_change) = (0, 1);
    for (index, &bit) in bits.iter().enumerate() {
        shift_up(&mut history);
        history[0] |= u64::from(bit);
        let used = length / 64 + 1;
        let parity = current
            .iter()
            .zip(&history)
            .take(used)
            .fold(0, |sum, (a, b)| sum ^ (a & b));
        if parity.count_ones() % 2 == 0 {
            since_change += 1;
            continue;
        }
        let corrected = {
            let mut next = current.clone();
            xor_shifted(&mut next, &before, since_change);
            next
        };
        if 2 * length <= index {
            before = std::mem::replace(&mut current, corrected);
            length = index + 1 - length;
            since_change = 1;
        } else {
            current = corrected;
            since_change += 1;
        }
    }
    length
}

/// Multiplies by x.
fn shift_up(vector: &mut [u64]) {
    let mut carry = 0;
    for word in vector {
        let next = *word >> 63;
        *word = *word << 1 | carry;
        carry = next;
    }
}

/// Carries out `target ^= source << shift`.
fn xor_shifted(target: &mut [u64], source: &[u64], shift: usize) {
    let (whole, part) = (shift / 64, shift % 64);
    for index in (whole..target.len()).rev() {
        let low = source[index - whole] << part;
        let high = if part > 0 && index > whole {
            source[index - whole - 1] >> (64 - part)
        } else {
            0
        };
        target[index] ^= low | high;
    }
}

/// Decodes standard base64 without padding.
fn base64(text: &[u8]) -> Vec<u8> {
    let value = |character: u8| match character {
        b'A'..=b'Z' => character - b'A',
        b'a'..=b'z' => character - b'a' + 26,
        b'0'..=b'9' => character - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        other => panic!("{other} is not base64"),
    };
    let mut bytes = Vec::new();
    let (mut pending, mut pending_bits) = (0_u32, 0_u32);
    for &character in text {
        pending = pending << 6 | u32::from(value(character));
        pending_bits += 6;
        if pending_bits >= 8 {
            pending_bits -= 8;
            bytes.push(u8::try_from(pending >> pending_bits & 0xFF).expect("a byte"));
            pending &= (1 << pending_bits) - 1;
        }
    }
    bytes
}

#[test]
fn the_linear_predictor_finds_what_it_looks_for() {
    // A generator like the one behind `random()`: x[n] = x[n-3] + x[n-31], whose low bit is linear.
    let mut state: Vec<u32> = (1..=31)
        .map(|seed: u32| seed.wrapping_mul(2_654_435_761))
        .collect();
    let bits: Vec<bool> = (0..2_000)
        .map(|_| {
            let next = state[state.len() - 3].wrapping_add(state[state.len() - 31]);
            state.push(next);
            next & 1 == 1
        })
        .collect();
    assert_eq!(linear_complexity(&bits), 31);
    assert_eq!(linear_complexity(&[false, false, false, true]), 4);
    assert_eq!(linear_complexity(&[true; 100]), 1);
}
