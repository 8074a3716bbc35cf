//! Shows the engine's changes by reference to each follower, in their order.
//!
//! The followers are the log, the journal, and the parts that keep data beside an allocation. The log prints a change before the response to the
//! request that caused it, and the end of an allocation after that response. So each response that is logged reads the change stream, and
//! [`Changes::before_flush`] reads the rest. Nothing of a turn leaves the shard before that. None of this runs for relayed data. A response is
//! parsed again only if it is logged.

use turnbuckle_engine::{
    Action, AllocationId, Change, ClientTuple, Engine, Random, Refusal, Time, Transport,
};

use super::front::Front;
use super::sessions::Sessions;
use crate::journal::Journal;
use crate::journal::segment::Numbers;
use crate::log::{Answer, Asked, Denied, Log, Path, Seal};
use crate::offload::publisher::Publisher;

/// The followers of a shard's changes.
pub(in crate::shard) struct Changes {
    pub(in crate::shard) log: Log,
    /// What the kernel may relay; `None` where it relays nothing.
    pub(in crate::shard) publisher: Option<Publisher>,
    pub(in crate::shard) sessions: Sessions,
    /// What is written before anything leaves; `None` where calls end with the process.
    pub(in crate::shard) journal: Option<Journal>,
    /// Responses that have not been logged yet.
    answers: Vec<Answer>,
    /// Allocations that have ended since the last flush.
    ended: Vec<AllocationId>,
}

impl Changes {
    pub(in crate::shard) fn new(log: Log, sessions: Sessions) -> Self {
        Self {
            log,
            publisher: None,
            sessions,
            journal: None,
            answers: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Returns the time of the next timer of a follower.
    pub(in crate::shard) fn next_timeout(&self) -> Option<Time> {
        let publisher = self.publisher.as_ref();
        let due = publisher.and_then(Publisher::next_timeout);
        let due = self.log.next_timeout().into_iter().chain(due);
        due.chain(self.sessions.next_look()).min()
    }

    /// Remembers a response that is about to be sent, and why it refuses a request, if it is logged.
    #[inline]
    pub(in crate::shard) fn note_answer(
        &mut self,
        to: ClientTuple,
        answer: &[u8],
        why: Option<Refusal>,
    ) {
        if self.log.wants_answer(answer, why) {
            let answer = Answer::of(to, answer);
            self.answers
                .extend(answer.map(|answer| answer.because(why)));
        }
    }

    /// Shows the changes together with the responses that are about to be sent. Changes come first, ends of allocations last. `datagram` is the
    /// present request, if there is one.
    pub(in crate::shard) fn answered<R: Random>(
        &mut self,
        now: Time,
        datagram: &[u8],
        engine: &mut Engine<R>,
        front: &impl Front,
    ) {
        if self.answers.is_empty() {
            return; // Between requests nothing has an order but its own.
        }
        for answer in &self.answers {
            if let Some(seal) = self.seal_of(&answer.to, front) {
                self.log.sealed(path(engine, &answer.to), seal, now);
            }
        }
        let mut ends = Vec::new();
        while let Some(change) = engine.poll_change() {
            match &change {
                Change::Ended(ended) => {
                    self.log.releasing(ended);
                    ends.push(change);
                }
                _ => self.show(&change, front, engine, now),
            }
        }
        for answer in std::mem::take(&mut self.answers) {
            let mut asked = Asked::of(datagram, &answer);
            let user = asked.user.as_deref();
            asked.id = user.and_then(|user| engine.id_in_name(user).map(Box::from));
            let denied = denied_peer(engine, &answer, &asked);
            self.log
                .answered(path(engine, &answer.to), &answer, &asked, denied, now);
        }
        for change in &ends {
            self.show(change, front, engine, now);
        }
    }

    /// Shows all changes that have not been shown yet. It runs before anything is sent, and at the end of a turn. Returns the allocations that have
    /// ended.
    pub(in crate::shard) fn before_flush<R: Random>(
        &mut self,
        now: Time,
        engine: &mut Engine<R>,
        front: &impl Front,
    ) -> std::vec::Drain<'_, AllocationId> {
        self.answered(now, &[], engine, front);
        while let Some(change) = engine.poll_change() {
            self.show(&change, front, engine, now);
        }
        if let Some(journal) = &mut self.journal {
            // guard: V-63-written-ahead
            let sessions = &self.sessions;
            let written = journal.commit(now, engine, |allocation| sessions.number(allocation));
            if let Err(error) = written {
                self.log.warn(&format!(
                    "the journal cannot be written, so the calls of this shard do not survive: {error}"
                ));
            }
        }
        // guard: offload-flush
        if let Some(publisher) = &mut self.publisher {
            publisher.publish(now, engine, |end| {
                tell(&mut self.log, &mut self.sessions, &end, None, now);
            });
        }
        self.log.handle_timeout(now);
        self.sessions.look(now, engine, front);
        self.ended.drain(..)
    }

    /// Shows the allocations of a restored engine to those who know sessions by their `numbers`, which they keep; later ones have higher numbers.
    /// No line is logged for them, what they have relayed is not reported again, and the kernel is to relay their channels again.
    pub(in crate::shard) fn restored<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        numbers: &Numbers,
    ) {
        if let Some((_, highest)) = numbers.highest {
            self.log.number_after(highest);
        }
        for slot in 0..engine.session_slots() {
            engine.snapshot(now, slot, |change| {
                let Change::Created(created) = change else {
                    return;
                };
                let number = numbers.of(created.allocation);
                let number = number.unwrap_or_else(|| self.log.number(created));
                let usage = engine.session_at(slot).map(|held| *held.usage());
                self.sessions
                    .restored(created, number, usage.unwrap_or_default(), now);
                self.log.restored(change, number, now);
                if let Some(publisher) = &mut self.publisher {
                    publisher.restored(created.allocation);
                }
            });
        }
    }

