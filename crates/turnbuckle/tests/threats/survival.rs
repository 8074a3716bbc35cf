//! V-63: relay and keeper are killed, and calls go on; what had ended does not come back with them.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};
use tempfile::TempDir;
use turnbuckle_wire::Method;

use crate::harness::{
    Authority, Call, Client, Holders, Key, Server, Site, TICK, channel, peer_socket, tick,
};
use crate::mobility::{begin, exchange, resume};
use crate::not_run::not_run;
use crate::realms::turnadmin;

/// How long anything may take that has to come about; how long it does take is not judged.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Starts a relay on loopback that survives.
pub(crate) fn relay(site: Site, options: &[&str]) -> Server {
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options: Vec<&str> = [relay_ip.as_str(), "--allow-loopback-peers", "--survive=on"]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    Server::start(site.server(), &options)
}

/// The processes of a server, as its lines name them.
pub(crate) struct Processes {
    pub(crate) keeper: i32,
    pub(crate) relay: i32,
}

impl Processes {
    pub(crate) fn of(server: &Server) -> Self {
        let greeting = server.greeting();
        let line = greeting.lines().find_map(Self::named);
        line.unwrap_or_else(|| panic!("no line names them: {greeting}"))
    }

    /// Returns what a line about both says.
    fn named(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once("survive: process ")?;
        let (keeper, relay) = rest.split_once(" is the keeper of process ")?;
        Some(Self {
            keeper: keeper.parse().ok()?,
            relay: relay.trim().parse().ok()?,
        })
    }

    pub(crate) fn kill_relay(&mut self, server: &Server, meanwhile: &mut impl FnMut()) {
        send(self.relay, Signal::SIGKILL);
        self.await_relay(server, meanwhile);
    }

    /// Waits until the next relay serves. Returns what is said until then.
    pub(crate) fn await_relay(
        &mut self,
        server: &Server,
        meanwhile: &mut impl FnMut(),
    ) -> Vec<String> {
        let (mut next, mut said) = (None, Vec::new());
        *self = await_line(server, meanwhile, |line| {
            said.push(line.trim().to_owned());
            next = Self::named(line).or_else(|| next.take());
            next.take_if(|_| line.trim() == "ready")
        });
        said
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
fn calls_go_on_after_a_kill_while_nobody_reads_what_the_server_prints() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut processes = Processes::of(&server);
    let mut calls: Vec<_> = (0..3).map(|_| Call::new(site, &server)).collect();
    tick(&mut calls);
    let blocked = server.block_output();
    send(processes.relay, Signal::SIGKILL);
    await_end(processes.relay);
    let sent = calls[0].sent;
    let deadline = Instant::now() + TIMEOUT;
    while !calls.iter().all(|call| call.has_passed(sent)) {
        assert!(Instant::now() < deadline, "no relay takes the calls over");
        tick(&mut calls);
    }
    drop(blocked);
    // What was printed before is one long line with the first of these.
    let said = processes.await_relay(&server, &mut || tick(&mut calls));
    let died = "survive: the relay was ended by signal 9; the next one takes over its calls";
    assert!(said.iter().any(|line| line.ends_with(died)), "{said:#?}");
    for call in &mut calls {
        call.client.refresh(0).expect(200);
    }
    server.stop_kept(processes.keeper);
}

#[test]
fn what_arrives_while_there_is_no_relay_is_relayed_by_the_next_one() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut processes = Processes::of(&server);
    let mut calls: Vec<_> = (0..5).map(|_| Call::new(site, &server)).collect();
    for round in 1..=10 {
        // The keeper sees nothing of it yet. The relay has nothing in hand: all that was sent before has arrived.
        send(processes.keeper, Signal::SIGSTOP);
        send(processes.relay, Signal::SIGKILL);
        await_end(processes.relay);
        for _ in 0..20 {
            calls.iter_mut().for_each(Call::send);
        }
        send(processes.keeper, Signal::SIGCONT);
        processes.await_relay(&server, &mut pause);
        let deadline = Instant::now() + TIMEOUT;
        while calls.iter().any(|call| call.lost() > 0) {
            let lost: Vec<_> = calls.iter().map(Call::lost).collect();
            assert!(Instant::now() < deadline, "lost in round {round}: {lost:?}");
            calls.iter_mut().for_each(Call::hear);
            pause();
        }
        let all: Vec<_> = (0..20 * round).collect();
        for call in &calls {
            assert_eq!((&call.at_peer, &call.at_client), (&all, &all));
        }
    }
    server.stop_kept(processes.keeper);
}

