//! NAT behaviour discovery, RFC 5780, on two addresses and two ports.

use core::net::SocketAddr;
use core::time::Duration;

use turnbuckle_engine::{
    Alternate, Alternates, ClientTuple, Config, Connection, Discovery, DropReason, Endpoint,
    Outcome, Rate, Transport, UnverifiedLimits,
};
use turnbuckle_wire::{
    AttributeType, ChangeRequest, Message, MessageWriter, Method, TransactionId,
};

use crate::support::*;

const ID: TransactionId = TransactionId::new(*b"transaction!");
/// What a translator in front of the server makes of 192.0.2.1 and 192.0.2.2.
const SEEN: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
const PORTS: [u16; 2] = [3478, 3479];

type Write = fn(&mut MessageWriter<'_>);

/// Returns the socket at the address and the port of these numbers.
fn endpoint(ip: usize, port: usize) -> Endpoint {
    [[LISTENER, Endpoint(11)], [Endpoint(12), Endpoint(13)]][ip][port]
}

fn seen(ip: usize, port: usize) -> SocketAddr {
    SocketAddr::new(SEEN[ip].parse().unwrap(), PORTS[port])
}

fn discovery(ip: usize, port: usize) -> Discovery {
    Discovery {
        origin: seen(ip, port),
        other: seen(1 - ip, 1 - port),
        alternates: Some(Alternates {
            change_ip: endpoint(1 - ip, port),
            change_port: endpoint(ip, 1 - port),
            change_both: endpoint(1 - ip, 1 - port),
        }),
    }
}

fn places() -> impl Iterator<Item = (usize, usize)> {
    (0..2).flat_map(|ip| (0..2).map(move |port| (ip, port)))
}

/// Makes a server on two addresses with two ports each; the listener for IPv6 has no part in it.
fn server(change: impl FnOnce(&mut Config)) -> Server {
    let mut server = Server::with(change);
    for (ip, port) in places() {
        if endpoint(ip, port) != LISTENER {
            let local = format!("192.0.2.{}:{}", ip + 1, PORTS[port]);
            server
                .engine
                .add_listener(endpoint(ip, port), local.parse().unwrap());
        }
        server
            .engine
            .set_discovery(endpoint(ip, port), discovery(ip, port));
    }
    server
}

fn at(listener: Endpoint) -> ClientTuple {
    ClientTuple::udp(listener, CLIENT.parse().unwrap())
}

fn binding(write: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
    bare(Method::BINDING, ID, write)
}

/// Returns the only answer to a request, with its way.
fn ask(
    server: &mut Server,
    from: ClientTuple,
    write: impl FnOnce(&mut MessageWriter<'_>),
) -> (ClientTuple, Answer) {
    assert_eq!(server.receive(from, &binding(write)), Outcome::Done);
    let mut replies = core::mem::take(&mut server.replies);
    assert_eq!(replies.len(), 1);
    let (to, bytes) = replies.remove(0);
    (to, Answer(bytes))
}

fn origin_and_other(message: &Message<'_>) -> [SocketAddr; 2] {
    [
        message.response_origin().unwrap().unwrap(),
        message.other_address().unwrap().unwrap(),
    ]
}

//= NAT-05
//= NAT-07
//= NAT-08
//= NAT-09
//= NAT-10
//= NAT-11
//= NAT-12
#[test]
fn answers_from_where_it_is_asked_to_and_says_from_where() {
    let mut server = server(|_| {});
    for (ip, port) in places() {
        for (change_ip, change_port) in [(false, false), (false, true), (true, false), (true, true)]
        {
            let from = at(endpoint(ip, port));
            let (to, answer) = ask(&mut server, from, |writer| {
                writer.change_request(ChangeRequest {
                    change_ip,
                    change_port,
                });
            });
            let (ip_now, port_now) = (ip ^ usize::from(change_ip), port ^ usize::from(change_port));
            assert_eq!(to.listener, endpoint(ip_now, port_now));
            assert_eq!(to.remote, from.remote);
            let message = answer.success();
            assert_eq!(
                origin_and_other(&message),
                [seen(ip_now, port_now), seen(1 - ip, 1 - port)],
                "OTHER-ADDRESS does not depend on the flags"
            );
            assert_eq!(message.mapped_address(), Ok(Some(from.remote)));
            assert_eq!(message.xor_mapped_address(), Ok(Some(from.remote)));
        }
        let (to, answer) = ask(&mut server, at(endpoint(ip, port)), |_| {});
        assert_eq!(to.listener, endpoint(ip, port));
        assert_eq!(
            origin_and_other(&answer.success()),
            [seen(ip, port), seen(1 - ip, 1 - port)]
        );
    }
}

//= NAT-03
//= NAT-06
//= NAT-12
#[test]
fn a_listener_without_a_partner_does_not_know_the_attributes() {
    let mut server = server(|_| {});
    let from = tuple("[2606:4700::7]:9");
    let cases: [Write; 3] = [
        |writer| drop_ref(writer.change_request(ChangeRequest::default())),
        |writer| drop_ref(writer.response_port(5000)),
        |writer| drop_ref(writer.padding(8)),
    ];
    for write in cases {
        let answer = server.exchange(from, &binding(write));
        assert_eq!(answer.code(), Some(420));
    }
    let answer = server.exchange(from, &binding(|_| {}));
    let message = answer.success();
    assert_eq!(message.other_address(), Ok(None));
    assert_eq!(message.response_origin(), Ok(None));
    assert_eq!(message.mapped_address(), Ok(None));
}

#[test]
fn the_attributes_are_for_binding_requests_only() {
    let mut server = server(|_| {});
    let mut client = server.client(CLIENT);
    for method in [Method::ALLOCATE, Method::REFRESH] {
        let answer = server.ask(&mut client, method, |writer| {
            writer
                .requested_transport(17)
                .change_request(ChangeRequest::default());
        });
        assert_eq!(answer.code(), Some(420));
    }
}

//= NAT-18
#[test]
fn answers_to_another_port_of_the_same_address() {
    let mut server = server(|_| {});
    let from = at(LISTENER);
    let (to, answer) = ask(&mut server, from, |writer| {
        writer.response_port(61_234);
    });
    assert_eq!(to.listener, LISTENER);
    assert_eq!(to.remote, "203.0.113.7:61234".parse().unwrap());
    assert_eq!(
        answer.success().xor_mapped_address(),
        Ok(Some(from.remote)),
        "the address the request came from"
    );
    let (to, _) = ask(&mut server, from, |writer| {
        writer.response_port(61_234).change_request(ChangeRequest {
            change_ip: true,
            change_port: true,
        });
    });
    assert_eq!(to.listener, endpoint(1, 1));
    assert_eq!(to.remote.port(), 61_234);
}

//= V-41
#[test]
fn never_answers_one_of_its_own_listeners() {
    let mut server = server(|_| {});
    let own = ClientTuple::udp(LISTENER, "192.0.2.2:40000".parse().unwrap());
    let request = binding(|writer| {
        writer.response_port(PORTS[1]);
    });
    assert_eq!(
        server.receive(own, &request),
        Outcome::Dropped(DropReason::SourceInvalid)
    );
    assert!(server.replies.is_empty());
}

/// RFC 5780 §6.1: ALTERNATE-SERVER is in no message with RESPONSE-ORIGIN or OTHER-ADDRESS, also where the server has both to tell.
//= NAT-17
#[test]
fn an_alternate_server_is_in_no_message_with_the_addresses_of_discovery() {
    let alternate = Alternate {
        address: "198.51.100.77:3478".parse().unwrap(),
        domain: None,
    };
    let mut server = server(|config| config.redirection.udp = vec![alternate]);
    let (_, answer) = ask(&mut server, at(LISTENER), |_| {});
    assert_eq!(
        origin_and_other(&answer.success()),
        [seen(0, 0), seen(1, 1)]
    );
    assert!(!answer.message().contains(AttributeType::ALTERNATE_SERVER));
    let mut client = server.client(CLIENT);
    let sent_away = server.ask(&mut client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    assert_eq!(sent_away.code(), Some(300));
    let message = sent_away.message();
    assert!(message.contains(AttributeType::ALTERNATE_SERVER));
    for kind in [
        AttributeType::RESPONSE_ORIGIN,
        AttributeType::OTHER_ADDRESS,
        AttributeType::PADDING,
    ] {
        assert!(!message.contains(kind));
    }
}

//= NAT-15
//= NAT-20
#[test]
fn refuses_what_it_cannot_do_where_the_request_came_from() {
    let mut server = server(|_| {});
    let from = at(endpoint(1, 0));
    let stream = ClientTuple {
        listener: Endpoint(21),
        transport: Transport::Tcp,
        connection: Connection::new(5, 0),
        ..from
    };
    server.engine.set_discovery(
        stream.listener,
        Discovery {
            alternates: None,
            ..discovery(1, 0)
        },
    );
    let proxied = ClientTuple {
        connection: Connection::new(1, 0),
        ..from
    };
    let cases: [(ClientTuple, Write); 10] = [
        (proxied, |writer| drop_ref(writer.response_port(9))),
        (proxied, |writer| {
            drop_ref(writer.change_request(ChangeRequest {
                change_ip: true,
                change_port: true,
            }))
        }),
        (from, |writer| drop_ref(writer.padding(4).response_port(9))),
        (from, |writer| drop_ref(writer.response_port(0))),
        (from, |writer| {
            drop_ref(writer.bytes(AttributeType::RESPONSE_PORT, &[1]))
        }),
        (from, |writer| {
            drop_ref(writer.bytes(AttributeType::CHANGE_REQUEST, &[6]))
        }),
        (stream, |writer| {
            drop_ref(writer.change_request(ChangeRequest {
                change_ip: true,
                change_port: false,
            }))
        }),
        (stream, |writer| {
            drop_ref(writer.change_request(ChangeRequest {
                change_ip: false,
                change_port: true,
            }))
        }),
        (stream, |writer| drop_ref(writer.response_port(9))),
        (stream, |writer| {
            drop_ref(writer.response_port(9).padding(4))
        }),
    ];
    for (from, write) in cases {
        let (to, answer) = ask(&mut server, from, write);
        assert_eq!(to, from);
        assert_eq!(answer.code(), Some(400));
        for kind in [
            AttributeType::ALTERNATE_SERVER,
            AttributeType::OTHER_ADDRESS,
            AttributeType::PADDING,
            AttributeType::RESPONSE_ORIGIN,
        ] {
            assert!(!answer.message().contains(kind));
        }
    }
    // a connection is told the addresses, for tests that it makes by connecting there
    let (to, answer) = ask(&mut server, stream, |writer| {
        writer.change_request(ChangeRequest::default());
    });
    assert_eq!(to, stream);
    assert_eq!(
        origin_and_other(&answer.success()),
        [seen(1, 0), seen(0, 1)]
    );
}

//= NAT-13
//= NAT-19
//= V-49
#[test]
fn pads_the_answer_as_the_request_and_never_beyond_a_large_frame() {
    let mut server = server(|config| config.unverified = unbounded());
    for (asked, padded) in [
        (0, 0),
        (1, 4),
        (100, 100),
        (1_499, 1_500),
        (1_500, 1_500),
        (60_000, 1_500),
    ] {
        let (_, answer) = ask(&mut server, at(LISTENER), |writer| {
            writer.padding(asked);
        });
        let padding = answer.success().padding().unwrap();
        assert_eq!(padding.len(), padded);
        assert!(padding.iter().all(|&byte| byte == 0));
    }
}

//= NAT-14
//= NAT-16
#[test]
fn pads_beyond_the_mtu_for_who_has_proved_to_be_there() {
    let mut server = server(|config| config.binding.secure_stun = true);
    let mut client = server.client(CLIENT);
    let (_, answer) = ask(&mut server, client.tuple, |writer| {
        writer.padding(4);
    });
    assert_eq!(answer.code(), Some(401));
    let answer = server.ask(&mut client, Method::BINDING, |writer| {
        writer.padding(4);
    });
    let message = answer.success();
    assert_eq!(message.padding().unwrap().len(), 1_500);
    assert!(message.has_integrity_sha1());
    assert_eq!(origin_and_other(&message), [seen(0, 0), seen(1, 1)]);
}

//= V-40
//= V-49
#[test]
fn whatever_is_asked_for_is_charged_to_the_address_it_came_from() {
    let mut server = server(|config| {
        config.unverified = UnverifiedLimits {
            excess: Rate {
                burst: 1_000,
                per_s: 0,
            },
            ..unbounded()
        };
    });
    let (mut gained, mut answered) = (0, 0);
    for port in 1..10_000 {
        let request = binding(|writer| {
            if port % 2 == 0 {
                writer.response_port(port);
            } else {
                writer.padding(usize::from(port));
            }
            writer.change_request(ChangeRequest {
                change_ip: port % 3 == 0,
                change_port: port % 5 == 0,
            });
        });
        let from = ClientTuple::udp(LISTENER, SocketAddr::new([203, 0, 113, 7].into(), port));
        // a refusal is remembered for a tenth of a second, whatever the budget
        server.wait(Duration::from_millis(100));
        let _ = server.receive(from, &request);
        for (_, answer) in server.replies.drain(..) {
            answered += 1;
            gained += answer.len().saturating_sub(request.len());
        }
    }
    assert!(gained <= 1_000, "{gained} bytes that nobody sent");
    assert!(answered > 4_000, "those who sent as much were answered");
}

fn unbounded() -> UnverifiedLimits {
    let rate = Rate {
        burst: u32::MAX,
        per_s: u32::MAX,
    };
    UnverifiedLimits {
        excess: rate,
        bytes: rate,
        ..UnverifiedLimits::default()
    }
}

fn drop_ref(_: &mut MessageWriter<'_>) {}

/// Under coturn's name.
#[test]
fn passes_over_what_is_not_served_where_that_is_wanted() {
    for passes_over_discovery in [false, true] {
        let mut server =
            Server::with(|config| config.binding.passes_over_discovery = passes_over_discovery);
        let code = (!passes_over_discovery).then_some(420);
        let with_port = binding(|writer| {
            writer.response_port(4000);
        });
        let with_padding = binding(|writer| {
            writer.padding(64);
        });
        for request in [with_port, with_padding] {
            let from = tuple(CLIENT);
            let answer = server.exchange(from, &request);
            assert_eq!(answer.code(), code);
            if passes_over_discovery {
                let mapped = answer.success().xor_mapped_address();
                assert_eq!(mapped, Ok(Some(from.remote)), "to where it came from");
            }
        }
        // for other methods they stay unknown
        let mut client = server.client(CLIENT);
        let answer = server.ask(&mut client, Method::REFRESH, |writer| {
            writer.response_port(4000);
        });
        assert_eq!(answer.code(), Some(420));
    }
}
