//! Running the relay: start the shards, wait for signals, print what is asked for, stop.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use turnbuckle_datapath::{BufferBudget, Snapshot, probe_device, receive_log_line, send_log_line};
use turnbuckle_engine::{Commons, Config as EngineConfig, DropReason, InterfaceAddress};

use crate::announce;
use crate::config::{Coalesce, Config, Persona};
use crate::counters::Accounting;
use crate::interfaces::Interfaces;
use crate::listening::{self, Listening};
use crate::log::QUEUE_LINES;
use crate::pending::Pending;
use crate::process::Settled;
use crate::relay::{Mailbox, describe_discovery, sites};
use crate::shard::failures::Failures;
use crate::shard::{Plan, Request, Shard};
use crate::tls::Certificates;
use crate::translate;
use crate::users::Follower;

/// How often the files of the certificates are looked at.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(2);

/// How often a draining server counts what is left.
const DRAIN_INTERVAL: Duration = Duration::from_secs(1);

/// How soon a shard that had no room for news is told again.
const TELL_INTERVAL: Duration = Duration::from_millis(20);

/// What wakes the main thread.
pub(crate) enum Event {
    /// A shard's thread has ended: after [`Request::Stop`], or by the error.
    ShardEnded { shard: usize, error: Option<String> },
    /// The addresses of this machine's interfaces may have changed and are these now, in their order.
    Interfaces(Vec<InterfaceAddress>),
    /// A line for the log.
    Line(String),
    /// Have this shard fail.
    #[cfg(test)]
    Fail(usize),
    /// SIGUSR1: take no new allocations, and stop when there are few enough.
    Drain,
    /// SIGUSR2: read the certificates again.
    ReloadCertificates,
    /// The user database has changed: users, peer rules and quotas are these from now on.
    Users(Arc<EngineConfig>),
    /// SIGINT or SIGTERM.
    Stop,
}

/// Why the relay could not start or had to stop.
#[derive(Debug)]
pub struct ServeError {
    what: String,
    hint: Option<&'static str>,
}

impl ServeError {
    fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
        }
    }

    fn from_io(error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::AddrInUse => Some("another process listens there; `ss -lntup` names it"),
            io::ErrorKind::AddrNotAvailable => {
                Some("the address is not one of this machine's; `ip address` lists them")
            }
            io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 need root or the capability CAP_NET_BIND_SERVICE")
            }
            _ => None,
        };
        Self {
            what: error.to_string(),
            hint,
        }
    }
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for ServeError {}

/// Runs the relay until SIGINT or SIGTERM, and returns the final accounting. Lines for people go to `out`, which must not wait for a reader.
///
/// # Errors
///
/// A socket could not be set up, or a shard failed.
pub fn serve(config: &Config, out: &mut impl Write) -> Result<Accounting, ServeError> {
    let (events, inbox) = sync_channel(QUEUE_LINES);
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2])
        .map_err(|error| ServeError::from_io(&error))?;
    let watcher = std::thread::Builder::new().name("signals".into());
    let watching = watcher.spawn({
        let events = events.clone();
        move || {
            for signal in signals.forever() {
                let event = match signal {
                    SIGHUP => Event::Line("log file reopened".to_owned()),
                    SIGUSR1 => Event::Drain,
                    SIGUSR2 => Event::ReloadCertificates,
                    _ => Event::Stop,
                };
                if events.send(event).is_err() {
                    return;
                }
            }
        }
    });
    watching.map_err(|error| ServeError::from_io(&error))?;
    let descriptors = raise_descriptor_limit();
    let mut relay = RunningRelay::start(config, descriptors, &events, out)?;
    let settled = Settled::new(&config.process, config.persona, out).and_then(|settled| {
        // Not a moment before: what strangers send is not for the user that it was started by.
        listening::admit_clients(&relay.shards);
        settled.announce(&config.process, out).map(|()| settled)
    });
    let settled = match settled {
        Ok(settled) => settled,
        Err(why) => {
            drop(inbox);
            relay.stop();
            return Err(ServeError::new(why));
        }
    };
    if config.persona == Persona::Turnserver {
        announce::ready_as_coturn(relay.shards.len(), out);
    }
    let _ = writeln!(out, "ready");
    let ended = relay.wait(config, &inbox, out);
    // Nobody reads events from here on, and a shard that has many to tell must not wait for a reader.
    drop(inbox);
    let accounting = relay.stop();
    drop(settled);
    if let Some(path) = &config.log.statistics_file {
        write_statistics(path, &accounting)?;
    }
    let _ = writeln!(out, "stopped; {}", accounting.line());
    ended.map(|()| accounting)
}

