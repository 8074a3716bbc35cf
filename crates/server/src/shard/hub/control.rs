//! Handles all traffic but relayed data: requests and ICMP errors for the engine, and the engine's commands.

use turnbuckle_datapath::{Payload, Run, SendQueue};
use turnbuckle_engine::{ClientTuple, DropReason, IcmpError, Outcome, RelayHandle, Transport};
use turnbuckle_wire::{AttributeType, Message};

use super::Hub;
use super::wanted::{Late, SocketDue, Wanted};
use crate::counters::{AcrossDrop, HubDrop, ShardCounters};
use crate::shard::across::Across;
use crate::shard::front::{Front, TunnelEvent};
use crate::shard::name;
use crate::shard::parking::Due;

/// The first two bytes of a Binding request (RFC 8489 §5).
const BINDING_REQUEST: [u8; 2] = [0, 1];

impl Hub {
    /// Handles a STUN message of a client, which begins at `start` of `payload`: an answer, a Send indication's data, or a drop.
    pub(in crate::shard) fn control<F: Front>(
        &mut self,
        client: ClientTuple,
        datagram: &[u8],
        payload: &impl Payload,
        start: usize,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        if datagram.starts_with(&BINDING_REQUEST) {
            self.counters.sessions.binding_requests.add(1);
        }
        if !self.parking.is_empty() {
            // guard: ask-once
            if self.parking.has(&client, datagram) {
                return self.drop_request(DropReason::RequestInProgress, &client);
            }
            // A connection's answers leave in the order of its requests, so that what waits there waits no longer.
            // guard: ask-order
            if client.transport.is_stream() {
                self.finish_parked_of(&client, front, tx);
            }
        }
        let outcome = match self.across.has_ingress(&client) {
            // mutant: shards-join-by-number.handed-on
            true => self.engine.handle_handed_on(self.now, client, datagram),
            false => self.engine.handle_stun(self.now, client, datagram),
        };
        let outcome = match outcome {
            Outcome::Ask(question) => {
                if (self.parking).park(self.now.time, client, Some(datagram), question) {
                    return;
                }
                self.engine.handle_finally(self.now, client, datagram)
            }
            outcome => outcome,
        };
        if !self.waits_for_users(&outcome, client, datagram) {
            self.carry_out(outcome, client, datagram, (payload, start), front, tx);
        }
    }

    /// Handles finally what has waited for the user database long enough. `front` reaches all clients.
    pub(in crate::shard) fn finish_parked<F: Front>(&mut self, front: &mut F, tx: &mut SendQueue) {
        while let Some(due) = self.parking.due(self.now.time) {
            self.finish(&due, true, front, tx);
        }
    }

    /// Has a request wait on that is neither served nor refused while the user database is being read. By UDP its client sends it again.
    fn waits_for_users(&mut self, outcome: &Outcome, client: ClientTuple, request: &[u8]) -> bool {
        // guard: V-63-users-streams
        matches!(outcome, Outcome::Dropped(DropReason::UsersDue))
            && client.transport.is_stream()
            && (self.parking).wait_for_users(self.now.time, client, request)
    }

    /// Handles finally what waits of a client.
    fn finish_parked_of<F: Front>(
        &mut self,
        client: &ClientTuple,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        while let Some(parked) = self.parking.of(client) {
            self.finish(&parked, false, front, tx);
        }
    }

    /// Handles what has waited. `may_wait`: it may do so again, since no later request of its connection is to be answered now.
    fn finish<F: Front>(&mut self, due: &Due, may_wait: bool, front: &mut F, tx: &mut SendQueue) {
        let client = due.client;
        let Some(request) = due.request.as_deref() else {
            return front.tunnel_changed(&client, TunnelEvent::UserAsked, tx);
        };
        if !front.has_client(&client) {
            return self.counters.dropped(HubDrop::SocketClosed, 1);
        }
        if self.forwarded_to_home(client, request) {
            return;
        }
        let outcome = self.engine.handle_finally(self.now, client, request);
        if may_wait && self.waits_for_users(&outcome, client, request) {
            return;
        }
        let staged = tx.stage(request);
        self.carry_out(outcome, client, request, (&staged, 0), front, tx);
    }

