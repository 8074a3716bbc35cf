//! What whoever relays is charged with: a unit of its user's quota, and its rate.
//!
//! An allocation has an account of its own. The tunnels of one session have one together. Dropping the last of them gives everything
//! back.

use core::num::NonZeroU32;
use std::sync::Arc;

use crate::bandwidth::{Direction, Shaper};
use crate::credential::User;
use crate::drop_reason::DropReason;
use crate::quota::QuotaUnit;
use crate::time::Time;

/// A unit of a quota with the user who has it, and a rate.
#[derive(Debug)]
pub(crate) struct Account {
    quota: QuotaUnit,
    /// How fast may be relayed, if there is a bound.
    shaper: Option<Box<Shaper>>,
}

impl Account {
    pub(crate) fn new(quota: QuotaUnit, shaper: Option<Shaper>) -> Self {
        Self {
            quota,
            shaper: shaper.map(Box::new),
        }
    }

    /// Makes it that of the same user as the record of an allocation has it. Returns `None` if it is charged to somebody else.
    pub(crate) fn taken_up(mut self, user: &Arc<User>) -> Option<Self> {
        self.quota.take_up(user).then_some(self)
    }

    /// Returns whose it is.
    #[inline]
    pub(crate) fn user(&self) -> &Arc<User> {
        self.quota.user()
    }

    /// Replaces the user by the same one with another token.
    pub(crate) fn renew(&mut self, user: &Arc<User>) {
        self.quota.renew(user);
    }

    /// Returns the bound of what may be relayed, if there is one.
    #[inline]
    pub(crate) fn shaper(&self) -> Option<&Shaper> {
        self.shaper.as_deref()
    }

    /// Returns the rate in bytes of payload per second, `None` for no bound.
    pub(crate) fn rate(&self) -> Option<NonZeroU32> {
        self.shaper().map(Shaper::rate)
    }

    /// Returns how many of these datagrams, in their order, are within the rate; at least one.
    ///
    /// # Errors
    ///
    /// Not even one of them is within the rate.
    #[inline]
    pub(crate) fn shape(
        &self,
        direction: Direction,
        now: Time,
        datagrams: u32,
        bytes: u64,
    ) -> Result<u32, DropReason> {
        match self.shaper() {
            None => Ok(datagrams),
            Some(shaper) => match shaper.admit(direction, now, datagrams, bytes) {
                0 if datagrams > 0 => Err(DropReason::BandwidthExceeded),
                count => Ok(count),
            },
        }
    }
}
