//! What shards do: turns, what leaves them, and what becomes of it when one fails or all are killed.

use std::net::SocketAddr;

use turnbuckle_datapath::{EndpointId, StreamListenerId};
use turnbuckle_engine::Belongings;
use turnbuckle_server::simulation::{Shard, Source};

use super::super::host::Owner;
use super::super::kernel::Kernel;
use super::super::meter::Meter;
use super::super::path::{Path, Sent};
use super::operator::config;
use super::rules::Datagram;
use super::{ASKED_MAX, Event, Phase, STRANGERS, ShardsWorld, claims};
use crate::plan;
use crate::queue::{MS, SECOND};
use crate::random::Seeded;
use crate::trace::seconds;
use crate::violation::{Violation, ensure};

/// How often the thread of a shard fails in a turn while things go wrong, and how often the process is killed: once in so many turns.
const FAILS_ONCE_IN: u64 = 250;
const KILLED_ONCE_IN: u64 = 800;

/// A shard over its data path.
pub(super) struct Running {
    pub(super) shard: Shard,
    pub(super) path: Path,
    /// By family.
    pub(super) listeners: [EndpointId; 2],
    /// Kept beside its listeners for connections, by family.
    pub(super) tokens: [u64; 2],
    /// When its next turn is.
    pub(super) due: u64,
    /// It stands still until then.
    pub(super) stalled_until: u64,
}

impl Running {
    /// Joins a shard with its data path for the first time.
    pub(super) fn new(shard: Shard, mut path: Path, shared: &[SocketAddr]) -> Self {
        let token = Shard::datagrams_token();
        let listeners = plan::LISTENERS.map(|local| path.listen(local, token));
        let mut running = Self {
            shard,
            path,
            listeners,
            tokens: [0; 2],
            due: 0,
            stalled_until: 0,
        };
        running.open(shared);
        running
    }

    /// Checks that the shard would relay what the kernel relays.
    pub(super) fn agrees(&mut self) -> Result<(), Violation> {
        let disagreement = self.shard.disagreement();
        ensure(disagreement.is_none(), "published", || {
            disagreement.unwrap_or_default()
        })
    }

    /// Makes the shard know what clients and peers are listened to at. `shared` are its relay sockets that allocations share.
    fn open(&mut self, shared: &[SocketAddr]) {
        let Self { shard, path, .. } = self;
        for &local in shared {
            let token = Shard::shared_relay_token();
            let kept = path.take_over(local, token);
            let relay = kept.unwrap_or_else(|| {
                let opened = path.share_relay(local, token);
                opened.expect("only this shard takes the port")
            });
            shard.add_shared_relay(relay, local);
        }
        for (listener, local) in self.listeners.into_iter().zip(plan::LISTENERS) {
            shard.add_listener(listener, local);
        }
        let listeners = (0..).map(StreamListenerId::from_u32);
        for ((token, local), name) in self.tokens.iter_mut().zip(plan::LISTENERS).zip(listeners) {
            *token = shard.add_stream_listener(name, local);
        }
    }
}

impl ShardsWorld {
    /// Has a shard take a turn at `at`, unless it does so earlier.
    pub(super) fn turn_by(&mut self, shard: usize, at: u64) {
        let running = &mut self.shards[shard];
        let at = at.max(running.stalled_until);
        let now = self.queue.now();
        if running.due < now || running.due > at {
            running.due = at.max(now);
            self.queue.at(running.due, Event::Turn(shard));
        }
    }

