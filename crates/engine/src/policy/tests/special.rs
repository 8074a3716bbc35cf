//! Special addresses, and every way to write an IPv4 address into an IPv6 one.

use core::net::Ipv6Addr;

use proptest::prelude::*;

use super::*;

/// The IANA special-purpose registries with multicast and the embeddings, as text and on purpose not the table under test.
const DENIED: &str = "
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24
    192.31.196.0/24 192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24
    203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 168.63.129.16/32
    ::/96 ::ffff:0:0:0/96 64:ff9b::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001:db8::/32 2002::/16
    2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7 fe80::/10 fec0::/10 ff00::/8";

/// The 20 denied IPv4 ranges, by an address inside.
const DENIED_V4: [Ipv4Addr; 20] = [
    Ipv4Addr::new(0, 0, 0, 0),
    Ipv4Addr::new(0, 1, 2, 3),
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(100, 64, 0, 1),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(127, 0, 0, 1),
    Ipv4Addr::new(127, 255, 255, 254),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(172, 31, 255, 255),
    Ipv4Addr::new(192, 0, 0, 1),
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(192, 31, 196, 1),
    Ipv4Addr::new(192, 88, 99, 1),
    Ipv4Addr::new(192, 168, 255, 255),
    Ipv4Addr::new(198, 19, 0, 1),
    Ipv4Addr::new(198, 51, 100, 1),
    Ipv4Addr::new(203, 0, 113, 1),
    Ipv4Addr::new(224, 0, 0, 251),
    Ipv4Addr::new(240, 0, 0, 1),
    Ipv4Addr::new(255, 255, 255, 255),
];

/// Returns the 13 forms of V-04, and the two more that exist.
fn embeddings(v4: Ipv4Addr) -> Vec<(&'static str, Ipv6Addr)> {
    let [a, b, c, d] = v4.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let mut forms = vec![
        ("mapped", v4.to_ipv6_mapped()),
        ("compatible", Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low)),
        (
            "translated",
            Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, high, low),
        ),
        ("6to4", Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1)),
        ("NAT64", Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low)),
        (
            "local-use NAT64",
            Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
        ),
        (
            "Teredo",
            Ipv6Addr::new(0x2001, 0, 0x4136, 0xe378, 0x8000, 0x63bf, !high, !low),
        ),
        (
            "ISATAP",
            Ipv6Addr::new(0x2606, 0x4700, 0, 0, 0, 0x5efe, high, low),
        ),
        (
            "ISATAP, universal",
            Ipv6Addr::new(0x2606, 0x4700, 0, 0, 0x200, 0x5efe, high, low),
        ),
    ];
    forms.extend(
        operator_prefixes()
            .into_iter()
            .map(|prefix| ("operator", prefix.embed(v4))),
    );
    forms
}

/// Returns one prefix of each length of RFC 6052.
fn operator_prefixes() -> Vec<Nat64Prefix> {
    [
        ("2a0e:1::", 32),
        ("2a0e:2:100::", 40),
        ("2a0e:3:122::", 48),
        ("2a0e:4:122:300::", 56),
        ("2a0e:5:122:344::", 64),
        ("2a0e:6:122:344::", 96),
    ]
    .into_iter()
    .map(|(prefix, len)| Nat64Prefix::new(prefix.parse().unwrap(), len).unwrap())
    .collect()
}

/// Returns a policy that is strict without rules, but has the operator's prefixes: nothing else can tell those from ordinary addresses.
fn knowing_the_prefixes() -> Policy {
    let nat64_prefixes = operator_prefixes();
    Policy::new(PolicyRules {
        nat64_prefixes,
        ..PolicyRules::strict()
    })
}

/// Returns a policy that is strict, knows the operator's prefixes, and has rules that allow everything that can be allowed.
fn as_open_as_possible() -> Policy {
    Policy::new(PolicyRules {
        nat64_prefixes: operator_prefixes(),
        rules: parse(&[
            "allow 0.0.0.0/0",
            "allow ::/0",
            "allow 64:ff9b::/96",
            "allow 64:ff9b:1::/48",
            "allow ::/96",
            "allow 2002::/16",
            "allow 2001::/32",
            "allow 2606:4700::/32",
            "allow 2a0e::/16",
        ]),
        ..PolicyRules::strict()
    })
}

