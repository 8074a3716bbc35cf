use std::cell::RefCell;
use std::net::UdpSocket;
use std::rc::Rc;

use super::*;
use crate::testing::{
    Recorder, Setup, client, echo, is_drained, numbered, send_train, take, whole,
};
use crate::udp::calls::fault::{self, Call, Outcome};
use crate::{Datapath, EndpointKind, Received, Run, Settings, Sockets, StreamHandler};

const LISTENER: EndpointKind = EndpointKind::Listener { reuseport: false };

fn refuse_trains(errno: Errno) -> impl Drop {
    fault::script(move |call| match call {
        Call::Send { segment: Some(_) }
        | Call::SendBatch {
            segment: Some(_), ..
        } => Outcome::Fail(errno),
        _ => Outcome::Pass,
    })
}

fn failed(datapath: &Datapath) -> u64 {
    datapath
        .counters()
        .send
        .failed
        .iter()
        .map(turnbuckle_counters::Counter::get)
        .sum()
}

#[test]
fn a_missing_feature_is_switched_off_for_good_with_one_warning_and_nothing_is_lost() {
    for (errno, refusals) in [
        (Errno::INVAL, 3),
        (Errno::NOPROTOOPT, 1),
        (Errno::IO, 1),
        (Errno::OPNOTSUPP, 1),
    ] {
        let mut setup = Setup::new(Backend::Gso, LISTENER);
        let mut handler = Recorder::new(echo);
        let datagrams = numbered(40, 100, 30);
        for turn in 0..5 {
            let guard = refuse_trains(errno);
            send_train(&setup.client, setup.server, &datagrams);
            setup.turn(&mut handler);
            drop(guard);
            assert_eq!(take(&setup.client, 40), datagrams, "{errno} turn {turn}");
        }
        let counters = setup.datapath.counters();
        assert_eq!(
            (
                counters.send.fallbacks.get(),
                counters.send.gso_disabled.get()
            ),
            (refusals, 1),
            "{errno}"
        );
        let warning = Warning::GsoDisabled {
            local: setup.server,
            errno: errno.raw_os_error(),
        };
        assert_eq!(handler.reported.warnings, [warning]);
        assert_eq!(handler.reported.failures, []);
    }
}

#[test]
fn a_socket_without_checksums_falls_back_as_the_kernel_refuses_it() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    setup.datapath.disable_checksums(setup.endpoint);
    let mut handler = Recorder::new(echo);
    let datagrams = numbered(10, 100, 100);
    for _ in 0..3 {
        assert_eq!(handler.reported.warnings, []);
        send_train(&setup.client, setup.server, &datagrams);
        setup.turn(&mut handler);
        assert_eq!(take(&setup.client, 10), datagrams);
    }
    let warning = Warning::GsoDisabled {
        local: setup.server,
        errno: Errno::INVAL.raw_os_error(),
    };
    assert_eq!(handler.reported.warnings, [warning]);
}

#[test]
fn a_train_that_is_refused_before_any_has_gone_out_does_not_end_trains() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    let mut handler = Recorder::new(echo);
    let datagrams = numbered(10, 100, 100);
    for refusals in [2, 0] {
        for _ in 0..refusals {
            let guard = refuse_trains(Errno::INVAL);
            send_train(&setup.client, setup.server, &datagrams);
            setup.turn(&mut handler);
            drop(guard);
        }
        send_train(&setup.client, setup.server, &datagrams);
        setup.turn(&mut handler);
    }
    assert_eq!(take(&setup.client, 40), vec![datagrams; 4].concat());
    let send = &setup.datapath.counters().send;
    let counted = (
        send.fallbacks.get(),
        send.gso_sends.get(),
        send.gso_disabled.get(),
    );
    assert_eq!(counted, (2, 2, 0));
    assert_eq!(handler.reported.warnings, []);
}

#[test]
fn gso_that_has_worked_on_a_socket_is_not_given_up_for_one_destination() {
    for errno in [
        Errno::INVAL,
        Errno::NOPROTOOPT,
        Errno::OPNOTSUPP,
        Errno::MSGSIZE,
    ] {
        let mut setup = Setup::new(Backend::Gso, LISTENER);
        let mut handler = Recorder::new(echo);
        let datagrams = numbered(10, 100, 100);
        send_train(&setup.client, setup.server, &datagrams);
        setup.turn(&mut handler);
        let guard = refuse_trains(errno);
        send_train(&setup.client, setup.server, &datagrams);
        setup.turn(&mut handler);
        drop(guard);
        send_train(&setup.client, setup.server, &datagrams);
        setup.turn(&mut handler);
        assert_eq!(take(&setup.client, 30), vec![datagrams; 3].concat());
        let send = &setup.datapath.counters().send;
        assert_eq!(
            (
                send.fallbacks.get(),
                send.gso_sends.get(),
                send.gso_disabled.get()
            ),
            (1, 2, 0),
            "{errno}"
        );
        assert_eq!(handler.reported.warnings, []);
    }
}