/// The shards of a relay that runs.
struct RunningRelay {
    shards: Vec<Shard>,
    /// What is relayed from, in order.
    relays: Vec<IpAddr>,
    /// What they listen on, and what is waited for.
    listening: Listening,
    /// What each shard was started with.
    plans: Vec<Plan>,
    failures: Vec<Failures>,
    events: SyncSender<Event>,
    mailboxes: Arc<[Mailbox]>,
    is_draining: bool,
    /// The interface addresses that all shards know.
    interfaces: Vec<InterfaceAddress>,
    /// Others, which not all of them know yet.
    new_interfaces: Option<Pending<Vec<InterfaceAddress>>>,
    /// Ends the thread that follows the addresses when it is dropped.
    _follows_interfaces: Interfaces,
    /// Where TLS is spoken.
    certificates: Option<Certificates>,
    commons: Arc<Commons>,
    /// Other users, which not all shards have heard of yet.
    new_users: Option<Pending<Arc<EngineConfig>>>,
    /// Ends the thread that follows the user database when it is dropped.
    follows_users: Option<SyncSender<()>>,
}

impl RunningRelay {
    /// Opens all sockets. None of them hears anything before [`Self::admit_clients`].
    fn start(
        config: &Config,
        descriptors: Option<u64>,
        events: &SyncSender<Event>,
        out: &mut impl Write,
    ) -> Result<Self, ServeError> {
        let (backend, why) = translate::backend(config.datapath.backend);
        let devices = [
            ("listening-device", &config.addresses.listening_device),
            ("relay-device", &config.addresses.relay_device),
        ];
        for (key, device) in devices {
            // Said now: a relay socket is opened when somebody wants one.
            if let Some(device) = device {
                probe_device(device).map_err(|error| ServeError::new(format!("{key}: {error}")))?;
            }
        }
        let mut listening =
            Listening::begin(config, out).map_err(|error| ServeError::from_io(&error))?;
        let mut engine = Arc::new(translate::engine(config).map_err(ServeError::new)?);
        let mut users = translate::users(config, &engine)
            .map_err(|error| ServeError::new(error.to_string()))?;
        if let Some(follower) = &mut users {
            engine = follower.current();
            for complaint in follower.take_complaints() {
                let _ = writeln!(out, "{complaint}");
            }
        }
        let has_database = users.as_ref().is_some_and(Follower::is_open);
        let commons = Commons::new(&engine);
        let budget = Arc::new(BufferBudget::new(translate::RELAY_BUFFER_BUDGET_BYTES));
        let count = usize::from(config.threads.shards.get());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let interfaces = Interfaces::follow(events.clone()).map_err(|error| {
            ServeError::new(format!(
                "cannot read the addresses of this machine: {error}"
            ))
        })?;
        let accepting =
            translate::accepting(config).map_err(|error| ServeError::from_io(&error))?;
        let certificates = match config.tls.is_spoken() {
            true => Some(Certificates::load(&config.tls).map_err(ServeError::new)?),
            false => None,
        };
        let datagrams = translate::datagrams(config, certificates.as_ref());
        // One that came while the configuration was read.
        listening.follow(config, interfaces.addresses());
        let mailboxes: Arc<[_]> = std::iter::repeat_with(Mailbox::default)
            .take(count)
            .collect();
        let mut relay = Self {
            shards: Vec::with_capacity(count),
            relays: {
                let mut relays = config.addresses.relays.clone();
                relays.sort_unstable();
                relays
            },
            listening,
            plans: Vec::with_capacity(count),
            failures: std::iter::repeat_with(Failures::default)
                .take(count)
                .collect(),
            events: events.clone(),
            mailboxes: Arc::clone(&mailboxes),
            is_draining: false,
            interfaces: interfaces.addresses().to_vec(),
            new_interfaces: None,
            _follows_interfaces: interfaces,
            certificates,
            commons: Arc::clone(&commons),
            new_users: None,
            follows_users: None,
        };
        for index in 0..count {
            let plan = Plan {
                index,
                is_restart: false,
                core: config.threads.pin.then_some(index % cores),
                interfaces: relay.interfaces.clone(),
                listeners: relay.listening.datagrams.clone(),
                stream_listeners: relay.listening.streams.clone(),
                discovery: sites(config),
                engine: Arc::clone(&engine),
                commons: Arc::clone(&commons),
                mailboxes: Arc::clone(&mailboxes),
                streams: translate::streams(config, relay.certificates.as_ref(), descriptors),
                datagrams: datagrams.clone(),
                datapath: translate::datapath(config, backend, &accepting, &budget),
                log: translate::log(config, index, count),
            };
            relay.plans.push(plan.clone());
            match Shard::start(plan, Arc::default(), events.clone()) {
                Ok(shard) => relay.shards.push(shard),
                Err(error) => {
                    relay.stop();
                    return Err(ServeError::from_io(&error));
                }
            }
        }
        if let Some(follower) = users {
            match follow(follower, events) {
                Ok(stop) => relay.follows_users = Some(stop),
                Err(error) => {
                    relay.stop();
                    return Err(ServeError::from_io(&error));
                }
            }
        }
        relay.announce(config, &why, has_database, out);
        Ok(relay)
    }

