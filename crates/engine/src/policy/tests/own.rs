//! The server's own addresses.

use super::*;

/// Returns the policy of a server at 203.0.113.1 behind a NAT that shows 192.0.2.1, with another interface and IPv6 without a NAT; the documentation networks
/// are opened, so that only the own addresses decide.
fn server() -> Policy {
    let mut policy = coturn(&[]);
    policy.set_own_addresses(&addresses());
    policy
}

fn addresses() -> OwnAddresses {
    let interface = |ip: &str, prefix_len| InterfaceAddress {
        ip: ip.parse().unwrap(),
        prefix_len,
    };
    OwnAddresses {
        services: [
            "203.0.113.1:3478",
            "203.0.113.1:50000",
            "10.9.9.9:6379",
            "10.9.9.8:0",
            "[::]:9641",
        ]
        .map(|text| text.parse().unwrap())
        .into(),
        interfaces: vec![
            interface("203.0.113.1", 24),
            interface("10.0.0.5", 20),
            interface("10.77.0.1", 31),
            interface("2a0e:9::1", 64),
            interface("127.0.0.1", 8),
        ],
        relays: vec![
            OwnRelay {
                local: "203.0.113.1".parse().unwrap(),
                external: Some("192.0.2.1".parse().unwrap()),
            },
            OwnRelay {
                local: "2a0e:9::1".parse().unwrap(),
                external: None,
            },
        ],
        relay_ports: 49152..=65535,
    }
}

fn check(policy: &Policy, peer: &str) -> Result<SocketAddr, Forbidden> {
    policy.check(socket(peer)).map(AllowedPeer::address)
}

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn own_listeners_and_services_are_never_peers() {
    //= V-07
    //= V-08
    let mut open = coturn(&[
        "allow 203.0.113.1",
        "allow 10.9.9.9",
        "allow 10.9.9.8",
        "allow 192.0.2.1",
    ]);
    open.set_own_addresses(&addresses());
    for policy in [server(), open] {
        for peer in [
            "203.0.113.1:3478",
            "203.0.113.1:50000", // within the relay ports
            "192.0.2.1:3478",
            "192.0.2.1:50000", // the same, by the address that the NAT shows
            "[::ffff:203.0.113.1]:3478",
            "10.9.9.9:6379",
            "10.9.9.8:1",
            "10.9.9.8:0",
            "192.0.2.1:9641", // bound to every address
            "10.0.0.5:9641",
            "[2a0e:9::1]:9641",
        ] {
            assert_eq!(check(&policy, peer), Err(Forbidden::Service), "{peer}");
        }
    }
    assert!(check(&server(), "10.9.9.9:6380").is_ok());
}

#[test]
fn own_addresses_are_no_peers_at_other_ports() {
    //= V-07
    for peer in [
        "203.0.113.1:22",
        "192.0.2.1:49151",
        "10.0.0.5:22",
        "10.0.0.5:60000",
        "[2a0e:9::1]:53",
    ] {
        assert_eq!(check(&server(), peer), Err(Forbidden::Own), "{peer}");
    }
}

#[test]
fn other_allocations_are_reached_by_the_address_their_clients_were_told() {
    //= V-07
    let policy = server();
    assert_eq!(
        check(&policy, "192.0.2.1:49152"),
        Ok("203.0.113.1:49152".parse().unwrap())
    );
    assert_eq!(
        check(&policy, "192.0.2.1:65535"),
        Ok("203.0.113.1:65535".parse().unwrap())
    );
    assert_eq!(
        check(&policy, "[2a0e:9::1]:60000"),
        Ok("[2a0e:9::1]:60000".parse().unwrap())
    );
    // What nobody was told stays closed.
    assert_eq!(check(&policy, "203.0.113.1:60000"), Err(Forbidden::Own));
    let peer = policy.check("192.0.2.1:60000".parse().unwrap()).unwrap();
    assert_eq!(peer.ip(), "192.0.2.1".parse::<IpAddr>().unwrap());
    assert_eq!(peer.peer().address(), "192.0.2.1:60000".parse().unwrap());
}

#[test]
fn what_comes_back_from_another_allocation_has_the_address_its_client_was_told() {
    //= V-07
    let policy = server();
    let admit = |source: &str| policy.admit(source.parse().unwrap()).address().to_string();
    assert_eq!(admit("203.0.113.1:60000"), "192.0.2.1:60000");
    assert_eq!(admit("[::ffff:203.0.113.1]:60000"), "192.0.2.1:60000");
    assert_eq!(admit("203.0.113.1:22"), "203.0.113.1:22");
    assert_eq!(admit("[2a0e:9::1]:60000"), "[2a0e:9::1]:60000");
    assert_eq!(admit("198.51.100.1:60000"), "198.51.100.1:60000");
}

#[test]
fn whoever_may_be_sent_to_is_recognised_when_it_answers() {
    let policy = server();
    for peer in [
        "192.0.2.1:60000",
        "[2a0e:9::1]:60000",
        "198.51.100.1:9",
        "[2606:4700::1]:9",
    ] {
        let allowed = policy.check(peer.parse().unwrap()).unwrap();
        assert_eq!(policy.admit(allowed.address()), allowed.peer(), "{peer}");
    }
}

#[test]
fn a_permission_without_a_port_is_judged_by_the_address() {
    //= TURN-066
    let policy = server();
    assert!(check(&policy, "192.0.2.1:0").is_ok());
    assert_eq!(check(&policy, "10.0.0.5:0"), Err(Forbidden::Own));
    assert!(check(&policy, "198.51.100.1:0").is_ok());
}