#[test]
fn a_train_too_large_for_the_path_is_split_without_giving_up_gso() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    let mut handler = Recorder::new(echo);
    let datagrams = numbered(5, 1200, 1200);
    let guard = refuse_trains(Errno::MSGSIZE);
    send_train(&setup.client, setup.server, &datagrams);
    setup.turn(&mut handler);
    drop(guard);
    assert_eq!(take(&setup.client, 5), datagrams);
    assert_eq!(setup.datapath.counters().send.gso_disabled.get(), 0);
}

#[test]
fn split_datagrams_that_fail_are_counted_exactly() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    let mut handler = Recorder::new(echo);
    let datagrams = numbered(10, 100, 100);
    let mut singles = 0;
    // The train is refused, the batch of its datagrams too, and of those only four pass alone.
    let guard = fault::script(move |call| match call {
        Call::Send { segment: None } => {
            singles += 1;
            if singles > 4 {
                Outcome::Fail(Errno::NOBUFS)
            } else {
                Outcome::Pass
            }
        }
        Call::Send { .. } | Call::SendBatch { .. } => Outcome::Fail(Errno::INVAL),
        _ => Outcome::Pass,
    });
    send_train(&setup.client, setup.server, &datagrams);
    setup.turn(&mut handler);
    drop(guard);
    assert_eq!(take(&setup.client, 4), datagrams[..4]);
    assert!(is_drained(&setup.client));
    assert_eq!(handler.reported.failures, [(1, SendFailure::BufferFull); 6]);
    assert_eq!(
        (
            failed(&setup.datapath),
            setup.datapath.counters().send.datagrams.get()
        ),
        (6, 4)
    );
}

#[test]
fn a_pending_error_of_an_earlier_datagram_costs_a_repetition_only() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let mut setup = Setup::new(backend, LISTENER);
        let mut handler = Recorder::new(echo);
        let datagrams = numbered(3, 100, 100);
        let mut sends = 0;
        let guard = fault::script(move |call| match call {
            Call::Send { .. } | Call::SendBatch { .. } => {
                sends += 1;
                if sends == 1 {
                    Outcome::Fail(Errno::CONNREFUSED)
                } else {
                    Outcome::Pass
                }
            }
            _ => Outcome::Pass,
        });
        send_train(&setup.client, setup.server, &datagrams);
        setup.receive(3, &mut handler);
        drop(guard);
        assert_eq!(take(&setup.client, 3), datagrams, "{backend}");
        let send = &setup.datapath.counters().send;
        assert_eq!(
            (
                send.retries.get(),
                send.fallbacks.get(),
                failed(&setup.datapath)
            ),
            (1, 0, 0),
            "{backend}"
        );
    }
}

#[test]
fn an_error_that_comes_again_is_reported_with_exact_counts() {
    for (backend, errno, cause) in [
        (
            Backend::Single,
            Errno::CONNREFUSED,
            SendFailure::Unreachable,
        ),
        (Backend::Mmsg, Errno::NETUNREACH, SendFailure::Unreachable),
        (Backend::Mmsg, Errno::PERM, SendFailure::NotPermitted),
        (Backend::Gso, Errno::NOBUFS, SendFailure::BufferFull),
        (Backend::Gso, Errno::MSGSIZE, SendFailure::MessageTooLong),
        (Backend::Gso, Errno::BADMSG, SendFailure::Other),
    ] {
        let mut setup = Setup::new(backend, LISTENER);
        let mut handler = Recorder::new(echo);
        let guard = fault::script(move |call| match call {
            Call::Send { .. } | Call::SendBatch { .. } => Outcome::Fail(errno),
            _ => Outcome::Pass,
        });
        send_train(&setup.client, setup.server, &numbered(8, 100, 100));
        setup.receive(8, &mut handler);
        drop(guard);
        assert!(
            handler.reported.failures.iter().all(|(_, it)| *it == cause),
            "{backend} {errno}"
        );
        assert_eq!(
            handler
                .reported
                .failures
                .iter()
                .map(|(count, _)| count)
                .sum::<u32>(),
            8,
            "{backend} {errno}"
        );
        let send = &setup.datapath.counters().send;
        assert_eq!((send.failed.of(cause).get(), send.datagrams.get()), (8, 0));
    }
}

