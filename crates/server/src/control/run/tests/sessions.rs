//! What the handle of a relay shows of its sessions, and what it does with them.

use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;

use turnbuckle_engine::{EndCause, Transport};

use super::*;
use crate::handle::{EventKind, Page, SessionFilter, shard_of};

/// Which of the two is asked of a page.
#[derive(Clone, Copy)]
enum Wish {
    List,
    End,
}

impl Running {
    /// Asks for one page.
    fn page(
        &self,
        wish: Wish,
        shard: usize,
        from: u32,
        filter: &SessionFilter,
        max: usize,
    ) -> Page {
        let (sender, page) = sync_channel(1);
        let reply = Box::new(move |page| sender.send(page).unwrap());
        let asked = match wish {
            Wish::List => self
                .commands
                .sessions(shard, from, filter.clone(), max, reply),
            Wish::End => self.commands.end(shard, from, filter.clone(), max, reply),
        };
        asked.unwrap();
        page.recv_timeout(TIMEOUT).unwrap()
    }

    /// Reads all pages of both shards, `max` sessions each.
    fn pages(&self, wish: Wish, filter: &SessionFilter, max: usize) -> Page {
        let mut all = Page::default();
        for shard in 0..2 {
            let mut from = Some(0);
            while let Some(place) = from {
                let page = self.page(wish, shard, place, filter, max);
                assert!(page.sessions.len() <= max);
                from = page.next;
                all.sessions.extend(page.sessions);
            }
        }
        all
    }

    fn events(&self) -> Vec<EventKind> {
        let mut kinds = Vec::new();
        self.session_events
            .take(usize::MAX, |event| kinds.push(event.kind));
        kinds
    }
}

#[test]
fn sessions_are_listed_page_by_page_each_once_and_ended_by_a_filter_with_ports_and_quota_exact() {
    let options = ["--user=bob:ABC", "--user-quota=20"];
    let mut running = Running::start(2, &options);
    let server = running.server;
    let mut clients = Vec::new();
    for n in 0..20 {
        let mut client = match n % 2 {
            0 => Client::by_datagrams(server, "alice"),
            _ => Client::by_connection(server, "alice"),
        };
        running.allocate(&mut client);
        clients.push(client);
    }
    let all = running.pages(Wish::List, &SessionFilter::default(), 3);
    let numbers: BTreeSet<_> = all.sessions.iter().map(|session| session.number).collect();
    assert_eq!((all.sessions.len(), numbers.len()), (20, 20));
    let of_shards = [0, 1].map(|shard| {
        let of_shard = numbers.iter().filter(|&&number| shard_of(number) == shard);
        of_shard.count() as u64
    });
    assert_eq!(of_shards, running.allocations());
    for session in &all.sessions {
        assert_eq!((&*session.user, &*session.realm), ("alice", REALM));
        assert_eq!(session.client.server, server);
        assert!(session.time.expires_in > Duration::from_secs(590));
    }

    let by_tcp = SessionFilter {
        transport: Some(Transport::Tcp),
        ..SessionFilter::default()
    };
    let nobody = SessionFilter {
        user: Some("ali".to_owned()),
        ..SessionFilter::default()
    };
    assert_eq!(running.pages(Wish::List, &by_tcp, 256).sessions.len(), 10);
    assert_eq!(running.pages(Wish::End, &nobody, 256).sessions.len(), 0);
    let full =
        Client::by_datagrams(server, "alice").request(&mut running, Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
        });
    full.expect(486);

    assert_eq!(running.pages(Wish::End, &by_tcp, 4).sessions.len(), 10);
    let counters = running.counters.clone();
    running.until(|| {
        let left: u64 = counters.iter().map(|it| it.engine.allocations.get()).sum();
        (left == 10).then_some(())
    });
    let left = running.pages(Wish::List, &SessionFilter::default(), 256);
    assert!(
        left.sessions
            .iter()
            .all(|it| it.client.transport == Transport::Udp)
    );
    for (n, client) in clients.iter_mut().enumerate() {
        let answer = client.request(&mut running, Method::REFRESH, |_| {});
        answer.expect(if n % 2 == 0 { 200 } else { 437 });
    }
    // What was ended has given back its port and its part of the quota.
    for client in clients.iter_mut().skip(1).step_by(2) {
        running.allocate(client);
    }
    let (ended, accounting, _) = running.end();
    ended.unwrap();
    assert!(accounting.balances(), "{}", accounting.line());
}

#[test]
fn a_third_page_of_a_shard_is_not_answered_while_two_are_under_way() {
    let running = Running::start(3, &[]);
    let (sender, pages) = sync_channel(8);
    let (hold, held) = sync_channel::<()>(0);
    let held = std::sync::Mutex::new(held);
    let waits = Box::new(move |()| {
        // Returns when the test lets go.
        let _ = held.lock().map(|held| held.recv());
    });
    running.commands.ping(0, waits).unwrap();
    for number in 0..3 {
        let sender = sender.clone();
        let reply = Box::new(move |_| sender.send(number).unwrap());
        let filter = SessionFilter::default();
        running.commands.sessions(0, 0, filter, 1, reply).unwrap();
    }
    drop(sender);
    // The other shard is asked after them, so the main thread has seen all three.
    running.page(Wish::List, 1, 0, &SessionFilter::default(), 1);
    drop(hold);
    assert_eq!(pages.iter().collect::<Vec<_>>(), [0, 1]);
    running.end().0.unwrap();
}

