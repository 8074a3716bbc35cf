//! ICMP errors, RFC 8656 §11.5.

use core::net::SocketAddr;

use turnbuckle_engine::{DropReason, IcmpError, Outcome, RelayHandle};
use turnbuckle_wire::{AddressFamily, Class, Icmp, Method};

use crate::support::*;

fn start() -> (Server, Client, RelayHandle, RelayHandle) {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let [v4, v6] = server.allocate_dual(&mut client);
    server.permit(&mut client, PEER).success();
    server.permit(&mut client, PEER_V6).success();
    let handles = [v4, v6].map(|relayed| server.socket_at(relayed).unwrap().handle);
    server.replies.clear();
    (server, client, handles[0], handles[1])
}

fn error(peer: &str, kind: u8, code: u8, mtu: u32) -> IcmpError {
    let peer: SocketAddr = peer.parse().unwrap();
    IcmpError {
        peer,
        kind,
        code,
        mtu,
        v6: peer.is_ipv6(),
    }
}

fn handle(server: &mut Server, relay: RelayHandle, error: IcmpError) -> Outcome {
    let outcome = server.engine.handle_icmp(server.now, relay, error);
    server.pump();
    outcome
}

//= TURN-075
//= TURN-078
//= TURN-113
#[test]
fn relays_the_errors_of_the_rfc_as_data_indications() {
    let (mut server, client, v4, v6) = start();
    for kind in 0..=255 {
        for (relay, peer, relayed) in [
            (v4, PEER, matches!(kind, 3 | 11)),
            (v6, PEER_V6, matches!(kind, 1..=3)),
        ] {
            let outcome = handle(&mut server, relay, error(peer, kind, 1, 1_400));
            if !relayed {
                assert_eq!(
                    outcome,
                    Outcome::Dropped(DropReason::IcmpNotRelayed),
                    "{kind} {peer}"
                );
                continue;
            }
            assert_eq!(outcome, Outcome::Done);
            let indication = server.only_reply_to(client.tuple);
            let message = indication.message();
            assert_eq!(
                (message.class(), message.method()),
                (Class::Indication, Method::DATA)
            );
            assert_eq!(
                message.xor_peer_address().unwrap().unwrap().to_string(),
                peer
            );
            assert_eq!(message.data(), None);
            let data = if kind == 2 { 1_400 } else { 0 };
            assert_eq!(
                message.icmp().unwrap().unwrap(),
                Icmp {
                    kind,
                    code: 1,
                    data
                }
            );
        }
    }
}

//= TURN-113
#[test]
fn tells_the_mtu_of_too_big_and_of_nothing_else() {
    let (mut server, client, v4, v6) = start();
    for (relay, peer, kind, code, data) in [
        (v4, PEER, 3, 4, 1_300),
        (v4, PEER, 3, 3, 0),
        (v6, PEER_V6, 2, 0, 1_300),
        (v6, PEER_V6, 1, 4, 0),
    ] {
        assert_eq!(
            handle(&mut server, relay, error(peer, kind, code, 1_300)),
            Outcome::Done
        );
        let indication = server.only_reply_to(client.tuple);
        assert_eq!(
            indication.message().icmp().unwrap().unwrap().data,
            data,
            "{kind} {code}"
        );
    }
}

//= TURN-077
//= V-13
//= V-66
#[test]
fn checks_the_permission_of_the_inner_destination() {
    let (mut server, mut client, v4, _) = start();
    let refused = Outcome::Dropped(DropReason::IcmpNotRelayed);
    assert_eq!(
        handle(&mut server, v4, error("93.184.216.99:7000", 3, 3, 0)),
        refused
    );
    //= TURN-057
    assert_eq!(
        handle(&mut server, v4, error("93.184.216.20:1", 3, 3, 0)),
        Outcome::Done,
        "whatever the port"
    );
    assert_eq!(
        server
            .only_reply_to(client.tuple)
            .message()
            .xor_peer_address()
            .unwrap()
            .unwrap()
            .port(),
        1
    );
    assert_eq!(
        handle(&mut server, v4, error("93.184.216.20:0", 3, 3, 0)),
        Outcome::Done
    );
    assert_eq!(
        server
            .only_reply_to(client.tuple)
            .message()
            .xor_peer_address()
            .unwrap()
            .unwrap()
            .port(),
        0,
        "unknown"
    );
    server.oversleep(core::time::Duration::from_millis(300_100));
    assert_eq!(
        handle(&mut server, v4, error(PEER, 3, 3, 0)),
        refused,
        "the permission is over"
    );
    //= TURN-076
    let gone = Outcome::Dropped(DropReason::RelayClosed);
    server.ask(&mut client, Method::REFRESH, |writer| {
        writer
            .lifetime(0)
            .requested_address_family(AddressFamily::V4);
    });
    assert_eq!(handle(&mut server, v4, error(PEER, 3, 3, 0)), gone);
    server.refresh(&mut client, 0).success();
    assert_eq!(handle(&mut server, v4, error(PEER, 3, 3, 0)), gone);
}

#[test]
fn families_of_error_and_peer_have_to_agree() {
    let (mut server, _, v4, v6) = start();
    let refused = Outcome::Dropped(DropReason::IcmpNotRelayed);
    assert_eq!(
        handle(
            &mut server,
            v4,
            IcmpError {
                v6: true,
                ..error(PEER, 3, 3, 0)
            }
        ),
        refused
    );
    assert_eq!(
        handle(
            &mut server,
            v6,
            IcmpError {
                v6: false,
                ..error(PEER_V6, 3, 3, 0)
            }
        ),
        refused
    );
}