    /// Says what runs; when all else is done `ready` follows.
    fn announce(&self, config: &Config, why: &str, has_database: bool, out: &mut impl Write) {
        let pinned = if config.threads.pin {
            ", each on its core"
        } else {
            ""
        };
        let when = match config.datapath.coalesce_policy {
            Coalesce::Cpu => "",
            Coalesce::Latency => " when busy",
        };
        let pause = match config.datapath.coalesce.as_micros() {
            0 => "no pause before reading".to_owned(),
            us => format!("pauses of at most {us} us before reading{when}"),
        };
        let _ = writeln!(out, "turnbuckle {}", env!("CARGO_PKG_VERSION"));
        let _ = writeln!(out, "{why}");
        let _ = writeln!(out, "{} shards{pinned}, {pause}", self.shards.len());
        let Listening {
            datagrams, streams, ..
        } = &self.listening;
        let has_proxy_port = config.proxies.port.is_some();
        // Second ports for NAT behaviour discovery have lines of their own.
        let is_second_port = |listener: SocketAddr| {
            config
                .addresses
                .discovery
                .as_ref()
                .is_some_and(|discovery| {
                    let ports = [Some(discovery.port), discovery.tls_port];
                    ports.contains(&Some(listener.port()))
                })
        };
        for &listener in datagrams
            .iter()
            .filter(|listener| !is_second_port(**listener))
        {
            let has_streams = !has_proxy_port && streams.contains(&listener);
            let transports = transports(config, true, has_streams);
            let _ = writeln!(out, "listening on {transports} {listener}");
        }
        for &listener in streams {
            let is_named = datagrams.contains(&listener) || is_second_port(listener);
            if has_proxy_port || !is_named {
                let transports = transports(config, false, true);
                let from = if has_proxy_port { " for proxies" } else { "" };
                let _ = writeln!(out, "listening on {transports} {listener}{from}");
            }
        }
        for line in describe_discovery(config) {
            let _ = writeln!(out, "{line}");
        }
        for &relay in &config.addresses.relays {
            let public = config.addresses.public(relay);
            let seen_as = if public == relay {
                String::new()
            } else {
                format!(", seen as {public}")
            };
            let ports = config.addresses.relay_ports;
            let _ = writeln!(
                out,
                "relaying from {relay}{seen_as}, ports {} to {}",
                ports.min, ports.max
            );
        }
        if config.persona == Persona::Turnserver {
            let listening = &self.listening;
            announce::as_coturn(config, listening, self.shards.len(), has_database, out);
        }
        let _ = write!(out, "{}", config.usage());
    }

