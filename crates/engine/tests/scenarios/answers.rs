//! How long the answers to strangers are beside their requests (V-40).

use core::num::NonZeroU32;

use turnbuckle_engine::{
    Alternate, AuthConfig, ClientTuple, Config, Connection, Fingerprint, PasswordAlgorithmChoice,
    Rate, TcpRelays, ThirdParties, TicketKey, Transport, UnverifiedLimits,
};
use turnbuckle_wire::{
    AddressFamily, AttributeType, Class, IntegrityKey, Message, MessageWriter, Method,
    TransactionId, long_term_key_md5,
};

use crate::support::*;

const ID: TransactionId = TransactionId::new(*b"answers-----");
const METHODS: [Method; 9] = [
    Method::BINDING,
    Method::ALLOCATE,
    Method::REFRESH,
    Method::SEND,
    Method::DATA,
    Method::CREATE_PERMISSION,
    Method::CHANNEL_BIND,
    Method::CONNECT,
    Method::CONNECTION_BIND,
];
/// Bytes of an Allocate request with REQUESTED-TRANSPORT and nothing else.
const FIRST_REQUEST_LEN: usize = 28;

/// What the parts of a server's configuration do to the length of its answers.
#[derive(Clone, Copy, Debug)]
struct Shape {
    realm_len: usize,
    algorithms: PasswordAlgorithmChoice,
    /// Everything that may be left out: SOFTWARE, reasons, FINGERPRINT, MAPPED-ADDRESS.
    is_wordy: bool,
    has_third_parties: bool,
    is_balancer: bool,
    secure_stun: bool,
}

impl Shape {
    fn server(self) -> Server {
        Server::with(|config| {
            config.auth = AuthConfig::new(&"r".repeat(self.realm_len)).unwrap();
            if !self.is_balancer {
                config.auth.add_user("alice", "wonderland").unwrap();
            }
            config.auth.password_algorithms = self.algorithms;
            config.unverified = boundless();
            config.binding.secure_stun = self.secure_stun;
            config.binding.rfc3489_binding = true;
            config.relays.tcp = Some(TcpRelays::default());
            config.mobility.key = Some(TicketKey::from_secret(b"answers"));
            if self.is_wordy {
                config.answers.software = Some("S".repeat(127).into());
                config.answers.software_to_unverified = true;
                config.answers.detailed_reasons = true;
                config.answers.fingerprint = Fingerprint::Always;
                config.binding.mapped_address = true;
            }
            if self.has_third_parties {
                let third_parties = ThirdParties::new(&"t".repeat(255)).unwrap();
                config.auth.third_parties = Some(third_parties);
            }
            let alternate = |text: &str| Alternate {
                address: text.parse().unwrap(),
                domain: Some("elsewhere.example.org".into()),
            };
            if self.is_balancer {
                config.redirection.udp =
                    vec![alternate("192.0.2.9:3478"), alternate("[2001:db8::9]:3478")];
            }
        })
    }

    /// Returns the length of a challenge of this server with nothing in it that could be left out.
    fn challenge_len(self, has_fingerprint: bool) -> usize {
        let algorithms_len = match self.algorithms {
            PasswordAlgorithmChoice::Any => 4 + 8,
            PasswordAlgorithmChoice::Md5Only => 0,
            PasswordAlgorithmChoice::Sha256Only => 4 + 4,
        };
        let third_parties_len = if self.has_third_parties { 4 + 256 } else { 0 };
        let fingerprint_len = if has_fingerprint { 8 } else { 0 };
        let realm_len = 4 + self.realm_len.next_multiple_of(4);
        20 + 8 + realm_len + 4 + 28 + algorithms_len + third_parties_len + fingerprint_len
    }
}

/// Returns shapes of every length of a realm with every choice of algorithms, and of the rest a mixture.
fn shapes() -> Vec<Shape> {
    use PasswordAlgorithmChoice::{Any, Md5Only, Sha256Only};
    let mut shapes = Vec::new();
    for (at, realm_len) in [0, 1, 8, 11, 16, 24, 40, 127].into_iter().enumerate() {
        for (of, algorithms) in [Any, Md5Only, Sha256Only].into_iter().enumerate() {
            let mixture = 3 * at + of;
            shapes.push(Shape {
                realm_len,
                algorithms,
                is_wordy: mixture % 2 == 0,
                has_third_parties: mixture % 5 == 1,
                is_balancer: mixture % 5 == 2,
                secure_stun: mixture % 4 < 2,
            });
        }
    }
    shapes
}

