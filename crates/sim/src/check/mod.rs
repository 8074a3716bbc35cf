//! The server under watch: each input goes to the model and to the engine, and what comes out is
//! compared before it goes on.
//!
//! [`Watched`] has one method per kind of input. Each lets the model say what may happen, hands the
//! input to the engine, compares ([`answer`]: requests; [`data`]: data), takes the change into the
//! model, and checks every invariant ([`invariants`]).

mod answer;
mod data;
mod invariants;
mod mirror;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use turnbuckle_engine::{
    Change, Config, DropReason, Outcome, RelayOpenError, RelayRequest, Statistics,
};
use turnbuckle_wire::{Class, Message};

use self::invariants::Ledger;
use self::mirror::{Mirror, Moment};
use crate::model::{Expect, Model, Nonces, Proof, Rules, Secrets, Tuple};
use crate::queue::SECOND;
use crate::random::Seeded;
use crate::server::{Opening, Server, Step, Verdict, clocks};
use crate::trace::{Trace, seconds};
use crate::violation::{Coverage, Violation, ensure};

/// A datagram on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// Payload.
    pub bytes: Vec<u8>,
}

/// What the server wants done after a step.
#[derive(Debug, Default)]
pub struct Output {
    /// Datagrams that leave.
    pub datagrams: Vec<Datagram>,
    /// Relay sockets to open.
    pub openings: Vec<Opening>,
}

/// A server and everything that is known about how it must behave.
#[derive(Debug)]
pub struct Watched {
    /// The engines and their host.
    pub server: Server,
    /// What they must do.
    pub model: Model,
    /// What has happened so far.
    pub trace: Trace,
    /// How often what happened.
    pub coverage: Coverage,
    nonces: Nonces,
    secrets: Secrets,
    mirror: Mirror,
    ledger: Ledger,
    /// The requests that wait for a socket.
    opening: BTreeMap<(usize, RelayRequest), Tuple>,
    serial: u64,
    /// When the server last came to life: what ran out before could not end earlier.
    alive_since: u64,
}

impl Watched {
    /// Makes a server that has just started.
    #[must_use]
    pub fn new(
        config: Config,
        rules: Rules,
        secrets: Secrets,
        nonces: Nonces,
        shard_count: usize,
        random: Seeded,
        trace: Trace,
    ) -> Self {
        let ledger = Ledger::new(config.unverified.clone());
        Self {
            server: Server::new(config, shard_count, random),
            model: Model::new(rules),
            trace,
            coverage: Coverage::default(),
            nonces,
            secrets,
            mirror: Mirror::default(),
            ledger,
            opening: BTreeMap::new(),
            serial: 0,
            alive_since: 0,
        }
    }

