//! Peer access control (coturn inventory §1.6).

use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::{Action, AddressRange, Forbidden, Nat64Prefix, Policy, PolicyRules, Rule};

use crate::entry::Group;
use crate::findings::Findings;
use crate::machine::Machine;
use crate::row::{Row, Setting, Topic, Written, each, flag};
use crate::value::Kind;

const SPECIAL: &str = "a relay that reaches private networks is a way into them; allow what \
                       clients need with allowed-peer-ip";

/// Which peers may be reached, on top of the built-in rules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerRules {
    /// Ranges to allow although a built-in rule or a wider range of [`Self::denied`] refuses them.
    pub allowed: Vec<AddressRange>,
    /// Ranges to refuse.
    pub denied: Vec<AddressRange>,
    /// Prefixes of translators, inside which IPv4 addresses are judged.
    pub nat64_prefixes: Vec<Nat64Prefix>,
    /// 127.0.0.0/8 and ::1 may be peers.
    pub allow_loopback: bool,
    /// Private networks may be peers unless they are denied, as in coturn.
    pub allow_private: bool,
}

impl Topic for PeerRules {
    type Settings = Self;
}

type Key = Row<PeerRules>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-110",
        "allowed-peer-ip",
        Group::Peers,
        Kind::PeerRange,
        "Peer addresses to allow although a built-in rule or a wider range of denied-peer-ip \
         refuses them. Private and special-purpose networks are refused unless allowed here.",
    )
    .repeatable()
    .default("(none)")
    .coturn_default("(private networks are open)", SPECIAL)
    .differs_as_serve_alone()
    .stricter(
        "prefixes are understood too; host names are refused; ranges of denied-peer-ip in it stay \
         refused, as exceptions, where coturn does not look at them for what is allowed",
    )
    .example("10.20.0.0-10.20.255.255")
    .live()
    .works(Setting {
        take: |rules, written| {
            rules.allowed.push(range(written));
            Ok(())
        },
        show: |rules| each(&rules.allowed),
    }),
    Key::new(
        "O-111",
        "denied-peer-ip",
        Group::Peers,
        Kind::PeerRange,
        "Peer addresses to refuse. Of its ranges and those of allowed-peer-ip that an address is \
         in the narrowest decides, and of two that are as wide this one. Clients get 403.",
    )
    .repeatable()
    .default("(private and special-purpose networks)")
    .stricter(
        "prefixes are understood too; host names are refused; a range in one of allowed-peer-ip \
         counts, where coturn does not look at it",
    )
    .example("198.51.100.0/24")
    .live()
    .works(Setting {
        take: |rules, written| {
            rules.denied.push(range(written));
            Ok(())
        },
        show: |rules| each(&rules.denied),
    }),
    Key::own(
        "O-111",
        "nat64-prefix",
        Group::Peers,
        Kind::Text(43),
        "Prefix of a NAT64 translator that peers are reached through, such as 2001:db8:64::/96: \
         the IPv4 address inside an address of the prefix is judged like any other (RFC 6052 \
         §2.2). 64:ff9b::/96 and 64:ff9b:1::/48 are known.",
    )
    .repeatable()
    .default("(none)")
    .example("2001:db8:64::/96")
    .live()
    .works(Setting {
        take: |rules, written| {
            let prefix = written.value.text().parse::<Nat64Prefix>();
            rules
                .nat64_prefixes
                .push(prefix.map_err(|error| error.to_string())?);
            Ok(())
        },
        show: |rules| each(&rules.nat64_prefixes),
    }),
    Key::new(
        "O-112",
        "allow-loopback-peers",
        Group::Peers,
        Kind::Flag,
        "Allows 127.0.0.0/8 and ::1 as peers. For tests: clients reach every service that \
         listens there.",
    )
    .default("false")
    .live()
    .works(flag!(allow_loopback)),
    Key::new(
        "O-113",
        "no-multicast-peers",
        Group::Peers,
        Kind::Flag,
        "Refuses multicast peers.",
    )
    .default("true")
    .coturn_default(
        "false",
        "a relay to multicast groups multiplies what strangers send",
    )
    .only(&["true"], "multicast peers are always refused"),
];

