//! The counters of all shards added up, in words and as JSON.

use std::fmt::Write as _;

use turnbuckle_counters::{Counter, Sample};
use turnbuckle_datapath::SocketPurpose;
use turnbuckle_engine::PeerEnd;

use super::{AnswerCount, CloseReason, ShardCounters};

/// The totals of all shards at one moment.
#[derive(Debug, Default)]
pub struct Accounting(ShardCounters);

impl Accounting {
    /// Adds up the counters of `shards`.
    pub(crate) fn of<'a>(shards: impl IntoIterator<Item = &'a ShardCounters>) -> Self {
        let sum = ShardCounters::default();
        for shard in shards {
            sum.add_all(shard);
        }
        Self(sum)
    }

    /// Adds up the counters of shards that run. What has gone out or was dropped is read before what has come in.
    pub(crate) fn of_running<'a>(
        shards: impl IntoIterator<Item = &'a ShardCounters> + Clone,
    ) -> Self {
        let sum = Self::of(shards.clone());
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        sum.0.read_arrivals_again(shards);
        sum
    }

    /// Returns the number of datagrams and messages that came in or began here.
    #[must_use]
    pub fn total_in(&self) -> u64 {
        self.0.total_in()
    }

    /// Returns the number of datagrams that began here: what DTLS itself and timers have to say.
    #[must_use]
    pub fn total_begun(&self) -> u64 {
        self.0.datagrams.begun.get()
    }

    /// Returns the number of datagrams and messages that went out.
    #[must_use]
    pub fn total_out(&self) -> u64 {
        self.0.total_out()
    }

    /// Returns the number of datagrams that are out without having left: those of QUIC that payloads came in, and payloads that left in some.
    #[must_use]
    pub fn total_within(&self) -> u64 {
        let datagrams = &self.0.datagrams;
        datagrams.opened.get() + datagrams.carried.get()
    }

    /// Returns the number of datagrams that are in, and neither out nor dropped yet: they wait at the front for QUIC.
    #[must_use]
    pub fn total_waiting(&self) -> u64 {
        let connections = &self.0.connections;
        connections.quic_waiting.get() + connections.quic_queued.get()
    }

    /// Returns the number of datagrams that the kernel relayed, which are in and out.
    #[must_use]
    pub fn total_by_kernel(&self) -> u64 {
        self.0.kernel_relayed()
    }

    /// Returns the number of datagrams that the kernel dropped, which are in and among the drops.
    #[must_use]
    pub fn dropped_by_kernel(&self) -> u64 {
        self.0.offload.kernel_dropped.get()
    }

    /// Returns the number of datagrams that the kernel dropped at sockets before the relay could read them, which are in none of the sums.
    #[must_use]
    pub fn total_socket_drops(&self) -> u64 {
        let drops = self.0.datagrams.socket_drops.iter();
        drops.map(Counter::get).sum()
    }

    /// Returns the number of dropped datagrams and messages.
    #[must_use]
    pub fn total_drops(&self) -> u64 {
        self.0.drops.total()
    }

    /// Returns the number of drops under each reason, zero counts included.
    #[must_use]
    pub fn drops(&self) -> Vec<(&'static str, u64)> {
        self.0.drops.by_name()
    }

    /// Returns how many were dropped under a reason.
    #[must_use]
    pub fn dropped(&self, reason: &str) -> u64 {
        let drops = self.drops().into_iter();
        drops
            .filter(|(name, _)| *name == reason)
            .map(|(_, count)| count)
            .sum()
    }

    /// Returns how many answers there were of each method and error code, if any.
    #[must_use]
    pub fn answers(&self) -> Vec<AnswerCount> {
        self.0.answers.counts()
    }

    /// Shows every number but drops and answers.
    pub fn visit(&self, show: &mut dyn FnMut(Sample)) {
        self.0.visit(show);
    }

    /// Returns a number by its name, and by its label if it is divided.
    #[must_use]
    pub fn get(&self, name: &str, label: Option<&str>) -> u64 {
        let mut sum = 0;
        self.0.visit(&mut |sample| {
            if sample.counter.name == name && sample.label.map(|label| label.name) == label {
                sum += sample.value;
            }
        });
        sum
    }

    /// Returns how often a shard failed and was restarted.
    #[must_use]
    pub fn shard_failures(&self) -> u64 {
        self.0.control.shard_failures.get()
    }

    /// Adds lines that outputs of the log have lost. Those that shards have lost are counted already.
    pub(crate) fn lost_lines(&self, count: u64) {
        self.0.log.log_lost.add(count);
    }

    /// Returns the number of lost lines of the log.
    #[must_use]
    pub fn log_lost(&self) -> u64 {
        self.0.log.log_lost.get()
    }

    /// Returns whether `in = out + drops` holds exactly.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.total_in() == self.total_out() + self.total_drops()
    }

    /// Returns one line for people: the totals, then the reasons that are not zero.
    #[must_use]
    pub fn line(&self) -> String {
        let sum = &self.0;
        let datagrams = &sum.datagrams;
        let mut line = format!(
            "datagrams: in {} (client {}, peer {}, icmp {}, begun here {}), out {} (client {}, peer {}, opened {}, carried {}), dropped {}",
            self.total_in(),
            datagrams.client_in.get(),
            datagrams.peer_in.get(),
            datagrams.icmp_in.get(),
            datagrams.begun.get(),
            self.total_out(),
            datagrams.client_out.get(),
            datagrams.peer_out.get(),
            datagrams.opened.get(),
            datagrams.carried.get(),
            self.total_drops(),
        );
        write_reasons(&mut line, self.drops());
        if self.total_socket_drops() > 0 {
            line.push_str(
                "; not in these sums, dropped by the kernel at sockets before the relay read them",
            );
            let drops = datagrams.socket_drops.iter().map(Counter::get);
            let names = SocketPurpose::ALL.map(SocketPurpose::as_str);
            write_reasons(&mut line, names.into_iter().zip(drops));
        }
        let offload = &sum.offload;
        let dropped = self.dropped_by_kernel();
        if self.total_by_kernel() + dropped > 0 {
            let _ = write!(
                line,
                "; of these relayed by the kernel: to peers {}, to clients {}",
                offload.kernel_to_peers.get(),
                offload.kernel_to_clients.get()
            );
        }
        if dropped > 0 {
            let _ = write!(line, ", dropped by it: {dropped}");
        }
        if self.shard_failures() > 0 {
            let _ = write!(line, "; shards failed {} times", self.shard_failures());
        }
        if self.log_lost() > 0 {
            let _ = write!(line, "; lines of the log lost {}", self.log_lost());
        }
        let forgotten_early = sum.engine.requests_forgotten_early.get();
        if forgotten_early > 0 {
            let _ = write!(
                line,
                "; finished requests forgotten early {forgotten_early}"
            );
        }
        let connections = &sum.connections;
        if connections.connections.get() > 0 {
            let _ = write!(line, "; connections {}", connections.connections.get());
            let closes = connections.closes.iter().map(Counter::get);
            let names = CloseReason::ALL.map(CloseReason::as_str);
            write_reasons(&mut line, names.into_iter().zip(closes));
        }
        let engine = &sum.engine;
        if engine.peer_connections.get() > 0 {
            let _ = write!(
                line,
                "; tcp relays: {} bytes to peers, {} bytes to clients, connections {}",
                sum.tcp_relays.tcp_to_peers_bytes.get(),
                sum.tcp_relays.tcp_to_clients_bytes.get(),
                engine.peer_connections.get()
            );
            let ends = engine.peer_ends.iter().map(Counter::get);
            let names = PeerEnd::ALL.map(PeerEnd::as_str);
            write_reasons(&mut line, names.into_iter().zip(ends));
        }
        line
    }

    /// Returns the accounting as a JSON object: `in`, `out`, `dropped`, every counter under its name, and `drops` by reason.
    #[must_use]
    pub fn json(&self) -> String {
        let mut json = format!(
            "{{\"in\":{},\"out\":{},\"dropped\":{}",
            self.total_in(),
            self.total_out(),
            self.total_drops()
        );
        // The counter whose reasons are being written.
        let mut open = None;
        self.0.visit(&mut |sample| {
            let Sample {
                counter,
                label,
                value,
            } = sample;
            if open.is_some_and(|open| open != counter.name) {
                json.push('}');
                open = None;
            }
            let _ = match label {
                None => write!(json, ",\"{}\":{value}", counter.name),
                Some(label) if open.is_some() => write!(json, ",\"{}\":{value}", label.name),
                Some(label) => {
                    open = Some(counter.name);
                    write!(json, ",\"{}\":{{\"{}\":{value}", counter.name, label.name)
                }
            };
        });
        if open.is_some() {
            json.push('}');
        }
        let drops = self.drops().into_iter();
        let drops = drops.map(|(name, count)| format!("\"{name}\":{count}"));
        let _ = write!(
            json,
            ",\"drops\":{{{}}}}}",
            drops.collect::<Vec<_>>().join(",")
        );
        json
    }
}

