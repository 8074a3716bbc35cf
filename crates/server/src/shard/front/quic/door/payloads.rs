//! Payloads of tunnels, both ways: runs of clients' to the engine, and those of targets into QUIC.

use std::net::SocketAddr;

use turnbuckle_datapath::{Received, Run, SendQueue};
use turnbuckle_engine::{AllocationId, ClientTuple};
use turnbuckle_masque::h3::{NotSent, Payload, Way};
use turnbuckle_quic::ConnectionName;

use super::super::Quic;
use super::{Door, lose};
use crate::counters::{QuicDrop, ShardCounters};
use crate::shard::hub::Hub;
use crate::shard::train::payloads;

/// Payloads of one run, and the bytes of their beginning: a train is shorter.
const RUN_COUNT_MAX: usize = 64;
const RUN_LEN_MAX: usize = 32 * 1024;

/// Payloads after which a turn relays no further ones. A packet may bring some hundred empty ones, so that the share that a turn has of packets does not
/// bound them.
const PER_TURN: usize = 2_048;
/// The same while there are allocations, for which calls wait: as many as messages of one stream (`shard/front/stream`).
const BESIDE_CALLS: usize = 512;
/// The part of it that one connection has before all others that wait have had theirs.
const OF_CONNECTION: usize = 256;
/// Payloads that may wait for later turns, of one connection and of all.
const KEPT_OF_CONNECTION_MAX: usize = 1_024;
const KEPT_MAX: usize = 8_192;

impl Quic {
    /// Sends a run of payloads of a tunnel's target to its client.
    pub(in crate::shard::front::quic) fn forward(
        &mut self,
        client: &ClientTuple,
        message: &Received<'_>,
        run: Run,
        source: Option<SocketAddr>,
        counters: &ShardCounters,
    ) {
        let source = source.unwrap_or(message.remote);
        let (mut frames, mut capsules, mut congested, mut too_large) = (0, 0, 0, 0);
        let found = self.door.stream_of(client);
        if let Some((name, stream)) = found {
            self.endpoint.with(self.now, name, |connection, http| {
                let (server, mut below) = http.on(connection);
                for payload in payloads(message.bytes, run) {
                    match server.send(&mut below, stream, source, payload) {
                        Ok(Way::Frame) => frames += 1,
                        Ok(Way::Capsule) => capsules += 1,
                        Err(NotSent::Congested) => congested += 1,
                        Err(NotSent::TooLarge) => too_large += 1,
                        Err(NotSent::NoTunnel | NotSent::Unwanted) => {}
                    }
                }
            });
            self.door.queue(name, frames);
        }
        let nowhere = run.count as u64 - frames - capsules - congested - too_large;
        counters.datagrams.carried.add(capsules);
        for (reason, count) in [
            (QuicDrop::Queue, congested),
            (QuicDrop::DatagramTooLarge, too_large),
            (QuicDrop::NoTunnel, nowhere),
        ] {
            if count > 0 {
                counters.dropped(reason, count);
            }
        }
    }

    /// Counts what connections have sent of the payloads that they were handed.
    pub(in crate::shard::front::quic) fn count_carried(&mut self, counters: &ShardCounters) {
        let Self { door, endpoint, .. } = self;
        let Door {
            connections,
            carrying,
            queued,
            ..
        } = door;
        let mut carried = 0;
        carrying.retain(|name| {
            let connection = connections.get_mut(name.place()).and_then(Option::as_mut);
            let (Some(connection), Some(sent)) = (connection, endpoint.datagrams_sent(*name))
            else {
                return true; // it has ended, which will be told
            };
            let sent = sent.min(connection.queued);
            carried += sent - connection.carried;
            connection.carried = sent;
            connection.is_carrying = sent < connection.queued;
            connection.is_carrying
        });
        *queued -= carried;
        // mutant: shards-count-no-carried
        counters.datagrams.carried.add(carried);
        counters.connections.quic_queued.set(*queued);
    }
}

impl Door {
    /// Gives the turn that begins its share of payloads.
    pub(in crate::shard::front::quic) fn turn_started(&mut self, has_calls: bool) {
        self.later.share = match has_calls {
            true => BESIDE_CALLS,
            false => PER_TURN,
        };
    }

