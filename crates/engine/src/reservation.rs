//! Reserved ports that wait for their token (RFC 8656 §7.2), server-wide.
//!
//! A reservation holds its port's lease; an expired one is as good as gone and gives its port back at the next purge. A token works
//! once, also when the engines of a server are rebuilt in any order.

use core::fmt;
use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ports::PortLease;
use crate::time::Time;

/// The 8 bytes of RESERVATION-TOKEN (RFC 8656 §18.10).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationToken(pub [u8; 8]);

impl fmt::Debug for ReservationToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReservationToken(..)") // whoever knows it may take the port
    }
}

/// All reservations of a server by token.
#[derive(Debug)]
pub(crate) struct Reservations {
    count_max: usize,
    by_token: Mutex<BTreeMap<ReservationToken, Reservation>>,
    /// Tokens that records say were redeemed, and until when their reservations could have lasted. Filled by rebuilding only.
    spent: Mutex<BTreeMap<ReservationToken, Time>>,
}

#[derive(Debug)]
struct Reservation {
    lease: PortLease,
    expires: Time,
}

impl Reservations {
    pub(crate) fn new(count_max: u32) -> Self {
        Self {
            count_max: count_max as usize,
            by_token: Mutex::default(),
            spent: Mutex::default(),
        }
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&self, now: Time) -> bool {
        self.purge(now);
        self.lock().len() < self.count_max
    }

    /// Keeps `lease` for whoever brings `token` before `expires`; hands the lease back when there is no room.
    pub(crate) fn put(
        &self,
        token: ReservationToken,
        lease: PortLease,
        expires: Time,
    ) -> Result<(), PortLease> {
        let mut by_token = self.lock();
        let is_spent = self.lock_spent().contains_key(&token);
        if is_spent || by_token.len() >= self.count_max || by_token.contains_key(&token) {
            return Err(lease);
        }
        by_token.insert(token, Reservation { lease, expires });
        Ok(())
    }

    /// Whether `token` can be redeemed.
    pub(crate) fn holds(&self, token: ReservationToken, now: Time) -> bool {
        self.lock()
            .get(&token)
            .is_some_and(|reservation| now < reservation.expires)
    }

    /// Redeems `token`: works once.
    pub(crate) fn redeem(&self, token: ReservationToken, now: Time) -> Option<PortLease> {
        let mut by_token = self.lock();
        // mutant: token-works-twice
        let reservation = by_token.remove(&token)?;
        (now < reservation.expires).then_some(reservation.lease)
    }

    /// Notes that `token` was redeemed before, and gives its port back if it is held again. For rebuilding.
    pub(crate) fn spend(&self, token: ReservationToken, until: Time) {
        self.lock_spent().insert(token, until);
        self.lock().remove(&token);
    }

    /// Takes the reservation of an exact address, whatever its token. For rebuilding.
    pub(crate) fn redeem_exact(&self, local: SocketAddr) -> Option<PortLease> {
        let mut by_token = self.lock();
        let token = *by_token
            .iter()
            .find(|(_, reservation)| reservation.lease.local() == local)?
            .0;
        by_token.remove(&token).map(|reservation| reservation.lease)
    }

    /// Gives back the ports of expired reservations.
    pub(crate) fn purge(&self, now: Time) {
        // mutant: reservation-outlives
        self.lock()
            .retain(|_, reservation| now < reservation.expires);
        self.lock_spent().retain(|_, until| now < *until);
    }

    /// Reservations held.
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock_spent(&self) -> MutexGuard<'_, BTreeMap<ReservationToken, Time>> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ReservationToken, Reservation>> {
        self.by_token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
