//! Counters of a data path, which are always on. One thread writes them, and any thread may read them.

use std::fmt::Write as _;

use turnbuckle_counters::{Counted as _, Counter, Group, PerReason, Sample, counters, reasons};

use crate::reports::SendFailure;

reasons! {
    /// How many messages a call moved, in classes.
    pub enum BatchSize {
        /// One message.
        One = "1",
        /// Two messages.
        Two = "2",
        /// Three or four messages.
        ThreeOrMore = "3_4",
        /// Five to eight messages.
        FiveOrMore = "5_8",
        /// Nine to 16 messages.
        NineOrMore = "9_16",
        /// 17 to 32 messages.
        SeventeenOrMore = "17_32",
        /// 33 messages or more.
        ThirtyThreeOrMore = "33_64",
    }
}

/// Classes of batches.
const CLASSES: usize = BatchSize::ALL.len();

impl BatchSize {
    /// Returns the class of `count >= 1` messages.
    #[inline]
    fn of(count: usize) -> Self {
        let class = count.max(1).next_power_of_two().trailing_zeros() as usize;
        Self::ALL[class.min(CLASSES - 1)]
    }
}

reasons! {
    /// What a socket for datagrams is for.
    pub enum SocketPurpose {
        /// Listeners for UDP, DTLS and QUIC.
        Listener = "listener",
        /// Relay sockets of one allocation.
        Relay = "relay",
        /// Relay sockets that allocations share.
        SharedRelay = "shared_relay",
        /// Sockets of tunnels.
        Tunnel = "tunnel",
    }
}

counters! {
    /// Receiving.
    pub struct ReceiveCounters: "receive", "the data path" {
        /// System calls that returned at least one message.
        pub calls: Counter => Calls,
        /// Messages: datagrams and GRO buffers.
        pub messages: Counter => Messages,
        /// Datagrams, those inside GRO buffers counted singly.
        pub datagrams: Counter => Datagrams,
        /// Messages that were GRO buffers of more than one datagram.
        pub gro_buffers: Counter => Messages,
        /// Calls that found nothing to read.
        pub would_block: Counter => Calls,
        /// Calls that failed in another way, twice in a row.
        pub failures: Counter => Calls,
        /// Calls made one message at a time because `recvmmsg` is not available.
        pub unavailable: Counter => Calls,
        /// Times that all slots were taken and the queue had to be flushed in mid-turn.
        pub no_buffer: Counter => Times,
        /// Messages dropped because they were longer than a slot or came from no IP address.
        pub discarded: Counter => Messages,
        /// Times that a relay socket's receive buffer was enlarged.
        pub buffers_grown: Counter => Times,
        /// Times that the budget did not allow it.
        pub buffers_denied: Counter => Times,
        /// Calls by number of messages.
        pub histogram: PerReason<BatchSize, CLASSES> => Calls,
    }
}

counters! {
    /// Sending.
    pub struct SendCounters: "send", "the data path" {
        /// System calls that sent something.
        pub calls: Counter => Calls,
        /// Messages: datagrams and trains.
        pub messages: Counter => Messages,
        /// Datagrams handed to the kernel, those inside trains counted singly.
        pub datagrams: Counter => Datagrams,
        /// Trains sent with `UDP_SEGMENT`.
        pub gso_sends: Counter => Messages,
        /// Datagrams in those trains.
        pub gso_datagrams: Counter => Datagrams,
        /// Trains that failed and were split.
        pub fallbacks: Counter => Messages,
        /// Sends repeated because a pending socket error had been reported in their place.
        pub retries: Counter => Times,
        /// Sockets on which GSO was switched off.
        pub gso_disabled: Counter => Sockets,
        /// Send buffers enlarged after a full one.
        pub buffers_grown: Counter => Times,
        /// Flushes: times that queued datagrams were sent out.
        pub flushes: Counter => Times,
        /// Datagrams that could not be sent, by cause.
        pub failed: PerReason<SendFailure, { SendFailure::ALL.len() }> => Datagrams,
        /// Calls by number of messages.
        pub histogram: PerReason<BatchSize, CLASSES> => Calls,
    }
}

