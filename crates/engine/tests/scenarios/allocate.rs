//! Allocate, RFC 8656 §7.2.

use core::net::SocketAddr;

use turnbuckle_engine::{Change, DefaultFamily, DropReason, RelayAddress, Transport};
use turnbuckle_wire::{AddressFamily, AttributeType, MessageWriter, Method};

use crate::support::*;

const SHORT: &[u8] = &[17, 0, 0];

/// Sends an Allocate request with what `write` adds to REQUESTED-TRANSPORT.
fn allocate_with(
    server: &mut Server,
    remote: &str,
    write: impl FnOnce(&mut MessageWriter<'_>),
) -> Answer {
    let mut client = server.client(remote);
    server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
        write(writer);
    })
}

//= TURN-002
//= TURN-008
//= TURN-019
//= TURN-030
//= TURN-043
//= TURN-048
//= TURN-049
//= STUN-027
//= STUN-030
#[test]
fn grants_a_relayed_address_with_all_that_belongs_to_it() {
    let mut server = Server::start();
    let answer = allocate_with(&mut server, CLIENT, |_| {});
    let message = answer.success();
    let relayed: Vec<SocketAddr> = message
        .xor_relayed_addresses()
        .map(Result::unwrap)
        .collect();
    assert_eq!(relayed.len(), 1);
    assert_eq!(relayed[0].ip().to_string(), "192.0.2.1");
    assert!(relayed[0].port() >= 49152);
    assert_eq!(answer.lifetime(), 600);
    assert_eq!(
        message.xor_mapped_address().unwrap().unwrap().to_string(),
        CLIENT
    );
    assert_eq!(message.reservation_token().unwrap(), None);
    assert_eq!(message.address_error_codes().count(), 0);
    assert!(message.has_integrity_sha1());
    let kinds: Vec<_> = message
        .attributes()
        .map(|attribute| attribute.kind)
        .collect();
    //= STUN-055
    assert_eq!(
        kinds,
        [
            AttributeType::XOR_RELAYED_ADDRESS,
            AttributeType::LIFETIME,
            AttributeType::XOR_MAPPED_ADDRESS
        ]
    );
    assert!(
        server.socket_at(relayed[0]).is_some(),
        "and a socket is bound to it"
    );
}

/// What RFC 8656 §6 lists, by what the engine does with it and by what the change stream tells of it.
//= TURN-018
#[test]
fn an_allocation_has_addresses_a_user_a_time_to_expiry_permissions_and_channels() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    server.permit(&mut client, PEER).success();
    server.bind(&mut client, 0x4001, PEER).success();
    let changes = server.take_changes();
    let Change::Created(created) = &changes[0] else {
        panic!("{changes:?}")
    };
    // relayed transport address, 5-tuple, authentication information, time to expiry
    assert_eq!(created.relays[0].external, relayed);
    assert_eq!(created.path.client.to_string(), CLIENT);
    assert_eq!(created.path.server.to_string(), "192.0.2.1:3478");
    assert_eq!(created.path.transport, Transport::Udp);
    let user = &created.user;
    assert_eq!((&*user.name, &*user.realm), ("alice", REALM));
    assert_eq!(created.expires.since(created.created).as_secs(), 600);
    let peer: SocketAddr = PEER.parse().unwrap();
    let is_permission = |change: &Change| matches!(change, Change::PermissionInstalled { peer: ip, .. } if *ip == peer.ip());
    let is_channel = |change: &Change| matches!(change, Change::ChannelInstalled { number, peer: to, .. } if number.get() == 0x4001 && *to == peer);
    assert!(changes.iter().any(is_permission), "{changes:?}");
    assert!(changes.iter().any(is_channel), "{changes:?}");
    // another 5-tuple has no part in it, another user neither, and it ends when its time is over
    let mut elsewhere = server.client("203.0.113.7:50001");
    assert_eq!(server.refresh(&mut elsewhere, 600).code(), Some(437));
    let mut bob = server.client_of("bob", "builder", CLIENT);
    assert_eq!(server.refresh(&mut bob, 600).code(), Some(441));
    server.wait_s(600);
    server.challenge(&mut client);
    assert_eq!(server.refresh(&mut client, 600).code(), Some(437));
    server.assert_nothing_is_held();
}