    /// Waits for the end, printing counters and following the host's addresses meanwhile.
    fn wait(
        &mut self,
        config: &Config,
        inbox: &Receiver<Event>,
        out: &mut impl Write,
    ) -> Result<(), ServeError> {
        let interval = config.log.statistics_interval;
        let mut next_statistics = Instant::now() + interval;
        let mut next_certificates = Instant::now() + CERTIFICATES_INTERVAL;
        let mut printed: Vec<_> = self
            .shards
            .iter()
            .map(|shard| shard.batches.snapshot())
            .collect();
        let mut next_count = None;
        loop {
            let mut due = next_statistics.min(next_certificates);
            if let Some(next_count) = next_count {
                due = due.min(next_count);
            }
            if let Some(next_attempt) = self.listening.due() {
                due = due.min(next_attempt);
            }
            if let Some(restart) = self.failures.iter().filter_map(Failures::due).min() {
                due = due.min(restart);
            }
            if self.has_news() {
                due = due.min(Instant::now() + TELL_INTERVAL);
            }
            match inbox.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Event::Line(line)) => {
                    let _ = writeln!(out, "{line}");
                }
                Ok(Event::ReloadCertificates) => {
                    if let Some(certificates) = &mut self.certificates {
                        report_certificates(&certificates.reload(), out);
                    }
                }
                Ok(Event::Drain) if next_count.is_none() => {
                    self.drain(config, out);
                    next_count = Some(Instant::now());
                }
                Ok(Event::Drain) => {}
                Ok(Event::Users(engine)) => {
                    self.commons.set_quotas(&engine);
                    for plan in &mut self.plans {
                        plan.engine = Arc::clone(&engine);
                    }
                    self.new_users = Some(Pending::new(engine, self.shards.len()));
                }
                Ok(Event::Interfaces(addresses)) => {
                    self.listening.follow(config, &addresses);
                    self.follow_relays(config, &addresses, out);
                    self.follow_interfaces(addresses);
                }
                #[cfg(test)]
                Ok(Event::Fail(shard)) => {
                    if !self.shards[shard].request(Request::Panic) {
                        // Once more when it has been started anew.
                        let _ = self.events.try_send(Event::Fail(shard));
                    }
                }
                Ok(Event::Stop) => return Ok(()),
                Ok(Event::ShardEnded { shard, error }) => {
                    let why = error.unwrap_or_else(|| "it stopped by itself".into());
                    self.shard_failed(shard, &why, out)?;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            self.restart_shards(now, &mut printed, out)?;
            self.tell_news();
            self.listening.attempt(config, now, &self.shards, out);
            if next_count.is_some_and(|next_count| now >= next_count) {
                if self.allocations() <= u64::from(config.limits.drained) {
                    let _ = writeln!(out, "drained, {} allocations left", self.allocations());
                    return Ok(());
                }
                next_count = Some(now + DRAIN_INTERVAL);
            }
            if now >= next_statistics {
                next_statistics = now + interval;
                self.print_batches(config, &mut printed, out);
            }
            if now >= next_certificates {
                next_certificates = now + CERTIFICATES_INTERVAL;
                if let Some(result) = self.certificates.as_mut().and_then(Certificates::follow) {
                    report_certificates(&result, out);
                }
            }
        }
    }

