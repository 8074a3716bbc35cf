//! Reserved ports that wait for their token (RFC 8656 §7.2), server-wide.
//!
//! A reservation holds its port's lease, the host's socket there, and a unit of its user's quota. An expired one cannot be
//! redeemed, and gives its port back at the next purge. A token works once, also when the engines of a server are rebuilt in any
//! order.

use core::fmt;
use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::held::HeldPort;
use crate::ports::PortLease;
use crate::quota::QuotaUnit;
use crate::refusal::Refusal;
use crate::reject::Reject;
use crate::time::Time;

/// No reservation is shorter (RFC 8656 §7.2).
pub(crate) const RESERVATION_MIN: Duration = Duration::from_secs(30);

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
    /// Tokens that were redeemed, and until when their reservations could have lasted: whoever rebuilds an engine that had made one does not
    /// make it again.
    spent: Mutex<BTreeMap<ReservationToken, Time>>,
}

/// A port that is kept for whoever brings a token.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    /// Comes first, and so is dropped first: who leases the port next finds it free. `None` after a rebuild, when nothing is held yet.
    pub(crate) held: Option<HeldPort>,
    pub(crate) lease: PortLease,
}

/// A port that waits for its token.
#[derive(Debug)]
pub(crate) struct Reservation {
    pub(crate) port: ReservedPort,
    /// The unit of the quota of the user whose request reserved it.
    pub(crate) quota: QuotaUnit,
    pub(crate) expires: Time,
}

impl Reservations {
    pub(crate) fn new(count_max: u32) -> Self {
        Self {
            count_max: count_max as usize,
            by_token: Mutex::default(),
            spent: Mutex::default(),
        }
    }

    /// Returns whether there is room for one more reservation.
    pub(crate) fn has_room(&self, now: Time) -> bool {
        self.purge(now);
        self.lock().len() < self.count_max
    }

    /// Keeps a port for whoever brings `token` in time; hands it back when there is no room.
    pub(crate) fn put(
        &self,
        token: ReservationToken,
        reservation: Reservation,
    ) -> Result<(), Reservation> {
        let mut by_token = self.lock();
        let is_spent = self.lock_spent().contains_key(&token);
        if is_spent || by_token.len() >= self.count_max || by_token.contains_key(&token) {
            return Err(reservation);
        }
        by_token.insert(token, reservation);
        Ok(())
    }

    /// Returns the port that waits for a token, and until when.
    pub(crate) fn waiting(&self, token: ReservationToken, now: Time) -> Option<(SocketAddr, Time)> {
        let by_token = self.lock();
        let reservation = by_token.get(&token)?;
        let local = reservation.port.lease.local();
        (now < reservation.expires).then_some((local, reservation.expires))
    }

    /// Returns whether `token` can be redeemed.
    pub(crate) fn holds(&self, token: ReservationToken, now: Time) -> bool {
        self.lock()
            .get(&token)
            .is_some_and(|reservation| now < reservation.expires)
    }

    /// Redeems `token`, if `charge` lets the unit be its user's: works once.
    ///
    /// # Errors
    ///
    /// The token is not good, or `charge` handed the unit back: then the port goes on waiting.
    pub(crate) fn redeem(
        &self,
        token: ReservationToken,
        now: Time,
        charge: impl FnOnce(QuotaUnit) -> Result<QuotaUnit, (QuotaUnit, Reject)>,
    ) -> Result<(ReservedPort, QuotaUnit), Reject> {
        let mut by_token = self.lock();
        // mutant: token-works-twice
        let reservation = by_token
            .remove(&token)
            .filter(|reservation| now < reservation.expires)
            .ok_or(Reject::InsufficientCapacity(Refusal::ReservationUnknown))?;
        let Reservation {
            port,
            quota,
            expires,
        } = reservation;
        match charge(quota) {
            Ok(quota) => {
                // The engine that reserved it may be built anew, and must not reserve it again.
                // guard: V-63-panic-token
                self.lock_spent().insert(token, expires);
                Ok((port, quota))
            }
            Err((quota, reject)) => {
                let reservation = Reservation {
                    port,
                    quota,
                    expires,
                };
                by_token.insert(token, reservation);
                Err(reject)
            }
        }
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
            .find(|(_, reservation)| reservation.port.lease.local() == local)?
            .0;
        by_token
            .remove(&token)
            .map(|reservation| reservation.port.lease)
    }

    /// Gives back the ports of expired reservations.
    pub(crate) fn purge(&self, now: Time) {
        // mutant: reservation-outlives
        drop(self.take_ended(now)); // closes sockets, for which nobody has to wait
        self.lock_spent().retain(|_, until| now < *until);
    }

    fn take_ended(&self, now: Time) -> Vec<Reservation> {
        let mut by_token = self.lock();
        let ended = by_token.extract_if(.., |_, reservation| reservation.expires <= now);
        ended.map(|(_, reservation)| reservation).collect()
    }

    /// Returns how many reservations are held.
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
