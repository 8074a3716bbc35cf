//! A shard's thread that fails.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use super::super::thread::{Request, Starting};
use super::{configuration, loopback, plan};
use crate::control::events::Event;

#[test]
fn what_a_failing_shard_was_asked_is_refused_while_nobody_takes_its_last_event() {
    let listener = loopback(3480);
    let arguments = [
        format!("--listening-ip={}", listener.ip()),
        format!("--listening-port={}", listener.port()),
        "--realm=example.org".to_owned(),
        "--user=alice:secret".to_owned(),
    ];
    let plan = plan(&configuration(&arguments));
    let (sender, events) = sync_channel(1);
    sender.send(Event::Line("no room for more".into())).unwrap();
    let starting = Starting::begin(plan, Arc::default(), sender).unwrap();
    let mut shard = starting.finish().unwrap();
    assert!(shard.request(Request::Panic));
    let (done, is_done) = sync_channel(1);
    shard.insist(Request::Drain(done));
    // The thread cannot end before its last event is taken, which the one who waits here does.
    let answer = is_done.recv_timeout(Duration::from_secs(20));
    assert_eq!(answer, Err(RecvTimeoutError::Disconnected));
    assert!(matches!(events.recv(), Ok(Event::Line(_))));
    assert!(matches!(
        events.recv(),
        Ok(Event::ShardEnded {
            shard: 0,
            error: Some(_)
        })
    ));
    shard.join();
}
