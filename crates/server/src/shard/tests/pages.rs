//! Pages of sessions, made some sessions a turn.

use std::sync::mpsc::Receiver;

use turnbuckle_wire::{ChannelNumber, Method};

use super::several::{Client, Several};
use crate::handle::{Page, Purpose, SESSIONS_PER_PAGE_MAX, SessionFilter};
use crate::shard::pages::{PLACES_PER_TURN, SESSIONS_PER_TURN};

/// More than one page, and more than one turn looks at.
const SESSIONS: usize = SESSIONS_PER_PAGE_MAX + 44;

/// Returns one shard with clients that have allocations.
fn crowd() -> (Several, Vec<Client>) {
    let mut shards = Several::start(1, &[]);
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let mut client = shards.datagrams(0, "alice");
        client.allocate(&mut shards);
        clients.push(client);
    }
    shards.settle();
    (shards, clients)
}

/// Returns a page, and the number of turns that it has taken.
fn turns_until(shards: &mut Several, page: &Receiver<Page>) -> (Page, usize) {
    for turns in 1..100 {
        assert!(shards.has_work(0), "a shard that is not done does not wait");
        shards.turn_shard(0);
        if let Ok(page) = page.try_recv() {
            return (page, turns);
        }
    }
    panic!("the page does not come");
}

#[test]
fn a_turn_lists_a_bounded_number_of_sessions_and_looks_at_a_bounded_number_of_places() {
    let (mut shards, _clients) = crowd();
    let all = SessionFilter::default();
    let page = shards.page(0, Purpose::List, 0, all.clone());
    let (first, turns) = turns_until(&mut shards, &page);
    assert_eq!(first.sessions.len(), SESSIONS_PER_PAGE_MAX);
    assert_eq!(turns, SESSIONS_PER_PAGE_MAX / SESSIONS_PER_TURN);
    let page = shards.page(0, Purpose::List, first.next.unwrap(), all);
    let (rest, turns) = turns_until(&mut shards, &page);
    assert_eq!((rest.sessions.len(), rest.next), (44, None));
    assert_eq!(turns, 44_usize.div_ceil(SESSIONS_PER_TURN));
    let mut numbers: Vec<_> = [first, rest]
        .iter()
        .flat_map(|page| page.sessions.iter().map(|session| session.number))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), SESSIONS, "each once");
    assert!(!shards.has_work(0));

    let nobody = SessionFilter {
        user: Some("nobody".to_owned()),
        ..SessionFilter::default()
    };
    let page = shards.page(0, Purpose::List, 0, nobody);
    let (none, turns) = turns_until(&mut shards, &page);
    assert_eq!((none.sessions.len(), none.next), (0, None));
    assert_eq!(turns, SESSIONS.div_ceil(PLACES_PER_TURN as usize));
}

#[test]
fn while_sessions_are_ended_a_turn_ends_a_bounded_number_and_what_comes_is_relayed() {
    let (mut shards, _clients) = crowd();
    let peer = shards.peer();
    let channel = ChannelNumber::try_from(0x4001).unwrap();
    let mut call = shards.datagrams(0, "mallory");
    call.allocate(&mut shards);
    call.bind_channel(&mut shards, channel, peer.local_addr().unwrap());
    let of_alice = SessionFilter {
        user: Some("alice".to_owned()),
        ..SessionFilter::default()
    };
    let page = shards.page(0, Purpose::End, 0, of_alice);
    let (mut left, mut relayed) = (shards.allocations(0), 0);
    let ended = loop {
        call.send_channel_data(channel, b"there");
        shards.turn_shard(0);
        let now = shards.allocations(0);
        assert!(left - now <= SESSIONS_PER_TURN as u64, "{left} to {now}");
        left = now;
        while peer.recv(&mut [0; 64]).is_ok() {
            relayed += 1;
        }
        if let Ok(page) = page.try_recv() {
            break page.sessions.len();
        }
    };
    assert_eq!(ended, SESSIONS_PER_PAGE_MAX);
    assert!(relayed > 0, "nothing was relayed before all were ended");
    shards.settle();
    assert_eq!(shards.allocations(0), (SESSIONS + 1 - ended) as u64);
    let answer = call.request(&mut shards, Method::REFRESH, |writer| {
        writer.lifetime(0);
    });
    answer.expect(200);
}

#[test]
fn what_an_operator_ends_on_a_shared_socket_is_carried_through_at_once_by_a_shard_without_traffic()
{
    let mut shards = Several::start(1, &["--multiplex-peer"]);
    let mut client = shards.datagrams(0, "alice");
    client.allocate(&mut shards);
    shards.settle();
    assert!(!shards.has_work(0), "nothing is due");
    let page = shards.page(0, Purpose::End, 0, SessionFilter::default());
    let (page, _) = turns_until(&mut shards, &page);
    assert_eq!((page.sessions.len(), page.next), (1, None));
    // The counters, the journal and the kernel hear of it in a turn, and nobody else makes the shard begin one.
    assert!(shards.has_work(0), "the next turn is due");
    shards.turn_shard(0);
    assert_eq!(shards.allocations(0), 0);
    assert!(!shards.has_work(0));

    let page = shards.page(0, Purpose::End, 0, SessionFilter::default());
    let (page, _) = turns_until(&mut shards, &page);
    assert_eq!(page.sessions.len(), 0);
    assert!(!shards.has_work(0), "where nothing ends, nothing is due");
}