    /// Carries out what the engine has made of a STUN message, which begins at `start` of `payload`.
    fn carry_out<F: Front>(
        &mut self,
        outcome: Outcome,
        client: ClientTuple,
        datagram: &[u8],
        (payload, start): (&impl Payload, usize),
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        match outcome {
            Outcome::Done => {
                let refused = self.counters.answers.with_code(401);
                self.carry_out_commands(front, tx);
                if self.counters.answers.with_code(401) > refused && is_bare(datagram) {
                    self.counters.sessions.challenges.add(1);
                }
                self.changes
                    .answered(self.now.time, datagram, &mut self.engine, front);
            }
            Outcome::HandOver(handover) => match front.leave(&client, tx) {
                Some(stream) => self.across.leave(stream, handover),
                // A connection that is closed cannot be moved.
                None => {
                    self.engine.decline(client, *handover);
                    self.carry_out_commands(front, tx);
                }
            },
            Outcome::Ask(_) => unreachable!("what is handled finally asks nobody"),
            // guard: V-50-lines
            Outcome::Dropped(reason) => self.drop_request(reason, &client),
            // The ingress asks the right shard as soon as it knows that the client has no allocation here.
            Outcome::Elsewhere { .. } if self.across.has_ingress(&client) => {
                self.counters.dropped(DropReason::NoAllocation, 1);
            }
            Outcome::Elsewhere { shard } => {
                let shard = usize::try_from(shard).unwrap_or(usize::MAX);
                self.send_to_shard(shard, client, datagram);
            }
            Outcome::Relay(route) => {
                self.counters.datagrams.peer_out.queued(1);
                let (relay, peer) = (name::datagrams(route.relay), route.peer.address());
                let run = Run::single(start + route.data.start, route.data.len());
                if route.dont_fragment {
                    tx.forward_unfragmented(relay, peer, payload, run);
                } else {
                    tx.forward(relay, peer, payload, run, &[], 0);
                }
            }
        }
    }

    /// Counts a request that gets no response, and logs it if its source has reached its limit of responses.
    fn drop_request(&mut self, reason: DropReason, client: &ClientTuple) {
        self.counters.dropped(reason, 1);
        if reason == DropReason::UnverifiedBudget
            && let Some(code) = self.engine.withheld_error()
        {
            let source = client.remote.ip();
            self.changes.log.suppressed(source, code, self.now.time);
        }
    }

    /// Handles an ICMP error that a relay socket received.
    pub(in crate::shard) fn icmp<F: Front>(
        &mut self,
        relay: RelayHandle,
        error: IcmpError,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        match self.engine.handle_icmp(self.now, relay, error) {
            Outcome::Done => self.carry_out_commands(front, tx),
            // guard: V-50-lines.queued
            Outcome::Dropped(reason) => {
                self.counters.dropped(reason, 1);
                // it may have ended a tunnel
                self.carry_out_commands(front, tx);
            }
            Outcome::Ask(_)
            | Outcome::Elsewhere { .. }
            | Outcome::HandOver(_)
            | Outcome::Relay(_) => {
                unreachable!("an ICMP error is answered or dropped")
            }
        }
    }

    /// Handles the timers that are due.
    pub(in crate::shard) fn handle_timeout<F: Front>(&mut self, front: &mut F, tx: &mut SendQueue) {
        let due = self.engine.next_timeout();
        let is_due = std::mem::take(&mut self.is_due);
        if is_due || due.is_some_and(|due| due <= self.now.time) {
            self.engine.handle_timeout(self.now);
            self.carry_out_commands(front, tx);
        }
    }

