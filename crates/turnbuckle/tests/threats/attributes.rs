//! V-23 and V-24: attributes where they do not count, and attributes that come twice.

use std::net::{IpAddr, SocketAddr};

use turnbuckle_wire::{
    AttributeType, Class, IntegrityKey, KnownAttributeTypes, MessageWriter, Method,
};

use crate::harness::{
    Canary, Client, Mechanism, REALM, Server, Site, USER, append_raw, channel, peer_receives,
    peer_socket, plain, replace_fingerprint, xor_address,
};

fn relay(site: Site) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    Server::start(site.server(), &[&relay_ip, "--allow-loopback-peers"])
}

/// Returns the request as signed, with one attribute behind the integrity attribute, length and FINGERPRINT made right.
fn with_trailer(mut request: Vec<u8>, kind: AttributeType, value: &[u8]) -> Vec<u8> {
    append_raw(&mut request, kind, value);
    replace_fingerprint(&mut request);
    request
}

//= V-23
//= STUN-034
//= STUN-035
#[test]
fn no_attribute_behind_the_integrity_attribute_has_an_effect() {
    for mechanism in [Mechanism::Md5, Mechanism::Sha256] {
        let site = Site::new();
        let server = relay(site);
        let mut client = Client::new(site.ip(2), &server);
        client.fetch_challenge();
        client.mechanism = mechanism;
        client.allocate();
        let mut plain_request = client.signed(Method::REFRESH, |_| {});
        replace_fingerprint(&mut plain_request);
        let expected = client.exchange(&plain_request).expect(200).skeleton();
        let unknown = [
            AttributeType::new(0x003E),
            AttributeType::new(0x7FFF),
            AttributeType::new(0xFFFE),
        ];
        // Those that may follow are looked at by rule; the others are not even parsed.
        let may_follow = [
            AttributeType::MESSAGE_INTEGRITY,
            AttributeType::MESSAGE_INTEGRITY_SHA256,
            AttributeType::FINGERPRINT,
        ];
        let kinds = KnownAttributeTypes::ALL
            .iter()
            .copied()
            .chain(unknown)
            .filter(|kind| !may_follow.contains(kind));
        for kind in kinds {
            for value in [&[][..], &[0; 4], &[0; 8], &[0xFF; 20]] {
                let request = with_trailer(client.signed(Method::REFRESH, |_| {}), kind, value);
                let answer = client.exchange(&request);
                assert_eq!(
                    answer.skeleton(),
                    expected,
                    "{kind:?} with {value:?} behind {mechanism:?}"
                );
            }
        }
    }
}

//= V-23
#[test]
fn a_lifetime_behind_the_integrity_attribute_deletes_nothing() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let request = client.signed(Method::REFRESH, |writer| {
        writer.lifetime(900);
    });
    let answer = client.exchange(&with_trailer(request, AttributeType::LIFETIME, &[0; 4]));
    assert_eq!(answer.expect(200).lifetime(), 900);
    let request = client.signed(Method::REFRESH, |_| {});
    let answer = client.exchange(&with_trailer(request, AttributeType::LIFETIME, &[0; 4]));
    assert_eq!(answer.expect(200).lifetime(), 600);
    client.refresh(600).expect(200);
}

//= V-23
#[test]
fn a_peer_behind_the_integrity_attribute_gets_no_permission_and_no_channel() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let canary = Canary::at(SocketAddr::new(site.ip(8), 0));
    let (good, evil) = (
        SocketAddr::new(site.ip(7), 9),
        SocketAddr::new(site.ip(8), canary.port()),
    );
    let request = client.signed(Method::CREATE_PERMISSION, |writer| {
        writer.xor_peer_address(good);
    });
    let trailer = xor_address(evil);
    client
        .exchange(&with_trailer(
            request,
            AttributeType::XOR_PEER_ADDRESS,
            &trailer,
        ))
        .expect(200);
    let request = client.signed(Method::CREATE_PERMISSION, |_| {});
    client
        .exchange(&with_trailer(
            request,
            AttributeType::XOR_PEER_ADDRESS,
            &trailer,
        ))
        .expect(400);
    let request = client.signed(Method::CHANNEL_BIND, |writer| {
        writer.bytes(AttributeType::CHANNEL_NUMBER, &[0x40, 0, 0, 0]);
    });
    client
        .exchange(&with_trailer(
            request,
            AttributeType::XOR_PEER_ADDRESS,
            &trailer,
        ))
        .expect(400);
    client.send_indication(evil, b"Send indication");
    client.send_channel_data(channel(0), b"ChannelData");
    client.settle();
    canary.assert_silent();
}

//= V-23
#[test]
fn what_an_allocation_needs_cannot_follow_the_integrity_attribute() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    client.fetch_challenge();
    let request = client.signed(Method::ALLOCATE, |_| {});
    client
        .exchange(&with_trailer(
            request,
            AttributeType::REQUESTED_TRANSPORT,
            &[17, 0, 0, 0],
        ))
        .expect(400);
    let request = client.signed(Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    let answer = client
        .exchange(&with_trailer(request, AttributeType::EVEN_PORT, &[0x80]))
        .expect(200);
    assert_eq!(
        answer.message().reservation_token().unwrap(),
        None,
        "no port was reserved"
    );
}