    /// Accounts for a shard whose thread has ended, and has it started anew unless it fails again and again.
    ///
    /// # Errors
    ///
    /// It has failed too often.
    fn shard_failed(
        &mut self,
        index: usize,
        why: &str,
        out: &mut impl Write,
    ) -> Result<(), ServeError> {
        let shard = &mut self.shards[index];
        // What it had given back, ports, quota and sockets, is there when its thread has ended.
        shard.join();
        shard.counters.failed();
        if !self.failures[index].note(Instant::now()) {
            return Err(ServeError::new(format!(
                "shard {index} failed again and again: {why}"
            )));
        }
        let _ = writeln!(
            out,
            "shard {index} failed, its calls are lost and it is started anew: {why}"
        );
        let _ = out.flush();
        Ok(())
    }

    /// Starts the shards anew whose pause is over. Their sockets were kept, so no client of another shard notices.
    fn restart_shards(
        &mut self,
        now: Instant,
        printed: &mut [Snapshot],
        out: &mut impl Write,
    ) -> Result<(), ServeError> {
        for (index, printed) in printed.iter_mut().enumerate() {
            if self.failures[index].due().is_none_or(|due| due > now) {
                continue;
            }
            self.failures[index].started();
            let interfaces = match &self.new_interfaces {
                Some(pending) => pending.value(),
                None => &self.interfaces,
            };
            let plan = Plan {
                interfaces: interfaces.clone(),
                is_restart: true,
                ..self.plans[index].clone()
            };
            let counters = Arc::clone(&self.shards[index].counters);
            let shard = match Shard::start(plan, counters, self.events.clone()) {
                Ok(shard) => shard,
                Err(error) => {
                    self.shard_failed(index, &error.to_string(), out)?;
                    continue;
                }
            };
            if self.is_draining {
                shard.insist(Request::Drain(sync_channel(1).0));
            }
            self.listening.resume(&shard);
            *printed = shard.batches.snapshot();
            self.shards[index] = shard;
        }
        Ok(())
    }

    /// Has every shard take no new allocations.
    fn drain(&mut self, config: &Config, out: &mut impl Write) {
        self.is_draining = true;
        let (done, all_done) = sync_channel(self.shards.len());
        for shard in &self.shards {
            shard.insist(Request::Drain(done.clone()));
        }
        drop(done);
        // Ends when the last shard has answered or ended; from here on allocations only become fewer.
        while all_done.recv().is_ok() {}
        let _ = writeln!(
            out,
            "draining: no new allocations; ends when {} of {} are left",
            config.limits.drained,
            self.allocations()
        );
    }

    /// Allocations of all shards.
    fn allocations(&self) -> u64 {
        let counts = self.shards.iter().map(|shard| &shard.counters.allocations);
        counts.map(|count| count.load(Relaxed)).sum()
    }

    /// Whether there is anything that not all shards have heard.
    fn has_news(&self) -> bool {
        self.new_users.is_some() || self.new_interfaces.is_some()
    }

    /// Tells the shards what they have not heard yet; those that have no room for it are told again later.
    fn tell_news(&mut self) {
        let shards = &self.shards;
        self.new_users.take_if(|users| {
            users.tell(|shard, engine| {
                shards[shard].request(Request::Reconfigure(Arc::clone(engine)))
            })
        });
        let known = self.new_interfaces.take_if(|interfaces| {
            interfaces.tell(|shard, addresses| {
                shards[shard].request(Request::Interfaces(addresses.clone()))
            })
        });
        if let Some(known) = known {
            self.interfaces.clone_from(known.value());
        }
    }

    /// Relays from what the machine has now, where the configuration leaves that to it.
    fn follow_relays(
        &mut self,
        config: &Config,
        addresses: &[InterfaceAddress],
        out: &mut impl Write,
    ) {
        let usable = addresses.iter().map(|address| address.ip);
        let usable: Vec<IpAddr> = usable.filter(|ip| !is_link_local(*ip)).collect();
        let mut relays = config.addresses.relays_among(&usable);
        relays.sort_unstable();
        if !config.addresses.follows_relays || relays.is_empty() || relays == self.relays {
            return;
        }
        let told = relays.iter().filter(|relay| !self.relays.contains(relay));
        for relay in told {
            let _ = writeln!(out, "relaying from {relay} from now on");
        }
        let all: Vec<_> = relays
            .iter()
            .map(|&relay| translate::relay_address(config, relay))
            .collect();
        for shard in &self.shards {
            shard.insist(Request::Relays(all.clone()));
        }
        self.commons.set_relays(&all);
        self.relays = relays;
    }

