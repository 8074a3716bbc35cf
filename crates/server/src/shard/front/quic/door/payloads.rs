//! Payloads of tunnels, both ways: runs of clients' to the engine, and those of targets into QUIC.

use std::net::SocketAddr;

use turnbuckle_datapath::{Received, Run, SendQueue};
use turnbuckle_engine::{AllocationId, ClientTuple};
use turnbuckle_masque::h3::{NotSent, Payload, Way};
use turnbuckle_quic::ConnectionName;

use super::super::Quic;
use super::Door;
use crate::counters::{QuicDrop, ShardCounters};
use crate::shard::hub::Hub;
use crate::shard::train::payloads;

/// Payloads of one run, and the bytes of their beginning: a train is shorter.
const RUN_COUNT_MAX: usize = 64;
const RUN_LEN_MAX: usize = 32 * 1024;

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
    /// Relays payloads of clients to the targets of their tunnels: those of one tunnel, one target and one length together.
    pub(in crate::shard::front::quic) fn relay(
        &mut self,
        came: &[Payload<AllocationId>],
        hub: &mut Hub,
        tx: &mut SendQueue,
    ) {
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
