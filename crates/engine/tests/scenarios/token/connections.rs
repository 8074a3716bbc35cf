//! Holders of tokens who relay TCP: whose a connection is.

use super::*;

fn over_tcp(mut client: Client, connection: u32) -> Client {
    client.tuple = ClientTuple {
        transport: Transport::Tcp,
        connection: Connection::new(connection, 0),
        ..client.tuple
    };
    client.transactions = u64::from(connection) << 40;
    client
}

/// Makes a connection with a peer that waits for its ConnectionBind request.
fn connected(server: &mut Server, client: &mut Client) -> ConnectionId {
    let transaction = client.next_transaction();
    let request = client.request(Method::CONNECT, transaction, |writer| {
        writer.xor_peer_address(PEER.parse().unwrap());
    });
    assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    let Some(Wanted::Connect(connection, ..)) = server.wanted.pop() else {
        panic!("the host connects")
    };
    server.replies.clear();
    server.engine.peer_connected(server.now, connection, true);
    server.pump();
    server.only_reply_to(client.tuple).success();
    connection
}

fn bind_code(
    server: &mut Server,
    client: &mut Client,
    connection: ConnectionId,
    token: Option<&Token>,
) -> Option<u16> {
    let transaction = client.next_transaction();
    let request = client.request(Method::CONNECTION_BIND, transaction, |writer| {
        writer.connection_id(connection.0);
        if let Some(token) = token {
            token.write(writer);
        }
    });
    server.exchange(client.tuple, &request).code()
}

/// Returns a server with TCP relays, and the holder of a token who has an allocation on its first connection.
fn with_tcp_relays() -> (Server, Token, Client) {
    let mut server = Server::with(|config| {
        authorizing(config);
        config.relays.tcp = Some(TcpRelays::default());
    });
    let token = Token::new(&server);
    let mut client = over_tcp(holder(&mut server, &token, CLIENT), 1);
    let answer = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(6);
        token.write(writer);
    });
    answer.success();
    (server, token, client)
}

//= OAU-06
//= OAU-11
#[test]
fn who_holds_a_token_binds_on_a_new_connection_without_showing_it() {
    let (mut server, token, mut client) = with_tcp_relays();
    let connection = connected(&mut server, &mut client);
    let mut data = over_tcp(holder(&mut server, &token, CLIENT), 2);
    assert_eq!(bind_code(&mut server, &mut data, connection, None), None);
    assert_eq!(
        server.wanted.pop(),
        Some(Wanted::Join(connection, data.tuple))
    );
}

#[test]
fn who_renewed_a_token_binds_by_the_new_one() {
    let (mut server, token, mut client) = with_tcp_relays();
    let connection = connected(&mut server, &mut client);
    let next = Token {
        mac_key: [0x33; 20],
        ..token.clone()
    };
    client.key = next.integrity_key();
    let answer = server.ask(&mut client, Method::REFRESH, |writer| next.write(writer));
    answer.success();
    let mut old = over_tcp(holder(&mut server, &token, CLIENT), 2);
    assert_eq!(
        bind_code(&mut server, &mut old, connection, None),
        Some(401)
    );
    let mut data = over_tcp(holder(&mut server, &next, CLIENT), 3);
    assert_eq!(bind_code(&mut server, &mut data, connection, None), None);
}

//= V-28
//= TCP-22
#[test]
fn another_holder_of_a_token_cannot_bind_a_connection_whose_name_it_guessed() {
    let (mut server, token, mut client) = with_tcp_relays();
    let connection = connected(&mut server, &mut client);
    let others = Token {
        mac_key: [0x77; 20],
        ..token.clone()
    };
    let mut thief = over_tcp(holder(&mut server, &others, CLIENT), 2);
    assert_eq!(
        bind_code(&mut server, &mut thief, connection, None),
        Some(401)
    );
    assert_eq!(
        bind_code(&mut server, &mut thief, connection, Some(&others)),
        Some(441)
    );
    assert_eq!(server.wanted, [], "nothing is joined");
    let mut data = over_tcp(holder(&mut server, &token, CLIENT), 3);
    assert_eq!(bind_code(&mut server, &mut data, connection, None), None);
}
