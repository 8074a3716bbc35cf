//! Proofs that a request needs, and responses that an unproven source may get (coturn inventory §1.3).

use std::num::NonZeroU32;
use std::time::Duration;

use turnbuckle_users::{MASK, Secret};

use crate::entry::Group;
use crate::findings::Findings;
use crate::row::{Row, Setting, Topic, each, flag, number, one, seconds};
use crate::value::Kind;

/// Shorter keys of nonces can be guessed.
const NONCE_SECRET_LEN_MIN: usize = 16;

/// The given values about requests.
#[derive(Default)]
pub(crate) struct GivenRequests {
    nonce_lifetime: Duration,
    nonce_secret: Option<Secret>,
    announcing_nonces: bool,
    pub(crate) binding_needs_credentials: bool,
    checks_origin: bool,
    limits_unauthorized: bool,
    unauthorized_per_second: Option<NonZeroU32>,
    unverified_excess_bytes_per_second: u32,
    unverified_bytes_per_second: u32,
}

/// Proofs that a request needs, and responses that an unproven source may get.
#[derive(Debug, Clone)]
pub struct Requests {
    /// How long a nonce is accepted; 1 s to 1 h.
    pub nonce_lifetime: Duration,
    /// Key of the nonces, so that they stay valid across restarts and machines; none means a random one for this process.
    pub nonce_secret: Option<Secret>,
    /// Nonces announce security features (RFC 8489 §9.2).
    pub announcing_nonces: bool,
    /// Binding requests need credentials too.
    pub binding_needs_credentials: bool,
    /// Requests about an allocation have to carry the ORIGIN of the one that created it.
    pub checks_origin: bool,
    /// Answers to unproven requests per second and source address; none means no such limit.
    pub unauthorized_replies_per_second: Option<NonZeroU32>,
    /// Bytes per second to a source address that proved nothing, beyond the bytes that came from it; at least 64.
    pub unverified_excess_bytes_per_second: u32,
    /// All bytes per second to a source address that proved nothing; at least 64.
    pub unverified_bytes_per_second: u32,
}

impl Topic for GivenRequests {
    type Settings = Requests;
}

type Key = Row<GivenRequests>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-052",
        "check-origin-consistency",
        Group::Authentication,
        Kind::Flag,
        "Requests about an allocation must carry the ORIGIN of the request that created it, else \
         441.",
    )
    .default("false")
    .live()
    .works(flag!(checks_origin)),
    Key::new(
        "O-053",
        "stale-nonce",
        Group::Authentication,
        Kind::optional_number(1, 3600, "seconds"),
        "How long a nonce is accepted.",
    )
    .default("600")
    .stricter(
        "at most one hour, and 0 (for ever) is refused: an overheard nonce must not be of use \
         later",
    )
    .live()
    .works(seconds!(nonce_lifetime)),
    Key::new(
        "O-054",
        "stateless-nonce",
        Group::Authentication,
        Kind::Flag,
        "Nonces are of RFC 8489: they announce SHA-256 and USERHASH. With false they have 16 \
         characters and announce nothing, as coturn's stored ones. Either kind is computed and \
         not stored, so that unproven requests cost no memory.",
    )
    .default("true")
    .works(flag!(announcing_nonces)),
    Key::new(
        "O-055",
        "stateless-nonce-secret",
        Group::Authentication,
        Kind::Text(256),
        "Key of the nonces, for servers that accept each other's, and across restarts. Without \
         it a random key holds for the life of the process.",
    )
    .default("(random)")
    .secret()
    .stricter("at least 16 bytes")
    .example("a-long-secret-shared-by-all-relays")
    .live()
    .works(Setting {
        take: |given, written| {
            let secret = written.value.text().as_bytes();
            if secret.len() < NONCE_SECRET_LEN_MIN {
                return Err(format!("is shorter than {NONCE_SECRET_LEN_MIN} bytes"));
            }
            given.nonce_secret = Some(Secret::new(secret));
            Ok(())
        },
        show: |requests| each(requests.nonce_secret.iter().map(|_| MASK)),
    }),
    Key::new(
        "O-056",
        "secure-stun",
        Group::Authentication,
        Kind::Flag,
        "Binding requests need credentials too.",
    )
    .default("false")
    .live()
    .works(flag!(binding_needs_credentials)),
    Key::new(
        "O-057",
        "unauthorized-ratelimit",
        Group::Authentication,
        Kind::Flag,
        "Limits answers to requests without valid credentials, per source address.",
    )
    .default("false")
    .live()
    .works(Setting {
        take: |given, written| {
            given.limits_unauthorized = written.value.flag();
            Ok(())
        },
        show: |requests| one(requests.unauthorized_replies_per_second.is_some()),
    }),
    Key::new(
        "O-058",
        "unauthorized-ratelimit-rps",
        Group::Authentication,
        Kind::number(1, 1_000_000, "answers per second"),
        "The limit that unauthorized-ratelimit sets.",
    )
    .default("10")
    .stricter("refused without unauthorized-ratelimit")
    .live()
    .works(Setting {
        take: |given, written| {
            given.unauthorized_per_second = Some(written.value.number()?);
            Ok(())
        },
        show: |requests| each(requests.unauthorized_replies_per_second),
    }),
    Key::own(
        "O-058",
        "unverified-excess-bytes-per-second",
        Group::Authentication,
        Kind::number(64, 1_000_000_000, "bytes per second"),
        "What may go to one source address that proved nothing, beyond the bytes that came from \
         it. A client's first contact takes about 60 bytes of it, and eight times as much may go \
         at once: raise it where thousands of clients come from one address, as in load tests.",
    )
    .default("8192")
    .live()
    .works(number!(unverified_excess_bytes_per_second)),
    Key::own(
        "O-058",
        "unverified-bytes-per-second",
        Group::Authentication,
        Kind::number(64, 1_000_000_000, "bytes per second"),
        "All that may go to one source address that proved nothing; four times as much may go at \
         once.",
    )
    .default("32768")
    .live()
    .works(number!(unverified_bytes_per_second)),
];

pub(crate) fn finish(given: GivenRequests, findings: &mut Findings) -> Requests {
    if !given.limits_unauthorized && findings.is_given("unauthorized-ratelimit-rps") {
        findings.problem(
            "unauthorized-ratelimit-rps",
            "has no effect without `unauthorized-ratelimit`; add that or remove the line",
        );
    }
    let limit = given.unauthorized_per_second;
    Requests {
        nonce_lifetime: given.nonce_lifetime,
        nonce_secret: given.nonce_secret,
        announcing_nonces: given.announcing_nonces,
        binding_needs_credentials: given.binding_needs_credentials,
        checks_origin: given.checks_origin,
        unauthorized_replies_per_second: limit.filter(|_| given.limits_unauthorized),
        unverified_excess_bytes_per_second: given.unverified_excess_bytes_per_second,
        unverified_bytes_per_second: given.unverified_bytes_per_second,
    }
}