#[test]
fn reports_a_new_allocation_in_the_change_stream() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    let changes = server.take_changes();
    let [Change::Created(created)] = &changes[..] else {
        panic!("{changes:?}")
    };
    assert_eq!(created.allocation, server.id(&client));
    assert_eq!(created.path.client.to_string(), CLIENT);
    assert_eq!(created.path.server.to_string(), "192.0.2.1:3478");
    assert_eq!(&*created.user.name, "alice");
    assert_eq!(created.relays.len(), 1);
    assert_eq!(
        (created.relays[0].local, created.relays[0].external),
        (relayed, relayed)
    );
    assert_eq!(created.expires.since(created.created).as_secs(), 600);
    server.refresh(&mut client, 0).success();
    let changes = server.take_changes();
    assert!(
        matches!(&changes[..], [Change::Ended(ended)] if ended.allocation == created.allocation),
        "{changes:?}"
    );
    server.assert_nothing_is_held();
}

//= TURN-022
#[test]
fn answers_437_when_the_5_tuple_has_an_allocation() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    server.allocate(&mut client);
    for name in ["alice", "bob"] {
        let password = if name == "alice" {
            "wonderland"
        } else {
            "builder"
        };
        let mut client = server.client_of(name, password, CLIENT);
        client.next_transaction();
        client.next_transaction(); // those of the first are used
        let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
            writer.requested_transport(17);
        });
        assert_eq!(answer.code(), Some(437), "{name}");
    }
    assert_eq!(server.engine.statistics().allocations, 1);
}

//= TURN-016
#[test]
fn gives_every_allocation_its_own_relayed_address() {
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_049);
    let mut relayed: Vec<SocketAddr> = (0..50)
        .map(|n| {
            let mut client = server.client(&format!("203.0.113.7:{}", 40_000 + n));
            server.allocate(&mut client)
        })
        .collect();
    relayed.sort_unstable();
    relayed.dedup();
    assert_eq!(relayed.len(), 50);
    let answer = allocate_with(&mut server, CLIENT, |_| {});
    assert_eq!(answer.code(), Some(508), "and when all are given, no more");
}