    /// Returns whether payloads wait for a later turn.
    pub(in crate::shard::front::quic) fn keeps_payloads(&self) -> bool {
        !self.later.unfinished.is_empty()
    }

    /// Takes the payloads that have come on a connection out of `came`. They are relayed if nothing waits that came before and the share goes so far; else
    /// they wait, and those for which there is no room are lost.
    pub(in crate::shard::front::quic) fn take_in(
        &mut self,
        name: ConnectionName,
        came: &mut Vec<Payload<AllocationId>>,
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) {
        let room = KEPT_MAX - self.later.kept;
        let share = self.later.share.min(OF_CONNECTION);
        let connection = self
            .connections
            .get_mut(name.place())
            .and_then(Option::as_mut);
        match connection {
            // guard: V-88-payloads
            Some(connection) if !connection.kept.is_empty() || came.len() > share => {
                let room = room.min(KEPT_OF_CONNECTION_MAX - connection.kept.len());
                let is_listed = !connection.kept.is_empty();
                let lost = came.len().saturating_sub(room);
                came.truncate(room);
                self.later.kept += came.len();
                connection.kept.extend(came.drain(..));
                if !is_listed && !connection.kept.is_empty() {
                    self.later.unfinished.push_back(name);
                }
                lose(lost, hub);
            }
            _ => {
                self.later.share -= came.len().min(self.later.share);
                self.relay(came, hub, tx);
                came.clear();
            }
        }
    }

    /// Relays what waits, as far as the share of the turn goes: of one connection after the other.
    pub(in crate::shard::front::quic) fn go_on(&mut self, hub: &mut Hub, tx: &mut SendQueue) {
        while self.later.share > 0
            && let Some(name) = self.later.unfinished.pop_front()
        {
            let share = self.later.share.min(OF_CONNECTION);
            let Some(connection) = self.connection(name) else {
                continue; // it has ended
            };
            let count = connection.kept.len().min(share);
            let part: Vec<_> = connection.kept.drain(..count).collect();
            if !connection.kept.is_empty() {
                self.later.unfinished.push_back(name);
            }
            self.later.kept -= count;
            self.later.share -= count;
            self.relay(&part, hub, tx);
        }
    }

    /// Relays payloads of clients to the targets of their tunnels: those of one tunnel, one target and one length together.
    fn relay(&mut self, came: &[Payload<AllocationId>], hub: &mut Hub, tx: &mut SendQueue) {
        let mut rest = came;
        while let Some(first) = rest.first() {
            let len = first.bytes.len();
            let count_max = RUN_LEN_MAX
                .checked_div(len)
                .unwrap_or(1)
                .clamp(1, RUN_COUNT_MAX);
            let is_same =
                |it: &Payload<AllocationId>| (it.tunnel, it.to) == (first.tunnel, first.to);
            let is_next = |it: &&Payload<AllocationId>| is_same(it) && it.bytes.len() == len;
            let mut count = rest.iter().take(count_max).take_while(is_next).count();
            let mut last_len = len;
            if let Some(last) = rest.get(count)
                && count < count_max
                && is_same(last)
                && (1..len).contains(&last.bytes.len())
            {
                count += 1;
                last_len = last.bytes.len();
            }
            let (taken, after) = rest.split_at(count);
            self.run.clear();
            for payload in taken {
                self.run.extend_from_slice(&payload.bytes);
            }
            let staged = tx.stage(&self.run);
            let run = Run {
                start: 0,
                stride: len,
                len,
                last_len,
                count,
            };
            hub.counters.datagrams.client_in.add(count as u64);
            hub.tunnelled(first.tunnel, first.to, run, &staged, tx);
            rest = after;
        }
    }

