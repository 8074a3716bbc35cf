//! How STUN messages are answered (coturn inventory §1.7).

use crate::entry::Group;
use crate::row::{Row, Topic, flag, off};
use crate::value::Kind;

/// How STUN messages are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stun {
    /// TURN methods are ignored.
    pub stun_only: bool,
    /// Binding requests are ignored.
    pub no_binding: bool,
    /// FINGERPRINT on every message; otherwise only for clients that use it.
    pub fingerprint: bool,
    /// SOFTWARE in responses.
    pub software: bool,
    /// MAPPED-ADDRESS beside XOR-MAPPED-ADDRESS.
    pub mapped_address: bool,
    /// Channel numbers of RFC 5766, 0x4000 to 0x7FFF, are taken too.
    pub rfc5766_channel_numbers: bool,
    /// Binding requests of RFC 3489 are answered.
    pub rfc3489_binding: bool,
    /// Allocations can move with their client (RFC 8016).
    pub mobility: bool,
    /// Reason phrases say in detail what was wrong.
    pub detailed_reasons: bool,
}

impl Topic for Stun {
    type Settings = Self;
}

type Key = Row<Stun>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-120",
        "stun-only",
        Group::Stun,
        Kind::Flag,
        "Serves Binding requests only: TURN requests are not answered, and requests for tunnels \
         get 501. A reload that sets it ends all allocations and tunnels.",
    )
    .short('S')
    .default("false")
    .live()
    .works(flag!(stun_only)),
    Key::new(
        "O-121",
        "no-stun",
        Group::Stun,
        Kind::Flag,
        "Binding requests are not answered.",
    )
    .default("false")
    .live()
    .works(flag!(no_binding)),
    Key::new(
        "O-122",
        "fingerprint",
        Group::Stun,
        Kind::Flag,
        "Puts FINGERPRINT on every message; otherwise it answers clients that use it.",
    )
    .short('f')
    .default("false")
    .live()
    .works(flag!(fingerprint)),
    Key::new(
        "O-123",
        "software-attribute",
        Group::Stun,
        Kind::Flag,
        "Puts SOFTWARE, with the version, into responses to clients that proved who they are.",
    )
    .default("false")
    .stricter(
        "clients that proved nothing are not told: it would make answers to forged sources \
         longer",
    )
    .live()
    .works(flag!(software)),
    Key::new(
        "O-124",
        "no-software-attribute",
        Group::Stun,
        Kind::Flag,
        "Old form of software-attribute=false.",
    )
    .default("true")
    .live()
    .works(off!(software)),
    Key::new(
        "O-127",
        "stun-backward-compatibility",
        Group::Stun,
        Kind::Flag,
        "Adds MAPPED-ADDRESS beside XOR-MAPPED-ADDRESS to Binding responses.",
    )
    .default("false")
    .live()
    .works(flag!(mapped_address)),
    Key::new(
        "O-128",
        "rfc3489-compatibility",
        Group::Stun,
        Kind::Flag,
        "Answers Binding requests of RFC 3489, which have no magic cookie, by UDP over IPv4; \
         with rfc5780 CHANGE-REQUEST too.",
    )
    .default("false")
    .stricter(
        "RESPONSE-ADDRESS may name another port, but no other address, and only with rfc5780; \
         MESSAGE-INTEGRITY gets 430; refused with secure-stun",
    )
    .live()
    .works(flag!(rfc3489_binding)),
    Key::new(
        "O-129",
        "rfc5766-channel-numbers",
        Group::Stun,
        Kind::Flag,
        "Accepts channel numbers 0x5000 to 0x7FFF too.",
    )
    .default("false")
    .live()
    .works(flag!(rfc5766_channel_numbers)),
    Key::new(
        "O-130",
        "include-reason-string",
        Group::Stun,
        Kind::Flag,
        "Reason phrases say what was wrong with a bad request (400), and clients that proved \
         nothing get reason phrases too.",
    )
    .default("false")
    .live()
    .works(flag!(detailed_reasons)),
    Key::new(
        "O-131",
        "drop-invalid-packets",
        Group::Stun,
        Kind::Flag,
        "Drops datagrams that are neither STUN nor ChannelData before anything is kept for them.",
    )
    .default("true")
    .only(&["true"], "such datagrams are always dropped, and counted"),
    Key::new(
        "O-132",
        "drop-invalid-packets-log",
        Group::Stun,
        Kind::Flag,
        "Logs each such datagram.",
    )
    .default("false")
    .only(
        &["false"],
        "they are counted by reason; a line for each would let strangers fill the log",
    ),
    Key::new(
        "O-133",
        "mobility",
        Group::Stun,
        Kind::Flag,
        "Mobility tickets (RFC 8016): a client that asks for one goes on with its allocation \
         from another address or over another connection. With stateless-nonce-secret tickets \
         outlive the process. Not for TCP relays, which end with their connection (RFC 6062 \
         §4.2).",
    )
    .default("false")
    .live()
    .works(flag!(mobility)),
];
