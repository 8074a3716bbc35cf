//! Data both ways.

use crate::support::*;

#[test]
fn relays_through_a_channel_and_through_indications() {
    let mut server = Server::start();
    let mut client = server.client(CLIENT);
    let relayed = server.allocate(&mut client);
    let relay = server.endpoint_at(relayed).unwrap();
    server.permit(&mut client, PEER).success();

    let route = server.send(&mut client, PEER, b"hello").unwrap();
    assert_eq!(
        (route.relay, route.peer.address().to_string()),
        (relay, PEER.to_string())
    );
    let back = server.peer_data(relayed, PEER).unwrap();
    assert_eq!(
        (back.client, back.framing),
        (client.tuple, data_indication(PEER))
    );

    server.bind(&mut client, 0x4000, PEER).success();
    let route = server.channel_data(&client, 0x4000).unwrap();
    assert_eq!(
        (route.relay, route.peer.address().to_string()),
        (relay, PEER.to_string())
    );
    let back = server.peer_data(relayed, PEER).unwrap();
    assert_eq!((back.client, back.framing), (client.tuple, channel(0x4000)));
}
