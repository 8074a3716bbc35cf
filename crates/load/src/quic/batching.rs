//! How a data path has moved datagrams.

use serde_json::{Value, json};
use turnbuckle_datapath::Counters;

/// Counts of a data path, from its start or between two moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Batching {
    send_calls: u64,
    sent: u64,
    trains: u64,
    sent_in_trains: u64,
    flushes: u64,
    /// Flushes in mid-turn, for want of receive slots; the others end a turn.
    flushes_short_of_slots: u64,
    fallbacks: u64,
    receive_calls: u64,
    received: u64,
    gro_buffers: u64,
    unsent: u64,
}

impl Batching {
    pub(super) fn of(counters: &Counters, unsent: u64) -> Self {
        let (send, receive) = (&counters.send, &counters.receive);
        Self {
            send_calls: send.calls.get(),
            sent: send.datagrams.get(),
            trains: send.gso_sends.get(),
            sent_in_trains: send.gso_datagrams.get(),
            flushes: send.flushes.get(),
            flushes_short_of_slots: receive.no_buffer.get(),
            fallbacks: send.fallbacks.get(),
            receive_calls: receive.calls.get(),
            received: receive.datagrams.get(),
            gro_buffers: receive.gro_buffers.get(),
            unsent,
        }
    }

    /// Returns what happened between `earlier` and this.
    pub(super) const fn since(&self, earlier: &Self) -> Self {
        Self {
            send_calls: self.send_calls - earlier.send_calls,
            sent: self.sent - earlier.sent,
            trains: self.trains - earlier.trains,
            sent_in_trains: self.sent_in_trains - earlier.sent_in_trains,
            flushes: self.flushes - earlier.flushes,
            flushes_short_of_slots: self.flushes_short_of_slots - earlier.flushes_short_of_slots,
            fallbacks: self.fallbacks - earlier.fallbacks,
            receive_calls: self.receive_calls - earlier.receive_calls,
            received: self.received - earlier.received,
            gro_buffers: self.gro_buffers - earlier.gro_buffers,
            unsent: self.unsent - earlier.unsent,
        }
    }

    pub(super) fn value(&self) -> Value {
        json!({
            "send_calls": self.send_calls,
            "sent_datagrams": self.sent,
            "gso_sends": self.trains,
            "gso_datagrams": self.sent_in_trains,
            "flushes": self.flushes,
            "flushes_short_of_slots": self.flushes_short_of_slots,
            "gso_fallbacks": self.fallbacks,
            "receive_calls": self.receive_calls,
            "received_datagrams": self.received,
            "gro_buffers": self.gro_buffers,
            "unsent_datagrams": self.unsent,
        })
    }

    /// Returns the same in words.
    pub(super) fn sentence(&self) -> String {
        let per = |datagrams: u64, calls: u64| datagrams as f64 / calls.max(1) as f64;
        format!(
            "{:.1} datagrams a sending call, {:.1} a flush, {:.1} a train ({} trains), {:.1} a receiving call, {} not sent",
            per(self.sent, self.send_calls),
            per(self.sent, self.flushes),
            per(self.sent_in_trains, self.trains),
            self.trains,
            per(self.received, self.receive_calls),
            self.unsent
        )
    }
}
