//! How long sessions have lasted that have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use turnbuckle_wire::Method;

use super::several::Several;

/// Returns the classes of sessions that have ended, but for those that are empty, and how long they have lasted in all.
fn lifetimes(shards: &Several) -> (BTreeMap<&'static str, u64>, u64) {
    let (mut classes, mut ms) = (BTreeMap::new(), 0);
    shards
        .accounting()
        .visit(&mut |sample| match (sample.counter.name, sample.label) {
            ("session_lifetimes", Some(class)) if sample.value > 0 => {
                classes.insert(class.name, sample.value);
            }
            ("session_lifetimes_ms", _) => ms = sample.value,
            _ => {}
        });
    (classes, ms)
}

#[test]
fn a_session_counts_at_its_end_under_its_age_and_once_although_it_has_moved() {
    let mut shards = Several::start(1, &[]);
    let time = shards.stop_time();
    let pass = |seconds| {
        let mut now = time.lock().unwrap();
        now.time = now.time + Duration::from_secs(seconds);
        now.unix_s += seconds;
    };
    let [mut short, mut moves, mut forgotten] = ["alice"; 3].map(|user| shards.datagrams(0, user));
    short.allocate(&mut shards);
    let ticket = moves.allocate(&mut shards).ticket();
    forgotten.allocate(&mut shards);

    pass(9);
    let release = |client: &mut super::several::Client, shards: &mut Several| {
        let answer = client.request(shards, Method::REFRESH, |writer| {
            writer.lifetime(0);
        });
        answer.expect(200);
    };
    release(&mut short, &mut shards);
    assert_eq!(lifetimes(&shards), (BTreeMap::from([("10s", 1)]), 9_000));

    pass(50);
    let mut moved = shards.connection(0, "alice");
    moved.resume(&mut shards, &ticket).expect(200);
    release(&mut moved, &mut shards);
    let classes = BTreeMap::from([("10s", 1), ("1m", 1)]);
    assert_eq!(lifetimes(&shards), (classes, 9_000 + 59_000));

    pass(1_000);
    shards.settle();
    let classes = BTreeMap::from([("10s", 1), ("1m", 1), ("30m", 1)]);
    assert_eq!(lifetimes(&shards), (classes, 68_000 + 1_059_000));
}