#[test]
fn the_first_request_after_a_kill_is_not_asked_for_another_nonce() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut processes = Processes::of(&server);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    processes.kill_relay(&server, &mut pause);
    let refresh = client.signed(Method::REFRESH, |writer| {
        writer.lifetime(600);
    });
    client.exchange(&refresh).expect(200);
    server.stop_kept(processes.keeper);
}

#[test]
fn a_peer_that_the_database_denies_is_not_reached_after_a_kill_before_it_is_read() {
    let site = Site::new();
    let files = Files::new(&[site.ip(8)]);
    let server = relay(site, &[&files.option()]);
    let mut processes = Processes::of(&server);
    let peer = peer_socket(site.ip(7));
    let at = peer.local_addr().expect("bound");
    let denied = SocketAddr::new(site.ip(8), 7000);
    let mut call = Call::between(Client::new(site.ip(2), &server), peer);
    call.client.create_permission(&[denied]).expect(403);

    files.take_away();
    processes.kill_relay(&server, &mut || tick(std::slice::from_mut(&mut call)));
    let client = &mut call.client;
    let permit = client.signed(Method::CREATE_PERMISSION, |writer| {
        writer.xor_peer_address(denied);
    });
    client.send_raw(&permit);
    client.channel_bind(channel(0), at).expect(200);
    files.put_back();
    client.exchange(&permit).expect(403);
    let another = SocketAddr::new(site.ip(9), 7000);
    client.create_permission(&[another]).expect(200);
    let accounting = server.stop_kept(processes.keeper);
    assert!(accounting.dropped_as("users_due") > 0);
}

#[test]
fn who_has_a_database_without_rules_for_peers_reaches_new_ones_after_a_kill_before_it_is_read() {
    let site = Site::new();
    let files = Files::new(&[]);
    let server = relay(site, &[&files.option()]);
    let mut processes = Processes::of(&server);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    files.take_away();
    processes.kill_relay(&server, &mut pause);
    let new = SocketAddr::new(site.ip(9), 7000);
    client.create_permission(&[new]).expect(200);
    server.stop_kept(processes.keeper);
}

#[test]
fn no_peer_is_reached_after_a_start_before_the_database_is_read_that_may_deny_it() {
    let site = Site::new();
    // Whoever connects is never accepted, and so never answered.
    let hangs = TcpListener::bind((site.ip(1), 0)).expect("bound");
    let port = hangs.local_addr().expect("bound").port();
    let named = format!("--redis-userdb=ip={} port={port}", site.ip(1));
    let server = relay(site, &[&named]);
    let waits = "it serves nobody until it is read, and whatever names a new peer waits";
    assert!(server.greeting().contains(waits), "{}", server.greeting());
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let permit = client.signed(Method::CREATE_PERMISSION, |writer| {
        writer.xor_peer_address(SocketAddr::new(site.ip(8), 7000));
    });
    client.send_raw(&permit);
    client.settle();
    client.refresh(0).expect(200);
    assert_eq!(server.stop().dropped_as("users_due"), 1);
}

/// A user database in a directory that can be away, so that nobody can read it.
struct Files(TempDir);