//= V-24
//= STUN-071
#[test]
fn of_a_repeated_attribute_the_first_counts_in_requests() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    let kind = AttributeType::REQUESTED_TRANSPORT;
    let twice = |first: [u8; 4], second: [u8; 4]| {
        move |writer: &mut MessageWriter<'_>| {
            writer.bytes(kind, &first).bytes(kind, &second);
        }
    };
    let (udp, tcp) = ([17, 0, 0, 0], [6, 0, 0, 0]);
    client
        .request(Method::ALLOCATE, twice(tcp, udp))
        .expect(442);
    client
        .request(Method::ALLOCATE, twice(udp, tcp))
        .expect(200);

    let twice = |first: u32, second: u32| {
        move |writer: &mut MessageWriter<'_>| {
            writer.lifetime(first).lifetime(second);
        }
    };
    let answer = client.request(Method::REFRESH, twice(700, 0)).expect(200);
    assert_eq!(answer.lifetime(), 700);

    let forbidden = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 9);
    let (one, two) = (peer_socket(site.ip(7)), peer_socket(site.ip(8)));
    let (good, other) = (one.local_addr().unwrap(), two.local_addr().unwrap());
    let bind = |number: [u16; 2], peers: [SocketAddr; 2]| {
        move |writer: &mut MessageWriter<'_>| {
            for number in number {
                let [high, low] = number.to_be_bytes();
                writer.bytes(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0]);
            }
            writer.xor_peer_address(peers[0]).xor_peer_address(peers[1]);
        }
    };
    client
        .request(
            Method::CHANNEL_BIND,
            bind([channel(0), channel(0)], [forbidden, good]),
        )
        .expect(403);
    client
        .request(
            Method::CHANNEL_BIND,
            bind([0x3FFF, channel(0)], [good, good]),
        )
        .expect(400);
    client
        .request(
            Method::CHANNEL_BIND,
            bind([channel(1), channel(2)], [good, forbidden]),
        )
        .expect(200);
    client.send_channel_data(channel(2), b"second number");
    client.send_channel_data(channel(1), b"first number");
    assert_eq!(peer_receives(&one).0, b"first number");
    // The peer named second has neither channel nor permission.
    client
        .request(
            Method::CHANNEL_BIND,
            bind([channel(3), channel(3)], [good, other]),
        )
        .expect(400); // good has channel 1
    client.send_indication(other, b"no permission");
    client.settle();
    two.set_nonblocking(true).unwrap();
    assert!(two.recv_from(&mut [0; 64]).is_err());

    client.request(Method::REFRESH, twice(0, 700)).expect(200);
    client.refresh(700).expect(437);
}

//= V-24
#[test]
fn of_a_repeated_attribute_the_first_counts_in_indications() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let (one, two) = (peer_socket(site.ip(7)), peer_socket(site.ip(8)));
    let addresses = [one.local_addr().unwrap(), two.local_addr().unwrap()];
    client.create_permission(&addresses).expect(200);
    let forbidden = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 9);
    let mut send = |peers: [SocketAddr; 2], data: [&[u8]; 2]| {
        client.send_raw(&plain(Class::Indication, Method::SEND, |writer| {
            writer
                .xor_peer_address(peers[0])
                .xor_peer_address(peers[1])
                .data(data[0])
                .data(data[1]);
        }));
    };
    send([forbidden, addresses[0]], [b"none", b"none"]);
    send([addresses[0], addresses[1]], [b"first", b"second"]);
    assert_eq!(peer_receives(&one).0, b"first");
    client.settle();
    two.set_nonblocking(true).unwrap();
    assert!(two.recv_from(&mut [0; 64]).is_err());
    assert_eq!(server.stop().dropped_as("peer_forbidden"), 1);
}

//= V-24
#[test]
fn of_repeated_credentials_the_first_count() {
    let site = Site::new();
    let server = relay(site);
    let mut client = Client::new(site.ip(2), &server);
    client.fetch_challenge();
    let (user, realm, nonce) = (
        USER.as_bytes().to_vec(),
        REALM.as_bytes().to_vec(),
        client.nonce(),
    );
    let mut garbage = nonce.clone();
    garbage[20] ^= 1;
    let (user, realm, nonce, garbage) = (&user[..], &realm[..], &nonce[..], &garbage[..]);
    // The right value first and a wrong one second is a valid request; the other way round the answer is the wrong one's.
    let cases = [
        ([user, b"nobody"], [realm, realm], [nonce, nonce], 200),
        ([b"nobody", user], [realm, realm], [nonce, nonce], 401),
        ([user, user], [realm, b"elsewhere"], [nonce, nonce], 200),
        ([user, user], [b"elsewhere", realm], [nonce, nonce], 401),
        ([user, user], [realm, realm], [nonce, garbage], 200),
        ([user, user], [realm, realm], [garbage, nonce], 438),
    ];
    let key = client.key();
    for (index, (users, realms, nonces, code)) in cases.into_iter().enumerate() {
        let answer = client.exchange(&credentials(users, realms, nonces, &key));
        assert_eq!(answer.code(), code, "case {index}");
        if code == 200 {
            client.refresh(0).expect(200);
        }
    }
}

/// Returns an Allocate request in which every credential stands twice.
fn credentials(
    users: [&[u8]; 2],
    realms: [&[u8]; 2],
    nonces: [&[u8]; 2],
    key: &IntegrityKey,
) -> Vec<u8> {
    plain(Class::Request, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
        writer.username(users[0]).username(users[1]);
        writer.realm(realms[0]).realm(realms[1]);
        writer.nonce(nonces[0]).nonce(nonces[1]);
        writer.integrity(key);
    })
}
