//! When the usage of sessions is looked at.

use std::time::Duration;

use super::several::Several;

/// More than one look takes in.
const SESSIONS: usize = 300;

#[test]
fn the_usage_of_many_sessions_is_looked_at_over_a_second_and_not_at_one_go() {
    let mut shards = Several::start(1, &[]);
    let _events = shards.consume(0);
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let mut client = shards.datagrams(0, "alice");
        client.allocate(&mut shards);
        clients.push(client);
    }
    let time = shards.stop_time();
    // What is due by now is done: the time stands still.
    shards.settle();
    let mut pauses = Vec::new();
    for _ in 0..4 {
        let pause = shards.timeout(0).unwrap();
        let mut now = time.lock().unwrap();
        now.time = now.time + pause;
        drop(now);
        shards.turn_shard(0);
        pauses.push(pause);
    }
    // Two looks take in all places. How long it is to the first says nothing: that before it was made when there were fewer.
    for both in pauses[1..].windows(2) {
        let in_all = both[0] + both[1];
        let off = in_all.abs_diff(Duration::from_secs(1));
        assert!(off < Duration::from_millis(1), "{pauses:?}");
        assert!(both[0] > Duration::from_millis(100), "{pauses:?}");
    }
}
