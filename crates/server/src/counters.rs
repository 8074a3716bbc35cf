//! What happened to every datagram, counted so that the sum is exact.
//!
//! Invariant: at the end of every loop turn, and so whenever a shard has stopped,
//! `client_in + peer_in + icmp_in + begun = client_out + peer_out + sum(drops)`. A datagram that was queued for sending
//! and then refused by the kernel counts as a drop, not as sent.
//!
//! `begun` is what had no datagram of its own to come in by: what DTLS says by itself, and further messages in one datagram of DTLS.
//!
//! A message of a stream counts as a datagram: in when its last byte has come, or when it turns out to be none.
//!
//! Each shard is the only writer of its counters; any thread may read them. The cells are relaxed atomics, which
//! on the usual machines cost what a plain integer costs.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use turnbuckle_engine::{DropReason, PeerEnd};

/// A counter with one writer.
#[derive(Debug, Default)]
pub(crate) struct Cell(AtomicU64);

impl Cell {
    /// Adds `count`. Only the owning shard calls this, so a load and a store do.
    pub(crate) fn add(&self, count: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// Replaces the value.
    pub(crate) fn set(&self, count: u64) {
        self.0.store(count, Relaxed);
    }

    /// The present value.
    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// As many counters, however many that is.
#[derive(Debug)]
pub(crate) struct Cells<const N: usize>([Cell; N]);

impl<const N: usize> Default for Cells<N> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Cell::default()))
    }
}

impl<const N: usize> Cells<N> {
    fn get(&self, index: usize) -> Option<&Cell> {
        self.0.get(index)
    }

    fn iter(&self) -> impl Iterator<Item = &Cell> {
        self.0.iter()
    }
}

