//! Connections while descriptors are short. A process of its own, because the limit is the process's.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use turnbuckle_datapath::{
    Accepted, Admission, DatagramHandler, Datapath, Listen, Received, SendQueue, Settings,
    StreamHandler, StreamId, StreamInput, Taken, TurnHandler,
};

const CLIENTS: usize = 10;

/// Takes whoever comes.
#[derive(Default)]
struct Host {
    streams: usize,
}

impl TurnHandler for Host {}

impl DatagramHandler for Host {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {}
}

impl StreamHandler for Host {
    fn accepted(&mut self, _: StreamId, _: &Accepted, _: &mut SendQueue) -> Admission {
        self.streams += 1;
        Admission::Trusted
    }

    fn stream_received(&mut self, _: &mut StreamInput<'_>, _: &mut SendQueue) -> Taken {
        Taken::ALL
    }
}

fn limit_descriptors(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

#[test]
fn connections_wait_for_descriptors_without_keeping_the_shard_busy_and_not_for_ever() {
    let before = getrlimit(Resource::Nofile).current;
    let mut datapath = Datapath::new(Settings::default()).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = datapath.listen(Listen { address, token: 0 }).unwrap();
    let address = datapath.listening_addr(listener).unwrap();
    datapath.admit_connections(listener).unwrap();
    let mut host = Host::default();
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();

    // Descriptors are given out from the lowest: none is left below that of the last client.
    let last = clients.last().unwrap().as_raw_fd();
    limit_descriptors(Some(u64::try_from(last).unwrap() + 1));
    let started = Instant::now();
    for _ in 0..1000 {
        datapath.turn(Some(Duration::ZERO), &mut host).unwrap();
    }
    let failures = datapath.counters().stream.accept_failures.get();
    let retries = started.elapsed().as_millis() / 20;
    assert!(
        failures >= 1 && u128::from(failures) <= 1 + retries,
        "{failures} in {retries}"
    );
    assert_eq!(host.streams, 0);

    // They are still there when the limit is lifted.
    limit_descriptors(before);
    while host.streams < CLIENTS {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "they never came"
        );
        // Without the shortage's own end of the wait this would take until the timeout.
        datapath
            .turn(Some(Duration::from_secs(60)), &mut host)
            .unwrap();
    }
    assert_eq!(datapath.counters().stream.refused.get(), 0);

    // Who waits for too long is told so.
    clients.push(TcpStream::connect(address).unwrap());
    let waiting = clients.last_mut().unwrap();
    waiting.set_nonblocking(true).unwrap();
    limit_descriptors(Some(u64::try_from(waiting.as_raw_fd()).unwrap() + 1));
    let started = Instant::now();
    let error = loop {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it waits for ever"
        );
        datapath.turn(None, &mut host).unwrap();
        match waiting.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            result => break result.unwrap_err(),
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(started.elapsed() >= Duration::from_secs(5));
    assert_eq!(datapath.counters().stream.refused.get(), 1);
    limit_descriptors(before);
}