#[test]
fn a_full_send_buffer_grows_and_the_send_is_repeated() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let mut setup = Setup::new(backend, EndpointKind::Relay);
        let mut handler = Recorder::new(echo);
        let mut sends = 0;
        let guard = fault::script(move |call| match call {
            Call::Send { .. } | Call::SendBatch { .. } => {
                sends += 1;
                if sends == 1 {
                    Outcome::Fail(Errno::AGAIN)
                } else {
                    Outcome::Pass
                }
            }
            _ => Outcome::Pass,
        });
        setup.client.send_to(b"x", setup.server).unwrap();
        setup.turn(&mut handler);
        drop(guard);
        assert_eq!(take(&setup.client, 1), [b"x"]);
        assert_eq!(setup.datapath.counters().send.buffers_grown.get(), 1);
        assert_eq!(handler.reported.failures, []);
    }
}

#[test]
fn a_send_buffer_that_stays_full_loses_the_rest_of_the_batch_and_says_how_much() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    let other = client();
    let to_other = other.local_addr().unwrap();
    let mut handler = Recorder::new(|message: &Received<'_>, tx: &mut SendQueue| {
        echo(message, tx);
        tx.forward(message.endpoint, to_other, message, whole(message), &[], 0);
        tx.reply(message.endpoint, message.remote, b"reply");
    });
    let guard = fault::script(|call| match call {
        Call::Send { .. } | Call::SendBatch { .. } => Outcome::Fail(Errno::AGAIN),
        _ => Outcome::Pass,
    });
    send_train(&setup.client, setup.server, &numbered(20, 100, 100));
    setup.turn(&mut handler);
    drop(guard);
    assert_eq!(handler.reported.failures, [(41, SendFailure::BufferFull)]);
    assert_eq!(failed(&setup.datapath), 41);
}

#[test]
fn a_batch_that_is_sent_in_parts_arrives_whole_and_in_order() {
    for (backend, limit) in [(Backend::Mmsg, 1), (Backend::Mmsg, 7), (Backend::Gso, 1)] {
        let mut setup = Setup::new(backend, LISTENER);
        let mut handler = Recorder::new(|message: &Received<'_>, tx: &mut SendQueue| {
            // Three sizes, so that there are several messages with trains as well.
            for len in [message.segment, message.segment - 1, message.segment] {
                let run = Run {
                    len,
                    last_len: len,
                    ..whole(message)
                };
                tx.forward(message.endpoint, message.remote, message, run, &[], 0);
            }
        });
        let guard = fault::script(move |call| match call {
            Call::SendBatch { messages, .. } => Outcome::Limit(messages.min(limit)),
            _ => Outcome::Pass,
        });
        let datagrams = numbered(20, 100, 100);
        send_train(&setup.client, setup.server, &datagrams);
        let mut expected = Vec::new();
        setup.receive(20, &mut handler);
        drop(guard);
        match backend {
            // One message per datagram: three answers each.
            Backend::Mmsg => {
                for datagram in &datagrams {
                    expected.extend([datagram.clone(), datagram[1..].to_vec(), datagram.clone()]);
                }
            }
            _ => {
                for len in [100, 99, 100] {
                    expected.extend(datagrams.iter().map(|datagram| datagram[..len].to_vec()));
                }
            }
        }
        assert_eq!(take(&setup.client, 60), expected, "{backend} {limit}");
        assert_eq!(setup.datapath.counters().send.datagrams.get(), 60);
    }
}

#[test]
fn without_sendmmsg_every_message_is_sent_alone() {
    let mut setup = Setup::new(Backend::Mmsg, LISTENER);
    let mut handler = Recorder::new(echo);
    let guard = fault::script(|call| match call {
        Call::SendBatch { .. } => Outcome::Fail(Errno::NOSYS),
        _ => Outcome::Pass,
    });
    let datagrams = numbered(5, 100, 100);
    for _ in 0..2 {
        send_train(&setup.client, setup.server, &datagrams);
        setup.turn(&mut handler);
    }
    drop(guard);
    assert_eq!(take(&setup.client, 10), vec![datagrams; 2].concat());
    assert_eq!(
        handler.reported.warnings,
        [Warning::SendmmsgUnavailable {
            errno: Errno::NOSYS.raw_os_error()
        }]
    );
}

#[test]
fn datagrams_for_a_closed_endpoint_are_counted() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    let bind = crate::Bind {
        address: crate::testing::LOOPBACK.into(),
        kind: EndpointKind::Relay,
        token: 0,
    };
    let gone = setup.datapath.bind(bind).unwrap();
    setup.datapath.close(gone);
    // The index is reused, the name is not.
    let next = setup.datapath.bind(bind).unwrap();
    assert_eq!(gone.index(), next.index());
    let mut handler = Recorder::new(move |message: &Received<'_>, tx: &mut SendQueue| {
        tx.forward(gone, message.remote, message, whole(message), &[], 0);
        tx.forward(
            EndpointId::from_u32(12_345),
            message.remote,
            message,
            whole(message),
            &[],
            0,
        );
        tx.forward(next, message.remote, message, whole(message), &[], 0);
    });
    send_train(&setup.client, setup.server, &numbered(9, 100, 100));
    setup.turn(&mut handler);
    assert_eq!(handler.reported.failures, [(9, SendFailure::Closed); 2]);
    assert_eq!(take(&setup.client, 9).len(), 9);
}

