//! Which rule decides, and how ranges are written.

use super::*;

#[test]
fn an_ordinary_address_needs_no_rule() {
    for ip in ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "2a00:1450::1"] {
        assert_eq!(text_verdict(&strict(&[]), ip), Ok(()), "{ip}");
    }
}

#[test]
fn the_narrowest_rule_decides_whatever_the_order() {
    //= V-06
    for rules in [
        ["deny 10.0.0.0/8", "allow 10.1.0.0/16", "deny 10.1.2.3"],
        ["deny 10.1.2.3", "allow 10.1.0.0/16", "deny 10.0.0.0/8"],
    ] {
        for policy in [strict(&rules), coturn(&rules)] {
            assert_eq!(text_verdict(&policy, "10.2.0.1"), Err(Forbidden::Rule));
            assert_eq!(text_verdict(&policy, "10.1.0.1"), Ok(()));
            assert_eq!(text_verdict(&policy, "10.1.2.3"), Err(Forbidden::Rule));
        }
    }
}

#[test]
fn a_range_is_as_wide_as_the_addresses_it_has() {
    let policy = strict(&[
        "allow 10.0.0.0-10.0.0.200",
        "deny 10.0.0.0/24",
        "deny 10.0.0.5-10.0.0.6",
    ]);
    assert_eq!(text_verdict(&policy, "10.0.0.4"), Ok(()));
    assert_eq!(text_verdict(&policy, "10.0.0.5"), Err(Forbidden::Rule));
    assert_eq!(text_verdict(&policy, "10.0.0.201"), Err(Forbidden::Rule));
    assert_eq!(
        text_verdict(&policy, "10.0.1.0"),
        Err(Forbidden::SpecialPurpose)
    );
}

#[test]
fn deny_wins_between_rules_of_one_width() {
    for rules in [
        ["allow 8.8.8.0/24", "deny 8.8.8.0/24"],
        ["deny 8.8.8.0/24", "allow 8.8.8.0/24"],
        ["allow 8.8.7.128-8.8.8.127", "deny 8.8.8.0/24"],
    ] {
        assert_eq!(
            text_verdict(&strict(&rules), "8.8.8.8"),
            Err(Forbidden::Rule),
            "{rules:?}"
        );
    }
}

#[test]
fn a_rule_over_everything_opens_no_special_network() {
    let policy = strict(&["allow 0.0.0.0/0", "allow ::/0"]);
    for ip in [
        "10.0.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "fd12::1",
        "2001:db8::1",
    ] {
        assert_eq!(
            text_verdict(&policy, ip),
            Err(Forbidden::SpecialPurpose),
            "{ip}"
        );
    }
    assert_eq!(text_verdict(&policy, "8.8.8.8"), Ok(()));
}

#[test]
fn a_rule_as_wide_as_a_special_network_opens_it() {
    let policy = strict(&["allow 10.0.0.0/8", "allow fc00::/7", "allow 192.168.1.0/24"]);
    for ip in ["10.255.255.255", "fd12::1", "192.168.1.1"] {
        assert_eq!(text_verdict(&policy, ip), Ok(()), "{ip}");
    }
    assert_eq!(
        text_verdict(&policy, "192.168.2.1"),
        Err(Forbidden::SpecialPurpose)
    );
}

#[test]
fn a_rule_over_all_of_ipv6_says_nothing_about_ipv4() {
    assert_eq!(text_verdict(&strict(&["deny ::/0"]), "8.8.8.8"), Ok(()));
    assert_eq!(
        text_verdict(&strict(&["deny 0.0.0.0/0"]), "2606:4700::1"),
        Ok(())
    );
    let policy = strict(&["deny 0.0.0.0/0"]);
    assert_eq!(
        text_verdict(&policy, "::ffff:8.8.8.8"),
        Err(Forbidden::Rule)
    );
}

#[test]
fn the_coturn_persona_opens_private_networks_and_multicast_but_not_unique_local_ones() {
    for ip in [
        "10.0.0.1",
        "192.168.0.1",
        "172.16.0.1",
        "100.64.0.1",
        "224.0.0.1",
        "198.18.0.1",
        "ff02::1",
    ] {
        assert_eq!(text_verdict(&coturn(&[]), ip), Ok(()), "{ip}");
    }
    assert_eq!(
        text_verdict(&coturn(&[]), "fd12::1"),
        Err(Forbidden::SpecialPurpose)
    );
    assert_eq!(
        text_verdict(&coturn(&[]), "127.0.0.1"),
        Err(Forbidden::Loopback)
    );
    assert_eq!(
        text_verdict(&coturn(&["allow 169.254.0.0/16"]), "169.254.169.254"),
        Err(Forbidden::LinkLocal)
    );
}