#[test]
fn a_server_that_drains_takes_new_allocations_again_when_it_is_told_to() {
    let mut running = Running::start(4, &[]);
    let mut first = Client::by_datagrams(running.server, "alice");
    running.allocate(&mut first);
    let (sender, done) = sync_channel(2);
    let reply = |sender: &SyncSender<()>| {
        let sender = sender.clone();
        Box::new(move |()| sender.send(()).unwrap())
    };
    let begun = sender.clone();
    let drained = move |left_max| {
        assert_eq!(left_max, 0);
        begun.send(()).unwrap();
    };
    running.commands.drain(Box::new(drained)).unwrap();
    done.recv_timeout(TIMEOUT).unwrap();
    let mut client = Client::by_datagrams(running.server, "alice");
    let refused = client.request(&mut running, Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    refused.expect(403);
    running.commands.undrain(reply(&sender)).unwrap();
    done.recv_timeout(TIMEOUT).unwrap();
    let mut client = Client::by_datagrams(running.server, "alice");
    running.allocate(&mut client);
    let (ended, _, printed) = running.end();
    ended.unwrap();
    assert!(printed.contains("draining no more"), "{printed}");
}

#[test]
fn events_tell_the_life_of_a_session_and_their_usage_adds_up_to_its_totals() {
    let mut running = Running::start(5, &[]);
    let began = running.events();
    assert!(matches!(
        began[..],
        [EventKind::Restarted, EventKind::Restarted]
    ));
    let client = Client::by_datagrams(running.server, "alice");
    let mut call = Call::new(&mut running, client, true);
    let mut relayed = 0;
    let mut events = Vec::new();
    while !events.iter().any(|it| matches!(it, EventKind::Used { .. })) {
        for _ in 0..64 {
            call.goes_on(&mut running);
            relayed += 1;
        }
        events.extend(running.events());
        assert!(relayed < 1_000_000, "usage was never reported");
    }
    let refreshed = call
        .client
        .request(&mut running, Method::REFRESH, |writer| {
            writer.lifetime(0);
        });
    refreshed.expect(200);
    let begin = Instant::now();
    while !events
        .iter()
        .any(|it| matches!(it, EventKind::Ended { .. }))
    {
        events.extend(running.events());
        assert!(begin.elapsed() < TIMEOUT, "it did not end");
    }
    let EventKind::Created { session, lifetime } = &events[0] else {
        panic!("{:?}", events[0]);
    };
    assert_eq!((&*session.user, lifetime.as_secs()), ("alice", 600));
    let mut sum = 0;
    for event in &events {
        match event {
            EventKind::Used { session: of, since } => {
                assert_eq!(of, session);
                assert!(since.datagrams() >= 4096);
                sum += since.datagrams();
            }
            EventKind::Ended {
                cause,
                since,
                totals,
                ..
            } => {
                assert!(matches!(cause, EndCause::Released(_)));
                assert_eq!(sum + since.datagrams(), totals.datagrams());
                // A datagram each way is received and sent on either side.
                assert_eq!(totals.datagrams(), 4 * relayed);
            }
            _ => {}
        }
    }
    let before_last = &events[events.len() - 2];
    assert!(
        matches!(before_last, EventKind::Refreshed { lifetime, .. } if lifetime.is_zero()),
        "{before_last:?}"
    );
    running.end().0.unwrap();
}

#[test]
fn a_shard_that_is_built_anew_keeps_the_numbers_of_sessions_and_reports_no_usage_again() {
    let mut running = Running::start_with_journals(12, &[]);
    let server = running.server;
    let client = Client::by_datagrams(server, "alice");
    let mut call = Call::new(&mut running, client, true);
    for _ in 0..3 {
        call.goes_on(&mut running);
    }
    // This puts on record what it has relayed.
    let refreshed = call.client.request(&mut running, Method::REFRESH, |_| {});
    refreshed.expect(200);
    let all = SessionFilter::default();
    let before = running.pages(Wish::List, &all, 3).sessions.remove(0);
    running.fail(shard_of(before.number));
    let after = running.pages(Wish::List, &all, 3).sessions.remove(0);
    assert_eq!(after.number, before.number);
    assert!(after.usage.datagrams() > 0);

    // Others get higher numbers at the same shard.
    for _ in 0..4 {
        running.allocate(&mut Client::by_datagrams(server, "alice"));
    }
    for session in running.pages(Wish::List, &all, 9).sessions {
        let is_before = session.number == before.number;
        let is_elsewhere = shard_of(session.number) != shard_of(before.number);
        assert!(is_before || is_elsewhere || session.number > before.number);
    }
    running.events();
    let released = call
        .client
        .request(&mut running, Method::REFRESH, |writer| {
            writer.lifetime(0);
        });
    released.expect(200);
    let session_events = &running.session_events;
    let mut end = None;
    let begin = Instant::now();
    while end.is_none() {
        session_events.take(usize::MAX, |event| {
            if let EventKind::Ended { since, totals, .. } = event.kind {
                end = Some((since.datagrams(), totals.datagrams()));
            }
        });
        assert!(begin.elapsed() < TIMEOUT, "it did not end");
    }
    assert_eq!(end, Some((0, after.usage.datagrams())));
    running.end().0.unwrap();
}
