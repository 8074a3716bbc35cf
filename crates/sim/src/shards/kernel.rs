//! What stands in for the program in the kernel: it relays what the shards have published, before a socket gets it.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnbuckle_datapath::offload::{Beyond, Carried, GRACE, Line, Refused, Route, Routes};
use turnbuckle_engine::{Direction, Meters};

/// Lines that all shards have together: few, so that there is no room now and then.
const LINES: usize = 12;

/// Meters that all allocations have together: few, for the same reason.
const METERS: usize = 8;
const SECOND_NS: u64 = 1_000_000_000;

/// A line.
#[derive(Clone, Copy, Debug)]
struct Entry {
    route: Route,
    is_live: bool,
    revoked_at: u64,
    carried: Carried,
}

/// The rate of an allocation, if it is somebody's, and what was dropped because of it.
#[derive(Debug, Default)]
struct Meter {
    empty_at_ns: [AtomicU64; 2],
    state: Mutex<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    rate: u64,
    holders: u32,
    beyond: Beyond,
}

/// What becomes of a datagram that is published.
pub(super) enum Relayed {
    /// It leaves.
    Sent {
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
        /// The relayed transport address.
        by: SocketAddr,
    },
    /// It is beyond its allocation's rate.
    Dropped,
}

/// The kernel of the machine that all shards are on.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel {
    lines: Arc<Mutex<Vec<Option<Entry>>>>,
    meters: Arc<KernelMeters>,
    /// The time, and how many lines were given back before nothing could be using them.
    now: Arc<AtomicU64>,
    freed_early: Arc<AtomicU64>,
    /// A shard is failing, which waits by the real clock before it gives its lines back.
    is_failing: Arc<AtomicBool>,
}

/// The buckets that kernel and shards charge.
#[derive(Debug, Default)]
pub(super) struct KernelMeters([Meter; METERS]);