#[test]
fn explains_the_verdict() {
    let policy = strict(&["allow 10.0.0.0/8", "deny 10.1.0.0-10.1.0.9"]);
    for (ip, words) in [
        ("8.8.8.8", "8.8.8.8:53: allowed (no rule covers it)"),
        (
            "10.2.0.1",
            "10.2.0.1:53: allowed (rule 1: allow 10.0.0.0/8)",
        ),
        (
            "10.1.0.9",
            "10.1.0.9:53: denied (rule 2: deny 10.1.0.0-10.1.0.9)",
        ),
        (
            "::ffff:10.1.0.9",
            "[::ffff:10.1.0.9]:53: denied (rule 2: deny 10.1.0.0-10.1.0.9)",
        ),
        (
            "::ffff:8.8.8.8",
            "[::ffff:8.8.8.8]:53: denied, IPv4 address embedded in IPv6 (IPv4-mapped form of 8.8.8.8)",
        ),
        (
            "192.168.1.1",
            "192.168.1.1:53: denied, special-purpose address (built in: 192.168.0.0/16, private use)",
        ),
        (
            "64:ff9b::7f00:1",
            "[64:ff9b::7f00:1]:53: denied, IPv4 address embedded in IPv6 (NAT64 form of 127.0.0.1)",
        ),
    ] {
        let peer = SocketAddr::new(ip.parse().unwrap(), 53);
        let explanation = policy.explain(peer);
        assert_eq!(explanation.to_string(), words);
        assert_eq!(explanation.forbidden(), policy.check(peer).err());
    }
    let peer = "10.1.0.5:53".parse().unwrap();
    assert_eq!(policy.explain(peer).rule().unwrap().0, 1);
}

#[test]
fn ranges_are_read_as_they_are_written() {
    for text in [
        "10.0.0.1",
        "10.0.0.0/8",
        "10.0.0.1-10.0.0.9",
        "fd00::/8",
        "fd00::1-fd00::9",
        "0.0.0.0/0",
        "::/0",
        "::1",
    ] {
        assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), text);
    }
    for (text, canonical) in [
        ("::ffff:0.0.0.0-::ffff:255.255.255.255", "::ffff:0.0.0.0/96"),
        ("10.0.0.0-10.255.255.255", "10.0.0.0/8"),
        (" 10.0.0.1 - 10.0.0.9 ", "10.0.0.1-10.0.0.9"),
        ("10.0.0.1/32", "10.0.0.1"),
    ] {
        assert_eq!(text.parse::<AddressRange>().unwrap().to_string(), canonical);
    }
}

#[test]
fn a_range_of_mapped_addresses_says_nothing_about_ipv4() {
    //= V-03
    let all_mapped = [
        "deny ::ffff:0.0.0.0-::ffff:255.255.255.255",
        "deny ::ffff:0:0/96",
    ];
    for rule in all_mapped {
        for policy in [strict(&[rule]), coturn(&[rule])] {
            assert_eq!(text_verdict(&policy, "8.8.8.8"), Ok(()), "{rule}");
            assert!(text_verdict(&policy, "::ffff:8.8.8.8").is_err(), "{rule}");
        }
    }
    // nor does it open what is closed
    let policy = strict(&["allow ::ffff:10.0.0.0/104", "allow ::ffff:10.0.0.1"]);
    for ip in ["10.0.0.1", "::ffff:10.0.0.1"] {
        assert_eq!(
            text_verdict(&policy, ip),
            Err(Forbidden::SpecialPurpose),
            "{ip}"
        );
    }
}

#[test]
fn a_range_of_mapped_addresses_can_be_read_as_ipv4_where_both_mean_the_same() {
    for (text, canonical) in [
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:0.0.0.0-::ffff:255.255.255.255", "0.0.0.0/0"),
        ("fd00::/8", "fd00::/8"),
        ("::/0", "::/0"),
        ("10.0.0.0/8", "10.0.0.0/8"),
    ] {
        let range: AddressRange = text.parse().unwrap();
        assert_eq!(range.canonical().to_string(), canonical, "{text}");
        assert_eq!(range.is_mapped(), text.starts_with("::ffff:"), "{text}");
    }
}

#[test]
fn what_is_no_range_is_refused() {
    for (text, error) in [
        ("", RangeError::NotAnAddress),
        ("10.0.0", RangeError::NotAnAddress),
        ("10.0.0.1-", RangeError::NotAnAddress),
        ("example.org", RangeError::NotAnAddress),
        ("10.0.0.0/33", RangeError::PrefixTooLong),
        ("10.0.0.0/", RangeError::PrefixTooLong),
        ("10.0.0.0/-1", RangeError::PrefixTooLong),
        ("fd00::/129", RangeError::PrefixTooLong),
        ("10.0.0.9-10.0.0.1", RangeError::Reversed),
        ("10.0.0.1-fd00::1", RangeError::MixedFamilies),
        (
            "10.0.0.1/8",
            RangeError::HostBits("10.0.0.0".parse().unwrap()),
        ),
        (
            "fd00::1/64",
            RangeError::HostBits("fd00::".parse().unwrap()),
        ),
    ] {
        assert_eq!(text.parse::<AddressRange>(), Err(error), "{text}");
    }
}