macro_rules! close_reasons {
    ($($(#[$doc:meta])+ $name:ident = $label:literal,)+) => {
        /// Why a client's connection, or its session of DTLS, ended.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum CloseReason {
            $($(#[$doc])+ $name,)+
        }

        impl CloseReason {
            /// Their names, in the order of their numbers.
            const LABELS: &[&str] = &[$($label),+];
        }
    };
}

close_reasons! {
    /// It belonged to an allocation that ended.
    AllocationEnded = "allocation_ended",
    /// It did not read the answers to its requests.
    Congested = "congested",
    /// It had no allocation and others wanted its place.
    Crowded = "crowded",
    /// Too many from its address had no allocation.
    CrowdedAddress = "crowded_address",
    /// The socket reported an error.
    Failed = "failed",
    /// Its first message did not come in time.
    FirstMessageLate = "first_message_late",
    /// Its handshake kept more bytes waiting than there was memory for.
    HandshakeCrowded = "handshake_crowded",
    /// It did not keep to TLS or DTLS, or wanted what is not offered.
    HandshakeFailed = "handshake_failed",
    /// The handshake of TLS or DTLS took too long.
    HandshakeLate = "handshake_late",
    /// It spoke HTTP.
    Http = "http",
    /// It was idle and had no allocation.
    Idle = "idle",
    /// It sent what cannot be a message.
    Malformed = "malformed",
    /// A message that it had begun was not completed in time.
    MessageLate = "message_late",
    /// It came from a proxy and did not begin with a good header.
    ProxyHeader = "proxy_header",
    /// The header of a proxy did not come in time.
    ProxyLate = "proxy_late",
    /// It came from no proxy, with a proxy's header or to the proxies' port.
    ProxyRefused = "proxy_refused",
    /// It went to the shard that has what it asked for, where it counts as another one.
    Moved = "moved",
    /// The peer at the other end of a relay closed it.
    PeerClosed = "peer_closed",
    /// The client closed it.
    Remote = "remote",
    /// Its client began a new DTLS session from the same address.
    Replaced = "replaced",
    /// The client or its peer had ended what it sent, and the other side did nothing more.
    Stalled = "stalled",
    /// The relay ended.
    Stopped = "stopped",
    /// It broke TLS or DTLS after the handshake.
    TlsFailed = "tls_failed",
    /// It had no allocation for too long, whatever it said.
    Unallocated = "without_allocation",
}

/// Datagram counters of one shard, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct ShardCounters {
    /// Datagrams read from client-facing sockets.
    pub(crate) client_in: Cell,
    /// Datagrams read from relay sockets.
    pub(crate) peer_in: Cell,
    /// ICMP errors read from the error queues of relay sockets.
    pub(crate) icmp_in: Cell,
    /// Datagrams that began here.
    pub(crate) begun: Cell,
    /// Datagrams queued towards clients: answers and relayed data.
    pub(crate) client_queued: Cell,
    /// Datagrams queued towards peers.
    pub(crate) peer_queued: Cell,
    /// Datagrams towards clients that the kernel refused after they were queued.
    pub(crate) client_refused: Cell,
    /// Datagrams towards peers that the kernel refused after they were queued.
    pub(crate) peer_refused: Cell,
    /// Messages, and requests with their connections, that other shards took over.
    pub(crate) handed_out: Cell,
    /// The same, taken over from other shards.
    pub(crate) handed_in: Cell,
    /// How often the shard has failed.
    pub(crate) failures: Cell,
    /// Datagrams that were not sent, by reason.
    drops: Cells<{ DropReason::ALL.len() }>,
    /// Connections accepted and sessions of DTLS begun.
    pub(crate) connections: Cell,
    /// Connections that ended, by reason.
    closes: Cells<{ CloseReason::LABELS.len() }>,
    /// Peer data connections that were tried or came.
    pub(crate) peer_connections: Cell,
    /// Peer data connections that ended, or never came to be, by reason.
    peer_ends: Cells<{ PeerEnd::ALL.len() }>,
    /// Bytes that clients sent to peers through TCP relays.
    pub(crate) tcp_to_peers_bytes: Cell,
    /// Bytes that peers sent to clients through TCP relays.
    pub(crate) tcp_to_clients_bytes: Cell,
    /// Bytes of datagram payload read from clients.
    pub(crate) client_in_bytes: Cell,
    /// Bytes of datagram payload read from peers.
    pub(crate) peer_in_bytes: Cell,
    /// Live allocations.
    pub(crate) allocations: AtomicU64,
}

impl ShardCounters {
    /// Counts the end of a connection.
    pub(crate) fn closed(&self, reason: CloseReason) {
        if let Some(cell) = self.closes.get(reason as usize) {
            cell.add(1);
        }
    }

    /// Takes over what the engine has counted of peer data connections.
    pub(crate) fn set_peer_ends(&self, attempts: u64, ends: &[u64; PeerEnd::ALL.len()]) {
        if attempts == 0 {
            return; // most servers have no TCP relays
        }
        self.peer_connections.set(attempts);
        for (cell, &count) in self.peer_ends.iter().zip(ends) {
            cell.set(count);
        }
    }

    /// Accounts for what the shard was not done with when it failed. To be called when its thread has ended.
    pub(crate) fn failed(&self) {
        self.failures.add(1);
        self.allocations.store(0, Relaxed);
        let sum = Accounting::of([self]);
        let taken = sum.total_in() + self.handed_in.value();
        let done = sum.total_out() + sum.total_drops() + self.handed_out.value();
        self.dropped(DropReason::ShardFailed, taken.saturating_sub(done));
    }

    /// Counts `datagrams` under `reason`.
    pub(crate) fn dropped(&self, reason: DropReason, datagrams: u64) {
        // guard: accounts
        if let Some(cell) = self.drops.get(reason.index()) {
            cell.add(datagrams);
        }
    }
}

/// The totals of all shards at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// Datagrams read from clients.
    pub client_in: u64,
    /// Datagrams read from peers.
    pub peer_in: u64,
    /// ICMP errors read for relay sockets.
    pub icmp_in: u64,
    /// Datagrams that began here: handshakes and alerts of DTLS, and further messages in one of its datagrams.
    pub begun: u64,
    /// Datagrams sent to clients.
    pub client_out: u64,
    /// Datagrams sent to peers.
    pub peer_out: u64,
    /// Datagrams dropped, by reason, zero counts included, in the order of [`DropReason::ALL`].
    pub drops: Vec<(&'static str, u64)>,
    /// Connections accepted.
    pub connections: u64,
    /// Connections that ended, by reason, zero counts included.
    pub closes: Vec<(&'static str, u64)>,
    /// Connections of TCP relays that were tried or came.
    pub peer_connections: u64,
    /// Connections of TCP relays that ended, or never came to be, by reason, zero counts included.
    pub peer_ends: Vec<(&'static str, u64)>,
    /// Bytes that clients sent to peers through TCP relays.
    pub tcp_to_peers_bytes: u64,
    /// Bytes that peers sent to clients through TCP relays.
    pub tcp_to_clients_bytes: u64,
    /// Payload bytes read from clients.
    pub client_in_bytes: u64,
    /// Payload bytes read from peers.
    pub peer_in_bytes: u64,
    /// Live allocations.
    pub allocations: u64,
    /// How often a shard failed and was started anew.
    pub shard_failures: u64,
}

impl Accounting {
    /// Adds up the counters of `shards`.
    pub(crate) fn of<'a>(shards: impl IntoIterator<Item = &'a ShardCounters>) -> Self {
        let mut sum = Self {
            drops: DropReason::ALL
                .iter()
                .map(|reason| (reason.as_str(), 0))
                .collect(),
            closes: CloseReason::LABELS
                .iter()
                .map(|&label| (label, 0))
                .collect(),
            peer_ends: PeerEnd::ALL.iter().map(|end| (end.as_str(), 0)).collect(),
            ..Self::default()
        };
        for shard in shards {
            sum.client_in += shard.client_in.value();
            sum.peer_in += shard.peer_in.value();
            sum.icmp_in += shard.icmp_in.value();
            sum.begun += shard.begun.value();
            sum.client_out += shard.client_queued.value() - shard.client_refused.value();
            sum.peer_out += shard.peer_queued.value() - shard.peer_refused.value();
            sum.client_in_bytes += shard.client_in_bytes.value();
            sum.peer_in_bytes += shard.peer_in_bytes.value();
            sum.allocations += shard.allocations.load(Relaxed);
            sum.shard_failures += shard.failures.value();
            sum.connections += shard.connections.value();
            sum.peer_connections += shard.peer_connections.value();
            sum.tcp_to_peers_bytes += shard.tcp_to_peers_bytes.value();
            sum.tcp_to_clients_bytes += shard.tcp_to_clients_bytes.value();
            for ((_, total), cell) in sum.peer_ends.iter_mut().zip(shard.peer_ends.iter()) {
                *total += cell.value();
            }
            for ((_, total), cell) in sum.closes.iter_mut().zip(shard.closes.iter()) {
                *total += cell.value();
            }
            for ((_, total), cell) in sum.drops.iter_mut().zip(shard.drops.iter()) {
                *total += cell.value();
            }
        }
        sum
    }

    /// Everything that came in or began here.
    #[must_use]
    pub fn total_in(&self) -> u64 {
        self.client_in + self.peer_in + self.icmp_in + self.begun
    }

    /// Everything that went out.
    #[must_use]
    pub fn total_out(&self) -> u64 {
        self.client_out + self.peer_out
    }

    /// Everything that was dropped.
    #[must_use]
    pub fn total_drops(&self) -> u64 {
        self.drops.iter().map(|(_, count)| count).sum()
    }

    /// Whether `in = out + drops` holds exactly.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.total_in() == self.total_out() + self.total_drops()
    }

    /// One line for people: totals, then the drop reasons that are not zero.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!(
            "datagrams: in {} (client {}, peer {}, icmp {}, begun here {}), out {} (client {}, peer {}), dropped {}",
            self.total_in(),
            self.client_in,
            self.peer_in,
            self.icmp_in,
            self.begun,
            self.total_out(),
            self.client_out,
            self.peer_out,
            self.total_drops(),
        );
        let mut separator = ": ";
        for (reason, count) in self.drops.iter().filter(|(_, count)| *count > 0) {
            let _ = write!(line, "{separator}{reason} {count}");
            separator = ", ";
        }
        if self.shard_failures > 0 {
            let _ = write!(line, "; shards failed {} times", self.shard_failures);
        }
        if self.connections > 0 {
            let _ = write!(line, "; connections {}", self.connections);
            separator = ": ";
            for (reason, count) in self.closes.iter().filter(|(_, count)| *count > 0) {
                let _ = write!(line, "{separator}{reason} {count}");
                separator = ", ";
            }
        }
        if self.peer_connections > 0 {
            let _ = write!(
                line,
                "; tcp relays: {} bytes to peers, {} bytes to clients, connections {}",
                self.tcp_to_peers_bytes, self.tcp_to_clients_bytes, self.peer_connections
            );
            separator = ": ";
            for (reason, count) in self.peer_ends.iter().filter(|(_, count)| *count > 0) {
                let _ = write!(line, "{separator}{reason} {count}");
                separator = ", ";
            }
        }
        line
    }

    /// The same as a JSON object: `in`, `out`, `drops` and their parts.
    #[must_use]
    pub fn json(&self) -> String {
        let object = |counts: &[(&str, u64)]| {
            let members = counts
                .iter()
                .map(|(name, count)| format!("\"{name}\":{count}"));
            members.collect::<Vec<_>>().join(",")
        };
        format!(
            "{{\"in\":{},\"out\":{},\"dropped\":{},\"client_in\":{},\"peer_in\":{},\"icmp_in\":{},\"begun\":{},\"client_out\":{},\
             \"peer_out\":{},\"client_in_bytes\":{},\"peer_in_bytes\":{},\"allocations\":{},\"shard_failures\":{},\"connections\":{},\
             \"closes\":{{{}}},\"peer_connections\":{},\"peer_ends\":{{{}}},\"tcp_to_peers_bytes\":{},\
             \"tcp_to_clients_bytes\":{},\"drops\":{{{}}}}}",
            self.total_in(),
            self.total_out(),
            self.total_drops(),
            self.client_in,
            self.peer_in,
            self.icmp_in,
            self.begun,
            self.client_out,
            self.peer_out,
            self.client_in_bytes,
            self.peer_in_bytes,
            self.allocations,
            self.shard_failures,
            self.connections,
            object(&self.closes),
            self.peer_connections,
            object(&self.peer_ends),
            self.tcp_to_peers_bytes,
            self.tcp_to_clients_bytes,
            object(&self.drops)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_datagram_moves_from_sent_to_dropped_and_the_sum_stays_exact() {
        let shard = ShardCounters::default();
        shard.client_in.add(10);
        shard.peer_queued.add(10);
        let before = Accounting::of([&shard]);
        assert!(before.balances(), "{}", before.line());
        shard.peer_refused.add(3);
        shard.dropped(DropReason::ALL[0], 3);
        let after = Accounting::of([&shard]);
        assert_eq!((after.peer_out, after.total_drops()), (7, 3));
        assert!(after.balances(), "{}", after.line());
        shard.client_in.add(1);
        assert!(!Accounting::of([&shard]).balances());
    }

    #[test]
    fn totals_add_up_over_shards_and_are_named_in_the_json() {
        let (a, b) = (ShardCounters::default(), ShardCounters::default());
        a.client_in.add(2);
        b.peer_in.add(3);
        b.dropped(DropReason::ALL[1], 5);
        let sum = Accounting::of([&a, &b]);
        assert_eq!(sum.total_in(), 5);
        let json = sum.json();
        assert!(json.contains("\"in\":5"), "{json}");
        assert!(
            json.contains(&format!("\"{}\":5", DropReason::ALL[1].as_str())),
            "{json}"
        );
    }
}