/// Requests and the answers to them: one table for the checks that look at the request alone.
#[test]
fn answers_malformed_and_unsupported_requests_as_the_numbered_steps_say() {
    type Write = fn(&mut MessageWriter<'_>);
    let token = AttributeType::RESERVATION_TOKEN;
    assert_eq!(token.number(), 0x22);
    let table: &[(&str, u16, Write)] = &[
        //= TURN-023
        ("no REQUESTED-TRANSPORT", 400, |_| {}),
        ("REQUESTED-TRANSPORT of 3 bytes", 400, |w| {
            w.bytes(AttributeType::REQUESTED_TRANSPORT, SHORT);
        }),
        ("TCP, which is RFC 6062's", 442, |w| {
            w.requested_transport(6);
        }),
        ("no protocol at all", 442, |w| {
            w.requested_transport(0);
        }),
        //= TURN-025
        ("a token and EVEN-PORT", 400, |w| {
            w.requested_transport(17)
                .reservation_token([1; 8])
                .even_port(false);
        }),
        ("a token and REQUESTED-ADDRESS-FAMILY", 400, |w| {
            w.requested_transport(17)
                .reservation_token([1; 8])
                .requested_address_family(AddressFamily::V4);
        }),
        ("a token and ADDITIONAL-ADDRESS-FAMILY", 400, |w| {
            w.requested_transport(17)
                .reservation_token([1; 8])
                .additional_address_family(AddressFamily::V6);
        }),
        //= TURN-026
        ("a token nobody was given", 508, |w| {
            w.requested_transport(17).reservation_token([1; 8]);
        }),
        ("a token of 7 bytes", 400, |w| {
            w.requested_transport(17)
                .bytes(AttributeType::RESERVATION_TOKEN, &[1; 7]);
        }),
        //= TURN-027
        ("both family attributes", 400, |w| {
            w.requested_transport(17)
                .requested_address_family(AddressFamily::V4)
                .additional_address_family(AddressFamily::V6);
        }),
        //= TURN-028
        ("a family that does not exist", 440, |w| {
            w.requested_transport(17)
                .bytes(AttributeType::REQUESTED_ADDRESS_FAMILY, &[9, 0, 0, 0]);
        }),
        ("a family of 3 bytes", 400, |w| {
            w.requested_transport(17)
                .bytes(AttributeType::REQUESTED_ADDRESS_FAMILY, &[1, 0, 0]);
        }),
        //= TURN-031
        ("EVEN-PORT with R and ADDITIONAL-ADDRESS-FAMILY", 400, |w| {
            w.requested_transport(17)
                .even_port(true)
                .additional_address_family(AddressFamily::V6);
        }),
        //= TURN-033
        ("ADDITIONAL-ADDRESS-FAMILY of IPv4", 400, |w| {
            w.requested_transport(17)
                .additional_address_family(AddressFamily::V4);
        }),
        ("EVEN-PORT without a value", 400, |w| {
            w.requested_transport(17).flag(AttributeType::EVEN_PORT);
        }),
        ("LIFETIME of 2 bytes", 400, |w| {
            w.requested_transport(17)
                .bytes(AttributeType::LIFETIME, &[0, 1]);
        }),
    ];
    for (what, code, write) in table {
        let mut server = Server::start();
        let mut client = server.client(CLIENT);
        let answer = server.ask(&mut client, Method::ALLOCATE, write);
        assert_eq!(answer.code(), Some(*code), "{what}");
        server.assert_nothing_is_held();
    }
}

//= TURN-024
#[test]
fn counts_dont_fragment_as_unknown_when_the_host_cannot_set_it() {
    let write = |writer: &mut MessageWriter<'_>| {
        writer.dont_fragment();
    };
    let mut server = Server::with(|config| config.relays.dont_fragment = false);
    let answer = allocate_with(&mut server, CLIENT, write);
    assert_eq!(answer.code(), Some(420));
    let unknown: Vec<_> = answer
        .message()
        .unknown_attributes()
        .unwrap()
        .unwrap()
        .iter()
        .collect();
    assert_eq!(unknown, [AttributeType::DONT_FRAGMENT]);
    server.assert_nothing_is_held();

    let mut server = Server::start();
    allocate_with(&mut server, CLIENT, write).success();
}

//= TURN-105
#[test]
fn refuses_dont_fragment_where_ipv4_becomes_ipv6() {
    let mut server = Server::start();
    let v6 = |writer: &mut MessageWriter<'_>| {
        writer
            .dont_fragment()
            .requested_address_family(AddressFamily::V6);
    };
    let dual = |writer: &mut MessageWriter<'_>| {
        writer
            .dont_fragment()
            .additional_address_family(AddressFamily::V6);
    };
    assert_eq!(allocate_with(&mut server, CLIENT, v6).code(), Some(420));
    assert_eq!(allocate_with(&mut server, CLIENT, dual).code(), Some(420));
    allocate_with(&mut server, "[2606:4700::7]:50000", v6).success();
    allocate_with(&mut server, "[2606:4700::8]:50000", dual).success();
}

//= TURN-028
//= TURN-029
#[test]
fn answers_440_for_a_family_without_relay_addresses() {
    let only = |local: &str| {
        let local = local.parse().unwrap();
        Server::with(|config| {
            config.relays.addresses = vec![RelayAddress {
                local,
                external: None,
            }]
        })
    };
    let family = |family| {
        move |writer: &mut MessageWriter<'_>| {
            writer.requested_address_family(family);
        }
    };
    let mut v4 = only("192.0.2.1");
    assert_eq!(
        allocate_with(&mut v4, CLIENT, family(AddressFamily::V6)).code(),
        Some(440)
    );
    allocate_with(&mut v4, "203.0.113.7:1", family(AddressFamily::V4)).success();
    let mut v6 = only("2001:db8::1");
    assert_eq!(
        allocate_with(&mut v6, CLIENT, |_| {}).code(),
        Some(440),
        "no family means IPv4"
    );
    allocate_with(&mut v6, "203.0.113.7:1", family(AddressFamily::V6)).success();
}