    /// Sends the responses that the engine has ready, and keeps its commands about sockets for the end of the turn.
    pub(in crate::shard) fn carry_out_commands<F: Front>(
        &mut self,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        let Self {
            engine,
            counters,
            changes,
            across,
            sockets_due,
            joins,
            late,
            ..
        } = self;
        engine.with_commands(|command| match command.into() {
            Wanted::Join(connection, client) => joins.push((connection, client)),
            Wanted::Socket(due) => sockets_due.push(due),
            Wanted::Reply(to, bytes, why) => {
                counters.answered(to.transport, bytes);
                changes.note_answer(to, bytes, why);
                if is_handed_to_ingress(across, counters, &to, bytes) {
                    // The other shard sends it.
                } else if front.serves(to.transport) {
                    front.reply(to, bytes, tx);
                } else {
                    late.push(Late::Reply(to, bytes.into()));
                }
            }
            Wanted::Tunnel(client, event) if front.serves(client.transport) => {
                front.tunnel_changed(&client, event, tx);
            }
            Wanted::Tunnel(client, event) => late.push(Late::Tunnel(client, event)),
        });
        if front.serves(Transport::Tcp) {
            while let Some((connection, client)) = self.joins.pop() {
                self.join(connection, client, front, tx);
            }
        }
    }

    /// Carries out the commands that the turn's fronts could not, because they concern clients of other fronts. `front` reaches all clients.
    pub(in crate::shard) fn carry_out_rest<F: Front>(&mut self, front: &mut F, tx: &mut SendQueue) {
        for late in std::mem::take(&mut self.late) {
            match late {
                Late::Reply(to, bytes) => front.reply(to, &bytes, tx),
                Late::Tunnel(client, event) => front.tunnel_changed(&client, event, tx),
            }
        }
        if !self.joins.is_empty() {
            self.carry_out_commands(front, tx);
        }
    }

    /// Ends the allocation of a client whose connection or session is closed.
    pub(in crate::shard) fn disconnected(&mut self, client: &ClientTuple, is_orderly: bool) {
        self.changes
            .disconnected(self.now.time, &self.engine, client, is_orderly);
        while let Some(parked) = self.parking.of(client) {
            if parked.request.is_some() {
                self.counters.dropped(HubDrop::SocketClosed, 1);
            }
        }
        // guard: V-42-session-end
        self.engine.disconnected(self.now, client);
        self.client_gone(client);
    }

    /// Carries out the commands that remain after the connection of the client `closed` was closed during the flush of a turn. Nothing more can be sent
    /// in that turn.
    pub(in crate::shard) fn carry_out_after_flush(&mut self, closed: &ClientTuple) {
        let Self {
            engine,
            counters,
            changes,
            across,
            sockets_due,
            late,
            ..
        } = self;
        engine.with_commands(|command| match command.into() {
            Wanted::Tunnel(client, event) => late.push(Late::Tunnel(client, event)),
            // only the closed connection could have asked for these
            Wanted::Socket(SocketDue::Connect { .. }) | Wanted::Join(..) => {}
            Wanted::Socket(due) => sockets_due.push(due),
            // The response to a pending request has no receiver any more.
            Wanted::Reply(to, ..) if to == *closed => {
                counters.datagrams.client_out.queued(1);
                counters.datagrams.client_out.refused(1);
                counters.dropped(HubDrop::SocketClosed, 1);
            }
            // Another client's, whose peer was forbidden before the turn or closed its connection in the same flush.
            Wanted::Reply(to, bytes, why) => {
                counters.answered(to.transport, bytes);
                changes.note_answer(to, bytes, why);
                if !is_handed_to_ingress(across, counters, &to, bytes) {
                    late.push(Late::Reply(to, bytes.into()));
                }
            }
        });
    }
}

/// Returns whether a request has no credentials.
fn is_bare(request: &[u8]) -> bool {
    let proofs = [
        AttributeType::MESSAGE_INTEGRITY,
        AttributeType::MESSAGE_INTEGRITY_SHA256,
    ];
    Message::parse(request).is_ok_and(|it| proofs.iter().all(|&proof| it.raw(proof).is_none()))
}

/// Hands an answer to the client's ingress, if that is another shard. Returns whether it is.
fn is_handed_to_ingress(
    across: &mut Across,
    counters: &ShardCounters,
    to: &ClientTuple,
    answer: &[u8],
) -> bool {
    if !across.has_ingress(to) {
        return false;
    }
    if !across.send_to_ingress(to, answer.to_vec()) {
        counters.dropped(AcrossDrop::HandoverQueueFull, 1);
    }
    true
}
