//! STUN behaviour and compatibility (coturn inventory §1.7).

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

use super::flag;

const GROUP: Group = Group::Stun;

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-120",
        "stun-only",
        GROUP,
        Kind::Flag,
        "Serves Binding requests only; TURN requests are not answered.",
    )
    .short('S')
    .default("false")
    .works(
        |draft, value, _| {
            draft.stun.stun_only = value.flag();
            Ok(())
        },
        |config| flag(config.stun.stun_only),
    ),
    Entry::new(
        "O-121",
        "no-stun",
        GROUP,
        Kind::Flag,
        "Binding requests are not answered.",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.stun.no_binding = value.flag();
            Ok(())
        },
        |config| flag(config.stun.no_binding),
    ),
    Entry::new(
        "O-122",
        "fingerprint",
        GROUP,
        Kind::Flag,
        "Puts FINGERPRINT on every message; otherwise it answers clients that use it.",
    )
    .short('f')
    .default("false")
    .works(
        |draft, value, _| {
            draft.stun.fingerprint = value.flag();
            Ok(())
        },
        |config| flag(config.stun.fingerprint),
    ),
    Entry::new(
        "O-123",
        "software-attribute",
        GROUP,
        Kind::Flag,
        "Puts SOFTWARE, with the version, into responses to clients that proved who they are.",
    )
    .default("false")
    .stricter("clients that proved nothing are not told: it would make answers to forged sources longer")
    .works(
        |draft, value, _| {
            draft.stun.software = value.flag();
            Ok(())
        },
        |config| flag(config.stun.software),
    ),
    Entry::new(
        "O-124",
        "no-software-attribute",
        GROUP,
        Kind::Flag,
        "Old form of software-attribute=false.",
    )
    .default("true")
    .works(
        |draft, value, _| {
            draft.stun.software = !value.flag();
            Ok(())
        },
        |config| flag(!config.stun.software),
    ),
    Entry::new(
        "O-125",
        "rfc5780",
        GROUP,
        Kind::Flag,
        "NAT behaviour discovery (RFC 5780): second ports are opened, and Binding requests may ask for an answer from the other \
         address or port, to another port, or padded. Needs two `listening-ip` of one family that the same clients reach.",
    )
    .default("false")
    .stricter(
        "the value counts, where coturn ignores it and always switches on; with one address it is refused; PADDING for who proved nothing \
         is no longer than the request's",
    )
    .works(
        |draft, value, _| {
            draft.nat_discovery = value.flag();
            Ok(())
        },
        |config| flag(config.addresses.discovery.is_some()),
    ),
    Entry::new(
        "O-126",
        "no-rfc5780",
        GROUP,
        Kind::Flag,
        "Does nothing in coturn either.",
    )
    .no_effect("NAT behaviour discovery is off unless `rfc5780` is set"),
    Entry::new(
        "O-126",
        "response-origin-only-with-rfc5780",
        GROUP,
        Kind::Flag,
        "Does nothing in coturn either.",
    )
    .no_effect("RESPONSE-ORIGIN belongs to NAT behaviour discovery here too"),
    Entry::new(
        "O-127",
        "stun-backward-compatibility",
        GROUP,
        Kind::Flag,
        "Adds MAPPED-ADDRESS beside XOR-MAPPED-ADDRESS to Binding responses.",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.stun.mapped_address = value.flag();
            Ok(())
        },
        |config| flag(config.stun.mapped_address),
    ),
    Entry::new(
        "O-128",
        "rfc3489-compatibility",
        GROUP,
        Kind::Flag,
        "Answers Binding requests of RFC 3489, which have no magic cookie, by UDP over IPv4; with rfc5780 CHANGE-REQUEST too.",
    )
    .default("false")
    .stricter(
        "RESPONSE-ADDRESS may name another port, but no other address, and only with rfc5780; MESSAGE-INTEGRITY gets 430; refused with secure-stun",
    )
    .works(
        |draft, value, _| {
            draft.stun.rfc3489_binding = value.flag();
            Ok(())
        },
        |config| flag(config.stun.rfc3489_binding),
    ),
    Entry::new(
        "O-129",
        "rfc5766-channel-numbers",
        GROUP,
        Kind::Flag,
        "Accepts channel numbers 0x5000 to 0x7FFF too.",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.stun.rfc5766_channel_numbers = value.flag();
            Ok(())
        },
        |config| flag(config.stun.rfc5766_channel_numbers),
    ),
    Entry::new(
        "O-130",
        "include-reason-string",
        GROUP,
        Kind::Flag,
        "Reason phrases say what was wrong with a bad request (400), and clients that proved nothing get reason phrases too.",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.stun.detailed_reasons = value.flag();
            Ok(())
        },
        |config| flag(config.stun.detailed_reasons),
    ),
    Entry::new(
        "O-131",
        "drop-invalid-packets",
        GROUP,
        Kind::Flag,
        "Drops datagrams that are neither STUN nor ChannelData before anything is kept for them.",
    )
    .default("true")
    .only(&["true"], "such datagrams are always dropped, and counted"),
    Entry::new(
        "O-132",
        "drop-invalid-packets-log",
        GROUP,
        Kind::Flag,
        "Logs each such datagram.",
    )
    .default("false")
    .only(
        &["false"],
        "they are counted by reason; a line for each would let strangers fill the log",
    ),
    Entry::new(
        "O-133",
        "mobility",
        GROUP,
        Kind::Flag,
        "Mobility tickets (RFC 8016): a client that asks for one goes on with its allocation from another address or over another connection. With \
         stateless-nonce-secret tickets outlive the process. Not for TCP relays, which end with their connection (RFC 6062 §4.2).",
    )
    .default("false")
    .works(
        |draft, value, _| {
            draft.stun.mobility = value.flag();
            Ok(())
        },
        |config| flag(config.stun.mobility),
    ),
];