    /// Notes payloads that were handed to a connection in DATAGRAM frames.
    fn queue(&mut self, name: ConnectionName, frames: u64) {
        let connection = self
            .connections
            .get_mut(name.place())
            .and_then(Option::as_mut);
        if let Some(connection) = connection.filter(|_| frames > 0) {
            connection.queued += frames;
            self.queued += frames;
            if !std::mem::replace(&mut connection.is_carrying, true) {
                self.carrying.push(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use turnbuckle_engine::Time;
    use turnbuckle_quic::Bytes;

    use super::*;
    use crate::counters::Accounting;
    use crate::shard::hub::tests::{LISTENER, hub};

    fn door(connections: usize) -> Door {
        let mut door = Door::new(None, false);
        for place in 0..connections {
            let remote = SocketAddr::from(([198, 51, 100, 7], 4000));
            door.begun(ConnectionName::at(place), LISTENER, remote);
        }
        door
    }

    /// Returns payloads of a tunnel that is gone, so that it counts each that is relayed.
    fn empty(count: usize) -> Vec<Payload<AllocationId>> {
        let payload = Payload {
            tunnel: AllocationId::from_u64(1),
            to: None,
            bytes: Bytes::new(),
        };
        vec![payload; count]
    }

    /// Returns how many payloads wait of each connection.
    fn kept(door: &Door) -> Vec<usize> {
        let connections = door.connections.iter().flatten();
        connections
            .map(|connection| connection.kept.len())
            .collect()
    }

    #[test]
    fn a_turn_relays_a_share_of_the_payloads_of_a_packet_and_the_next_ones_the_rest() {
        let (mut hub, mut tx) = (hub(), SendQueue::new(1));
        let counters = std::sync::Arc::clone(&hub.counters);
        let mut door = door(1);
        let name = ConnectionName::at(0);
        door.turn_started(true);
        let mut came = empty(1_000);
        door.take_in(name, &mut came, &mut hub, &mut tx);
        let mut handled = vec![counters.datagrams.client_in.get()];
        while door.keeps_payloads() {
            assert_eq!(door.next_timeout(), Some(Time::ZERO), "a turn is due");
            door.go_on(&mut hub, &mut tx);
            handled.push(counters.datagrams.client_in.get());
            door.turn_started(true);
        }
        assert_eq!(handled, [0, 512, 1_000]);
        assert_eq!(door.next_timeout(), None);
        let lost = Accounting::of([&*counters]).dropped("quic_backlog");
        assert_eq!(lost, 0);
        // What a turn has time for does not wait.
        door.take_in(name, &mut empty(200), &mut hub, &mut tx);
        assert_eq!(counters.datagrams.client_in.get(), 1_200);
    }

    #[test]
    fn who_sends_more_payloads_than_a_turn_relays_keeps_no_other_waiting_and_loses_the_most() {
        let (mut hub, mut tx) = (hub(), SendQueue::new(1));
        let counters = std::sync::Arc::clone(&hub.counters);
        let mut door = door(12);
        let names: Vec<_> = (0..12).map(ConnectionName::at).collect();
        door.turn_started(true);
        door.take_in(names[0], &mut empty(20_000), &mut hub, &mut tx);
        door.take_in(names[1], &mut empty(300), &mut hub, &mut tx);
        assert_eq!(kept(&door)[..2], [1_024, 300]);
        let lost = || Accounting::of([&*counters]).dropped("quic_backlog");
        assert_eq!(lost(), 20_000 - 1_024);
        // One part of each in turn.
        door.go_on(&mut hub, &mut tx);
        assert_eq!(kept(&door)[..2], [768, 44]);
        door.turn_started(true);
        door.take_in(names[1], &mut empty(1), &mut hub, &mut tx);
        door.go_on(&mut hub, &mut tx);
        assert_eq!(kept(&door)[..2], [301, 0], "in their order");
        // All together have a room too.
        for name in &names {
            door.take_in(*name, &mut empty(20_000), &mut hub, &mut tx);
        }
        assert_eq!(kept(&door).iter().sum::<usize>(), 8_192);
        let before = lost();
        door.ended(names[0], &mut hub);
        assert_eq!(lost() - before, 1_024);
        let accounting = Accounting::of([&*counters]);
        assert_eq!(accounting.total_in(), accounting.total_drops());
        assert_eq!(kept(&door).iter().sum::<usize>(), 8_192 - 1_024);
    }
}