fn boundless() -> UnverifiedLimits {
    let rate = Rate {
        burst: u32::MAX,
        per_s: NonZeroU32::MAX.get(),
    };
    UnverifiedLimits {
        excess: rate,
        bytes: rate,
        ..UnverifiedLimits::default()
    }
}

type Write<'w> = dyn Fn(&mut MessageWriter<'_>) + 'w;

/// Returns requests and other messages of every shape that a stranger may send. `nonces` are those of its challenge, and others.
fn messages(realm: &str, nonces: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let peer = PEER.parse().unwrap();
    let key = |password: &str| {
        let key = long_term_key_md5(b"alice", realm.as_bytes(), password.as_bytes());
        IntegrityKey::sha1(&key)
    };
    let attributes: [&Write<'_>; 12] = [
        &|_| {},
        &|w| {
            w.requested_transport(17);
        },
        &|w| {
            w.requested_transport(6);
        },
        &|w| {
            w.requested_transport(17).lifetime(600);
        },
        &|w| {
            w.lifetime(0);
        },
        &|w| {
            w.requested_transport(17)
                .additional_address_family(AddressFamily::V6);
        },
        &|w| {
            w.xor_peer_address(peer);
        },
        &|w| {
            w.flag(AttributeType::new(0x7001));
        },
        &|w| {
            for kind in 0..150 {
                w.flag(AttributeType::new(0x7000 + kind));
            }
        },
        &|w| {
            w.bytes(AttributeType::MOBILITY_TICKET, b"");
        },
        &|w| {
            w.bytes(AttributeType::new(0x0003), &6_u32.to_be_bytes()); // CHANGE-REQUEST
        },
        &|w| {
            w.bytes(AttributeType::RESERVATION_TOKEN, &[7; 8]);
        },
    ];
    let mut messages = Vec::new();
    for method in METHODS {
        for class in [Class::Indication, Class::Success, Class::Error] {
            messages.push(message(class, method, ID, |_| {}));
        }
        for write in attributes {
            for has_fingerprint in [false, true] {
                let request = |claim: &Write<'_>| {
                    bare(method, ID, |w| {
                        write(w);
                        claim(w);
                        if has_fingerprint {
                            w.fingerprint();
                        }
                    })
                };
                messages.push(request(&|_| {}));
                messages.push(request(&|w| {
                    w.integrity(&key("wonderland"));
                }));
                // names nobody, under no realm
                messages.push(request(&|w| {
                    w.username(b"")
                        .realm(b"")
                        .nonce(b"")
                        .integrity(&key("guess"));
                }));
                for nonce in nonces {
                    for password in ["wonderland", "guess"] {
                        messages.push(request(&|w| {
                            w.username(b"alice").realm(realm.as_bytes()).nonce(nonce);
                            w.integrity(&key(password));
                        }));
                    }
                }
            }
        }
    }
    // RFC 3489: without magic cookie
    for mut classic in messages.clone() {
        classic[4] ^= 0xFF;
        messages.push(classic);
    }
    messages
}

