use std::cell::RefCell;
use std::net::UdpSocket;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::Handler;
use crate::sockets::table::{Held, Table};
use crate::testing::{LOOPBACK, Recorder, Setup, client, echo, numbered, send_train, take, whole};
use crate::udp::calls::fault::{self, Call, Outcome};
use crate::{BufferBudget, BufferSettings, Settings, SocketPurpose};

const LISTENER: EndpointKind = EndpointKind::Listener { reuseport: false };

/// Makes turns until the endpoint has nothing more.
fn drain(setup: &mut Setup, handler: &mut impl Handler) -> usize {
    let counters = Arc::clone(setup.datapath.counters());
    let mut turns = 0;
    loop {
        let before = counters.receive.messages.get();
        setup.datapath.turn(Some(Duration::ZERO), handler).unwrap();
        if counters.receive.messages.get() == before {
            return turns;
        }
        turns += 1;
    }
}

#[test]
fn gro_buffers_come_in_and_trains_go_out() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    let mut handler = Recorder::new(|message: &Received<'_>, tx: &mut SendQueue| {
        assert_eq!(
            (message.segment, message.segment_count(), message.token),
            (1200, 40, 7)
        );
        assert_eq!(
            message.segments().map(<[u8]>::len).sum::<usize>(),
            message.bytes.len()
        );
        echo(message, tx);
    });
    let datagrams = numbered(40, 1200, 17);
    send_train(&setup.client, setup.server, &datagrams);
    setup.turn(&mut handler);
    assert_eq!(take(&setup.client, 40), datagrams);
    let counters = setup.datapath.counters();
    let receive = &counters.receive;
    assert_eq!(
        (
            receive.calls.get(),
            receive.messages.get(),
            receive.datagrams.get()
        ),
        (1, 1, 40)
    );
    assert_eq!(receive.gro_buffers.get(), 1);
    let send = &counters.send;
    assert_eq!(
        (
            send.calls.get(),
            send.gso_sends.get(),
            send.gso_datagrams.get()
        ),
        (1, 1, 40)
    );
}

#[test]
fn without_recvmmsg_messages_are_received_one_by_one() {
    let mut setup = Setup::new(Backend::Mmsg, LISTENER);
    let mut handler = Recorder::new(echo);
    let guard = fault::script(|call| match call {
        Call::ReceiveBatch => Outcome::Fail(Errno::NOSYS),
        _ => Outcome::Pass,
    });
    let datagrams = numbered(5, 100, 100);
    send_train(&setup.client, setup.server, &datagrams);
    drain(&mut setup, &mut handler);
    drop(guard);
    assert_eq!(take(&setup.client, 5), datagrams);
    assert_eq!(
        handler.reported.warnings,
        [Warning::RecvmmsgUnavailable {
            errno: Errno::NOSYS.raw_os_error()
        }]
    );
    assert!(setup.datapath.counters().receive.unavailable.get() >= 5);
}

#[test]
fn a_pending_error_does_not_hide_the_data_behind_it() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let mut setup = Setup::new(backend, EndpointKind::Relay);
        let mut handler = Recorder::new(echo);
        let mut calls = 0;
        let guard = fault::script(move |call| match call {
            Call::Receive | Call::ReceiveBatch => {
                calls += 1;
                if calls == 1 {
                    Outcome::Fail(Errno::CONNREFUSED)
                } else {
                    Outcome::Pass
                }
            }
            _ => Outcome::Pass,
        });
        setup.client.send_to(b"data", setup.server).unwrap();
        setup.turn(&mut handler);
        drop(guard);
        assert_eq!(take(&setup.client, 1), [b"data"], "{backend}");
    }
}

#[test]
fn when_slots_run_out_the_queue_is_flushed_and_nothing_is_lost() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let settings = Settings {
            backend,
            slots: 4,
            batch: 3,
            coalesce: Duration::ZERO,
            ..Settings::default()
        };
        let mut setup = Setup::with(settings, LISTENER);
        let bind = crate::Bind {
            address: LOOPBACK.into(),
            kind: LISTENER,
            token: 0,
        };
        let more: Vec<_> = (0..3).map(|_| setup.datapath.bind(bind).unwrap()).collect();
        let servers: Vec<_> = more
            .iter()
            .map(|id| setup.datapath.local_addr(*id).unwrap())
            .collect();
        let mut handler = Recorder::new(echo);
        let clients: Vec<UdpSocket> = servers.iter().map(|_| client()).collect();
        for round in 0..8 {
            for (client, server) in clients.iter().zip(&servers) {
                client.send_to(&[round], server).unwrap();
            }
        }
        drain(&mut setup, &mut handler);
        for client in &clients {
            assert_eq!(
                take(client, 8),
                (0..8).map(|round| vec![round]).collect::<Vec<_>>(),
                "{backend}"
            );
        }
        assert!(
            setup.datapath.counters().receive.no_buffer.get() > 0,
            "{backend}"
        );
    }
}

