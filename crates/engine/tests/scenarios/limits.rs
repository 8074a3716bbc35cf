//! Every bound, and the answer at it.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use turnbuckle_engine::{Commons, Engine, Outcome, Random, RelayOpenError};
use turnbuckle_wire::{AddressFamily, Method};

use crate::support::*;

fn try_allocate(server: &mut Server, client: &mut Client) -> Option<u16> {
    let answer = server.ask(client, Method::ALLOCATE, |writer| {
        writer.requested_transport(17);
    });
    answer.code()
}

//= TURN-012
//= TURN-037
//= TURN-115
//= V-43
#[test]
fn a_user_has_no_more_than_its_quota_over_all_engines() {
    let mut first = Server::with(|config| config.limits.user_quota = Some(10));
    let mut second = Server::joining(Arc::clone(&first.config), Arc::clone(&first.commons), 2);
    let mut granted = Vec::new();
    for n in 0..200_u16 {
        let server = if n % 3 == 0 { &mut second } else { &mut first };
        // from many addresses: the user counts, not where it is
        let mut client = server.client(&format!("203.0.{}.7:{}", n, 1 + n));
        match try_allocate(server, &mut client) {
            None => granted.push((n % 3 == 0, client)),
            code => assert_eq!(code, Some(486)),
        }
    }
    assert_eq!(granted.len(), 10);
    let mut bob = first.client_of("bob", "builder", "203.0.113.77:1");
    assert_eq!(
        try_allocate(&mut first, &mut bob),
        None,
        "another user has its own"
    );
    for (is_second, mut client) in granted {
        let server = if is_second { &mut second } else { &mut first };
        server.refresh(&mut client, 0).success();
    }
    assert_eq!(first.commons.quota_used(REALM, "alice"), 0);
    first.wait_s(601);
    second.wait_s(601);
    assert_eq!(first.commons.quota_used_total(), 0);
}

//= V-43
#[test]
fn nothing_of_the_quota_is_lost_by_repetition_failure_or_expiry() {
    let mut server = Server::with(|config| {
        config.limits.user_quota = Some(3);
        config.relays.ports = 50_000..=50_002;
    });
    server.in_use.push("192.0.2.1:50000".parse().unwrap());
    server.in_use.push("192.0.2.1:50001".parse().unwrap());
    server.in_use.push("192.0.2.1:50002".parse().unwrap());
    for n in 0..20 {
        let mut client = server.client(&format!("203.0.113.7:{}", 1 + n));
        assert_eq!(try_allocate(&mut server, &mut client), Some(508));
        assert_eq!(server.commons.quota_used(REALM, "alice"), 0);
    }
    server.in_use.clear();
    for round in 0..3 {
        for n in 0..3 {
            let mut client = server.client(&format!("203.0.113.9:{}", 1 + 10 * round + n));
            assert_eq!(try_allocate(&mut server, &mut client), None);
        }
        let mut client = server.client("203.0.113.9:999");
        assert_eq!(try_allocate(&mut server, &mut client), Some(486));
        server.wait_s(601);
        server.assert_nothing_is_held();
    }
}

#[test]
fn the_total_quota_is_for_all_users() {
    let mut server = Server::with(|config| config.limits.total_quota = Some(2));
    let mut alice = server.client("203.0.113.7:1");
    let mut bob = server.client_of("bob", "builder", "203.0.113.7:2");
    let mut third = server.client("203.0.113.7:3");
    assert_eq!(try_allocate(&mut server, &mut alice), None);
    assert_eq!(try_allocate(&mut server, &mut bob), None);
    assert_eq!(try_allocate(&mut server, &mut third), Some(486));
    server.refresh(&mut bob, 0).success();
    assert_eq!(try_allocate(&mut server, &mut third), None);
}

#[test]
fn an_engine_has_no_more_allocations_than_its_limit() {
    let mut server = Server::with(|config| config.limits.allocations = 3);
    let mut codes = Vec::new();
    for n in 0..5 {
        let mut client = server.client(&format!("203.0.113.7:{}", 1 + n));
        codes.push(try_allocate(&mut server, &mut client));
    }
    assert_eq!(codes, [None, None, None, Some(508), Some(508)]);
    assert_eq!(server.commons.quota_used_total(), 3);
}