counters! {
    /// Connections.
    pub struct StreamCounters: "stream", "the data path" {
        /// Connections taken.
        pub accepted: Counter => Connections,
        /// Connections closed at once, because the handler or the system had no room for them.
        pub refused: Counter => Connections,
        /// Times that accepting failed for want of descriptors or memory.
        pub accept_failures: Counter => Times,
        /// Connections that ended.
        pub closed: Counter => Connections,
        /// System calls that read something.
        pub reads: Counter => Calls,
        /// Bytes read.
        pub read_bytes: Counter => Bytes,
        /// Calls that found nothing to read.
        pub would_block: Counter => Calls,
        /// System calls that wrote something.
        pub writes: Counter => Calls,
        /// Bytes written.
        pub written_bytes: Counter => Bytes,
        /// Messages written to their last byte.
        pub messages: Counter => Messages,
        /// Messages that had to wait because a connection did not take them at once.
        pub waited: Counter => Messages,
        /// Messages that could not be sent, by cause.
        pub failed: PerReason<SendFailure, { SendFailure::ALL.len() }> => Messages,
    }
}

counters! {
    /// Turns and pauses.
    pub struct PaceCounters: "pace", "the data path" {
        /// Turns made.
        pub turns: Counter => Times,
        /// Pauses before reading, to let datagrams gather.
        pub sleeps: Counter => Times,
        /// Time spent in those pauses, nanoseconds.
        pub asleep_ns: Counter => Nanoseconds,
        /// Returns from waiting for readiness.
        pub wakes: Counter => Times,
    }
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
    receive_histogram: [u64; CLASSES],
    send_calls: u64,
    send_datagrams: u64,
    gso_sends: u64,
    gso_datagrams: u64,
    send_histogram: [u64; CLASSES],
}

impl Counters {
    /// What there is in [`Self::visit`], in its order.
    pub const GROUPS: [&'static Group; 4] = [
        ReceiveCounters::GROUP,
        SendCounters::GROUP,
        StreamCounters::GROUP,
        PaceCounters::GROUP,
    ];

    /// Shows every number, group by group.
    pub fn visit(&self, show: &mut dyn FnMut(&'static Group, Sample)) {
        self.receive
            .visit(&mut |sample| show(ReceiveCounters::GROUP, sample));
        self.send
            .visit(&mut |sample| show(SendCounters::GROUP, sample));
        self.stream
            .visit(&mut |sample| show(StreamCounters::GROUP, sample));
        self.pace
            .visit(&mut |sample| show(PaceCounters::GROUP, sample));
    }

    /// Reads the values of the log lines.
    pub fn snapshot(&self) -> Snapshot {
        let array = |histogram: &PerReason<BatchSize, CLASSES>| {
            BatchSize::ALL.map(|class| histogram.of(class).get())
        };
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
    /// Returns the difference between this snapshot and `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let array = |now: &[u64; CLASSES], then: &[u64; CLASSES]| {
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
        self.histogram.of(BatchSize::of(messages)).add(1);
    }
}

impl SendCounters {
    /// Notes one call that sent `messages >= 1`.
    #[inline]
    pub(crate) fn note_call(&self, messages: usize) {
        self.calls.add(1);
        self.messages.add(messages as u64);
        self.histogram.of(BatchSize::of(messages)).add(1);
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn write_histogram(line: &mut String, histogram: &[u64; CLASSES]) {
    for (class, count) in BatchSize::ALL.into_iter().zip(histogram) {
        // Writing to a string cannot fail.
        let _ = write!(line, " hist_{}={count}", class.as_str());
    }
}

/// Returns the `--udp-recvmmsg-log` line of one thread for the time that `delta` covers.
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

/// Returns the `--udp-sendmmsg-log` line of one thread for the time that `delta` covers.
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
        let classes = [1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 1000];
        let classes = classes.map(|count| BatchSize::of(count).index());
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