#[test]
fn a_relay_socket_is_read_one_by_one_until_it_proves_busy() {
    let settings = Settings {
        backend: Backend::Mmsg,
        coalesce: Duration::ZERO,
        ..Settings::default()
    };
    let mut setup = Setup::with(settings, EndpointKind::Relay);
    let mut handler = Recorder::new(|_: &Received<'_>, _: &mut SendQueue| {});
    // A flow that never has two datagrams waiting stays at one call each, without asking for more.
    for _ in 0..10 {
        setup.client.send_to(b"voice", setup.server).unwrap();
        setup.turn(&mut handler);
        setup
            .datapath
            .turn(Some(Duration::ZERO), &mut handler)
            .unwrap();
    }
    let counters = Arc::clone(setup.datapath.counters());
    assert_eq!(
        (
            counters.receive.calls.get(),
            counters.receive.would_block.get()
        ),
        (10, 0)
    );
    // A burst is taken in batches: 1, 1, 4, 16 of 22.
    for _ in 0..22 {
        setup.client.send_to(b"", setup.server).unwrap();
    }
    assert_eq!(drain(&mut setup, &mut handler), 4);
    assert_eq!(counters.receive.messages.get(), 32);
}

#[test]
fn a_socket_of_clients_that_brings_one_datagram_at_a_time_is_asked_for_one() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let settings = Settings {
            backend,
            coalesce: Duration::ZERO,
            ..Settings::default()
        };
        let mut setup = Setup::with(settings, LISTENER);
        let counters = Arc::clone(setup.datapath.counters());
        let mut handler = Recorder::new(|_: &Received<'_>, _: &mut SendQueue| {});
        let asked = |setup: &mut Setup, handler: &mut _| {
            let calls = Rc::new(RefCell::new(Vec::new()));
            let guard = fault::script({
                let calls = Rc::clone(&calls);
                move |call| {
                    calls.borrow_mut().push(call);
                    Outcome::Pass
                }
            });
            setup.turn(handler);
            drop(guard);
            calls.take()
        };
        let rest = |setup: &mut Setup, handler: &mut _| {
            setup.datapath.turn(Some(Duration::ZERO), handler).unwrap();
        };
        for _ in 0..8 {
            setup.client.send_to(b"one", setup.server).unwrap();
            let calls = asked(&mut setup, &mut handler);
            assert_ne!(calls, [Call::Receive], "{backend}");
            rest(&mut setup, &mut handler);
        }
        setup.client.send_to(b"one", setup.server).unwrap();
        let calls = asked(&mut setup, &mut handler);
        assert_eq!(calls, [Call::Receive], "{backend}");
        rest(&mut setup, &mut handler);
        // Of a burst the first datagram comes alone and the others together, in the next turn; then many are requested again.
        let before = counters.receive.datagrams.get();
        for _ in 0..6 {
            setup.client.send_to(b"many", setup.server).unwrap();
        }
        assert_eq!(drain(&mut setup, &mut handler), 2, "{backend}");
        assert_eq!(counters.receive.datagrams.get() - before, 6, "{backend}");
        setup.client.send_to(b"one", setup.server).unwrap();
        let calls = asked(&mut setup, &mut handler);
        assert_ne!(calls, [Call::Receive], "{backend}");
    }
}