    pub(super) fn turn(&mut self, index: usize) -> Result<(), Violation> {
        let now = self.queue.now();
        if self.phase == Phase::Faults && self.random.one_in(FAILS_ONCE_IN) {
            self.fail(index);
        }
        if self.phase == Phase::Faults
            && self.operator.way.is_kept
            && self.random.one_in(KILLED_ONCE_IN)
        {
            self.kill();
        }
        if self.phase == Phase::Faults && self.random.one_in(200) {
            self.seen.coverage.count("stalls", 0);
            self.shards[index].stalled_until = now + self.random.between(1, 3000) * MS;
            let homes = self.homes_known_at();
            for client in &mut self.clients {
                let losses = &mut client.special.losses;
                if now <= losses.homes {
                    losses.homes = homes;
                }
            }
        }
        let kernel = self.host.lock().kernel.clone();
        if let Some(kernel) = &kernel {
            kernel.show(now);
        }
        let running = &mut self.shards[index];
        running.due = 0;
        let sent = running.path.turn(running.shard.handler());
        let freed_early = kernel.map_or(0, |it| it.freed_early());
        ensure(freed_early == 0, "grace", || {
            format!("{freed_early} lines were given back too early")
        })?;
        // Nothing of what left has arrived yet: whoever hears of an end finds that the kernel has ended it.
        running.agrees()?;
        // What the kernel leaves to the shard, because it is not published, being written or has expired there, finds a socket and a route.
        let mut elsewhere = None;
        let unserved = running.shard.unserved(|relay| {
            if !matches!(self.host.owner(relay), Some(Owner::Relay(shard, _)) if shard == index) {
                elsewhere = Some(format!("shard {index} has no socket at {relay}"));
            }
            self.seen.coverage.count("channels served", 0);
        });
        let unserved = unserved.or(elsewhere);
        ensure(unserved.is_none(), "served", || {
            unserved.unwrap_or_default()
        })?;
        let timeout = running.shard.timeout();
        let has_work = running.path.has_work();
        for sent in sent {
            self.left(index, sent)?;
        }
        let wait = timeout.map_or(5 * SECOND, |it| {
            u64::try_from(it.as_nanos())
                .unwrap_or(u64::MAX)
                .min(5 * SECOND)
        });
        let wait = if has_work { wait.min(MS) } else { wait };
        self.turn_by(index, now + wait.max(50_000));
        let crowded = self.operator.server.crowded();
        ensure(crowded.is_none(), "fairness", || {
            crowded.unwrap_or_default()
        })?;
        for other in 0..self.shards.len() {
            if self.shards[other].shard.was_woken() {
                self.turn_by(other, now + 50_000);
            }
        }
        self.accounts()
    }

    /// Checks that every datagram that was shown is out, or dropped for one reason, or on its way to another shard.
    pub(super) fn accounts(&self) -> Result<(), Violation> {
        let shards = self.shards.iter().map(|running| &running.shard);
        let (sum, under_way) = Shard::accounting(shards);
        let shown: u64 = self.shards.iter().map(|running| running.path.shown).sum();
        let lefts = || self.shards.iter().map(|running| running.path.left());
        let left: i64 = lefts().map(|(left, _)| left).sum();
        let are_datagrams = lefts().all(|(_, are_datagrams)| are_datagrams);
        // What the kernel relays is in and out without being shown, what it drops is in and dropped.
        let shown = shown + sum.total_by_kernel() + sum.dropped_by_kernel();
        let came_in = shown + sum.total_begun();
        // Payloads of tunnels by QUIC are in and out inside of datagrams that are in and out too.
        let within = sum.total_by_kernel() + sum.total_within();
        let left = left + i64::try_from(within).unwrap_or(i64::MAX);
        let waiting = under_way + sum.total_waiting();
        let known = sum.total_out() + sum.total_drops() + waiting;
        // A Connect request is answered when its connection is there, and a ConnectionBind by the shard that its connection moves to.
        let asked = sum.total_in().checked_sub(known);
        let most = match are_datagrams || self.phase == Phase::Quiet {
            true => 0,
            false => ASKED_MAX,
        };
        let payloads = sum.total_in().checked_sub(came_in);
        let payloads_max = match are_datagrams {
            true => self.guests.quic.payloads,
            false => u64::MAX, // messages on streams are not shown one by one
        };
        let is_exact = asked.is_some_and(|asked| asked <= most)
            && payloads.is_some_and(|payloads| payloads <= payloads_max)
            && i64::try_from(sum.total_out()) == Ok(left)
            && (self.phase != Phase::Quiet || waiting == 0);
        ensure(is_exact, "accounts", || {
            format!(
                "{shown} were shown, {left} left, {waiting} are under way; {}",
                sum.line()
            )
        })
    }

