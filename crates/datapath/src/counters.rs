//! What a data path did, counted always. One thread writes, any thread may read.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::handler::SendFailure;

/// A number that only grows, written by one thread.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds `count`. A load and a store, not a locked addition: there is one writer.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Relaxed,
        );
    }
}

/// Names of the histogram classes: messages per call.
pub const HISTOGRAM_LABELS: [&str; 7] = ["1", "2", "3_4", "5_8", "9_16", "17_32", "33_64"];

/// Class of a batch of `count >= 1`; the last class also holds everything above 64.
#[inline]
fn class(count: usize) -> usize {
    (count.max(1).next_power_of_two().trailing_zeros() as usize).min(HISTOGRAM_LABELS.len() - 1)
}

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? } arrays { $($(#[$array_doc:meta])* $array:ident: $len:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: Counter,)*
            $($(#[$array_doc])* pub $array: [Counter; $len],)*
        }
    };
}

counters! {
    /// Receiving.
    ReceiveCounters {
        /// System calls that returned at least one message.
        calls,
        /// Messages: datagrams and GRO buffers.
        messages,
        /// Datagrams, those inside GRO buffers counted singly.
        datagrams,
        /// Messages that were GRO buffers of more than one datagram.
        gro_buffers,
        /// Calls that found nothing to read.
        would_block,
        /// Calls that failed in another way, twice in a row.
        failures,
        /// Calls made one message at a time because `recvmmsg` is not available.
        unavailable,
        /// Times that all slots were taken and the queue had to be flushed in mid-turn.
        no_buffer,
        /// Messages dropped because they were longer than a slot or came from no IP address.
        discarded,
        /// Times that a relay socket's receive buffer was enlarged.
        buffers_grown,
        /// Times that the budget did not allow it.
        buffers_denied,
    }
    arrays {
        /// Calls by number of messages, classes as in [`HISTOGRAM_LABELS`].
        histogram: 7,
    }
}

counters! {
    /// Sending.
    SendCounters {
        /// System calls that sent something.
        calls,
        /// Messages: datagrams and trains.
        messages,
        /// Datagrams handed to the kernel, those inside trains counted singly.
        datagrams,
        /// Trains sent with `UDP_SEGMENT`.
        gso_sends,
        /// Datagrams in those trains.
        gso_datagrams,
        /// Trains that failed and were split.
        fallbacks,
        /// Sends repeated because a pending socket error had been reported in their place.
        retries,
        /// Sockets on which GSO was switched off.
        gso_disabled,
        /// Send buffers enlarged after a full one.
        buffers_grown,
        /// Flushes: times that queued datagrams were sent out.
        flushes,
    }
    arrays {
        /// Datagrams given up, by [`SendFailure::index`].
        failed: SendFailure::ALL.len(),
        /// Calls by number of messages, classes as in [`HISTOGRAM_LABELS`].
        histogram: 7,
    }
}

counters! {
    /// Connections.
    StreamCounters {
        /// Connections taken.
        accepted,
        /// Connections closed at once, because the handler or the system had no room for them.
        refused,
        /// Times that accepting failed for want of descriptors or memory.
        accept_failures,
        /// Connections that came to their end.
        closed,
        /// System calls that read something.
        reads,
        /// Bytes read.
        read_bytes,
        /// Calls that found nothing to read.
        would_block,
        /// System calls that wrote something.
        writes,
        /// Bytes written.
        written_bytes,
        /// Messages written to their last byte.
        messages,
        /// Messages that had to wait because a connection did not take them at once.
        waited,
    }
    arrays {
        /// Messages given up, by [`SendFailure::index`].
        failed: SendFailure::ALL.len(),
    }
}

counters! {
    /// Turns and pauses.
    PaceCounters {
        /// Turns made.
        turns,
        /// Pauses before reading, to let datagrams gather.
        sleeps,
        /// Time spent in those pauses, nanoseconds.
        asleep_ns,
        /// Returns from waiting for readiness.
        wakes,
    }
    arrays {}
}

/// All counters of one data path.
#[derive(Debug, Default)]
pub struct Counters {
    /// Receiving.
    pub receive: ReceiveCounters,
    /// Sending.
    pub send: SendCounters,
    /// Connections.
    pub stream: StreamCounters,
    /// Turns and pauses.
    pub pace: PaceCounters,
}

/// The values that the periodic log lines are made of, at one moment or between two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    receive_calls: u64,
    receive_messages: u64,
    would_block: u64,
    unavailable: u64,
    no_buffer: u64,
    receive_histogram: [u64; 7],
    send_calls: u64,
    send_datagrams: u64,
    gso_sends: u64,
    gso_datagrams: u64,
    send_histogram: [u64; 7],
}

impl Counters {
    /// Reads the values of the log lines.
    pub fn snapshot(&self) -> Snapshot {
        let array = |counters: &[Counter; 7]| std::array::from_fn(|index| counters[index].get());
        Snapshot {
            receive_calls: self.receive.calls.get(),
            receive_messages: self.receive.messages.get(),
            would_block: self.receive.would_block.get(),
            unavailable: self.receive.unavailable.get(),
            no_buffer: self.receive.no_buffer.get(),
            receive_histogram: array(&self.receive.histogram),
            send_calls: self.send.calls.get(),
            send_datagrams: self.send.datagrams.get(),
            gso_sends: self.send.gso_sends.get(),
            gso_datagrams: self.send.gso_datagrams.get(),
            send_histogram: array(&self.send.histogram),
        }
    }
}

impl Snapshot {
    /// What happened between `earlier` and this snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let array = |now: &[u64; 7], then: &[u64; 7]| {
            std::array::from_fn(|index| now[index].wrapping_sub(then[index]))
        };
        Self {
            receive_calls: self.receive_calls.wrapping_sub(earlier.receive_calls),
            receive_messages: self.receive_messages.wrapping_sub(earlier.receive_messages),
            would_block: self.would_block.wrapping_sub(earlier.would_block),
            unavailable: self.unavailable.wrapping_sub(earlier.unavailable),
            no_buffer: self.no_buffer.wrapping_sub(earlier.no_buffer),
            receive_histogram: array(&self.receive_histogram, &earlier.receive_histogram),
            send_calls: self.send_calls.wrapping_sub(earlier.send_calls),
            send_datagrams: self.send_datagrams.wrapping_sub(earlier.send_datagrams),
            gso_sends: self.gso_sends.wrapping_sub(earlier.gso_sends),
            gso_datagrams: self.gso_datagrams.wrapping_sub(earlier.gso_datagrams),
            send_histogram: array(&self.send_histogram, &earlier.send_histogram),
        }
    }
}