#[test]
fn no_more_allocations_wait_for_the_host_than_the_limit() {
    let mut server = Server::with(|config| config.limits.pending_opens = 2);
    server.opens_at_once = false;
    let mut clients: Vec<Client> = (0..3)
        .map(|n| server.client(&format!("203.0.113.7:{}", 1 + n)))
        .collect();
    server.replies.clear();
    for client in &mut clients {
        let transaction = client.next_transaction();
        let request = client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
        });
        assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    }
    assert_eq!(server.engine.statistics().pending, 2);
    assert_eq!(server.only_reply_to(clients[2].tuple).code(), Some(508));
    server.open_wishes();
    assert_eq!(server.replies.len(), 2);
    assert_eq!(server.engine.statistics().pending, 0);
}

//= V-52
#[test]
fn the_work_of_one_timeout_call_is_bounded() {
    let mut server = Server::with(|config| config.limits.timeouts_per_call = 10);
    for n in 0..100 {
        let mut client = server.client(&format!("203.0.113.{}:1", 1 + n));
        server.allocate(&mut client);
    }
    server.oversleep(Duration::from_secs(700));
    let mut calls = 0;
    while server
        .engine
        .next_timeout()
        .is_some_and(|at| at <= server.now.time)
    {
        let before = server.engine.statistics().allocations;
        server.engine.handle_timeout(server.now);
        assert!(before - server.engine.statistics().allocations <= 10);
        calls += 1;
    }
    assert!((10..=40).contains(&calls), "{calls}");
    server.pump();
    server.assert_nothing_is_held();
}

//= V-44
//= V-43
#[test]
fn random_histories_give_everything_back() {
    let mut server = Server::with(|config| {
        config.relays.ports = 50_000..=50_063;
        config.limits.user_quota = Some(40);
    });
    let dice = Seeded::new(7);
    let mut clients: Vec<Client> = (0..40)
        .map(|n| server.client(&format!("203.0.113.{}:1", 1 + n)))
        .collect();
    for step in 0..6_000_u32 {
        let client = &mut clients[usize::try_from(dice.below(40)).unwrap()];
        if step % 500 == 0 {
            server.in_use = (0..dice.below(20))
                .map(|n| format!("192.0.2.1:{}", 50_000 + n * 3).parse().unwrap())
                .collect();
        }
        if dice.below(50) == 0 {
            server.wait_s(dice.below(100));
        }
        server.challenge_if_stale(client);
        let answer = match dice.below(8) {
            0 => server.ask(client, Method::ALLOCATE, |writer| {
                writer.requested_transport(17);
            }),
            1 => server.ask(client, Method::ALLOCATE, |writer| {
                writer.requested_transport(17).even_port(true);
            }),
            2 => server.ask(client, Method::ALLOCATE, |writer| {
                writer
                    .requested_transport(17)
                    .additional_address_family(AddressFamily::V6);
            }),
            3 => server.refresh(client, 0),
            4 => server.ask(client, Method::REFRESH, |writer| {
                writer
                    .lifetime(0)
                    .requested_address_family(AddressFamily::V6);
            }),
            5 => server.refresh(client, 600),
            6 => server.permit(client, PEER),
            _ => server.bind(client, 0x4000 + u16::try_from(dice.below(3)).unwrap(), PEER),
        };
        let method = answer.message().method();
        let expected: &[u16] = if method == Method::ALLOCATE {
            &[437, 486, 508]
        } else if method == Method::REFRESH {
            &[437, 443]
        } else {
            &[400, 437, 443]
        };
        let code = answer.code();
        assert!(
            code.is_none_or(|code| expected.contains(&code)),
            "{method:?} {code:?}"
        );
        let held = server.engine.statistics().allocations + server.commons.reserved_ports();
        assert_eq!(server.commons.quota_used_total() as usize, held);
        for (_, counts) in server.commons.ports() {
            assert_eq!(counts.free + counts.leased, counts.size);
        }
        let leased: u32 = server
            .commons
            .ports()
            .map(|(_, counts)| counts.leased)
            .sum();
        assert_eq!(
            leased as usize,
            server.sockets.len() + server.commons.reserved_ports()
        );
    }
    server.wait_s(4_000);
    server.assert_nothing_is_held();
}

