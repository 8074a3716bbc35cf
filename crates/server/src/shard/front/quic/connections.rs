//! The connections of a shard as the host sees them: in which phase each is and until when it has to do what, as the [`Book`] says, and which
//! addresses they have.
//!
//! A connection counts as one without an allocation while it has no tunnel.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::Time;
use turnbuckle_quic::{Closed, ConnectionName};

use crate::counters::CloseReason;
use crate::shard::book::{Book, BookLimits, Due, Phase, Standing};

/// One connection.
struct Entry {
    standing: Standing,
    remote: SocketAddr,
    is_connected: bool,
    /// Why it is being closed by this side.
    reason: Option<CloseReason>,
}

/// A connection whose time is over.
pub(super) struct Overdue {
    pub(super) name: ConnectionName,
    pub(super) reason: CloseReason,
}

/// All connections of a shard.
pub(super) struct Connections {
    entries: Vec<Option<Entry>>,
    /// How many have each address.
    // Addresses are chosen by clients: the hash is keyed (V-53).
    counts: HashMap<SocketAddr, u32>,
    book: Book<ConnectionName>,
}

impl Connections {
    pub(super) fn new(limits: BookLimits) -> Self {
        Self {
            entries: Vec::new(),
            counts: HashMap::new(),
            book: Book::new(limits, None),
        }
    }

    /// Sets other limits.
    pub(super) fn set_limits(&mut self, limits: BookLimits) {
        self.book.set_limits(limits);
    }

    /// Returns whether a client with this address has a connection.
    #[inline]
    pub(super) fn has(&self, remote: SocketAddr) -> bool {
        !self.counts.is_empty() && self.counts.contains_key(&remote)
    }

    /// Returns the connection that has to go before one more begins from `source`, and why.
    pub(super) fn displaced_by(&self, source: IpAddr) -> Option<(ConnectionName, CloseReason)> {
        // guard: V-80-crowd
        self.book.displaced_by(Some(source), false)
    }

    /// Enters a connection.
    pub(super) fn begun(&mut self, now: Time, name: ConnectionName, remote: SocketAddr) {
        let place = name.place();
        if self.entries.len() <= place {
            self.entries.resize_with(place + 1, || None);
        }
        let timer = u32::try_from(place).unwrap_or(u32::MAX);
        let standing = self
            .book
            .enter(now, timer, (name, remote.ip()), Phase::Handshake);
        *self.counts.entry(remote).or_default() += 1;
        self.entries[place] = Some(Entry {
            standing,
            remote,
            is_connected: false,
            reason: None,
        });
    }

    /// Notes the end of a handshake.
    pub(super) fn connected(&mut self, now: Time, name: ConnectionName) {
        if let Some(entry) = at(&mut self.entries, name) {
            entry.is_connected = true;
            if entry.reason.is_none() {
                self.book.handshake_done(now, &mut entry.standing);
            }
        }
    }

    /// Notes a request.
    pub(super) fn progressed(&mut self, now: Time, name: ConnectionName) {
        if let Some(entry) = at(&mut self.entries, name)
            && entry.reason.is_none()
        {
            self.book.progressed(now, &mut entry.standing, true, false);
        }
    }

    /// Notes whether a connection has tunnels.
    pub(super) fn allocated(&mut self, now: Time, name: ConnectionName, has_tunnels: bool) {
        if let Some(entry) = at(&mut self.entries, name)
            && entry.reason.is_none()
        {
            let who = (name, entry.remote.ip());
            // guard: V-80-tunnels
            self.book
                .allocated(now, &mut entry.standing, who, has_tunnels);
        }
    }

    /// Notes that a client has another address.
    pub(super) fn moved(&mut self, name: ConnectionName, remote: SocketAddr) {
        if let Some(entry) = at(&mut self.entries, name) {
            let before = std::mem::replace(&mut entry.remote, remote);
            *self.counts.entry(remote).or_default() += 1;
            discount(&mut self.counts, before);
        }
    }

    /// Notes that this side closes a connection, and why.
    pub(super) fn closes(&mut self, name: ConnectionName, reason: CloseReason) {
        if let Some(entry) = at(&mut self.entries, name) {
            entry.reason.get_or_insert(reason);
            self.book.strike(&mut entry.standing);
        }
    }

    /// Forgets a connection that has ended. Returns why it has.
    pub(super) fn ended(&mut self, name: ConnectionName, cause: Closed) -> Option<CloseReason> {
        let mut entry = self.entries.get_mut(name.place())?.take()?;
        self.book.strike(&mut entry.standing);
        discount(&mut self.counts, entry.remote);
        Some(entry.reason.unwrap_or(match cause {
            Closed::HandshakeLate => CloseReason::HandshakeLate,
            Closed::Idle => CloseReason::Idle,
            // What it carries has closed it.
            Closed::Local => CloseReason::RequestsExceeded,
            Closed::Remote(_) | Closed::Reset => CloseReason::Remote,
            Closed::Failed(_) if entry.is_connected => CloseReason::TlsFailed,
            Closed::Failed(_) => CloseReason::HandshakeFailed,
        }))
    }

    /// Notes that all are closed because the relay ends.
    pub(super) fn stop(&mut self) {
        for entry in self.entries.iter_mut().flatten() {
            entry.reason = entry.reason.or(Some(CloseReason::Stopped));
        }
    }

    /// Returns the next connection whose time is over. `has_requested` tells which have begun a request, `has_tunnels` which have tunnels.
    pub(super) fn pop_due(
        &mut self,
        now: Time,
        budget: &mut u32,
        mut has_requested: impl FnMut(ConnectionName) -> bool,
        has_tunnels: impl Fn(ConnectionName) -> bool,
    ) -> Option<Overdue> {
        while let Some(place) = self.book.pop_due(now, budget) {
            let place = place as usize;
            let Some(Some(entry)) = self.entries.get_mut(place) else {
                continue;
            };
            let (standing, name) = (&mut entry.standing, ConnectionName::at(place));
            let is_used = || has_tunnels(name);
            let mut due = self.book.judge(now, standing, None, is_used);
            // That a request came is looked up only when none would be too late.
            // guard: V-80-silence
            if due == Due::Over(CloseReason::FirstMessageLate) && has_requested(name) {
                self.book.progressed(now, standing, true, false);
                due = self.book.judge(now, standing, None, is_used);
            }
            if let Due::Over(reason) = due {
                return Some(Overdue { name, reason });
            }
        }
        None
    }

    /// Returns when [`pop_due`](Self::pop_due) has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.book.next_timeout()
    }
}

/// Returns the connection of this name, if it is there.
fn at(entries: &mut [Option<Entry>], name: ConnectionName) -> Option<&mut Entry> {
    entries.get_mut(name.place())?.as_mut()
}

/// Takes one off those that have an address.
fn discount(counts: &mut HashMap<SocketAddr, u32>, remote: SocketAddr) {
    if let Some(count) = counts.get_mut(&remote) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&remote);
        }
    }
}