impl ReceiveCounters {
    /// Notes one call that returned `messages >= 1`.
    #[inline]
    pub(crate) fn note_call(&self, messages: usize) {
        self.calls.add(1);
        self.messages.add(messages as u64);
        self.histogram[class(messages)].add(1);
    }
}

impl SendCounters {
    /// Notes one call that sent `messages >= 1`.
    #[inline]
    pub(crate) fn note_call(&self, messages: usize) {
        self.calls.add(1);
        self.messages.add(messages as u64);
        self.histogram[class(messages)].add(1);
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn write_histogram(line: &mut String, histogram: &[u64; 7]) {
    for (label, count) in HISTOGRAM_LABELS.iter().zip(histogram) {
        // Writing to a string cannot fail.
        let _ = write!(line, " hist_{label}={count}");
    }
}

/// The `--udp-recvmmsg-log` line of one thread for the time that `delta` covers.
pub fn receive_log_line(thread: &str, delta: &Snapshot) -> String {
    let mut line = format!(
        "udp-recvmmsg: thread={thread} calls={} packets={} avg_batch={:.2} wouldblock={} unavailable={} no_buffer={}",
        delta.receive_calls,
        delta.receive_messages,
        ratio(delta.receive_messages, delta.receive_calls),
        delta.would_block,
        delta.unavailable,
        delta.no_buffer,
    );
    write_histogram(&mut line, &delta.receive_histogram);
    line
}

/// The `--udp-sendmmsg-log` line of one thread for the time that `delta` covers.
pub fn send_log_line(thread: &str, delta: &Snapshot) -> String {
    let mut line = format!(
        "udp-sendmmsg: thread={thread} flushes={} datagrams={} occupancy={:.2} gso_flushes={} gso_datagrams={} gso_fraction={:.3}",
        delta.send_calls,
        delta.send_datagrams,
        ratio(delta.send_datagrams, delta.send_calls),
        delta.gso_sends,
        delta.gso_datagrams,
        ratio(delta.gso_datagrams, delta.send_datagrams),
    );
    write_histogram(&mut line, &delta.send_histogram);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_the_labels() {
        let classes = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 1000].map(class);
        assert_eq!(classes, [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6]);
    }

    #[test]
    fn the_log_lines_give_the_difference_of_two_moments() {
        let counters = Counters::default();
        counters.receive.note_call(64);
        counters.send.note_call(1);
        let before = counters.snapshot();
        for messages in [1, 2, 12, 12] {
            counters.receive.note_call(messages);
        }
        counters.receive.would_block.add(3);
        counters.send.note_call(2);
        counters.send.note_call(1);
        counters.send.datagrams.add(42);
        counters.send.gso_sends.add(1);
        counters.send.gso_datagrams.add(40);
        let delta = counters.snapshot().since(&before);
        assert_eq!(
            receive_log_line("3", &delta),
            "udp-recvmmsg: thread=3 calls=4 packets=27 avg_batch=6.75 wouldblock=3 unavailable=0 no_buffer=0 \
             hist_1=1 hist_2=1 hist_3_4=0 hist_5_8=0 hist_9_16=2 hist_17_32=0 hist_33_64=0"
        );
        assert_eq!(
            send_log_line("3", &delta),
            "udp-sendmmsg: thread=3 flushes=2 datagrams=42 occupancy=21.00 gso_flushes=1 gso_datagrams=40 \
             gso_fraction=0.952 hist_1=1 hist_2=1 hist_3_4=0 hist_5_8=0 hist_9_16=0 hist_17_32=0 hist_33_64=0"
        );
        let nothing = Snapshot::default();
        assert!(receive_log_line("0", &nothing).contains("avg_batch=0.00"));
    }
}