    /// Has a datagram arrive at a listener, and judges what becomes of it.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn from_client(
        &mut self,
        now: u64,
        from: Tuple,
        bytes: &[u8],
    ) -> Result<Output, Violation> {
        self.begin(now, bytes);
        match bytes.first() {
            Some(0..=3) => self.stun(now, from, bytes),
            Some(first) if self.is_channel(*first) => self.channel(now, from, bytes),
            // RFC 7983 §7: nothing that a relay speaks. The host drops it.
            _ => {
                self.trace
                    .line(|| format!("{} {from:?} junk", seconds(now)));
                self.coverage.count("junk", 0);
                Ok(Output::default())
            }
        }
    }

    fn statistics(&self) -> Vec<Statistics> {
        let shards = 0..self.server.shard_count();
        shards.map(|shard| self.server.statistics(shard)).collect()
    }

    fn is_channel(&self, first: u8) -> bool {
        let (low, high) = (
            self.model.rules.channels.start(),
            self.model.rules.channels.end(),
        );
        (low >> 8..=high >> 8).contains(&u16::from(first))
    }

    fn begin(&mut self, now: u64, bytes: &[u8]) {
        self.model.forget(now, SECOND);
        self.trace.number(now);
        self.trace.bytes(bytes);
    }

    fn stun(&mut self, now: u64, from: Tuple, bytes: &[u8]) -> Result<Output, Violation> {
        let before = self.statistics();
        let parsed = Message::parse(bytes);
        let source_valid = from.client.port() != 0 && !from.client.ip().is_multicast();
        let moved = parsed
            .as_ref()
            .is_ok_and(|message| self.model.is_data(from, message))
            && self.model.data_came(from, now);
        let shard = self.server.shard_of(from);
        let (expects, proof) = match &parsed {
            Err(_) => {
                let reasons = vec![DropReason::MalformedStun, DropReason::FingerprintMismatch];
                (vec![Expect::Silence(reasons)], Proof::default())
            }
            Ok(message) if !source_valid && message.class() == Class::Request => {
                let reasons = vec![
                    DropReason::SourceInvalid,
                    DropReason::MethodUnknown,
                    DropReason::ClassUnexpected,
                ];
                (vec![Expect::Silence(reasons)], Proof::default())
            }
            Ok(message) => {
                let unix_s = clocks(now).unix_s;
                let proof = self.secrets.prove(&self.nonces, from, unix_s, message);
                (self.expectations(now, shard, from, message, &proof), proof)
            }
        };
        let mut step = self.server.stun(now, from, bytes);
        self.trace.line(|| {
            format!(
                "{} {from:?} shard {} {} -> {}",
                seconds(now),
                step.shard,
                parsed.as_ref().map_or_else(ToString::to_string, describe),
                describe_step(&step),
            )
        });
        self.record(&step)?;
        self.moved(now, from, moved, &mut step)?;
        let Verdict::Message(outcome) = step.verdict.clone() else {
            return Err(Violation::new("model", "listener unknown to the engine"));
        };
        if let Ok(message) = &parsed
            && let Some(len) = self.model.counted_send(from, message)
        {
            self.mirror
                .count_usage(from, |usage| mirror::add(&mut usage.client_received, len));
        }
        let output = match (outcome, &parsed) {
            (Outcome::Dropped(reason), _) => {
                self.dropped(reason, &step)?;
                let request = parsed.as_ref().is_ok_and(|m| m.class() == Class::Request);
                let silence = expects
                    .iter()
                    .any(|expect| matches!(expect, Expect::Silence(r) if r.contains(&reason)));
                let shared = self.server.commons.unverified_bucket(from.client.ip());
                let over_budget = reason == DropReason::UnverifiedBudget
                    && request
                    && proof.user.is_none()
                    && self.ledger.may_be_over_budget(now, shared);
                ensure(silence || over_budget, "model", || {
                    format!("dropped as {reason:?}, expected {expects:?}")
                })?;
                Output::default()
            }
            (Outcome::Relay(route), Ok(_)) => self.relayed(from, bytes, &route, &step, &expects)?,
            (other @ Outcome::Elsewhere { .. }, Ok(_)) => {
                let text = format!("{other:?} from the shard that has the allocation");
                return Err(Violation::new("model", text));
            }
            (Outcome::Ask(question), Ok(_)) => {
                let text = format!("{question:?} without a user database");
                return Err(Violation::new("model", text));
            }
            (Outcome::HandOver(handover), Ok(_)) => {
                return Err(Violation::new(
                    "model",
                    format!("{handover:?} without TCP relays"),
                ));
            }
            (Outcome::Done, Ok(message)) => {
                self.answered(now, from, message, &proof, &expects, step)?
            }
            (other, Err(error)) => {
                return Err(Violation::new(
                    "model",
                    format!("{other:?} for a message that is {error}"),
                ));
            }
        };
        let proven = proof.user.is_some() && parsed.is_ok_and(|m| m.class() == Class::Request);
        if !proven {
            let mut after = self.statistics();
            if moved {
                // The transaction that made the allocation is remembered under its old 5-tuple.
                for (now, then) in after.iter_mut().zip(&before) {
                    now.tombstones = then.tombstones;
                }
            }
            ensure(before == after, "I9", || {
                format!("{before:?} became {after:?} by an input without proof")
            })?;
        }
        self.invariants(now)?;
        Ok(output)
    }

    /// Returns what may happen: what the RFC says of this moment, or, for a request, of what a server may
    /// still believe before its timers have fired. Data is judged by the moment alone (I2), but for
    /// a relayed address as the peer, whose owner's timer may not have fired.
    fn expectations(
        &self,
        now: u64,
        shard: usize,
        from: Tuple,
        message: &Message<'_>,
        proof: &Proof,
    ) -> Vec<Expect> {
        let exact = self.model.at(now);
        let mut expects = vec![exact.message(now, shard, from, message, proof)];
        if let Cow::Owned(mut lenient) = exact {
            lenient.lingering = self.model.in_use();
            expects.push(lenient.message(now, shard, from, message, proof));
            let believed = self.model.message(now, shard, from, message, proof);
            if !matches!(believed, Expect::Relay { .. }) {
                expects.push(believed);
            }
            // of what may be gone the token that is asked for alone may be there
            if let Ok(Some(token)) = message.reservation_token()
                && let Some(held) = self.model.reservations.get(&token)
            {
                lenient.reservations.insert(token, held.clone());
                expects.push(lenient.message(now, shard, from, message, proof));
            }
        }
        expects
    }

    /// Tells the engine that the host has tried to open a relay socket, and judges what it does.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn opened(
        &mut self,
        now: u64,
        opening: Opening,
        result: Result<(), RelayOpenError>,
    ) -> Result<Output, Violation> {
        self.begin(now, &[]);
        let mut output = Output::default();
        if let Some(step) = self.server.opened(now, opening, result) {
            self.trace.line(|| {
                format!(
                    "{} open {} {result:?} -> {}",
                    seconds(now),
                    opening.address,
                    describe_step(&step)
                )
            });
            self.record(&step)?;
            self.resolved(now, opening, result, step, &mut output)?;
            self.invariants(now)?;
        }
        Ok(output)
    }

    /// Has the host look at the timers of one shard, and judges what they do.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn timeout(&mut self, now: u64, shard: usize) -> Result<Output, Violation> {
        self.begin(now, &[]);
        let mut output = Output::default();
        // A call does a bounded amount of work and says so by staying due.
        for _ in 0..1000 {
            let step = self.server.timeout(now, shard);
            self.trace.line(|| {
                format!(
                    "{} timers of shard {shard} -> {}",
                    seconds(now),
                    describe_step(&step)
                )
            });
            self.record(&step)?;
            self.timed_out(now, step, &mut output)?;
            if self.server.next_timeout(shard).is_none_or(|due| due > now) {
                self.invariants(now)?;
                return Ok(output);
            }
        }
        Err(Violation::new(
            "I6",
            "1000 calls of handle_timeout and still due",
        ))
    }

    /// Has the server die and come back, and judges what it has rebuilt.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn crash(
        &mut self,
        now: u64,
        compact: bool,
        lost: impl FnMut(SocketAddr) -> bool,
    ) -> Result<Output, Violation> {
        self.begin(now, &[]);
        self.trace
            .line(|| format!("{} crash, journal compacted: {compact}", seconds(now)));
        let steps = self.server.crash(now, compact, lost);
        self.coverage.count("crash", u16::from(compact));
        self.opening.clear();
        self.model.pending.clear();
        self.model.doubt_reservations(now);
        if compact {
            self.mirror.record_usage();
        }
        self.mirror.forget_usage();
        self.alive_since = now;
        self.ledger.restart();
        for step in steps {
            self.record(&step)?;
            self.rebuilt(now, &step)?;
        }
        self.invariants(now)?;
        Ok(Output::default())
    }

    /// Checks that data moves an allocation to the new path that it came on (RFC 8016 §3.2.2). Takes that out of the step.
    fn moved(
        &mut self,
        now: u64,
        from: Tuple,
        moved: bool,
        step: &mut Step,
    ) -> Result<(), Violation> {
        if !moved {
            return Ok(());
        }
        self.coverage.count("moved", 0);
        let changes = std::mem::take(&mut step.changes);
        let to = match changes.as_slice() {
            [Change::Moved(moved)] => Some((moved.path.server, moved.path.client)),
            _ => None,
        };
        ensure(to == Some((from.server, from.client)), "model", || {
            format!("data on the new path {from:?} brought {changes:?}")
        })?;
        self.follow(now, &changes, step.shard)
    }

    /// Takes the changes of a step into the copy, lets the model forget what the engine has ended, and compares the two.
    fn follow(&mut self, now: u64, changes: &[Change], shard: usize) -> Result<(), Violation> {
        self.count_changes(changes);
        let at = self.moment(now);
        let beside = (&self.server, &mut self.model);
        self.mirror.follow(at, changes, shard, beside)
    }

    /// Follows what a rebuilt engine says about itself: only what it could not carry over.
    fn rebuilt(&mut self, now: u64, step: &Step) -> Result<(), Violation> {
        ensure(
            step.replies.is_empty() && step.opens.is_empty(),
            "I8",
            || "a rebuilt engine speaks unasked".to_owned(),
        )?;
        self.count_changes(&step.changes);
        let at = self.moment(now);
        for change in &step.changes {
            let beside = (&self.server, &mut self.model);
            self.mirror.follow_one(at, change, step.shard, beside)?;
        }
        Ok(())
    }

    fn moment(&self, now: u64) -> Moment {
        Moment {
            now,
            alive_since: self.alive_since,
        }
    }

    fn count_changes(&mut self, changes: &[Change]) {
        for change in changes {
            self.coverage.count("change", mirror::kind(change));
        }
    }

    /// Checks that relaying and dropping change nothing (RFC 8656 §9, §12.6: data refreshes nothing).
    fn no_effects(&self, step: &Step) -> Result<(), Violation> {
        let idle = step.replies.is_empty() && step.opens.is_empty() && step.changes.is_empty();
        ensure(idle, "model", || {
            format!("data had effects: {}", describe_step(step))
        })
    }

    fn dropped(&mut self, reason: DropReason, step: &Step) -> Result<(), Violation> {
        self.coverage.count("drop", reason as u16);
        self.no_effects(step)
    }

    fn record(&mut self, step: &Step) -> Result<(), Violation> {
        match &step.verdict {
            Verdict::Event => self.trace.number(0),
            Verdict::Message(Outcome::Done) => self.trace.number(1),
            Verdict::Message(Outcome::Elsewhere { shard }) => {
                self.trace.number(1 << 34 | u64::from(*shard));
            }
            Verdict::Message(Outcome::Ask(_)) => self.trace.number(1 << 35),
            Verdict::Message(Outcome::HandOver(_)) => self.trace.number(1 << 33),
            Verdict::Message(Outcome::Relay(route)) => {
                self.trace.number(2 + u64::from(route.relay.0));
            }
            Verdict::Channel(Ok(route)) => self.trace.number(2 + u64::from(route.relay.0)),
            Verdict::Peer(Ok(route)) => {
                self.trace.number(2 + u64::from(route.client.remote.port()));
            }
            Verdict::Message(Outcome::Dropped(reason))
            | Verdict::Channel(Err(reason))
            | Verdict::Peer(Err(reason)) => self.trace.number(1 << 32 | *reason as u64),
        }
        for (_, bytes) in &step.replies {
            self.trace.bytes(bytes);
        }
        for opening in &step.opens {
            self.trace.number(u64::from(opening.address.port()));
        }
        self.trace.number(step.changes.len() as u64);
        ensure(step.absurd.is_empty(), "sockets", || step.absurd.join(", "))
    }
}

fn describe(message: &Message<'_>) -> String {
    let id = message.transaction_id();
    let [a, b, c, ..] = id.as_bytes();
    format!(
        "{:?} {:?} {a:02x}{b:02x}{c:02x}",
        message.method(),
        message.class()
    )
}

fn describe_step(step: &Step) -> String {
    let mut text = format!("{:?}", step.verdict);
    for (to, bytes) in &step.replies {
        let reply = match Message::parse(bytes) {
            Ok(reply) => {
                let code = reply.error_code().ok().flatten().map_or(0, |e| e.code);
                format!("{} {code}", describe(&reply))
            }
            Err(error) => error.to_string(),
        };
        text += &format!("; reply {to:?} {reply}");
    }
    for opening in &step.opens {
        text += &format!("; open {}", opening.address);
    }
    for local in &step.closes {
        text += &format!("; close {local}");
    }
    for change in &step.changes {
        text += &format!("; {change:?}");
    }
    text
}

#[cfg(test)]
mod tests;