/// By UDP nobody who proved nothing gets more than three times the bytes of a message. The one exception is a challenge to what may be a
/// client's first request, and it has nothing in it that could be left out.
//= V-40
#[test]
fn a_stranger_gets_three_times_its_bytes_at_most_or_a_challenge_of_required_parts() {
    let (mut answers, mut exceptions, mut challenges) = (0, 0, 0);
    for shape in shapes() {
        let mut server = shape.server();
        let realm = "r".repeat(shape.realm_len);
        for remote in [CLIENT, "[2001:db8:7::7]:50000"] {
            let from = tuple(remote);
            server.replies.clear();
            let _ = server.receive(from, &first_request(ID));
            let (_, first) = server.replies.pop().expect("an answer to a first request");
            let nonce = Message::parse(&first).unwrap().nonce().unwrap();
            let mut nonces: Vec<_> = nonce.map(<[u8]>::to_vec).into_iter().collect();
            nonces.push(b"obMatJos2AAAA".to_vec());
            for message in messages(&realm, &nonces) {
                server.replies.clear();
                let _ = server.receive(from, &message);
                assert!(server.replies.len() <= 1);
                let Some((to, answer)) = server.replies.pop() else {
                    continue;
                };
                assert_eq!(to, from);
                let is_classic = message[4..8] != answer_cookie();
                let parsed = Message::parse(&answer).ok();
                if parsed.is_some_and(|it| it.has_integrity_sha1() || it.has_integrity_sha256()) {
                    assert!(answer.len() <= 548 || !remote.contains('.'), "{shape:?}");
                    continue;
                }
                answers += 1;
                assert!(answer.len() <= 548, "{shape:?}: {}", answer.len());
                let code = parsed.and_then(|it| it.error_code().unwrap().map(|it| it.code));
                let is_challenge = matches!(code, Some(401 | 438));
                challenges += u32::from(is_challenge);
                if answer.len() <= 3 * message.len() {
                    continue;
                }
                exceptions += 1;
                let request = Message::parse(&message).unwrap();
                let what = format!("{shape:?}: {code:?}, {} to {request:?}", answer.len());
                assert!(!is_classic && is_challenge, "{what}");
                let has_fingerprint = request.has_fingerprint();
                assert_eq!(answer.len(), shape.challenge_len(has_fingerprint), "{what}");
                let is_binding = request.method() == Method::BINDING && shape.secure_stun;
                assert!(message.len() >= FIRST_REQUEST_LEN || is_binding, "{what}");
            }
        }
    }
    println!("{answers} answers, {challenges} challenges, {exceptions} of them longer");
    assert!(answers > 20_000 && exceptions > 500 && challenges > exceptions);
}

fn answer_cookie() -> [u8; 4] {
    0x2112_A442_u32.to_be_bytes()
}

/// What browsers begin with has 28 bytes, pion's and aioice's Allocate requests have 36.
//= V-40
#[test]
fn what_clients_begin_with_gets_a_whole_challenge() {
    for (realm_len, factor_max_percent) in [(0, 300), (8, 300), (11, 315), (16, 329), (36, 400)] {
        let realm = "r".repeat(realm_len);
        let mut server = Server::with(|config| {
            config.auth = AuthConfig::new(&realm).unwrap();
            config.auth.add_user("alice", "wonderland").unwrap();
        });
        let requests: [&Write<'_>; 3] = [
            &|w| {
                w.requested_transport(17);
            },
            &|w| {
                w.requested_transport(17);
                w.fingerprint();
            },
            &|w| {
                w.lifetime(600).requested_transport(17);
            },
        ];
        for write in requests {
            let request = bare(Method::ALLOCATE, ID, write);
            let answer = server.exchange(tuple(CLIENT), &request);
            assert_eq!(answer.code(), Some(401));
            let message = answer.message();
            assert_eq!(message.realm().unwrap(), Some(realm.as_bytes()));
            assert!(message.nonce().unwrap().is_some());
            assert!(message.password_algorithms().unwrap().is_some());
            let percent = 100 * answer.0.len() / request.len();
            assert!(percent <= factor_max_percent, "{realm_len}: {percent} %");
        }
    }
}

/// A header alone is no client's first request; over a connection, whose other end is where it says it is, it is challenged like any other.
//= V-40
#[test]
fn a_header_alone_gets_no_challenge_but_over_a_connection() {
    let mut server =
        Server::with(|config: &mut Config| config.relays.tcp = Some(TcpRelays::default()));
    let connection = ClientTuple {
        transport: Transport::Tcp,
        connection: Connection::new(9, 1),
        ..tuple(CLIENT)
    };
    for method in METHODS
        .into_iter()
        .filter(|&method| method != Method::BINDING)
    {
        let request = bare(method, ID, |_| {});
        if matches!(method, Method::SEND | Method::DATA) {
            continue;
        }
        let answer = server.exchange(tuple(CLIENT), &request);
        assert_eq!(
            (answer.code(), answer.0.len()),
            (Some(400), 28),
            "{method:?}"
        );
        let answer = server.exchange(connection, &request);
        assert_eq!(answer.code(), Some(401), "{method:?}");
    }
}
