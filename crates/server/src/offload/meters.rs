//! The buckets of allocations' rates where the program in the kernel charges them too.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use turnbuckle_datapath::offload::{Meters, Way};
use turnbuckle_engine::Direction;

/// Gives the engine the meters of the program: what comes with a channel goes to a peer.
#[derive(Debug)]
pub(super) struct SharedMeters(Arc<Meters>);

impl SharedMeters {
    pub(super) fn new(meters: Arc<Meters>) -> Self {
        Self(meters)
    }
}

impl turnbuckle_engine::Meters for SharedMeters {
    fn claim(&self, bytes_per_s: NonZeroU32) -> Option<NonZeroU32> {
        self.0.claim(bytes_per_s)
    }

    fn bucket(&self, meter: NonZeroU32, direction: Direction) -> &AtomicU64 {
        let way = match direction {
            Direction::ToPeers => Way::Labelled,
            Direction::ToClient => Way::Plain,
        };
        self.0.bucket(meter, way)
    }

    fn release(&self, meter: NonZeroU32) {
        self.0.release(meter);
    }
}
