//! Clients by UDP who come through a proxy with the PROXY protocol.

use turnbuckle_wire::{Class, MessageWriter, Method, TransactionId};

use super::several::{Client, Reply, Several};

/// Has every sender on this machine be a proxy.
const PROXIES: &str = "--udp-proxy-protocol-source=127.0.0.0-127.255.255.255";

/// Returns a message behind a header of version 2 for the client 198.51.100.7, port 4660.
fn through_proxy(message: &[u8]) -> Vec<u8> {
    let header = [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0C".as_slice(),
        &[198, 51, 100, 7, 192, 0, 2, 1, 0x12, 0x34, 0x0D, 0x96],
    ];
    [&header.concat(), message].concat()
}

/// Returns a client who has a nonce.
fn client(shards: &mut Several) -> Client {
    let mut client = shards.datagrams(0, "alice");
    let mut buffer = [0; 64];
    let transaction = TransactionId::from([0xFF; 12]);
    let mut writer = MessageWriter::new(&mut buffer, Class::Request, Method::ALLOCATE, transaction);
    writer.requested_transport(17);
    let len = writer.finish().unwrap();
    client.send(&through_proxy(&buffer[..len]));
    let challenge = client.answer(shards).expect(401);
    client.take_nonce(&challenge);
    client
}

/// Sends a request as often as that before the shard takes a turn, and returns the answer to the last.
fn ask(
    shards: &mut Several,
    client: &mut Client,
    method: Method,
    lifetime_s: u32,
    count: usize,
) -> Reply {
    let request = client.signed(method, |writer| {
        writer.lifetime(lifetime_s);
        if method == Method::ALLOCATE {
            writer.requested_transport(17);
        }
    });
    for _ in 0..count {
        client.send(&through_proxy(&request));
    }
    client.answer(shards)
}

#[test]
fn the_proxy_of_a_client_is_kept_as_long_as_his_allocation() {
    let mut shards = Several::start(1, &[PROXIES]);
    let mut client = client(&mut shards);
    ask(&mut shards, &mut client, Method::ALLOCATE, 600, 2).expect(200);
    ask(&mut shards, &mut client, Method::REFRESH, 600, 1).expect(200);
    assert_eq!(shards.known_proxies(0), 1);
    ask(&mut shards, &mut client, Method::REFRESH, 0, 1).expect(200);
    assert_eq!(shards.known_proxies(0), 0);
}

#[test]
fn the_proxy_of_a_client_whose_relay_socket_cannot_be_opened_is_not_kept() {
    // No machine has this address (RFC 5737), so no socket is bound there.
    let mut shards = Several::start(1, &[PROXIES, "--relay-ip=192.0.2.7"]);
    let mut client = client(&mut shards);
    // The second one comes while the socket is due that the first has asked for.
    ask(&mut shards, &mut client, Method::ALLOCATE, 600, 2).expect(508);
    shards.settle();
    assert_eq!(shards.received_by(0), 3);
    assert_eq!(shards.known_proxies(0), 0);
}
