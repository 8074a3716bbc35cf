//! V-63: relay and keeper are killed, and calls go on; what had ended does not come back with them.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Client, Inbound, Server, Site, channel, peer_receives, peer_socket};

/// How long anything may take that has to come about; how long it does take is not judged.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two datagrams of a call, one way.
const TICK: Duration = Duration::from_millis(20);

/// A relay on loopback that survives.
fn relay(site: Site, options: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options: Vec<&str> = [relay_ip.as_str(), "--allow-loopback-peers", "--survive=on"]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    Server::start(site.server(), &options)
}

/// The processes of a server, as its lines name them.
struct Processes {
    keeper: i32,
    relay: i32,
}

impl Processes {
    fn of(server: &Server) -> Self {
        let greeting = server.greeting();
        let line = greeting.lines().find_map(Self::named);
        line.unwrap_or_else(|| panic!("no line names them: {greeting}"))
    }

    /// What a line about both says.
    fn named(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("survive: process ")?;
        let (keeper, relay) = rest.split_once(" is the keeper of process ")?;
        Some(Self {
            keeper: keeper.parse().ok()?,
            relay: relay.trim().parse().ok()?,
        })
    }

    fn kill_relay(&mut self, server: &Server, meanwhile: &mut impl FnMut()) {
        send(self.relay, Signal::SIGKILL);
        self.await_relay(server, meanwhile);
    }

    /// Waits until the next relay serves.
    fn await_relay(&mut self, server: &Server, meanwhile: &mut impl FnMut()) {
        let mut next = None;
        *self = await_line(server, meanwhile, |line| {
            next = Self::named(line).or_else(|| next.take());
            next.take_if(|_| line.trim() == "ready")
        });
    }

    fn kill_keeper(&mut self, server: &Server, meanwhile: &mut impl FnMut()) {
        send(self.keeper, Signal::SIGKILL);
        self.keeper = await_line(server, meanwhile, |line| {
            let (_, rest) = line.split_once("the keeper has ended; process ")?;
            rest.strip_suffix(" is the keeper now")?.parse().ok()
        });
    }
}

pub(crate) fn send(process: i32, signal: Signal) {
    kill(Pid::from_raw(process), signal).expect("the process is there");
}

/// Waits for a line that means something, and does something else meanwhile.
fn await_line<T>(
    server: &Server,
    meanwhile: &mut impl FnMut(),
    mut meaning: impl FnMut(&str) -> Option<T>,
) -> T {
    let deadline = Instant::now() + TIMEOUT;
    let mut seen = Vec::new();
    loop {
        for line in server.lines_so_far() {
            if let Some(meant) = meaning(&line) {
                return meant;
            }
            seen.push(line);
        }
        assert!(
            Instant::now() < deadline,
            "the line does not come: {seen:#?}"
        );
        meanwhile();
    }
}

/// A client with a channel to a peer, and what has arrived of what was sent, each way.
pub(crate) struct Call {
    pub(crate) client: Client,
    peer: UdpSocket,
    relayed: SocketAddr,
    pub(crate) sent: u32,
    at_peer: Vec<u32>,
    at_client: Vec<u32>,
}

impl Call {
    pub(crate) fn new(site: Site, server: &Server) -> Self {
        let mut client = Client::new(site.ip(2), server);
        let relayed = client.allocate();
        let peer = peer_socket(site.ip(7));
        let to = peer.local_addr().expect("bound");
        client.channel_bind(channel(0), to).expect(200);
        peer.set_nonblocking(true).expect("fcntl");
        Self {
            client,
            peer,
            relayed,
            sent: 0,
            at_peer: Vec::new(),
            at_client: Vec::new(),
        }
    }

    /// Sends one datagram each way.
    fn send(&mut self) {
        let number = self.sent.to_be_bytes();
        self.client.send_channel_data(channel(0), &number);
        let sent = self.peer.send_to(&number, self.relayed);
        sent.expect("sent");
        self.sent += 1;
    }

    /// Takes what has arrived.
    pub(crate) fn hear(&mut self) {
        let mut buffer = [0; 4];
        while let Ok((4, _)) = self.peer.recv_from(&mut buffer) {
            self.at_peer.push(u32::from_be_bytes(buffer));
        }
        for inbound in self.client.arrived() {
            let Inbound::Channel { data, .. } = inbound else {
                panic!("{inbound:?}");
            };
            let number = data.try_into().expect("a number");
            self.at_client.push(u32::from_be_bytes(number));
        }
    }

    /// Whether something that was sent later than `number` has arrived both ways.
    pub(crate) fn has_passed(&self, number: u32) -> bool {
        let is_later = |at: &Vec<u32>| at.last().is_some_and(|&last| last > number);
        is_later(&self.at_peer) && is_later(&self.at_client)
    }

    pub(crate) fn lost(&self) -> usize {
        2 * self.sent as usize - self.at_peer.len() - self.at_client.len()
    }
}