#[test]
fn loopback_is_denied_unless_its_switch_is_on() {
    //= V-01
    let allowing = [
        "allow 127.0.0.0/8",
        "allow 127.0.0.1",
        "allow ::1",
        "allow 0.0.0.0/0",
        "allow ::/0",
    ];
    for policy in [
        strict(&[]),
        coturn(&[]),
        strict(&allowing),
        coturn(&allowing),
    ] {
        for ip in [
            "127.0.0.1",
            "127.255.255.254",
            "127.0.0.0",
            "127.255.255.255",
            "::1",
            "::ffff:127.0.0.1",
        ] {
            assert_eq!(text_verdict(&policy, ip), Err(Forbidden::Loopback), "{ip}");
        }
    }
    let policy = Policy::new(PolicyRules {
        allow_loopback: true,
        ..PolicyRules::coturn()
    });
    for ip in ["127.0.0.1", "::1"] {
        assert_eq!(text_verdict(&policy, ip), Ok(()), "{ip}");
    }
}

#[test]
fn no_switch_and_no_rule_opens_the_unspecified_addresses() {
    //= V-02
    let rules = parse(&[
        "allow 0.0.0.0/8",
        "allow 0.0.0.0",
        "allow ::",
        "allow 0.0.0.0/0",
        "allow ::/0",
    ]);
    let open = PolicyRules {
        allow_loopback: true,
        rules,
        ..PolicyRules::coturn()
    };
    for policy in [strict(&[]), coturn(&[]), Policy::new(open)] {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "0.255.255.255",
            "::",
            "::ffff:0.0.0.0",
        ] {
            assert_eq!(
                text_verdict(&policy, ip),
                Err(Forbidden::Unspecified),
                "{ip}"
            );
        }
    }
}

#[test]
fn no_rule_opens_link_local_addresses_and_metadata_services() {
    //= V-05
    let rules = [
        "allow 169.254.0.0/16",
        "allow 169.254.169.254",
        "allow fe80::/10",
        "allow fd00::/8",
        "allow fd00:ec2::254",
        "allow fec0::/10",
        "allow 100.64.0.0/10",
        "allow 100.100.100.200",
    ];
    for policy in [strict(&[]), coturn(&[]), strict(&rules), coturn(&rules)] {
        for ip in [
            "169.254.169.254",
            "169.254.0.1",
            "169.254.255.255",
            "fe80::1",
            "febf:ffff::1",
            "fec0::1",
        ] {
            assert_eq!(text_verdict(&policy, ip), Err(Forbidden::LinkLocal), "{ip}");
        }
        for ip in [
            "fd00:ec2::254",
            "100.100.100.200",
            "168.63.129.16",
            "fd20:ce::254",
            "192.0.0.192",
        ] {
            assert_eq!(text_verdict(&policy, ip), Err(Forbidden::Metadata), "{ip}");
        }
        let scoped = core::net::SocketAddrV6::new("fe80::1".parse().unwrap(), 80, 0, 3);
        assert_eq!(policy.check(scoped.into()), Err(Forbidden::LinkLocal));
    }
}

#[test]
fn multicast_and_broadcast_are_denied() {
    //= V-11
    for ip in ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"] {
        assert_eq!(
            text_verdict(&strict(&["allow 224.0.0.0/4", "allow ff00::/8"]), ip),
            Err(Forbidden::Multicast),
            "{ip}"
        );
    }
    for policy in [strict(&["allow 255.255.255.255"]), coturn(&[])] {
        assert_eq!(
            text_verdict(&policy, "255.255.255.255"),
            Err(Forbidden::Broadcast)
        );
    }
}