#[test]
fn a_bursting_flow_gets_a_larger_buffer_at_once_and_gives_it_back() {
    let budget = Arc::new(BufferBudget::new(16 * 1024 * 1024));
    let settings = Settings {
        backend: Backend::Mmsg,
        coalesce: Duration::ZERO,
        buffers: BufferSettings {
            relay_start: 16 * 1024,
            budget: Arc::clone(&budget),
            ..BufferSettings::default()
        },
        ..Settings::default()
    };
    let mut setup = Setup::with(settings, EndpointKind::Relay);
    let counters = Arc::clone(setup.datapath.counters());
    let mut handler = Recorder::new(|_: &Received<'_>, _: &mut SendQueue| {});
    let mut arrived = Vec::new();
    for _ in 0..4 {
        let before = counters.receive.datagrams.get();
        for datagram in numbered(60, 1200, 1200) {
            setup.client.send_to(&datagram, setup.server).unwrap();
        }
        drain(&mut setup, &mut handler);
        arrived.push(counters.receive.datagrams.get() - before);
    }
    assert!(arrived[0] < 60, "the first buffer is small: {arrived:?}");
    assert_eq!(arrived[2..], [60, 60], "{arrived:?}");
    assert!(budget.used() > 0);
    setup.datapath.close(setup.endpoint);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_fresh_socket_keeps_a_burst_of_256_full_datagrams() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        for kind in [EndpointKind::Relay, EndpointKind::SharedRelay] {
            let mut setup = Setup::new(backend, kind);
            let counters = Arc::clone(setup.datapath.counters());
            let mut handler = Recorder::new(|_: &Received<'_>, _: &mut SendQueue| {});
            for _ in 0..256 {
                setup.client.send_to(&[0; 1472], setup.server).unwrap();
            }
            drain(&mut setup, &mut handler);
            let arrived = counters.receive.datagrams.get();
            assert_eq!(arrived, 256, "{backend} {kind:?}");
        }
    }
}

#[test]
fn what_the_kernel_drops_at_a_socket_is_reported_by_its_purpose() {
    for (kind, is_tunnel, purpose) in [
        (LISTENER, false, SocketPurpose::Listener),
        (EndpointKind::Relay, false, SocketPurpose::Relay),
        (EndpointKind::SharedRelay, false, SocketPurpose::SharedRelay),
        (EndpointKind::Relay, true, SocketPurpose::Tunnel),
    ] {
        let settings = Settings {
            buffers: BufferSettings {
                relay_start: 8192,
                relay_max: 8192,
                listener: 8192,
                ..BufferSettings::default()
            },
            ..Settings::default()
        };
        let mut setup = Setup::with(settings, kind);
        if is_tunnel {
            setup.datapath.forbid_fragments(setup.endpoint).unwrap();
        }
        let counters = Arc::clone(setup.datapath.counters());
        let mut handler = Recorder::new(|_: &Received<'_>, _: &mut SendQueue| {});
        let burst = |setup: &mut Setup, handler: &mut _| {
            for _ in 0..40 {
                setup.client.send_to(&[0; 1200], setup.server).unwrap();
            }
            drain(setup, handler);
        };
        // The first time in a look, because several came at once, and the second time when it is asked for.
        burst(&mut setup, &mut handler);
        setup.datapath.look_at_undelivered(u64::MAX, &mut handler);
        let first = handler.reported.undelivered.clone();
        let [(_, lost)] = first[..] else {
            panic!("{purpose:?}: {first:?}");
        };
        assert_eq!(lost + counters.receive.datagrams.get(), 40, "{purpose:?}");
        burst(&mut setup, &mut handler);
        setup.datapath.report_undelivered(&mut handler);
        let arrived = counters.receive.datagrams.get();
        assert_eq!(handler.reported.undelivered, [(purpose, lost); 2]);
        assert_eq!(2 * lost + arrived, 80, "{purpose:?}");
    }
}

#[test]
fn a_held_socket_takes_nothing_of_the_budget_until_it_is_in_use() {
    let settings = Settings::default();
    let budget = &settings.buffers.budget;
    let mut table = Table::default();
    let held = Held::open(LOOPBACK.into(), &settings, &mut |_| {}).unwrap();
    assert_eq!(budget.used(), 0);
    table.take_in(held, 7, &settings).unwrap();
    assert!(budget.used() > 0);
}

#[test]
fn the_budget_limits_growth() {
    let budget = Arc::new(BufferBudget::new(60_000));
    let settings = Settings {
        backend: Backend::Gso,
        buffers: BufferSettings {
            budget: Arc::clone(&budget),
            ..BufferSettings::default()
        },
        ..Settings::default()
    };
    let mut setup = Setup::with(settings, EndpointKind::Relay);
    let mut handler = Recorder::new(|_: &Received<'_>, _: &mut SendQueue| {});
    for _ in 0..8 {
        send_train(&setup.client, setup.server, &numbered(20, 1200, 1200));
        setup.turn(&mut handler);
    }
    let receive = &setup.datapath.counters().receive;
    // A small part of it at the start, and no step after that.
    assert_eq!(
        (receive.buffers_grown.get(), budget.used()),
        (0, 60_000 / 32)
    );
    assert!(receive.buffers_denied.get() > 0);
}

#[test]
fn a_socket_that_is_idle_for_ten_seconds_shrinks_to_its_first_size() {
    const SECOND: u64 = 1_000_000_000;
    let settings = Settings {
        backend: Backend::Gso,
        buffers: BufferSettings {
            relay_start: 128 * 1024,
            ..BufferSettings::default()
        },
        ..Settings::default()
    };
    let budget = Arc::clone(&settings.buffers.budget);
    let mut setup = Setup::with(settings, EndpointKind::Relay);
    let first = budget.used();
    let mut handler = Recorder::new(|_: &Received<'_>, _: &mut SendQueue| {});
    let mut burst = |setup: &mut Setup| {
        for _ in 0..8 {
            send_train(&setup.client, setup.server, &numbered(50, 1200, 1200));
            setup.turn(&mut handler);
        }
    };
    burst(&mut setup);
    let used = budget.used();
    assert!(used > first, "{used} after {first}");
    // Ten looks in which it was not read, and one before that finds that it was.
    for second in 1000..1010 {
        setup.datapath.look_at_grown(second * SECOND);
        assert_eq!(budget.used(), used);
    }
    burst(&mut setup);
    for second in 1010..1020 {
        setup.datapath.look_at_grown(second * SECOND);
        assert_eq!(budget.used(), used);
    }
    setup.datapath.look_at_grown(1020 * SECOND);
    assert_eq!(budget.used(), first);
    // It is in use again.
    burst(&mut setup);
    assert_eq!(budget.used(), used);
}

#[test]
fn where_the_budget_is_short_idle_sockets_give_all_of_theirs_back() {
    const SECOND: u64 = 1_000_000_000;
    let settings = Settings::default();
    let budget = Arc::clone(&settings.buffers.budget);
    let setup = Setup::with(settings, EndpointKind::Relay);
    let mut idle = setup.datapath;
    let first = budget.used();
    assert!(first > 0);
    for second in 1000..1020 {
        idle.look_at_grown(second * SECOND);
        assert_eq!(budget.used(), first);
    }
    while !budget.is_short() {
        budget.take_start(u64::MAX);
    }
    let used = budget.used();
    idle.look_at_grown(1020 * SECOND);
    assert_eq!(budget.used(), used - first);
}

#[test]
fn icmp_errors_reach_the_handler_with_the_destination_and_cost_no_datagram() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let mut setup = Setup::new(backend, EndpointKind::Relay);
        // An address where nobody listens any more.
        let dead = client().local_addr().unwrap();
        let mut handler = Recorder::new(move |message: &Received<'_>, tx: &mut SendQueue| {
            let to = if message.bytes == b"live" {
                message.remote
            } else {
                dead
            };
            tx.forward(message.endpoint, to, message, whole(message), &[], 0);
        });
        for text in [b"dead", b"live", b"dead", b"dead", b"live"] {
            setup.client.send_to(text, setup.server).unwrap();
        }
        setup.receive(5, &mut handler);
        assert_eq!(take(&setup.client, 2), [b"live", b"live"], "{backend}");
        setup
            .datapath
            .turn(Some(Duration::ZERO), &mut handler)
            .unwrap();
        assert!(!handler.reported.icmp.is_empty(), "{backend}");
        for error in &handler.reported.icmp {
            // Destination unreachable, port unreachable.
            assert_eq!(
                (error.peer, error.kind, error.code, error.v6),
                (dead, 3, 3, false),
                "{backend}"
            );
        }
    }
}

#[test]
fn what_the_kernel_cut_off_is_counted_and_told_of_and_not_shown() {
    for backend in [Backend::Mmsg, Backend::Gso] {
        let mut setup = Setup::new(backend, LISTENER);
        let mut handler = Recorder::new(echo);
        for _ in 0..3 {
            setup.client.send_to(b"cut off", setup.server).unwrap();
        }
        let cuts = fault::script(|call| match call {
            Call::Receive | Call::ReceiveBatch => Outcome::Truncate,
            _ => Outcome::Pass,
        });
        setup.turn(&mut handler);
        drop(cuts);
        let receive = &setup.datapath.counters().receive;
        assert_eq!(
            handler.reported.truncated, [7; 3],
            "the token of the endpoint"
        );
        assert_eq!(handler.reported.messages, 0);
        assert_eq!((receive.discarded.get(), receive.datagrams.get()), (3, 3));
    }
}

#[test]
fn a_tunnels_socket_brings_a_bounded_part_of_a_burst_in_a_turn() {
    for (is_tunnel, most) in [(true, 256 * 1024), (false, usize::MAX)] {
        let mut setup = Setup::new(Backend::Gso, EndpointKind::Relay);
        let relay = setup.endpoint;
        if is_tunnel {
            setup.datapath.forbid_fragments(relay).unwrap();
        }
        let brought = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&brought);
        let mut handler = Recorder::new(move |message: &Received<'_>, _: &mut SendQueue| {
            *noted.borrow_mut().last_mut().unwrap() += message.bytes.len();
        });
        let datagrams = numbered(50, 1200, 0);
        let mut largest = 0;
        // Each burst is more than a turn may bring, and the socket's buffer grows with them.
        for _ in 0..8 {
            for _ in 0..8 {
                send_train(&setup.client, setup.server, &datagrams);
            }
            let counters = Arc::clone(setup.datapath.counters());
            loop {
                let before = counters.receive.messages.get();
                brought.borrow_mut().push(0);
                setup
                    .datapath
                    .turn(Some(Duration::ZERO), &mut handler)
                    .unwrap();
                largest = largest.max(*brought.borrow().last().unwrap());
                if counters.receive.messages.get() == before {
                    break;
                }
            }
        }
        assert!(largest <= most, "{largest}");
        assert!(is_tunnel || largest > 256 * 1024, "{largest}");
    }
}
