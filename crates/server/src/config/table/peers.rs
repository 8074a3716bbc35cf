//! Peer access control (coturn inventory §1.6).

use turnbuckle_engine::Nat64Prefix;

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

use super::flag;

const GROUP: Group = Group::Peers;
const SPECIAL: &str = "a relay that reaches private networks is a way into them; allow what clients need with allowed-peer-ip";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-110",
        "allowed-peer-ip",
        GROUP,
        Kind::PeerRange,
        "Peer addresses to allow although a built-in rule or denied-peer-ip refuses them. Private and special-purpose networks are refused unless allowed here.",
    )
    .repeatable()
    .default("(none)")
    .coturn_default("(private networks are open)", SPECIAL)
    .stricter("prefixes are understood too; host names are refused")
    .works(
        |draft, value, _| {
            draft.peer_range("allowed-peer-ip", value.range());
            draft.allowed_peers.push(value.range());
            Ok(())
        },
        |config| config.peers.allowed.iter().map(ToString::to_string).collect(),
    ),
    Entry::new("O-111", "denied-peer-ip", GROUP, Kind::PeerRange, "Peer addresses to refuse. allowed-peer-ip wins over it. Clients get 403.")
        .repeatable()
        .default("(private and special-purpose networks)")
        .stricter("prefixes are understood too; host names are refused")
        .works(
            |draft, value, _| {
                draft.peer_range("denied-peer-ip", value.range());
                draft.denied_peers.push(value.range());
                Ok(())
            },
            |config| config.peers.denied.iter().map(ToString::to_string).collect(),
        ),
    Entry::new(
        "",
        "nat64-prefix",
        GROUP,
        Kind::Text(43),
        "Prefix of a NAT64 translator that peers are reached through, such as 2001:db8:64::/96: the IPv4 address inside an address of the prefix is judged like any other (RFC 6052 §2.2). 64:ff9b::/96 and 64:ff9b:1::/48 are known.",
    )
    .repeatable()
    .default("(none)")
    .works(
        |draft, value, _| {
            let prefix = value.text().parse::<Nat64Prefix>();
            draft.nat64_prefixes.push(prefix.map_err(|error| error.to_string())?);
            Ok(())
        },
        |config| config.peers.nat64_prefixes.iter().map(ToString::to_string).collect(),
    ),
    Entry::new("O-112", "allow-loopback-peers", GROUP, Kind::Flag, "Allows 127.0.0.0/8 and ::1 as peers. For tests: clients reach every service that listens there.")
        .default("false")
        .works(
            |draft, value, _| {
                draft.allow_loopback = value.flag();
                Ok(())
            },
            |config| flag(config.peers.allow_loopback),
        ),
    Entry::new("O-113", "no-multicast-peers", GROUP, Kind::Flag, "Refuses multicast peers.")
        .default("true")
        .coturn_default("false", "a relay to multicast groups multiplies what strangers send")
        .only(&["true"], "multicast peers are always refused"),
];