pub(crate) fn tick(calls: &mut [Call]) {
    for call in &mut *calls {
        call.send();
    }
    thread::sleep(TICK);
    for call in calls {
        call.hear();
    }
}

#[test]
fn calls_go_on_when_relay_and_keeper_are_killed_in_turn_twenty_times() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut processes = Processes::of(&server);
    let mut calls: Vec<_> = (0..20).map(|_| Call::new(site, &server)).collect();
    for round in 0..20 {
        for _ in 0..5 {
            tick(&mut calls);
        }
        match round % 2 {
            0 => processes.kill_relay(&server, &mut || tick(&mut calls)),
            _ => processes.kill_keeper(&server, &mut || tick(&mut calls)),
        }
        let sent = calls[0].sent;
        let deadline = Instant::now() + TIMEOUT;
        while !calls.iter().all(|call| call.has_passed(sent)) {
            assert!(
                Instant::now() < deadline,
                "a call has ended in round {round}"
            );
            tick(&mut calls);
        }
    }
    thread::sleep(TICK);
    let sent: u32 = calls.iter().map(|call| 2 * call.sent).sum();
    let lost: usize = calls
        .iter_mut()
        .map(|call| {
            call.hear();
            call.lost()
        })
        .sum();
    println!("20 kills, 20 calls: {lost} of {sent} datagrams lost");
    // Their clients can do all that they could.
    for call in &mut calls {
        call.client.refresh(600).expect(200);
        call.client.refresh(0).expect(200);
    }
    server.stop_kept(processes.keeper);
}

#[test]
fn what_arrives_while_there_is_no_relay_is_relayed_by_the_next_one() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut processes = Processes::of(&server);
    let mut call = Call::new(site, &server);
    // The keeper sees nothing of it yet.
    send(processes.keeper, Signal::SIGSTOP);
    send(processes.relay, Signal::SIGKILL);
    await_end(processes.relay);
    for _ in 0..20 {
        call.send();
    }
    send(processes.keeper, Signal::SIGCONT);
    processes.await_relay(&server, &mut pause);
    let deadline = Instant::now() + TIMEOUT;
    while call.lost() > 0 {
        assert!(Instant::now() < deadline, "{} of 40 are lost", call.lost());
        call.hear();
        pause();
    }
    assert_eq!(call.at_peer, (0..20).collect::<Vec<_>>());
    assert_eq!(call.at_client, (0..20).collect::<Vec<_>>());
    server.stop_kept(processes.keeper);
}

#[test]
fn what_has_ended_does_not_come_back_and_ports_and_quotas_are_exact() {
    let site = Site::new();
    let options = [
        "--min-port=50000",
        "--max-port=50003",
        "--user-quota=3",
        "--permission-lifetime=2",
    ];
    let server = relay(site, &options);
    let mut processes = Processes::of(&server);
    let mut stays = Call::new(site, &server);
    let mut ends = Call::new(site, &server);
    ends.client.refresh(0).expect(200);
    let mut permitted = Client::new(site.ip(2), &server);
    let relayed = permitted.allocate();
    let peer = peer_socket(site.ip(9));
    let to = peer.local_addr().expect("bound");
    permitted.create_permission(&[to]).expect(200);
    permitted.send_indication(to, b"while it is permitted");
    assert_eq!(peer_receives(&peer).1, relayed);
    thread::sleep(Duration::from_millis(2_500)); // the lifetime of the permission
    processes.kill_relay(&server, &mut pause);

    ends.client.refresh(600).expect(437);
    ends.client
        .send_channel_data(channel(0), b"on a channel that has ended");
    ends.client.settle();
    ends.hear();
    assert!(ends.at_peer.is_empty(), "a channel is back");
    permitted.send_indication(to, b"when it is not permitted");
    permitted.settle();
    peer.set_nonblocking(true).expect("fcntl");
    assert!(
        peer.recv_from(&mut [0; 100]).is_err(),
        "a permission is back"
    );
    permitted.refresh(600).expect(200);

    stays.client.refresh(600).expect(200);
    // Two allocations are there. A third is within the quota, a fourth is not, whoever asks for a fifth port gets none.
    let mut third = Client::new(site.ip(3), &server);
    third.allocate();
    Client::new(site.ip(4), &server)
        .allocate_with(|_| {})
        .expect(486);
    let mut other = Client::other(site.ip(5), &server);
    other.allocate();
    Client::other(site.ip(6), &server)
        .allocate_with(|_| {})
        .expect(508);
    server.stop_kept(processes.keeper);
}

fn pause() {
    thread::sleep(Duration::from_millis(5));
}

/// Waits until a process relays no more: it is gone, or its parent has not looked yet.
fn await_end(process: i32) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        if status.is_empty() || status.contains(") Z ") {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
        pause();
    }
}