impl Files {
    /// Makes one that denies these peers. It has no user who is served, so nonces stay good when it is read.
    fn new(denied: &[IpAddr]) -> Self {
        let files = Self(tempfile::tempdir().expect("a directory"));
        fs::create_dir(files.place()).expect("made");
        let file = files.place().join("turndb");
        turnadmin(&file, &["-A", "-u", "console", "-p", "of nobody"]);
        let rows = rusqlite::Connection::open(&file).expect("opened");
        for ip in denied {
            let row = format!("insert into denied_peer_ip values('','{ip}')");
            rows.execute_batch(&row).expect("written");
        }
        files
    }

    fn place(&self) -> PathBuf {
        self.0.path().join("here")
    }

    fn option(&self) -> String {
        format!("--userdb={}", self.place().join("turndb").display())
    }

    fn take_away(&self) {
        fs::rename(self.place(), self.0.path().join("away")).expect("renamed");
    }

    fn put_back(&self) {
        fs::rename(self.0.path().join("away"), self.place()).expect("renamed");
    }
}

#[test]
fn a_relay_that_is_killed_while_it_drains_drains_on_and_ends_with_its_calls() {
    let site = Site::new();
    let server = relay(site, &[]);
    let mut processes = Processes::of(&server);
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    server.drain();
    server.wait_for_line("draining: no new allocations");
    for host in 3..5 {
        send(processes.relay, Signal::SIGKILL);
        let said = processes.await_relay(&server, &mut pause);
        let draining = "draining: no new allocations; ends when 0 of 1 are left";
        assert!(said.iter().any(|line| line == draining), "{said:#?}");
        let mut late = Client::new(site.ip(host), &server);
        late.allocate_with(|_| {}).expect(403);
        client.refresh(600).expect(200);
    }
    client.refresh(0).expect(200);
    server.assert_ends();
}

#[test]
fn a_user_that_was_made_up_has_the_same_password_after_a_kill() {
    let site = Site::new();
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let options = [relay_ip.as_str(), "--allow-loopback-peers", "--survive=on"];
    let server = Server::start_without_users(site.server(), &options);
    let mut processes = Processes::of(&server);
    let mut client = Client::new(site.ip(2), &server);
    (client.username, client.password) = made_up(&server.greeting());
    client.allocate();
    for _ in 0..2 {
        processes.kill_relay(&server, &mut pause);
        client.refresh(600).expect(200);
    }
    server.stop_kept(processes.keeper);
}