    /// Has the shards told of the host's addresses, unless they know these or are being told of them already.
    fn follow_interfaces(&mut self, addresses: Vec<InterfaceAddress>) {
        let last = match &self.new_interfaces {
            Some(pending) => pending.value(),
            None => &self.interfaces,
        };
        if *last != addresses {
            self.new_interfaces = Some(Pending::new(addresses, self.shards.len()));
        }
    }

    /// coturn's occupancy lines, for each shard, of the time since they were `printed` last.
    fn print_batches(&self, config: &Config, printed: &mut [Snapshot], out: &mut impl Write) {
        for (shard, printed) in self.shards.iter().zip(printed) {
            let now = shard.batches.snapshot();
            let delta = now.since(printed);
            *printed = now;
            if config.datapath.log_receive {
                let _ = writeln!(out, "{}", receive_log_line(&shard.name, &delta));
            }
            if config.datapath.log_send {
                let _ = writeln!(out, "{}", send_log_line(&shard.name, &delta));
            }
        }
    }

    /// Ends every shard and adds up their counters.
    fn stop(mut self) -> Accounting {
        for shard in &self.shards {
            shard.insist(Request::Stop);
        }
        for (shard, mailbox) in self.shards.iter_mut().zip(self.mailboxes.iter()) {
            shard.join();
            // Of one that had failed: the others have closed theirs.
            let lost = mailbox.close();
            shard.counters.dropped(DropReason::SocketClosed, lost);
        }
        Accounting::of(self.shards.iter().map(|shard| &*shard.counters))
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Starts the thread that follows the user database; it ends when what is returned is dropped.
fn follow(follower: Follower, events: &SyncSender<Event>) -> io::Result<SyncSender<()>> {
    let (stop, is_stopped) = sync_channel(0);
    follower.start(events.clone(), is_stopped)?;
    Ok(stop)
}

/// The transports of a listener for datagrams, connections, or both, as `A, B and C`.
fn transports(config: &Config, has_datagrams: bool, has_streams: bool) -> String {
    let has_tls = config.tls.files().is_some();
    let has_dtls = config.tls.dtls_files().is_some();
    let all = [
        ("UDP", has_datagrams && config.addresses.udp),
        ("TCP", has_streams && config.addresses.tcp),
        ("TLS", has_streams && has_tls),
        ("DTLS", has_datagrams && has_dtls),
    ];
    let spoken = all.into_iter().filter(|(_, is_spoken)| *is_spoken);
    let spoken: Vec<_> = spoken.map(|(name, _)| name).collect();
    match &spoken[..] {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        _ => spoken.concat(),
    }
}

/// Says what became of certificates that were read again.
fn report_certificates(result: &Result<(), String>, out: &mut impl Write) {
    let _ = match result {
        Ok(()) => writeln!(out, "certificates read again; new connections use them"),
        Err(why) => writeln!(out, "warning: certificates not changed: {why}"),
    };
}

/// Each relayed transport address takes a descriptor: asks for as many as this process may have, and returns how many those are.
fn raise_descriptor_limit() -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused only where a sandbox forbids it; then the old limit holds and 508 is the answer beyond it.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
    getrlimit(Resource::Nofile).current
}

/// Leaves the accounting behind for scripts.
fn write_statistics(path: &Path, accounting: &Accounting) -> Result<(), ServeError> {
    std::fs::write(path, accounting.json() + "\n").map_err(|error| {
        ServeError::new(format!(
            "cannot write statistics-file {}: {error}",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests;