    /// Shows one change to each follower.
    fn show<R: Random>(
        &mut self,
        change: &Change,
        front: &impl Front,
        engine: &Engine<R>,
        now: Time,
    ) {
        if let Some(journal) = &mut self.journal
            && !change.is_of_tunnel()
        {
            journal.append(change);
        }
        let mut seal = None;
        match change {
            Change::Created(created) => {
                let number = self.log.number(created);
                self.sessions.begin(created, number);
                if let Some(journal) = &mut self.journal {
                    journal.append_number(created.allocation, number);
                }
                let client = engine.session_at(created.allocation.slot());
                let client = client.filter(|_| self.sessions.has_consumer());
                seal = client.and_then(|held| front.protection(held.client()));
            }
            Change::Ended(ended) => self.ended.push(ended.allocation),
            _ => {}
        }
        let publisher = self.publisher.as_mut();
        if !publisher.is_some_and(|publisher| publisher.note(change)) {
            tell(&mut self.log, &mut self.sessions, change, seal, now);
        }
    }

    /// Ends what the kernel relays that the rules forbid now.
    pub(in crate::shard) fn rules_changed<R: Random>(&mut self, now: Time, engine: &mut Engine<R>) {
        if let Some(publisher) = &mut self.publisher {
            publisher.reconsider();
            publisher.publish(now, engine, |end| {
                tell(&mut self.log, &mut self.sessions, &end, None, now);
            });
        }
    }

    /// Ends all that the kernel relays, because the shard ends.
    pub(in crate::shard) fn stop<R: Random>(&mut self, now: Time, engine: &mut Engine<R>) {
        if let Some(publisher) = &mut self.publisher {
            publisher.stop(engine, |end| {
                tell(&mut self.log, &mut self.sessions, &end, None, now);
            });
        }
    }

    /// Leaves to the next relay what the kernel relays, because this one hands everything over.
    pub(in crate::shard) fn leave<R: Random>(&mut self, now: Time, engine: &mut Engine<R>) {
        if let Some(publisher) = self.publisher.take() {
            publisher.leave(engine, |end| {
                tell(&mut self.log, &mut self.sessions, &end, None, now);
            });
        }
    }

    /// Logs that a client's connection is closed, before the end of its allocation is logged.
    pub(in crate::shard) fn disconnected<R: Random>(
        &mut self,
        now: Time,
        engine: &Engine<R>,
        client: &ClientTuple,
        is_orderly: bool,
    ) {
        self.log.disconnected(path(engine, client), is_orderly, now);
    }

    /// Returns the cipher suite and version that protect a client, if the log prints them.
    fn seal_of(&self, client: &ClientTuple, front: &impl Front) -> Option<Seal> {
        let is_wanted = self.log.tells_as_coturn()
            && matches!(client.transport, Transport::Tls | Transport::Dtls)
            && front.serves(client.transport);
        is_wanted.then(|| front.protection(client)).flatten()
    }
}

/// Shows a change to those who know sessions by their numbers.
fn tell(log: &mut Log, sessions: &mut Sessions, change: &Change, seal: Option<Seal>, now: Time) {
    let number = sessions.number(change.allocation());
    log.change(change, number, now);
    sessions.show(change, number, seal, now);
}

/// Returns the peer that was denied to a request, and why.
fn denied_peer<R: Random>(engine: &Engine<R>, answer: &Answer, asked: &Asked) -> Option<Denied> {
    if answer.error != Some(403) {
        return None;
    }
    asked.peers.iter().find_map(|&peer| {
        let explanation = engine.explain(&answer.to, peer);
        explanation.forbidden()?;
        let rule = explanation.rule().map(|(_, rule)| rule);
        let rule = rule.filter(|rule| rule.action == Action::Deny);
        Some(Denied {
            peer: peer.ip(),
            why: explanation.to_string(),
            range: rule.map(|rule| {
                let (first, last) = (rule.range.first(), rule.range.last());
                match first == last {
                    true => first.to_string(),
                    false => format!("{first}-{last}"),
                }
            }),
        })
    })
}

fn path<R: Random>(engine: &Engine<R>, client: &ClientTuple) -> Path {
    Path {
        server: engine.listener_address(client.listener),
        client: client.remote,
        transport: client.transport,
    }
}