#[test]
fn an_operator_may_close_the_way_to_other_allocations() {
    let mut policy = coturn(&["deny 192.0.2.0/24"]);
    policy.set_own_addresses(&addresses());
    assert_eq!(check(&policy, "192.0.2.1:60000"), Err(Forbidden::Rule));
}

#[test]
fn a_rule_for_one_own_address_alone_opens_it() {
    let mut policy = strict(&["allow 10.0.0.5", "allow 203.0.113.0/24"]);
    policy.set_own_addresses(&addresses());
    assert!(check(&policy, "10.0.0.5:22").is_ok());
    assert_eq!(check(&policy, "203.0.113.1:22"), Err(Forbidden::Own));
}

#[test]
fn directed_broadcasts_of_own_networks_are_denied() {
    //= V-11
    let mut policy = strict(&[
        "allow 203.0.113.255",
        "allow 10.0.15.255",
        "allow 10.0.0.0/8",
    ]);
    policy.set_own_addresses(&addresses());
    for peer in [
        "203.0.113.255:9",
        "203.0.113.0:9",
        "10.0.15.255:9",
        "10.0.0.0:9",
        "[::ffff:10.0.15.255]:9",
    ] {
        assert_eq!(check(&policy, peer), Err(Forbidden::Broadcast), "{peer}");
    }
    for peer in ["10.0.14.255:9", "10.77.0.0:9", "10.1.0.0:9"] {
        assert!(check(&policy, peer).is_ok(), "{peer}");
    }
}

#[test]
fn own_addresses_are_recognised_inside_ipv6_forms() {
    //= V-04
    //= V-07
    let mut policy = coturn(&["allow 64:ff9b::/96"]);
    policy.set_own_addresses(&addresses());
    for peer in [
        "[64:ff9b::10.0.0.5]:22",
        "[64:ff9b::192.0.2.1]:60000",
        "[64:ff9b::203.0.113.1]:3478",
        "[64:ff9b::10.0.15.255]:9",
    ] {
        assert!(check(&policy, peer).is_err(), "{peer}");
    }
    assert!(check(&policy, "[64:ff9b::8.8.8.8]:9").is_ok());
}

#[test]
fn own_addresses_can_be_replaced() {
    let mut policy = server();
    let mut own = addresses();
    own.interfaces.push(InterfaceAddress {
        ip: "198.51.100.1".parse().unwrap(),
        prefix_len: 24,
    });
    own.relays.clear();
    assert!(check(&policy, "198.51.100.1:22").is_ok());
    policy.set_own_addresses(&own);
    assert_eq!(check(&policy, "198.51.100.1:22"), Err(Forbidden::Own));
    assert_eq!(check(&policy, "203.0.113.1:60000"), Err(Forbidden::Own));
    assert!(
        check(&policy, "192.0.2.1:60000").is_ok(),
        "no longer an own address"
    );
}

#[test]
fn the_loopback_switch_opens_the_hosts_programs_but_not_its_listeners() {
    let mut policy = Policy::new(PolicyRules {
        allow_loopback: true,
        ..PolicyRules::coturn()
    });
    let mut own = addresses();
    own.services.push("127.0.0.1:3478".parse().unwrap());
    policy.set_own_addresses(&own);
    assert!(check(&policy, "127.0.0.1:3480").is_ok());
    assert_eq!(check(&policy, "127.0.0.1:3478"), Err(Forbidden::Service));
    assert_eq!(check(&policy, "127.0.0.1:9641"), Err(Forbidden::Service));
}

#[test]
fn a_relay_address_on_loopback_is_loopback() {
    //= V-01
    let mut policy = strict(&[]);
    policy.set_own_addresses(&OwnAddresses {
        relays: vec![OwnRelay {
            local: "127.0.0.1".parse().unwrap(),
            external: Some("192.0.2.1".parse().unwrap()),
        }],
        ..OwnAddresses::default()
    });
    assert_eq!(check(&policy, "127.0.0.1:60000"), Err(Forbidden::Loopback));
    assert_eq!(check(&policy, "192.0.2.1:60000"), Err(Forbidden::Loopback));
}

#[test]
fn a_range_opens_own_addresses_where_that_is_asked_for() {
    //= V-07
    let rules = ["allow 10.0.0.0/20", "deny 10.0.0.9", "allow 192.0.2.0/24"];
    let with = |ranges_open_own| {
        let mut policy = Policy::new(PolicyRules {
            ranges_open_own,
            rules: parse(&rules),
            ..PolicyRules::coturn()
        });
        policy.set_own_addresses(&addresses());
        policy
    };
    let (strict, open) = (with(false), with(true));
    assert_eq!(check(&strict, "10.0.0.5:80"), Err(Forbidden::Own));
    assert_eq!(check(&open, "10.0.0.5:80"), Ok(socket("10.0.0.5:80")));
    // nothing else is opened by it
    for policy in [&strict, &open] {
        assert_eq!(check(policy, "10.77.0.1:80"), Err(Forbidden::Own));
        assert_eq!(check(policy, "10.0.0.9:80"), Err(Forbidden::Rule));
        assert_eq!(check(policy, "203.0.113.1:3478"), Err(Forbidden::Service));
        assert_eq!(check(policy, "10.0.15.255:80"), Err(Forbidden::Broadcast));
    }
}