//= TURN-109
#[test]
fn ignores_reserved_bits_of_family_and_transport() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer
            .bytes(AttributeType::REQUESTED_TRANSPORT, &[17, 0xFF, 0xFF, 0xFF])
            .bytes(
                AttributeType::REQUESTED_ADDRESS_FAMILY,
                &[2, 0xFF, 0xFF, 0xFF],
            );
    });
    assert!(
        answer
            .success()
            .xor_relayed_address()
            .unwrap()
            .unwrap()
            .is_ipv6()
    );
}

#[test]
fn takes_the_default_family_from_the_configuration() {
    for (choice, remote, is_v6) in [
        (DefaultFamily::V4, "[2606:4700::7]:5", false),
        (DefaultFamily::V6, CLIENT, true),
        (DefaultFamily::Client, CLIENT, false),
        (DefaultFamily::Client, "[2606:4700::7]:5", true),
    ] {
        let mut server = Server::with(|config| config.relays.default_family = choice);
        let answer = allocate_with(&mut server, remote, |_| {});
        assert_eq!(
            answer
                .success()
                .xor_relayed_address()
                .unwrap()
                .unwrap()
                .is_ipv6(),
            is_v6,
            "{choice:?} {remote}"
        );
    }
}

//= TURN-036
//= TURN-039
#[test]
fn grants_both_families_in_one_allocation() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let [v4, v6] = server.allocate_dual(&mut client);
    assert!(v4.is_ipv4() && v6.is_ipv6());
    assert_eq!(server.sockets.len(), 2);
    assert_eq!(
        server.commons.quota_used(REALM, "alice"),
        1,
        "it is one allocation"
    );
    assert!(
        server.peer_data(v4, PEER).is_err() && server.peer_data(v6, PEER_V6).is_err(),
        "without any permission"
    );
    for number in [0x4000, 0x4FFF] {
        assert_eq!(
            server.channel_data(&client, number),
            Err(DropReason::ChannelNotBound),
            "without any channel"
        );
    }
    server.permit(&mut client, PEER).success();
    server.permit(&mut client, PEER_V6).success();
    server.peer_data(v4, PEER).unwrap();
    server.peer_data(v6, PEER_V6).unwrap();
}

#[test]
fn coturns_number_for_the_additional_family_asks_for_both_too() {
    let mut server = Server::start();
    let answer = allocate_with(&mut server, CLIENT, |writer| {
        writer.bytes(
            AttributeType::COTURN_ADDITIONAL_ADDRESS_FAMILY,
            &[2, 0, 0, 0],
        );
    });
    let relayed: Vec<_> = answer.success().xor_relayed_addresses().collect();
    assert_eq!(relayed.len(), 2);
}

//= TURN-034
//= TURN-035
//= TURN-112
#[test]
fn grants_one_family_and_says_why_not_the_other() {
    let dual = |writer: &mut MessageWriter<'_>| {
        writer.additional_address_family(AddressFamily::V6);
    };
    // no IPv6 at all
    let mut server = Server::with(|config| config.relays.addresses.truncate(1));
    let answer = allocate_with(&mut server, CLIENT, dual);
    let errors: Vec<_> = answer
        .success()
        .address_error_codes()
        .map(Result::unwrap)
        .collect();
    assert_eq!(errors.len(), 1);
    assert_eq!((errors[0].family, errors[0].code), (AddressFamily::V6, 440));
    assert_eq!(answer.message().xor_relayed_addresses().count(), 1);
    let raw = answer
        .message()
        .raw(AttributeType::ADDRESS_ERROR_CODE)
        .unwrap();
    assert_eq!(
        raw[..4],
        [2, 0, 4, 40],
        "family, reserved zeros, class and number"
    );

    // no IPv6 port is free
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_000);
    allocate_with(&mut server, "203.0.113.7:1", |writer| {
        writer.requested_address_family(AddressFamily::V6);
    })
    .success();
    let answer = allocate_with(&mut server, CLIENT, dual);
    let errors: Vec<_> = answer
        .success()
        .address_error_codes()
        .map(Result::unwrap)
        .collect();
    assert_eq!((errors[0].family, errors[0].code), (AddressFamily::V6, 508));

    // neither
    let answer = allocate_with(&mut server, "203.0.113.7:2", dual);
    assert_eq!(answer.code(), Some(508));
}

