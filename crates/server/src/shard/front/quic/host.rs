//! What an endpoint asks of its host: time and bytes for strangers, and a way out.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use turnbuckle_datapath::SendQueue;
use turnbuckle_engine::{Endpoint as Listener, Engine, Time};
use turnbuckle_quic::{Outlet, Strangers, Via};

use crate::random::Randomness;
use crate::shard::hub::Hub;
use crate::shard::name;

/// Time that a turn may spend on datagrams that have proven nothing, handshakes among them.
const STRANGERS_BUDGET: Duration = Duration::from_micros(500);

/// What strangers get: the budget that they have with all others.
pub(super) struct Budget<'a> {
    engine: &'a Engine<Randomness>,
    now: Time,
    /// When work on what waits began; `None` outside of it.
    began: Option<Instant>,
}

impl<'a> Budget<'a> {
    pub(super) fn with_time(hub: &'a Hub) -> Self {
        Self {
            began: Some(Instant::now()),
            ..Self::without_time(hub)
        }
    }

    pub(super) fn without_time(hub: &'a Hub) -> Self {
        Self {
            engine: &hub.engine,
            now: hub.now.time,
            began: None,
        }
    }
}

impl Strangers for Budget<'_> {
    fn has_time(&mut self) -> bool {
        self.began
            .is_some_and(|began| began.elapsed() < STRANGERS_BUDGET)
    }

    fn admits(&mut self, from: IpAddr, received_len: usize, answer_len: usize) -> bool {
        // guard: V-82-budget
        self.engine
            .admits_unverified(self.now, from, received_len, answer_len)
    }
}

/// Where trains leave.
pub(super) struct Sockets<'a> {
    pub(super) tx: &'a mut SendQueue,
    pub(super) datagrams: u64,
}

impl Outlet for Sockets<'_> {
    fn buffer(&mut self) -> Vec<u8> {
        self.tx.take_buffer()
    }

    fn send(&mut self, via: Via, to: SocketAddr, bytes: Vec<u8>, segment: usize) {
        self.datagrams += bytes.len().div_ceil(segment) as u64;
        let socket = name::datagrams(Listener(via.0));
        // RFC 9000 §14. TURN's datagrams leave from the same socket, and may be fragmented.
        // guard: quic-unfragmented
        self.tx.send_owned_unfragmented(socket, to, bytes, segment);
    }
}