    /// Checks a datagram that has left a shard, and sends it on.
    fn left(&mut self, shard: usize, sent: Sent) -> Result<(), Violation> {
        let Sent {
            from,
            to,
            is_relayed,
            found,
            bytes,
        } = sent;
        self.seen.trace.number(u64::from(to.port()));
        self.seen.trace.bytes(&bytes);
        self.seen.trace.line(|| {
            let at = seconds(self.queue.now());
            format!("{at} shard {shard}: {from} -> {to}, {} bytes", bytes.len())
        });
        if is_relayed && plan::place(to) == plan::Place::Relay {
            self.seen.coverage.count("hairpins", 0);
            ensure(matches!(found, Some(Owner::Relay(..))), "sockets", || {
                format!("{from} sent to {to}, where no relay socket is but {found:?}")
            })?;
        }
        ensure(
            !is_relayed || plan::place(to) != plan::Place::Listener,
            "sockets",
            || format!("{from} sent to a listener"),
        )?;
        ensure(!is_relayed || plan::may_be_peer(to.ip()), "policy", || {
            format!("{from} sent to {to}, which nobody may reach")
        })?;
        if !is_relayed && plan::place(to) == plan::Place::Nowhere {
            self.strangers
                .meter
                .sent(self.queue.now(), to.ip(), bytes.len())?;
            self.seen.coverage.count("answers to strangers", 0);
            return Ok(());
        }
        self.allowed(from, to, &bytes)?;
        self.send(from, to, bytes);
        Ok(())
    }

    /// Checks that what is relayed is not forbidden, and that nobody has another one's peer.
    pub(super) fn allowed(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let Some(relayed) = Datagram::of(&self.clients, from, to, bytes) else {
            return Ok(());
        };
        self.operator.rules.allow(&relayed)?;
        if self
            .operator
            .relays
            .shared
            .iter()
            .flatten()
            .any(|it| *it == relayed.by)
        {
            self.seen.coverage.count("data by shared ports", 0);
            claims::check(&self.clients, &relayed, self.queue.now())?;
        }
        Ok(())
    }

    /// Returns the shard that the kernel gives a 5-tuple to.
    pub(super) fn steered(&self, from: SocketAddr) -> usize {
        let mut mixed = Seeded::new(u64::from(from.port()));
        mixed.index(self.shards.len())
    }

    /// Returns the shard that a datagram comes to: that of its 5-tuple, or where the kernel reads connection ids of QUIC, the one that its id names.
    pub(super) fn ingress(&mut self, from: SocketAddr, bytes: &[u8]) -> usize {
        let hashed = self.steered(from);
        let issuer = self.operator.server.issuer_of(bytes);
        // A forged id may name a shard that there is not.
        match issuer.filter(|it| *it != hashed && *it < self.shards.len()) {
            Some(issuer) if self.operator.way.is_steered => issuer,
            Some(_) => {
                self.seen.coverage.count("datagrams for another shard", 0);
                hashed
            }
            None => hashed,
        }
    }

    /// Has a shard take a turn within a moment.
    pub(super) fn soon(&mut self, shard: usize) {
        let delay = self.random.between(0, 2_000_000);
        self.turn_by(shard, self.queue.now() + delay);
    }

    /// Returns when the shards have told each other of the clients that moved, if they begin now: nobody stands still any more.
    fn homes_known_at(&self) -> u64 {
        let stalls = self.shards.iter().map(|running| running.stalled_until);
        stalls.fold(self.queue.now(), u64::max) + 100 * MS
    }

