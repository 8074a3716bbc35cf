//! Holds what other shards send to a shard: messages of clients whose ingress and home differ, and connections that move.
//!
//! A shard collects its messages for other shards and posts them when its turn ends. This takes one lock per receiving shard. It wakes the receiver
//! only if its mailbox was empty. A turn with an empty mailbox takes no lock.
//!
//! Invariants:
//! * a message that is refused is reported to its sender, also when the receiving shard has ended, so that each message is counted once;
//! * notices that carry no client message, such as a closed connection, are never refused;
//! * the queued messages of one client never exceed the free room, in messages and in bytes. So one flood takes at most half of the room and two
//!   floods two thirds. There is always room for another client.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use turnbuckle_datapath::Waker;
use turnbuckle_engine::ClientTuple;

use super::connection::MovedConnection;
use super::message::ShardMessage;

/// What may wait for one shard.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Messages.
    pub messages: usize,
    /// Bytes of these messages.
    pub bytes: usize,
    /// Connections.
    pub connections: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            messages: 4096,
            bytes: 4 * 1024 * 1024,
            connections: 256,
        }
    }
}

// guard: V-30-share-of-turn
/// Number of messages that a shard takes out in one turn.
const MESSAGES_PER_TURN: usize = 512;
const BYTES_PER_TURN: usize = 512 * 1024;
const CONNECTIONS_PER_TURN: usize = 64;

/// The mailbox of one shard.
#[derive(Default)]
pub(crate) struct Mailbox {
    room: Room,
    state: Mutex<State>,
    /// Whether the mailbox holds anything. It is written with the lock held, and read without it in each turn.
    has_any: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Wakes the shard. `None` while the mailbox is closed.
    waker: Option<Waker>,
    messages: VecDeque<ShardMessage>,
    connections: VecDeque<MovedConnection>,
    /// The sum of all queued messages.
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
    /// Returns an empty mailbox with so much room.
    pub(crate) fn with_room(room: Room) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Opens the mailbox for the shard that `waker` wakes.
    pub(crate) fn open(&self, waker: Waker) {
        let mut state = self.lock();
        state.waker = Some(waker);
        // Notices may have arrived while a failed shard was being restarted.
        state.wake_if(true);
    }

    /// Closes the mailbox. Returns how many queued messages and requests are lost.
    pub(crate) fn close(&self) -> u64 {
        let mut state = self.lock();
        let lost = state.waiting.messages + state.connections.len();
        *state = State::default();
        self.note(&state);
        lost as u64
    }

    /// Queues `messages` in their order. Returns how many client messages among them were refused, because there was no room or the mailbox is
    /// closed.
    pub(crate) fn post(&self, messages: &mut Vec<ShardMessage>) -> u64 {
        let mut state = self.lock();
        let was_empty = state.is_empty();
        // guard: V-40-handover
        let is_open = state.waker.is_some();
        let mut refused = 0;
        for message in messages.drain(..) {
            if !(is_open && state.admits(&message, self.room)) {
                refused += u64::from(message.carried().is_some());
            } else {
                state.messages.push_back(message);
            }
        }
        self.note(&state);
        state.wake_if(was_empty);
        refused
    }

    /// Queues a connection, or returns it if there is no room.
    pub(crate) fn offer(&self, connection: MovedConnection) -> Option<MovedConnection> {
        let mut state = self.lock();
        if state.waker.is_none() || state.connections.len() >= self.room.connections {
            return Some(connection);
        }
        let was_empty = state.is_empty();
        state.connections.push_back(connection);
        self.note(&state);
        state.wake_if(was_empty);
        None
    }

    /// Takes out what a shard handles in one turn. Returns whether more is queued.
    pub(crate) fn take(
        &self,
        messages: &mut Vec<ShardMessage>,
        connections: &mut Vec<MovedConnection>,
    ) -> bool {
        if !self.has_any.load(Ordering::Acquire) {
            return false;
        }
        let mut state = self.lock();
        let mut bytes = 0;
        while messages.len() < MESSAGES_PER_TURN
            && bytes < BYTES_PER_TURN
            && let Some(message) = state.messages.pop_front()
        {
            bytes += message.carried().map_or(0, |(_, len)| len);
            state.discount(&message);
            messages.push(message);
        }
        let count = state.connections.len().min(CONNECTIONS_PER_TURN);
        connections.extend(state.connections.drain(..count));
        self.note(&state);
        !state.is_empty()
    }

    /// Returns a client with a queued message for which those before it left no room, and how many of its messages wait up to it; for the simulator.
    ///
    /// The queue is judged as it stands. Messages taken out since then only leave more room.
    pub(crate) fn crowded_by(&self) -> Option<(ClientTuple, usize)> {
        let state = self.lock();
        let mut before = Share::default();
        let mut shares: HashMap<&ClientTuple, Share> = HashMap::new();
        for (client, len) in state.messages.iter().filter_map(ShardMessage::carried) {
            let share = shares.entry(client).or_default();
            share.messages += 1;
            share.bytes += len;
            if before.messages + share.messages > self.room.messages
                || before.bytes + share.bytes > self.room.bytes
            {
                return Some((*client, share.messages));
            }
            before.messages += 1;
            before.bytes += len;
        }
        None
    }

    /// Notes whether the mailbox holds anything, before the shard is woken.
    fn note(&self, state: &State) {
        self.has_any.store(!state.is_empty(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves the state consistent, because it can only happen between two complete changes.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.connections.is_empty()
    }

    /// Adds a message to the counts, if there is room for it.
    fn admits(&mut self, message: &ShardMessage, room: Room) -> bool {
        // guard: V-30-told-full
        let Some((&client, len)) = message.carried() else {
            return true;
        };
        let free = Share {
            messages: room.messages - self.waiting.messages,
            bytes: room.bytes - self.waiting.bytes,
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

    /// Takes a message off the counts.
    fn discount(&mut self, message: &ShardMessage) {
        let Some((client, len)) = message.carried() else {
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

    /// Wakes the shard if its mailbox was empty and no longer is. Otherwise it is awake, or about to wake.
    fn wake_if(&self, was_empty: bool) {
        if was_empty
            && !self.is_empty()
            && let Some(waker) = &self.waker
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use turnbuckle_engine::Endpoint;

    use super::*;
    use crate::shard::across::message::{About, Body, ClientAt};

    fn from(host: u32, about: About) -> ShardMessage {
        let remote = SocketAddr::from((host.to_be_bytes(), 5000));
        let client = ClientTuple::udp(Endpoint(1), remote);
        let body = Body::Client(
            ClientAt {
                client,
                listener: 0,
            },
            about,
        );
        ShardMessage { from: 1, body }
    }

    #[test]
    fn datagrams_of_quic_from_anywhere_leave_room_for_a_client() {
        let mailbox = Mailbox::default();
        mailbox.open(Waker::flag());
        let flood = (0..20_000).map(|host| from(host, About::Quic(vec![0x40; 40])));
        let refused = mailbox.post(&mut flood.collect());
        assert!(
            refused >= 20_000 - Room::default().messages as u64 / 2,
            "{refused}"
        );
        let client = (0..1_000).map(|_| from(1, About::FromClient(vec![0; 100])));
        assert_eq!(mailbox.post(&mut client.collect()), 0);
        // What is counted for all of them is counted off again.
        let (mut taken, mut connections) = (Vec::new(), Vec::new());
        while mailbox.take(&mut taken, &mut connections) {
            taken.clear();
        }
        assert!(mailbox.lock().share_by_client.is_empty());
        assert_eq!(mailbox.lock().waiting, Share::default());
    }
}