//= TURN-035
#[test]
fn grants_one_family_when_the_host_opens_only_one_socket() {
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_000);
    server.in_use.push("[2001:db8::1]:50000".parse().unwrap());
    let mut client = server.client(CLIENT);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer
            .requested_transport(17)
            .additional_address_family(AddressFamily::V6);
    });
    let errors: Vec<_> = answer
        .success()
        .address_error_codes()
        .map(Result::unwrap)
        .collect();
    assert_eq!((errors[0].family, errors[0].code), (AddressFamily::V6, 508));
    assert_eq!(server.sockets.len(), 1);
    server.refresh(&mut client, 0).success();
    server.assert_nothing_is_held();
}

//= TURN-041
//= TURN-110
//= V-44
#[test]
fn grants_an_even_port_and_reserves_nothing_without_the_r_bit() {
    let mut server = Server::with(|config| config.relays.ports = 50_000..=50_003);
    for (n, bits) in [0x00, 0x7F].into_iter().enumerate() {
        let answer = allocate_with(&mut server, &format!("203.0.113.7:{}", 1 + n), |writer| {
            writer.bytes(AttributeType::EVEN_PORT, &[bits]); // only the R bit counts
        });
        let relayed = answer.success().xor_relayed_address().unwrap().unwrap();
        assert_eq!(relayed.port() % 2, 0);
        assert_eq!(answer.message().reservation_token().unwrap(), None);
    }
    //= TURN-032
    let answer = allocate_with(&mut server, "203.0.113.7:3", |writer| {
        writer.even_port(false);
    });
    assert_eq!(answer.code(), Some(508), "both even ports are given");
    allocate_with(&mut server, "203.0.113.7:4", |_| {}).success();
    allocate_with(&mut server, "203.0.113.7:5", |_| {}).success();
}

//= TURN-032
//= TURN-042
#[test]
fn answers_508_when_no_even_pair_is_free() {
    let mut server = Server::with(|config| config.relays.ports = 50_001..=50_002);
    let answer = allocate_with(&mut server, CLIENT, |writer| {
        writer.even_port(true);
    });
    assert_eq!(answer.code(), Some(508));
    server.assert_nothing_is_held();
}

//= TURN-020
//= TURN-117
#[test]
fn refuses_clients_behind_teredo_and_6to4() {
    let mut server = Server::start();
    for remote in ["[2001:0:1::1]:5", "[2002:c000:201::1]:5"] {
        assert_eq!(
            allocate_with(&mut server, remote, |_| {}).code(),
            Some(403),
            "{remote}"
        );
    }
    server.assert_nothing_is_held();
}

//= TURN-046
//= TURN-047
//= V-52
#[test]
fn clamps_the_lifetime_between_default_and_maximum() {
    for (asked, granted) in [
        (0, 600),
        (1, 600),
        (600, 600),
        (601, 601),
        (3_599, 3_599),
        (3_600, 3_600),
        (u32::MAX, 3_600),
    ] {
        let mut server = Server::start();
        let answer = allocate_with(&mut server, CLIENT, |writer| {
            writer.lifetime(asked);
        });
        assert_eq!(answer.lifetime(), granted, "{asked}");
    }
}

#[test]
fn gives_the_external_address_to_the_client_and_binds_the_local_one() {
    let mut server = Server::with(|config| {
        config.relays.addresses = vec![RelayAddress {
            local: "10.0.0.1".parse().unwrap(),
            external: Some("192.0.2.99".parse().unwrap()),
        }];
    });
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    assert_eq!(relayed.ip().to_string(), "192.0.2.99");
    let local = SocketAddr::new("10.0.0.1".parse().unwrap(), relayed.port());
    assert!(server.socket_at(local).is_some());
}