/// Returns the name and the password of the user that the server says it has made up.
pub(crate) fn made_up(said: &str) -> (String, String) {
    let text_after = |before: &str| {
        let (_, rest) = said.split_once(before)?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let user = text_after("username: \"").zip(text_after("credential: \""));
    user.unwrap_or_else(|| panic!("no user is made up: {said}"))
}

#[test]
fn a_peer_of_a_shared_relay_socket_is_the_same_clients_after_a_kill() {
    let site = Site::new();
    let server = relay(site, &["--multiplex-peer", "--relay-threads=1"]);
    let mut processes = Processes::of(&server);
    let peer = peer_socket(site.ip(7));
    let at = peer.local_addr().expect("bound");
    let mut call = Call::between(Client::new(site.ip(2), &server), peer);
    let mut other = Client::other(site.ip(3), &server);
    other.allocate();
    for _ in 0..2 {
        processes.kill_relay(&server, &mut || tick(std::slice::from_mut(&mut call)));
        let sent = call.sent;
        let deadline = Instant::now() + TIMEOUT;
        while !call.has_passed(sent) {
            assert!(Instant::now() < deadline, "the call has ended");
            tick(std::slice::from_mut(&mut call));
        }
        other.create_permission(&[at]).expect(400);
        other.channel_bind(channel(1), at).expect(400);
    }
    call.client.refresh(0).expect(200);
    other.create_permission(&[at]).expect(200);
    server.stop_kept(processes.keeper);
}

#[test]
fn what_has_ended_does_not_come_back_and_ports_and_quotas_are_exact() {
    let site = Site::new();
    let server = relay(site, &Holders::OPTIONS);
    let mut processes = Processes::of(&server);
    let mut holders = Holders::new(site, &server);
    processes.kill_relay(&server, &mut pause);
    holders.assert_exact(site, &server);
    server.stop_kept(processes.keeper);
}

#[test]
fn a_damaged_journal_grants_nothing_and_the_relay_says_so() {
    let site = Site::new();
    let server = relay(site, &["--relay-threads=1"]);
    let mut processes = Processes::of(&server);
    let shorter = |file: &File, len: u64| file.set_len(len - 1);
    let flipped = |at: fn(u64) -> u64| {
        move |file: &File, len: u64| {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at(len))?;
            file.write_all_at(&[byte[0] ^ 0x10], at(len))
        }
    };
    let damages: [(&str, Damage<'_>); 4] = [
        ("it is shorter than it was", &shorter),
        ("a record has a wrong checksum", &flipped(|_| 0)),
        ("a record has a wrong checksum", &flipped(|len| len / 2)),
        ("a record has a wrong checksum", &flipped(|len| len - 1)),
    ];
    for (why, damage) in damages {
        let mut call = Call::new(site, &server);
        let journals = journals_of(processes.keeper);
        assert_eq!(journals.len(), 1, "one segment counts");
        for (file, len) in &journals {
            damage(file, *len).expect("written");
        }
        send(processes.relay, Signal::SIGKILL);
        let said = processes.await_relay(&server, &mut pause);
        let complaint = said
            .iter()
            .find(|it| it.contains("its journal is not used"));
        let complaint = complaint.unwrap_or_else(|| panic!("nothing is said of it: {said:#?}"));
        assert!(complaint.ends_with(why), "{complaint}");
        call.client.refresh(600).expect(437);
        call.send();
        call.client.settle();
        call.hear();
        assert!(call.at_peer.is_empty() && call.at_client.is_empty());
    }
    server.stop_kept(processes.keeper);
}

/// Damages a file of a length in bytes.
type Damage<'a> = &'a dyn Fn(&File, u64) -> io::Result<()>;

/// Returns the segments of journals that a process has open and that hold something, with their lengths in bytes.
fn journals_of(process: i32) -> Vec<(File, u64)> {
    let open = fs::read_dir(format!("/proc/{process}/fd")).expect("it is there");
    let paths = open.map(|entry| entry.expect("a descriptor").path());
    let is_journal = |path: &PathBuf| {
        let name = fs::read_link(path).unwrap_or_default();
        name.to_string_lossy().contains("turnbuckle-journal")
    };
    let files = paths.filter(is_journal).map(|path| {
        let file = File::options().read(true).write(true).open(path);
        let file = file.expect("it can be opened");
        let len = file.metadata().expect("a file").len();
        (file, len)
    });
    files.filter(|&(_, len)| len > 0).collect()
}

#[test]
fn calls_of_a_relay_that_is_another_user_go_on_when_it_is_killed() {
    if !geteuid().is_root() {
        return not_run("a relay that becomes another user takes root");
    }
    let site = Site::new();
    let server = relay(site, &["--proc-user=nobody"]);
    let mut processes = Processes::of(&server);
    let mut calls = [Call::new(site, &server)];
    for _ in 0..3 {
        processes.kill_relay(&server, &mut || tick(&mut calls));
        assert_eq!(user_of(processes.relay), user_of_nobody());
        let sent = calls[0].sent;
        let deadline = Instant::now() + TIMEOUT;
        while !calls[0].has_passed(sent) {
            assert!(Instant::now() < deadline, "the call has ended");
            tick(&mut calls);
        }
    }
    calls[0].client.refresh(0).expect(200);
    server.stop_kept(processes.keeper);
}

#[test]
fn what_runs_beside_the_shards_runs_in_batches_and_that_of_the_next_relay_does_too() {
    let site = Site::new();
    let metrics = SocketAddr::new(site.ip(1), 9641);
    let address = format!("--prometheus-address={}", metrics.ip());
    let server = relay(site, &["--prometheus", &address]);
    let mut processes = Processes::of(&server);
    let is_as_it_should = |relay| {
        // The thread answers, so it has begun.
        let mut answer = String::new();
        let mut stream = TcpStream::connect(metrics).expect("it listens");
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
        stream.read_to_string(&mut answer).expect("an answer");
        let (nice, policy) = scheduled(relay, "shard-0");
        assert_eq!(policy, SCHED_OTHER);
        let beside = scheduled(relay, "control");
        assert_eq!(beside, (nice.max(10), SCHED_BATCH));
    };
    is_as_it_should(processes.relay);
    processes.kill_relay(&server, &mut pause);
    is_as_it_should(processes.relay);
    server.stop_kept(processes.keeper);
}

/// Policies, as the kernel numbers them (sched(7)).
const SCHED_OTHER: i32 = 0;
const SCHED_BATCH: i32 = 3;

/// Returns the nice value and the policy of a thread that is known by its name (proc_pid_stat(5)).
fn scheduled(process: i32, name: &str) -> (i32, i32) {
    let threads = fs::read_dir(format!("/proc/{process}/task")).expect("it is there");
    let stat = threads.map(|thread| {
        let stat = thread.expect("a thread").path().join("stat");
        fs::read_to_string(stat).unwrap_or_default()
    });
    let stat: Vec<String> = stat.collect();
    let of_thread = stat.iter().find(|it| it.contains(&format!("({name}) ")));
    let of_thread = of_thread.unwrap_or_else(|| panic!("no {name}: {stat:?}"));
    let (_, fields) = of_thread.rsplit_once(") ").expect("a name in brackets");
    let field = |number: usize| {
        let field = fields.split(' ').nth(number - 3).expect("so many fields");
        field.parse().expect("a number")
    };
    (field(19), field(41))
}

/// Returns the effective user of a process (proc_pid_status(5)).
fn user_of(process: i32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let effective = line.and_then(|line| line.split_whitespace().nth(1));
    effective
        .expect("a line of users")
        .parse()
        .expect("a number")
}

fn user_of_nobody() -> u32 {
    let user = User::from_name("nobody").expect("the list of users");
    user.expect("there is one").uid.as_raw()
}

//= MOB-20
#[test]
fn a_mobile_client_by_tcp_or_tls_comes_back_to_its_allocation_after_a_kill() {
    let site = Site::new();
    let authority = Authority::new();
    let [certificate, key] = authority.options(Key::P256);
    let server = relay(site, &["--mobility", &certificate, &key]);
    let mut processes = Processes::of(&server);
    let peer = peer_socket(site.ip(7));
    for (host, is_secure) in [(10, false), (11, true)] {
        let mut client = match is_secure {
            true => Client::on_stream(authority.client().link(server.address()), &server),
            false => Client::over_tcp(&server),
        };
        let (relayed, mut ticket) = begin(&mut client, &peer);
        for round in 0..2 {
            exchange(&mut client, &peer, relayed, &format!("before kill {round}"));
            processes.kill_relay(&server, &mut pause);
            let mut moved = match round {
                0 => Client::over_tcp(&server),
                _ => Client::new(site.ip(host), &server),
            };
            let answer = resume(&mut moved, &ticket).expect(200);
            ticket = answer
                .message()
                .mobility_ticket()
                .expect("a ticket")
                .to_vec();
            exchange(&mut moved, &peer, relayed, &format!("after kill {round}"));
            client = moved;
        }
        client.refresh(0).expect(200);
    }
    server.stop_kept(processes.keeper);
}

pub(crate) fn pause() {
    thread::sleep(Duration::from_millis(5));
}

/// Waits until a process relays no more: it is gone, or its parent has not looked yet.
pub(crate) fn await_end(process: i32) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        if status.is_empty() || status.contains(") Z ") {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
        pause();
    }
}