//= V-43
#[test]
fn ten_of_two_hundred_that_come_before_any_has_its_socket_are_granted() {
    let mut first = Server::with(|config| config.limits.user_quota = Some(10));
    let mut second = Server::joining(Arc::clone(&first.config), Arc::clone(&first.commons), 2);
    // half of the ports that are tried are another process's
    let ports = first.config.relays.ports.clone().step_by(2);
    let in_use = ports.map(|port| std::net::SocketAddr::from(([192, 0, 2, 1], port)));
    first.in_use = in_use.collect();
    second.in_use = first.in_use.clone();
    let clients: Vec<Client> = (0..200_u16)
        .map(|n| first.client(&format!("203.0.{n}.7:{}", 1 + n)))
        .collect();
    (first.opens_at_once, second.opens_at_once) = (false, false);
    for (n, client) in clients.iter().enumerate() {
        let server = if n % 3 == 0 { &mut second } else { &mut first };
        let mut client = client.clone();
        if n % 3 == 0 {
            server.challenge(&mut client);
        }
        let transaction = client.next_transaction();
        let request = client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
        });
        assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    }
    for server in [&mut first, &mut second] {
        while !server.wishes.is_empty() {
            server.open_wishes();
        }
    }
    let held = [&first, &second].map(|server| server.engine.statistics().allocations);
    assert_eq!(held.iter().sum::<usize>(), 10);
    assert_eq!(first.commons.quota_used(REALM, "alice"), 10);
}

/// Sends an Allocate request of each, all before any is answered by the host.
fn ask_at_once(server: &mut Server, clients: &mut [Client]) {
    server.opens_at_once = false;
    server.replies.clear();
    for client in clients {
        let transaction = client.next_transaction();
        let request = client.request(Method::ALLOCATE, transaction, |writer| {
            writer.requested_transport(17);
        });
        assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
    }
}

/// RFC 8656 §7.2 leaves to the server what a quota is. Here it is never exceeded, and nobody waits for what becomes of another's request: what is
/// under way counts. So with sockets that fail fewer than ten are held at first, and each that failed is free to the next request.
//= V-43
#[test]
fn what_a_request_held_whose_socket_failed_is_there_for_the_next_one_when_it_is_answered() {
    let mut server = Server::with(|config| config.limits.user_quota = Some(10));
    let mut clients: Vec<Client> = (0..200_u16)
        .map(|n| server.client(&format!("203.0.{n}.7:{}", 1 + n)))
        .collect();
    ask_at_once(&mut server, &mut clients);
    assert_eq!(server.replies.len(), 190, "refused at once");
    let failing = server.wishes.split_off(7);
    server.open_wishes();
    server.wishes = failing;
    server.refuse_wishes(RelayOpenError::OutOfResources);
    assert_eq!(server.replies.len(), 200);
    assert_eq!(server.engine.statistics().allocations, 7);
    assert_eq!(server.commons.quota_used(REALM, "alice"), 7);
    ask_at_once(&mut server, &mut clients);
    assert_eq!(server.wishes.len(), 3, "what is free, and no more");
    server.open_wishes();
    assert_eq!(server.engine.statistics().allocations, 10);
    assert_eq!(server.commons.quota_used(REALM, "alice"), 10);
}

/// Random bytes that note how much of the quotas is used whenever they are asked for.
struct Watching {
    bytes: Seeded,
    commons: Arc<Commons>,
    used: Rc<RefCell<Vec<u32>>>,
}

impl Random for Watching {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.used.borrow_mut().push(self.commons.quota_used_total());
        self.bytes.fill(bytes);
    }
}

//= V-43
#[test]
fn a_request_takes_its_unit_when_nothing_else_here_can_refuse_it() {
    let config = Arc::new(config());
    let commons = Commons::new(&config);
    let used = Rc::new(RefCell::new(Vec::new()));
    let random = Watching {
        bytes: Seeded::new(1),
        commons: Arc::clone(&commons),
        used: Rc::clone(&used),
    };
    let key = turnbuckle_engine::NonceKey::from_secret(b"one of two engines");
    let mut shared = (*config).clone();
    shared.auth.nonce_key = Some(key);
    let shared = Arc::new(shared);
    let mut engine = Engine::new(Arc::clone(&shared), Arc::clone(&commons), random);
    for (endpoint, local) in listeners() {
        engine.add_listener(endpoint, local);
    }
    let mut beside = Server::joining(shared, Arc::clone(&commons), 2);
    let mut client = beside.client(CLIENT);
    let transaction = client.next_transaction();
    let request = client.request(Method::ALLOCATE, transaction, |writer| {
        writer.requested_transport(17);
    });
    used.borrow_mut().clear();
    let outcome = engine.handle_stun(beside.now, client.tuple, &request);
    assert_eq!(outcome, Outcome::Done);
    // the port is chosen at random, and while it is the unit is another's to have
    assert_eq!(*used.borrow(), [0]);
    assert_eq!(commons.quota_used_total(), 1);
}
