//! A relay that runs, with shards that fail.

use std::ffi::OsString;
use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::JoinHandle;

use turnbuckle_wire::{ChannelData, ChannelNumber, Method};

use super::*;
use crate::config::{Machine, Request as Wish, load};
use crate::counters::ShardCounters;
use crate::log::Summary;
use crate::shard::tests::several::{Client, PASSWORD, REALM, Turns};

const TIMEOUT: Duration = Duration::from_secs(60);
/// UDP in REQUESTED-TRANSPORT.
const UDP: u8 = 17;

/// What a relay leaves behind: how it ended, what it counted, and what it printed.
type End = (Result<Ending, ServeError>, Accounting, String);

/// Lines that are kept, where whoever waits for them to be read waits for ever.
#[derive(Default)]
struct Unread(Vec<u8>);

impl Write for Unread {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        panic!("the main thread waits for a reader")
    }
}

impl Output for Unread {
    type Next = ();

    fn prepare(&self, _: &Config) -> Result<(), String> {
        Ok(())
    }

    fn take(&mut self, (): ()) {}

    fn set_level(&mut self, _: crate::config::Level) {}

    fn session_ended(&mut self, _: Summary) {}

    fn lost(&self) -> u64 {
        0
    }
}

/// A relay with two shards.
struct Running {
    server: SocketAddr,
    commands: Commands,
    session_events: Events,
    events: SyncSender<Event>,
    counters: Vec<Arc<ShardCounters>>,
    thread: JoinHandle<End>,
}

impl Running {
    /// Starts a relay. `host`, which is below 16, stands for an address of loopback that no other test of this process uses.
    fn start(host: u8, options: &[&str]) -> Self {
        Self::start_with(host, options, |_| None)
    }

    /// Starts a relay with a journal for each shard, and without a keeper.
    fn start_with_journals(host: u8, options: &[&str]) -> Self {
        Self::start_with(host, options, |config| Some(Survival::alone(config)))
    }

    fn start_with(
        host: u8,
        options: &[&str],
        survival: impl FnOnce(&Config) -> Option<Survival>,
    ) -> Self {
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let ip = [127, 64 | high & 3 | host << 2, middle, low];
        let server = SocketAddr::from((ip, 3478));
        let own = [
            format!("--listening-ip={}", server.ip()),
            format!("--realm={REALM}"),
            format!("--user=alice:{PASSWORD}"),
            "--relay-threads=2".to_owned(),
            "--min-port=30000".to_owned(),
            "--max-port=30999".to_owned(),
            "--allow-loopback-peers".to_owned(),
        ];
        let own = own.into_iter().map(OsString::from);
        let machine = Machine::discover().unwrap();
        let Ok(Wish::Run(loaded)) = load(own.chain(options.iter().map(OsString::from)), &machine)
        else {
            panic!("a whole configuration");
        };
        let mut config = loaded.config;
        let (events, inbox) = events::channel();
        let mut out = Unread::default();
        let (outlets, session_events) = Events::channel(2);
        let mut upgrading = Upgrading::new(events.clone());
        let mut survival = survival(&config);
        let mut relay = start(
            &mut config,
            survival.as_mut(),
            None,
            &events,
            &outlets,
            &mut out,
        )
        .unwrap();
        listening::admit_clients(relay.shards.all());
        let shards = relay.shards.all().iter();
        let counters = shards.map(|shard| Arc::clone(&shard.counters)).collect();
        let thread = std::thread::spawn(move || {
            let mut configuration = Configuration::fixed(config);
            let ended = relay.wait(
                &mut configuration,
                (&mut (), None),
                &mut upgrading,
                &inbox,
                &mut out,
            );
            drop(inbox);
            (
                ended,
                relay.shards.stop(),
                String::from_utf8(out.0).unwrap(),
            )
        });
        Self {
            server,
            commands: Commands::new(events.clone(), 2),
            session_events,
            events,
            counters,
            thread,
        }
    }

    fn allocations(&self) -> [u64; 2] {
        [0, 1].map(|shard| self.counters[shard].engine.allocations.get())
    }

    /// Allocates, and finds out at which shard.
    fn allocate(&mut self, client: &mut Client) -> (SocketAddr, usize) {
        let before = self.allocations();
        let answer = client.request(self, Method::ALLOCATE, |writer| {
            writer.requested_transport(UDP);
        });
        let relayed = answer.expect(200).relayed();
        let counters = self.counters.clone();
        let shard = self.until(|| {
            (0..2).find(|&shard| counters[shard].engine.allocations.get() > before[shard])
        });
        (relayed, shard)
    }

    /// Makes a shard fail, once more than before.
    fn fail(&mut self, shard: usize) {
        let counters = Arc::clone(&self.counters[shard]);
        let before = counters.control.shard_failures.get();
        self.events.send(Event::Fail(shard)).unwrap();
        self.until(|| (counters.control.shard_failures.get() > before).then_some(()));
    }