/// Writes the reasons that are not zero.
fn write_reasons(line: &mut String, counts: impl IntoIterator<Item = (&'static str, u64)>) {
    let mut separator = ": ";
    for (reason, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let _ = write!(line, "{separator}{reason} {count}");
        separator = ", ";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{DataPathDrop, StreamDrop};

    #[test]
    fn a_refused_datagram_moves_from_sent_to_dropped_and_the_sum_stays_exact() {
        let shard = ShardCounters::default();
        shard.datagrams.client_in.add(10);
        shard.datagrams.peer_out.queued(10);
        let before = Accounting::of([&shard]);
        assert!(before.balances(), "{}", before.line());
        shard.datagrams.peer_out.refused(3);
        shard.dropped(DataPathDrop::SendFailed, 3);
        let after = Accounting::of([&shard]);
        assert_eq!((after.total_out(), after.total_drops()), (7, 3));
        assert!(after.balances(), "{}", after.line());
        shard.datagrams.client_in.add(1);
        assert!(!Accounting::of([&shard]).balances());
    }

    #[test]
    fn totals_add_up_over_shards_and_over_who_dropped_and_are_named_in_the_json() {
        let (a, b) = (ShardCounters::default(), ShardCounters::default());
        a.datagrams.client_in.add(2);
        b.datagrams.peer_in.add(3);
        a.dropped(StreamDrop::SocketClosed, 1);
        b.dropped(DataPathDrop::SocketClosed, 4);
        a.opened();
        a.closed(CloseReason::Http);
        let sum = Accounting::of([&a, &b]);
        assert_eq!(sum.total_in(), 5);
        let json: serde_json::Value = serde_json::from_str(&sum.json()).unwrap();
        for (name, value) in [
            ("/in", 5),
            ("/client_in", 2),
            ("/peer_in", 3),
            ("/dropped", 5),
            ("/drops/socket_closed", 5),
            ("/drops/truncated", 0),
            ("/connections", 1),
            ("/closes/http", 1),
            ("/peer_ends/failed", 0),
            ("/shard_failures", 0),
        ] {
            let found = json.pointer(name).and_then(serde_json::Value::as_u64);
            assert_eq!(found, Some(value), "{name} in {json}");
        }
    }
}