#[test]
fn a_destination_of_the_other_family_fails_alone() {
    let mut setup = Setup::new(Backend::Gso, LISTENER);
    let mut handler = Recorder::new(|message: &Received<'_>, tx: &mut SendQueue| {
        let wrong = std::net::SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 9));
        tx.forward(message.endpoint, wrong, message, whole(message), &[], 0);
        echo(message, tx);
    });
    let datagrams = numbered(6, 100, 100);
    for _ in 0..2 {
        send_train(&setup.client, setup.server, &datagrams);
        setup.turn(&mut handler);
    }
    assert_eq!(take(&setup.client, 12), vec![datagrams; 2].concat());
    assert_eq!(handler.reported.failures.len(), 12);
    assert_eq!(handler.reported.warnings, []);
}

#[test]
fn oversized_datagrams_fail_alone() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let mut setup = Setup::with(
            Settings {
                backend,
                ..Settings::default()
            },
            LISTENER,
        );
        let mut handler = Recorder::new(|message: &Received<'_>, tx: &mut SendQueue| {
            tx.forward(
                message.endpoint,
                message.remote,
                message,
                whole(message),
                &[9; 4],
                0,
            );
            echo(message, tx);
        });
        let largest = numbered(1, 65_507, 65_507);
        setup.client.send_to(&largest[0], setup.server).unwrap();
        setup.turn(&mut handler);
        assert_eq!(take(&setup.client, 1), largest, "{backend}");
        assert_eq!(
            handler.reported.failures,
            [(1, SendFailure::MessageTooLong)],
            "{backend}"
        );
    }
}

#[test]
fn one_datagram_with_a_header_arrives_whole_whatever_its_length() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        for len in [1, 160, 504, 505, 506, 1200] {
            let mut setup = Setup::new(backend, LISTENER);
            let mut handler = Recorder::new(|message: &Received<'_>, tx: &mut SendQueue| {
                tx.forward(
                    message.endpoint,
                    message.remote,
                    message,
                    whole(message),
                    b"head",
                    3,
                );
            });
            let datagram = numbered(1, len, len).remove(0);
            setup.client.send_to(&datagram, setup.server).unwrap();
            setup.turn(&mut handler);
            let expected = [b"head", &*datagram, &[0; 3]].concat();
            assert_eq!(take(&setup.client, 1), [expected], "{backend} {len}");
            assert_eq!(setup.datapath.counters().send.datagrams.get(), 1);
        }
    }
}

/// Answers a client and has a relay socket send its last datagram and be closed, in the order in which a server does.
struct Ending {
    listener: EndpointId,
    relay: EndpointId,
}

impl TurnHandler for Ending {
    fn turn_ended(&mut self, _: &mut SendQueue, sockets: &mut impl Sockets) {
        sockets.close(self.relay);
    }
}

impl DatagramHandler for Ending {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        tx.reply(self.listener, message.remote, b"ended");
        let run = whole(message);
        tx.forward(self.relay, message.remote, message, run, &[], 0);
    }
}

impl StreamHandler for Ending {}

#[test]
fn the_port_of_a_socket_that_is_closed_is_free_when_the_answer_of_its_turn_leaves() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let mut setup = Setup::new(backend, LISTENER);
        let relay = setup.datapath.bind(crate::Bind {
            address: crate::testing::LOOPBACK.into(),
            kind: EndpointKind::Relay,
            token: 8,
        });
        let relay = relay.unwrap();
        let port = setup.datapath.local_addr(relay).unwrap();
        let mut handler = Ending {
            listener: setup.endpoint,
            relay,
        };
        let was_free = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&was_free);
        setup.client.send_to(b"payload", setup.server).unwrap();
        let guard = fault::script(move |call| {
            if matches!(call, Call::Send { .. } | Call::SendBatch { .. }) {
                noted.borrow_mut().push(UdpSocket::bind(port).is_ok());
            }
            Outcome::Pass
        });
        setup.turn(&mut handler);
        drop(guard);
        assert_eq!(*was_free.borrow(), [false, true], "{backend}");
        assert_eq!(take(&setup.client, 2), [&b"payload"[..], b"ended"]);
    }
}