impl KernelMeters {
    fn meter(&self, meter: NonZeroU32) -> (&Meter, MutexGuard<'_, MeterState>) {
        let it = &self.0[meter.get() as usize - 1];
        (it, it.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether a datagram is within the rate, and counts it.
    fn admits(&self, meter: NonZeroU32, now: u64, direction: Direction, bytes: u64) -> bool {
        let (it, mut state) = self.meter(meter);
        assert!(state.holders > 0, "nobody holds {meter}");
        let bucket = &it.empty_at_ns[direction as usize];
        let filled = bucket.load(Ordering::Relaxed).saturating_sub(now);
        if bytes * SECOND_NS > SECOND_NS.saturating_sub(filled) * state.rate {
            let beyond = match direction {
                Direction::ToPeers => &mut state.beyond.labelled,
                Direction::ToClient => &mut state.beyond.plain,
            };
            beyond.datagrams += 1;
            beyond.bytes += bytes;
            return false;
        }
        let cost = (bytes * SECOND_NS).div_ceil(state.rate);
        bucket.store(now + filled + cost, Ordering::Relaxed);
        true
    }
}

impl Meters for KernelMeters {
    fn claim(&self, bytes_per_s: NonZeroU32) -> Option<NonZeroU32> {
        (1..).zip(&self.0).find_map(|(place, meter)| {
            let mut state = meter.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.holders > 0 {
                return None;
            }
            *state = MeterState {
                rate: bytes_per_s.get().into(),
                holders: 1,
                beyond: Beyond::default(),
            };
            for bucket in &meter.empty_at_ns {
                bucket.store(0, Ordering::Relaxed);
            }
            NonZeroU32::new(place)
        })
    }

    fn bucket(&self, meter: NonZeroU32, direction: Direction) -> &AtomicU64 {
        &self.meter(meter).0.empty_at_ns[direction as usize]
    }

    fn release(&self, meter: NonZeroU32) {
        self.meter(meter).1.holders -= 1;
    }
}

impl Kernel {
    /// Shows the time at which shards publish and revoke from here on.
    pub(super) fn show(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
    }

    /// Shows that a shard is failing, or has failed.
    pub(super) fn set_failing(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Ordering::Relaxed);
    }

    /// Returns how many lines were given back while a packet that had found them might still have been under way.
    pub(super) fn freed_early(&self) -> u64 {
        self.freed_early.load(Ordering::Relaxed)
    }

    /// Returns what rates are measured with.
    pub(super) fn meters(&self) -> Arc<KernelMeters> {
        Arc::clone(&self.meters)
    }

    /// Relays a datagram that arrives, if a route is published for it.
    pub(super) fn relay(
        &self,
        now: u64,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Option<Relayed> {
        let mut lines = self.lines();
        let mut live = lines.iter_mut().flatten().filter(|it| it.is_live);
        let (entry, payload) = live.find_map(|entry| {
            let route = entry.route;
            let is_right = (route.from, route.to) == (from, to) && now < route.expires_ns;
            let payload = match route.label {
                None => Some(bytes),
                Some(label) => message(bytes).filter(|it| it.0 == label).map(|it| it.1),
            };
            payload.filter(|_| is_right).map(|payload| (entry, payload))
        })?;
        let len = payload.len() as u64;
        let direction = match entry.route.label {
            Some(_) => Direction::ToPeers,
            None => Direction::ToClient,
        };
        if let Some(meter) = entry.route.meter
            && !self.meters.admits(meter, now, direction, len)
        {
            return Some(Relayed::Dropped);
        }
        entry.carried.datagrams += 1;
        entry.carried.bytes += len;
        let mut sent = Vec::new();
        if let Some(label) = entry.route.new_label {
            sent.extend(label.to_be_bytes());
            sent.extend(u16::try_from(payload.len()).unwrap_or(0).to_be_bytes());
        }
        sent.extend(payload);
        let route = &entry.route;
        Some(Relayed::Sent {
            from: route.new_from,
            to: route.new_to,
            bytes: sent,
            by: match direction {
                Direction::ToPeers => route.new_from,
                Direction::ToClient => route.to,
            },
        })
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Option<Entry>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, line: Line, change: impl FnOnce(&mut Entry)) {
        if let Some(Some(entry)) = self.lines().get_mut(line.index as usize) {
            change(entry);
        }
    }
}

/// Returns the number and the payload of a channel message that is alone in its datagram.
fn message(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<4>()?;
    let [a, b, c, d] = *header;
    let len = usize::from(u16::from_be_bytes([c, d]));
    let payload = rest.get(..len)?;
    (rest.len() - len <= 3).then_some((u16::from_be_bytes([a, b]), payload))
}

impl Routes for Kernel {
    fn publish(&mut self, route: &Route) -> Option<Line> {
        let mut lines = self.lines();
        let free = lines.iter().position(Option::is_none);
        let index = free.unwrap_or(lines.len());
        if index >= LINES {
            return None;
        }
        if index == lines.len() {
            lines.push(None);
        }
        if let Some(meter) = route.meter {
            self.meters.meter(meter).1.holders += 1;
        }
        lines[index] = Some(Entry {
            route: *route,
            is_live: true,
            revoked_at: 0,
            carried: Carried::default(),
        });
        Some(Line {
            is_v6: false,
            index: u32::try_from(index).ok()?,
        })
    }

    fn set_expiry(&mut self, line: Line, expires_ns: u64) {
        self.with(line, |entry| entry.route.expires_ns = expires_ns);
    }

    fn revoke(&mut self, line: Line) {
        let now = self.now.load(Ordering::Relaxed);
        self.with(line, |entry| {
            (entry.is_live, entry.revoked_at) = (false, now)
        });
    }

    fn carried(&self, line: Line) -> Carried {
        let mut carried = Carried::default();
        self.with(line, |entry| carried = entry.carried);
        carried
    }

    fn take_beyond(&mut self, meter: NonZeroU32) -> Beyond {
        std::mem::take(&mut self.meters.meter(meter).1.beyond)
    }

    /// Returns counts of zero: nothing that comes to listeners is dropped here.
    fn take_refused(&mut self) -> Refused {
        Refused::default()
    }

    fn free(&mut self, line: Line) {
        let entry = self.lines().get_mut(line.index as usize).map(Option::take);
        let Some(entry) = entry.flatten() else {
            return;
        };
        let unused_ns = self.now.load(Ordering::Relaxed) - entry.revoked_at;
        let has_waited =
            self.is_failing.load(Ordering::Relaxed) || u128::from(unused_ns) >= GRACE.as_nanos();
        if entry.is_live || !has_waited {
            self.freed_early.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(meter) = entry.route.meter {
            self.meters.meter(meter).1.holders -= 1;
        }
    }
}
