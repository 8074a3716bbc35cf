//! What an endpoint asks of its host: surroundings, time and bytes for strangers, and a way out.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use turnbuckle_datapath::SendQueue;
use turnbuckle_engine::{Endpoint as Listener, Engine, Random as _, Time};
use turnbuckle_quic::{Outlet, Strangers, Via, WallClock};

use crate::clock::Clock;
use crate::random::Randomness;
use crate::shard::hub::Hub;
use crate::shard::name;
use crate::tls::CurrentTls;

/// Time that a turn may spend on datagrams that have proven nothing, handshakes among them.
const STRANGERS_BUDGET: Duration = Duration::from_micros(500);
/// In a simulation, where work takes no time, it is so many datagrams.
const STRANGERS_GIVEN: u32 = 16;

/// What connections are protected by, and where randomness, the calendar and the time of work come from.
#[derive(Clone)]
pub(crate) enum Surroundings {
    /// Certificates, and the machine.
    Machine(CurrentTls),
    /// What a simulation says. Connections hide nothing, so that what they send follows from it.
    Given(Given),
}

/// What a simulation says.
#[derive(Clone)]
pub(crate) struct Given {
    pub(crate) seed: [u8; 32],
    pub(crate) clock: Clock,
}

impl Surroundings {
    /// Returns the randomness of an endpoint.
    pub(super) fn seed(&self) -> [u8; 32] {
        match self {
            Self::Machine(_) => {
                let mut seed = [0; 32];
                Randomness::of_system().fill(&mut seed);
                seed
            }
            Self::Given(given) => given.seed,
        }
    }

    /// Returns what reads the calendar.
    pub(super) fn wall_clock(&self) -> WallClock {
        match self {
            Self::Machine(_) => WallClock::default(),
            Self::Given(given) => {
                let clock = given.clock.clone();
                let read = move || Duration::from_secs(clock.now().unix_s);
                WallClock(Arc::new(move || SystemTime::UNIX_EPOCH + read()))
            }
        }
    }

    /// Returns how long a turn that begins now may work on what has proven nothing.
    pub(super) fn spell(&self) -> Spell {
        match self {
            Self::Machine(_) => Spell::Since(Instant::now()),
            Self::Given(_) => Spell::Datagrams(STRANGERS_GIVEN),
        }
    }
}

/// How long a turn works on what has proven nothing.
pub(super) enum Spell {
    /// For [`STRANGERS_BUDGET`] from then on.
    Since(Instant),
    /// For so many further datagrams.
    Datagrams(u32),
}

/// What strangers get: the budget that they have with all others.
pub(super) struct Budget<'a> {
    engine: &'a Engine<Randomness>,
    now: Time,
    spell: Spell,
}

impl<'a> Budget<'a> {
    pub(super) fn with_time(hub: &'a Hub, spell: Spell) -> Self {
        Self {
            spell,
            ..Self::without_time(hub)
        }
    }

    pub(super) fn without_time(hub: &'a Hub) -> Self {
        Self {
            engine: &hub.engine,
            now: hub.now.time,
            spell: Spell::Datagrams(0),
        }
    }
}

impl Strangers for Budget<'_> {
    fn has_time(&mut self) -> bool {
        match &mut self.spell {
            Spell::Since(began) => began.elapsed() < STRANGERS_BUDGET,
            Spell::Datagrams(left) => {
                let has_time = *left > 0;
                *left = left.saturating_sub(1);
                has_time
            }
        }
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