    /// Has the thread of a shard fail in the midst of a turn, and starts the shard anew, without its connections. Its allocations go on if they are in its
    /// journal.
    fn fail(&mut self, index: usize) {
        let now = self.queue.now();
        let homes = self.homes_known_at();
        let is_kept = self.operator.way.is_kept;
        let coverage = &mut self.seen.coverage;
        coverage.count("failures of shards", u16::from(is_kept));
        self.guests.quic.lose(now, Some(index));
        for client in &mut self.clients {
            client.special.losses.homes = homes;
            client.special.losses.sessions = homes;
            if is_kept {
                client.special.losses.reservations = now;
                client.reserved = None;
                continue;
            }
            client.special.losses.allocations = now;
            let owner = client.relayed.and_then(|at| self.host.owner(at));
            if matches!(owner, Some(Owner::Relay(home, _)) if home == index) {
                client.lose();
            }
        }
        let mut running = self.shards.remove(index);
        running.path.fail(running.shard.handler());
        running.path.close(|_| is_kept);
        let kernel = self.host.lock().kernel.clone();
        if let Some(kernel) = &kernel {
            kernel.show(now);
            kernel.set_failing(true);
        }
        let random = self.randomness(index);
        let left;
        (running.shard, left) = self.operator.server.restart(index, running.shard, random);
        if let Some(kernel) = &kernel {
            kernel.set_failing(false);
        }
        // A shard that cannot be started is started again until it can.
        let faults = std::mem::take(&mut self.host.lock().faults);
        running.open(&self.operator.relays.shared_of(index));
        self.begin(index, &mut running, Some(left));
        self.host.lock().faults = faults;
        running.shard.announce_roamers();
        self.shards.insert(index, running);
        self.turn_by(index, now);
    }

    /// Kills the process of the server in the midst of everything, and has the next one take over what the journals say, on the sockets that are left.
    /// Connections are gone, what waits at other sockets is not.
    fn kill(&mut self) {
        self.seen.coverage.count("kills", 0);
        if self.operator.server.journals_begun_anew() > 0 {
            self.seen
                .coverage
                .count("kills while a journal is begun anew", 0);
        }
        let now = self.queue.now();
        let homes = self.homes_known_at();
        self.guests.quic.lose(now, None);
        for client in &mut self.clients {
            client.special.losses.homes = homes;
            client.special.losses.sessions = homes;
            client.special.losses.reservations = now;
            client.reserved = None;
        }
        for running in &mut self.shards {
            running.path.fail(running.shard.handler());
        }
        self.host.lock().kernel = None;
        let mut left = std::mem::take(&mut self.shards);
        let config = config(&self.operator.relays, &self.operator.rules);
        self.operator.server = self.operator.server.after(config);
        let is_offloaded = self.operator.way.is_offloaded;
        if is_offloaded {
            let kernel = Kernel::default();
            self.operator.server.commons().set_meters(kernel.meters());
            self.host.lock().kernel = Some(kernel);
        }
        // What the process had goes with it: before the next one begins nobody holds a port but by a socket.
        for (index, running) in left.iter_mut().enumerate() {
            let random = self.randomness(index);
            running.shard = self.operator.server.shard(index, random);
        }
        for (index, mut running) in left.into_iter().enumerate() {
            running.path.begin_counting();
            running.open(&self.operator.relays.shared_of(index));
            self.begin(index, &mut running, Some(Belongings::default()));
            self.shards.push(running);
        }
        for running in &mut self.shards {
            running.shard.announce_roamers();
        }
        self.strangers.meter = Meter::new(STRANGERS);
        for index in 0..self.shards.len() {
            self.turn_by(index, now);
        }
    }

    /// Has a shard begin, for the first time or in the place of one that has `left` something beside its journal.
    pub(super) fn begin(&self, index: usize, running: &mut Running, left: Option<Belongings>) {
        let Running { shard, path, .. } = running;
        if let Some(kernel) = self.host.lock().kernel.clone() {
            shard.publish_to(kernel);
        }
        let mut taken = self.operator.relays.shared_of(index);
        if self.operator.way.is_kept {
            let mut socket_of = |local, token| {
                taken.push(local);
                let shared = self.operator.relays.shared.iter().flatten();
                let is_shared = shared.copied().any(|it| it == local);
                let token = if is_shared {
                    Shard::shared_relay_token()
                } else {
                    token
                };
                path.take_over(local, token)
            };
            let begun = self
                .operator
                .server
                .begin_journal(index, shard, left, &mut socket_of);
            begun.expect("the journal is whole");
        }
        path.close(|local| taken.contains(&local));
        let config = config(&self.operator.relays, &self.operator.rules).into();
        shard.reconfigure(&config);
        if self.operator.rules.terms(0).draining_since.is_some() {
            shard.drain();
        }
    }

    fn randomness(&mut self, index: usize) -> Source {
        let mut drawn = self.random.fork(&format!("shard {index}, once more"));
        self.random.next_u64();
        Box::new(move |bytes| drawn.fill_bytes(bytes))
    }
}