/// Reads a range of peers. Notes that IPv4-mapped forms are refused anyway and do not cover IPv4 peers.
fn range(written: &mut Written<'_>) -> AddressRange {
    let range = written.value.range();
    if range.is_mapped() {
        let text = format!(
            "{range} is about IPv4-mapped forms, which are refused as peers anyway; IPv4 peers \
             are judged by IPv4 ranges, such as {}",
            range.canonical()
        );
        written.note(text);
    }
    range
}

/// Opens the peers that coturn opens, for `turnserver`, and notes it.
pub(crate) fn open_private(rules: &mut PeerRules, findings: &mut Findings) {
    if !findings.is_lenient() {
        return;
    }
    rules.allow_private = true;
    findings.note(
        "denied-peer-ip",
        "clients can reach private networks unless this key denies them (coturn's default; \
         `turnbuckle serve` denies them)",
    );
}

/// Notes which peers are open, and which entries of `allowed-peer-ip` have no effect because no rule opens such addresses.
pub(crate) fn check(rules: &PeerRules, findings: &mut Findings) {
    if rules.allow_loopback {
        findings.note(
            "allow-loopback-peers",
            "clients can reach every UDP service of this machine that listens on loopback",
        );
    }
    if findings.is_lenient() {
        note_exceptions(rules, findings);
    }
    for &range in &rules.allowed {
        let action = Action::Allow;
        let policy = Policy::new(PolicyRules {
            allow_loopback: rules.allow_loopback,
            rules: vec![Rule { action, range }],
            ..PolicyRules::strict()
        });
        let refusal = |ip: IpAddr| policy.check(SocketAddr::new(ip, 0)).err();
        // The ends of a range that holds others as well have different reasons, or none.
        if let Some(why) = refusal(range.first())
            && refusal(range.last()) == Some(why)
        {
            let more = match why {
                Forbidden::Loopback => "; `allow-loopback-peers` opens it",
                _ => "",
            };
            findings.note(
                "allowed-peer-ip",
                format!("{range} stays refused, no rule opens it ({why}){more}"),
            );
        }
    }
}

/// Notes for users of coturn which denied ranges are refused although a range that they are in is allowed.
fn note_exceptions(rules: &PeerRules, findings: &mut Findings) {
    for allowed in &rules.allowed {
        let is_in = |denied: &&AddressRange| {
            allowed.contains(denied.first()) && allowed.contains(denied.last())
        };
        let exceptions = each(rules.denied.iter().filter(is_in));
        if !exceptions.is_empty() {
            findings.note(
                "denied-peer-ip",
                format!(
                    "refused although `allowed-peer-ip={allowed}` has it: {}; the narrowest range \
                     decides, and of equal ones this key, where coturn relays to all that is \
                     allowed",
                    exceptions.join(", ")
                ),
            );
        }
    }
}

/// Notes for users of coturn that this host's own addresses are no peers, and which line would make them peers.
pub(crate) fn note_own_addresses(rules: &PeerRules, machine: &Machine, findings: &mut Findings) {
    let is_in =
        |ranges: &[AddressRange], own: IpAddr| ranges.iter().any(|range| range.contains(own));
    let own = machine.addresses.iter().filter(|own| !own.is_loopback());
    let refused: Vec<String> = own
        .filter(|&&own| !is_in(&rules.allowed, own) && !is_in(&rules.denied, own))
        .map(IpAddr::to_string)
        .collect();
    if refused.is_empty() {
        return;
    }
    let lines: Vec<String> = refused
        .iter()
        .map(|own| format!("`allowed-peer-ip={own}`"))
        .collect();
    findings.note(
        "allowed-peer-ip",
        format!(
            "clients that send to an address of this host ({}) are refused, where coturn relays \
             to services on it: {} lets them",
            refused.join(", "),
            lines.join(" or ")
        ),
    );
}