#[test]
fn the_registries_are_denied_from_their_first_address_to_their_last_and_no_further() {
    //= V-06
    let denied: Vec<AddressRange> = DENIED
        .split_whitespace()
        .map(|text| text.parse().unwrap())
        .collect();
    let policy = strict(&[]);
    let judge = |ip: IpAddr| {
        let expected = denied.iter().any(|range| range.contains(ip));
        assert_eq!(verdict(&policy, ip).is_err(), expected, "{ip}");
    };
    for range in &denied {
        match (range.first(), range.last()) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                for number in [
                    first.to_bits().wrapping_sub(1),
                    first.to_bits(),
                    last.to_bits(),
                    last.to_bits().wrapping_add(1),
                ] {
                    judge(Ipv4Addr::from_bits(number).into());
                }
            }
            (first, last) => {
                let (first, last) = (range::number(first), range::number(last));
                for number in [first.wrapping_sub(1), first, last, last.wrapping_add(1)] {
                    judge(Ipv6Addr::from_bits(number).into());
                }
            }
        }
    }
}

#[test]
fn no_form_of_a_denied_address_is_allowed() {
    //= V-03
    //= V-04
    let mut probes = 0;
    for policy in [knowing_the_prefixes(), as_open_as_possible()] {
        for v4 in DENIED_V4 {
            assert!(verdict(&policy, v4).is_err(), "{v4}");
            for (form, v6) in embeddings(v4) {
                assert!(verdict(&policy, v6).is_err(), "{v4} as {form}: {v6}");
                probes += 1;
            }
        }
    }
    assert_eq!(probes, 2 * 20 * 15);
}

#[test]
fn an_embedded_address_needs_a_rule_for_its_form() {
    //= V-04
    let v4 = Ipv4Addr::new(8, 8, 8, 8);
    for (form, v6) in embeddings(v4) {
        let closed = knowing_the_prefixes();
        assert!(verdict(&closed, v6).is_err(), "{form}: {v6}");
        let opened = verdict(&as_open_as_possible(), v6).err();
        let never = match form {
            "6to4" | "Teredo" => Some(Forbidden::Tunnel),
            "mapped" => Some(Forbidden::Embedded),
            _ => None,
        };
        assert_eq!(opened, never, "{form}: {v6}");
    }
}

#[test]
fn an_operators_deny_rule_reaches_into_every_form() {
    let mut rules = as_open_as_possible().rules;
    rules.rules.extend(parse(&["deny 8.8.8.0/24"]));
    let policy = Policy::new(rules);
    for (form, v6) in embeddings(Ipv4Addr::new(8, 8, 8, 8)) {
        assert!(verdict(&policy, v6).is_err(), "{form}: {v6}");
    }
}

#[test]
fn clients_behind_tunnels_are_not_accepted() {
    //= TURN-117
    let policy = coturn(&[]);
    assert!(!policy.accepts_client("[2002:c000:201::1]:1".parse().unwrap()));
    assert!(!policy.accepts_client("[2001::1]:1".parse().unwrap()));
    assert!(policy.accepts_client("[2001:470::1]:1".parse().unwrap()));
    assert!(policy.accepts_client("192.168.0.1:1".parse().unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn denied_is_denied_in_every_embedding(v4: u32, block in 0_usize..40, rule: u32, len in 0_u8..=32) {
        //= V-03
        // Half of the addresses from denied blocks, with one random deny rule on top.
        let v4 = match DENIED_V4.get(block) {
            Some(denied) => Ipv4Addr::from_bits(denied.to_bits() ^ (v4 & 0xff)),
            None => Ipv4Addr::from_bits(v4),
        };
        let mut rules = as_open_as_possible().rules;
        let range = AddressRange::v4_prefix(Ipv4Addr::from_bits(rule), len);
        rules.rules.push(Rule { action: Action::Deny, range });
        let policy = Policy::new(rules);
        if verdict(&policy, v4).is_err() {
            for (form, v6) in embeddings(v4) {
                prop_assert!(verdict(&policy, v6).is_err(), "{} as {}: {}", v4, form, v6);
            }
        }
    }

    #[test]
    fn what_is_allowed_is_canonical(bits: u128, mapped: bool) {
        let ip = if mapped { Ipv6Addr::from_bits(bits & 0xffff_ffff | 0xffff << 32) } else { Ipv6Addr::from_bits(bits) };
        if let Ok(peer) = coturn(&[]).check(SocketAddr::new(ip.into(), 1)) {
            prop_assert_eq!(peer.ip(), peer.ip().to_canonical());
            prop_assert!(peer.ip().is_ipv6() && !mapped);
        }
    }
}
