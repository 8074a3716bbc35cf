//! What other shards have for a shard: messages of clients who come to one and have their allocation at the other, and connections
//! that move.
//!
//! A shard collects what it has for others and posts it when its turn ends: one lock for each shard that gets something, and a wake only
//! if nothing waited there. A turn in which nothing waits takes no lock.
//!
//! Invariants:
//! * a message that is not taken is given back as such to who posts it, also when the shard has ended, so that each is counted once;
//! * what is no message, such as that a client is gone, is never refused;
//! * what waits for one client is never more than what is free, in messages and in bytes. So a flood takes half of the room at most, two
//!   floods two thirds, and whoever comes next finds some.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use turnbuckle_datapath::Waker;
use turnbuckle_engine::ClientTuple;

use super::{Migrant, Parcel};

/// Messages that may wait for one shard.
const MESSAGES_MAX: usize = 4096;
/// Bytes of messages that may wait for one shard.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Connections that may wait for one shard.
const MIGRANTS_MAX: usize = 256;
// guard: V-30-share-of-turn
/// What a shard takes out in one turn.
const PARCELS_PER_TURN: usize = 512;
const BYTES_PER_TURN: usize = 512 * 1024;
const MIGRANTS_PER_TURN: usize = 64;

/// What waits for one shard.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    /// Whether anything waits; written with the lock held, and read without it in each turn.
    has_any: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Wakes the shard; `None` if it takes nothing.
    waker: Option<Waker>,
    parcels: VecDeque<Parcel>,
    migrants: VecDeque<Migrant>,
    /// Of all messages that wait.
    waiting: Share,
    // Addresses are chosen by clients: the hash is keyed (V-53).
    share_by_client: HashMap<ClientTuple, Share>,
}

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    messages: usize,
    bytes: usize,
}

impl Mailbox {
    /// Takes things from now on, for the shard that is woken so.
    pub(crate) fn open(&self, waker: Waker) {
        let mut state = self.lock();
        state.waker = Some(waker);
        // What came while a shard that had failed was not there yet.
        state.wake_if(true);
    }

    /// Takes nothing any more. Returns how many messages and requests are lost with what waits.
    pub(crate) fn close(&self) -> u64 {
        let mut state = self.lock();
        let lost = state.waiting.messages + state.migrants.len();
        *state = State::default();
        self.note(&state);
        lost as u64
    }

    /// Takes `parcels` in, all of them in their order or none. Returns how many messages among them it has no room for.
    pub(crate) fn post(&self, parcels: &mut Vec<Parcel>) -> u64 {
        let mut state = self.lock();
        let was_empty = state.is_empty();
        // guard: V-40-handover
        let is_open = state.waker.is_some();
        let mut refused = 0;
        for parcel in parcels.drain(..) {
            if !(is_open && state.admits(&parcel)) {
                refused += u64::from(parcel.message().is_some());
            } else {
                state.parcels.push_back(parcel);
            }
        }
        self.note(&state);
        state.wake_if(was_empty);
        refused
    }

    /// Takes a connection in, or gives it back if there is no room for it.
    pub(crate) fn offer(&self, migrant: Migrant) -> Option<Migrant> {
        let mut state = self.lock();
        if state.waker.is_none() || state.migrants.len() >= MIGRANTS_MAX {
            return Some(migrant);
        }
        let was_empty = state.is_empty();
        state.migrants.push_back(migrant);
        self.note(&state);
        state.wake_if(was_empty);
        None
    }

    /// Takes out what a shard deals with in one turn. Returns whether more waits.
    pub(crate) fn take(&self, parcels: &mut Vec<Parcel>, migrants: &mut Vec<Migrant>) -> bool {
        if !self.has_any.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.lock();
        let mut bytes = 0;
        while parcels.len() < PARCELS_PER_TURN
            && bytes < BYTES_PER_TURN
            && let Some(parcel) = state.parcels.pop_front()
        {
            bytes += parcel.message().map_or(0, |(_, len)| len);
            state.discount(&parcel);
            parcels.push(parcel);
        }
        let count = state.migrants.len().min(MIGRANTS_PER_TURN);
        migrants.extend(state.migrants.drain(..count));
        self.note(&state);
        !state.is_empty()
    }

    /// Notes whether anything waits, before the shard is woken for it.
    fn note(&self, state: &State) {
        self.has_any.store(!state.is_empty(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whoever panicked here did so between two whole states.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.parcels.is_empty() && self.migrants.is_empty()
    }

    /// Counts a parcel in, if there is room for it.
    fn admits(&mut self, parcel: &Parcel) -> bool {
        // guard: V-30-told-full
        let Some((&client, len)) = parcel.message() else {
            return true;
        };
        let free = Share {
            messages: MESSAGES_MAX - self.waiting.messages,
            bytes: BYTES_MAX - self.waiting.bytes,
        };
        let share = self.share_by_client.get(&client).copied();
        let Share { messages, bytes } = share.unwrap_or_default();
        // guard: V-30-share
        if messages >= free.messages || bytes + len > free.bytes {
            return false;
        }
        self.waiting.messages += 1;
        self.waiting.bytes += len;
        let share = Share {
            messages: messages + 1,
            bytes: bytes + len,
        };
        self.share_by_client.insert(client, share);
        true
    }

    /// Counts a parcel out.
    fn discount(&mut self, parcel: &Parcel) {
        let Some((client, len)) = parcel.message() else {
            return;
        };
        self.waiting.messages -= 1;
        self.waiting.bytes -= len;
        if let Some(share) = self.share_by_client.get_mut(client) {
            share.messages -= 1;
            share.bytes -= len;
            if share.messages == 0 {
                self.share_by_client.remove(client);
            }
        }
    }

    /// Wakes the shard if something waits where nothing did: else it is awake, or about to be.
    fn wake_if(&self, was_empty: bool) {
        if was_empty
            && !self.is_empty()
            && let Some(waker) = &self.waker
        {
            waker.wake();
        }
    }
}