    /// Makes a shard fail when it has handled the next datagram of a client, which `send` sends to it.
    fn fail_with(&mut self, shard: usize, send: impl FnOnce()) {
        let counters = Arc::clone(&self.counters[shard]);
        let before = counters.control.shard_failures.get();
        self.events.send(Event::FailWithNext(shard)).unwrap();
        self.settle();
        send();
        self.until(|| (counters.control.shard_failures.get() > before).then_some(()));
    }

    /// Waits until each shard has done what it was asked for before.
    fn settle(&self) {
        for shard in 0..self.counters.len() {
            let (sender, done) = std::sync::mpsc::sync_channel(1);
            let reply = Box::new(move |()| sender.send(()).unwrap());
            self.commands.ping(shard, reply).unwrap();
            done.recv_timeout(TIMEOUT).unwrap();
        }
    }

    fn end(self) -> End {
        // Gone if it has ended by itself.
        let _ = self.events.send(Event::Stop);
        self.thread.join().unwrap()
    }
}

impl Turns for Running {
    fn until<T>(&mut self, mut done: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(done) = done() {
                return done;
            }
            assert!(begin.elapsed() < TIMEOUT, "it did not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A call: a client with a channel to a peer.
struct Call {
    client: Client,
    peer: UdpSocket,
    relayed: SocketAddr,
    shard: usize,
    is_datagrams: bool,
}

impl Call {
    fn new(running: &mut Running, mut client: Client, is_datagrams: bool) -> Self {
        let peer = UdpSocket::bind((running.server.ip(), 0)).unwrap();
        peer.set_nonblocking(true).unwrap();
        let (relayed, shard) = running.allocate(&mut client);
        client.bind_channel(running, channel(), peer.local_addr().unwrap());
        Self {
            client,
            peer,
            relayed,
            shard,
            is_datagrams,
        }
    }

    /// Sends a datagram each way, and fails unless both arrive.
    fn goes_on(&mut self, running: &mut Running) {
        self.client.send_channel_data(channel(), b"there");
        running.until(|| self.peer.recv(&mut [0; 64]).ok());
        self.peer.send_to(b"back", self.relayed).unwrap();
        let message = running.until(|| self.client.received());
        assert_eq!(&message[4..8], b"back");
    }
}

fn channel() -> ChannelNumber {
    ChannelNumber::try_from(0x4001).unwrap()
}

//= V-63
#[test]
fn a_shard_that_panics_ends_no_call_of_another_shard_and_serves_its_clients_anew() {
    let mut running = Running::start(0, &["--user-quota=32"]);
    let server = running.server;
    let mut calls = Vec::new();
    for n in 0..32 {
        let is_datagrams = n % 4 != 0;
        let client = match is_datagrams {
            true => Client::by_datagrams(server, "alice"),
            false => Client::by_connection(server, "alice"),
        };
        calls.push(Call::new(&mut running, client, is_datagrams));
    }
    let before = running.allocations();
    assert!(before[0] > 0 && before[1] > 0, "{before:?}");
    running.fail(0);
    for call in calls.iter_mut().filter(|call| call.shard == 1) {
        call.goes_on(&mut running);
    }
    for call in calls.iter_mut().filter(|call| call.shard == 0) {
        // Who comes by UDP comes to the same shard, and what it sends while that is away waits for it.
        if call.is_datagrams {
            let answer = call.client.request(&mut running, Method::REFRESH, |_| {});
            answer.expect(437);
            call.relayed = running.allocate(&mut call.client).0;
        } else {
            assert!(!call.client.is_left_alone(), "its connection is gone");
            call.client = Client::by_connection(server, "alice");
            let (relayed, shard) = running.allocate(&mut call.client);
            (call.relayed, call.shard) = (relayed, shard);
        }
        let peer = call.peer.local_addr().unwrap();
        call.client.bind_channel(&mut running, channel(), peer);
    }
    // The quota that they have used up shows that what the shard had was given back.
    let of_shard_0 = calls.iter().filter(|call| call.shard == 0).count() as u64;
    assert_eq!(running.allocations(), [of_shard_0, 32 - of_shard_0]);
    for call in &mut calls {
        call.goes_on(&mut running);
    }
    let (ended, accounting, printed) = running.end();
    ended.unwrap();
    assert!(accounting.balances(), "{}", accounting.line());
    assert_eq!(accounting.shard_failures(), 1);
    assert_eq!(printed.matches("shard 0 failed").count(), 1, "{printed}");
}

#[test]
fn a_shard_that_panics_again_and_again_ends_the_process() {
    let mut running = Running::start(1, &[]);
    for _ in 0..5 {
        running.fail(1);
    }
    let begin = Instant::now();
    while !running.thread.is_finished() {
        assert!(begin.elapsed() < TIMEOUT, "it went on");
        std::thread::sleep(Duration::from_millis(1));
    }
    let (ended, accounting, printed) = running.end();
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("shard 1 failed again and again"), "{error}");
    assert!(accounting.balances(), "{}", accounting.line());
    assert_eq!(printed.matches("shard 1 failed").count(), 4, "{printed}");
}

mod failures;
mod sessions;
mod sharing;
