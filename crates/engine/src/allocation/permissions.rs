//! The permissions of one allocation (RFC 8656 §9).

use core::net::IpAddr;

use crate::id::Family;
use crate::time::Time;

/// The permissions of one allocation, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct Permissions(Vec<Permission>);

#[derive(Clone, Copy, Debug)]
struct Permission {
    peer: IpAddr,
    expires: Time,
}

impl Permissions {
    /// Returns whether there is an unexpired permission for `peer`; the port plays no part (RFC 8656 §9).
    #[inline]
    pub(crate) fn permits(&self, peer: IpAddr, now: Time) -> bool {
        // guard: V-13-expiry-to-the-nanosecond
        self.find(peer)
            .is_ok_and(|index| now < self.0[index].expires)
    }

    /// Returns when the permission for `peer` ends, even if it has.
    pub(crate) fn expires(&self, peer: IpAddr) -> Option<Time> {
        self.find(peer).ok().map(|index| self.0[index].expires)
    }

    pub(crate) fn contains(&self, peer: IpAddr) -> bool {
        self.find(peer).is_ok()
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().map(|permission| permission.peer)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (IpAddr, Time)> + '_ {
        self.0
            .iter()
            .map(|permission| (permission.peer, permission.expires))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Installs a permission, or gives it another lifetime. Returns whether it is new.
    pub(crate) fn install(&mut self, peer: IpAddr, expires: Time) -> bool {
        let found = self.find(peer);
        match found {
            Ok(index) => self.0[index].expires = expires,
            Err(index) => {
                if self.0.is_empty() {
                    self.0.reserve_exact(1); // most allocations have one, and `insert` would make room for four
                }
                self.0.insert(index, Permission { peer, expires });
            }
        }
        found.is_err()
    }

    pub(crate) fn nearest_deadline(&self) -> Option<Time> {
        self.0.iter().map(|permission| permission.expires).min()
    }

    /// Removes what has run out.
    pub(crate) fn expire(&mut self, now: Time, mut expired: impl FnMut(IpAddr)) {
        // guard: V-13-expiry
        self.retain(|permission| now < permission.expires, &mut expired);
    }

    pub(crate) fn remove_family(&mut self, family: Family) {
        self.retain(
            |permission| permission.peer.is_ipv4() != (family == Family::V4),
            &mut |_| {},
        );
    }

    /// Removes what `keep` does not want to keep.
    pub(crate) fn retain_peers(
        &mut self,
        keep: impl Fn(IpAddr) -> bool,
        mut removed: impl FnMut(IpAddr),
    ) {
        self.retain(|permission| keep(permission.peer), &mut removed);
    }

    fn retain(&mut self, keep: impl Fn(&Permission) -> bool, removed: &mut impl FnMut(IpAddr)) {
        self.0.retain(|permission| {
            let kept = keep(permission);
            if !kept {
                removed(permission.peer);
            }
            kept
        });
    }

    #[inline]
    fn find(&self, peer: IpAddr) -> Result<usize, usize> {
        self.0
            .binary_search_by(|permission| permission.peer.cmp(&peer))
    }
}
