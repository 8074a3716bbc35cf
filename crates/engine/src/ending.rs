//! How things end: allocations, their families, permissions and channels, by time or on request.

use std::sync::PoisonError;

use turnbuckle_wire::TransactionId;

use crate::allocation::{Allocation, Entry, Opening};
use crate::change::{Change, EndCause, Ended, Path};
use crate::engine::Engine;
use crate::id::{AllocationId, ClientTuple, Family, Transport};
use crate::random::Random;
use crate::reject::Reject;
use crate::tcp::PeerEnd;
use crate::time::{Now, Time};
use crate::tombstone::{Addresses, Deed};

impl<R: Random> Engine<R> {
    /// Ends whatever of this allocation has run out, and sets its timer to the next deadline.
    pub(crate) fn expire(&mut self, id: AllocationId, now: Now) {
        let time = now.time;
        match self.table.at(id) {
            None => return,
            Some(Entry::Pending(pending)) if pending.deadline <= time => {
                // mutant: opening-never-given-up
                return self.settle(id, now);
            }
            Some(Entry::Pending(pending)) => {
                let deadline = pending.deadline;
                return self.wheel.schedule(id.index, deadline);
            }
            Some(Entry::Live(allocation)) if allocation.expires() <= time => {
                return self.end(id, EndCause::Expired, time);
            }
            Some(Entry::Live(_)) => {}
        }
        self.expire_connections(id, time);
        for family in [Family::V4, Family::V6] {
            let has_ended = self
                .live(id)
                .and_then(|allocation| allocation.relay(family))
                .is_some_and(|relay| relay.expires <= time);
            if has_ended {
                self.end_family(id, family, EndCause::Expired, time);
            }
        }
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return;
        };
        let changes = &mut self.changes;
        allocation.permissions.expire(time, |peer| {
            changes.push_back(Change::PermissionExpired {
                allocation: id,
                peer,
            });
        });
        allocation.channels.expire(time, |channel| {
            changes.push_back(Change::ChannelExpired {
                allocation: id,
                number: channel.number,
            });
        });
        allocation.wake = allocation
            .nearest_deadline()
            .min(self.tcp.nearest_deadline(id).unwrap_or(Time::MAX));
        self.wheel.schedule(id.index, allocation.wake);
    }

    /// Ends an allocation. Its ports and its quota unit go back as it is dropped.
    pub(crate) fn end(&mut self, id: AllocationId, cause: EndCause, now: Time) {
        let allocation = match self.table.take(id) {
            Some(Entry::Live(allocation)) => allocation,
            Some(pending @ Entry::Pending(_)) => return self.table.put_back(id, pending),
            None => return,
        };
        // mutant: connection-outlives
        self.end_connections(id, None, PeerEnd::AllocationEnded);
        self.table.vacate(id, &allocation.client);
        self.forget_paths(id, &allocation);
        self.wheel.cancel(id.index);
        for relay in allocation.relays.iter().flatten() {
            self.outbox.close_relay(relay.endpoint);
        }
        self.remember(&allocation, cause, now);
        self.changes.push_back(Change::Ended(Box::new(Ended {
            allocation: id,
            client: allocation.client.remote,
            server: self.listener_address(allocation.client.listener),
            transport: allocation.client.transport,
            connection: allocation.client.connection,
            redeemed: allocation.rare.as_ref().and_then(|rare| rare.redeemed),
            user: allocation.quota.user().clone(),
            cause,
            created: allocation.created,
            time: now,
            created_by: allocation.transaction,
            created_from: self.created_from(&allocation),
            totals: allocation.usage,
        })));
    }

    /// Where the request that created an allocation came from, if that has moved since.
    fn created_from(&self, allocation: &Allocation) -> Option<Path> {
        let first = allocation.mobility.as_ref()?.first?;
        (first != allocation.client).then(|| Path {
            server: self.listener_address(first.listener),
            client: first.remote,
            transport: first.transport,
            connection: first.connection,
        })
    }

    /// Ends what a client has whose connection is gone. Nobody else can come to use its 5-tuple.
    pub(crate) fn end_disconnected(&mut self, client: &ClientTuple, now: Now) {
        let Some(id) = self.client(client) else {
            return;
        };
        if self.outlives(id, client, now.time) {
            return;
        }
        let Some(Entry::Pending(pending)) = self.table.at_mut(id) else {
            return self.end(id, EndCause::Disconnected, now.time);
        };
        for opening in &mut pending.openings {
            let failed = Opening::Failed(Reject::InsufficientCapacity.code());
            match core::mem::replace(opening, failed) {
                Opening::Open { endpoint, .. } => self.outbox.close_relay(endpoint),
                Opening::Unwanted => *opening = Opening::Unwanted,
                // the host's answer will find nobody and be closed
                Opening::Waiting { .. } | Opening::Failed(_) => {}
            }
        }
        self.settle(id, now);
    }

    /// Ends one of two families, with its permissions and channels and no others (RFC 8656 §8.1).
    pub(crate) fn end_family(
        &mut self,
        id: AllocationId,
        family: Family,
        cause: EndCause,
        now: Time,
    ) {
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return;
        };
        let Some(relay) = allocation.relays[family.index()].take() else {
            return;
        };
        // mutant: family-takes-all-permissions
        allocation.permissions.remove_family(family);
        allocation.channels.remove_family(family);
        self.outbox.close_relay(relay.endpoint);
        let (paths, has_moved) = (allocation.paths(), allocation.has_moved());
        self.end_connections(id, Some(family), PeerEnd::AllocationEnded);
        if let EndCause::Released(transaction) = cause {
            for client in paths {
                self.bury_release(client, transaction, Deed::EndedFamily(id), has_moved, now);
            }
        }
        self.changes.push_back(Change::FamilyEnded {
            allocation: id,
            family,
            cause,
            time: now,
        });
    }

    /// The transactions that created and ended an allocation must not work again (V-22).
    fn remember(&mut self, allocation: &Allocation, cause: EndCause, now: Time) {
        self.tombstones
            .bury(allocation.client, allocation.transaction, Deed::Over, now);
        if let EndCause::Released(transaction) = cause {
            for client in allocation.paths() {
                let has_moved = allocation.has_moved();
                self.bury_release(client, transaction, Deed::Over, has_moved, now);
            }
        }
    }

    /// The same for one request; for all engines, if the client's next allocation may be another one's.
    pub(crate) fn bury_release(
        &mut self,
        client: ClientTuple,
        transaction: TransactionId,
        deed: Deed,
        has_moved: bool,
        now: Time,
    ) {
        self.tombstones.bury(client, transaction, deed, now);
        if let Some(addresses) = self.addresses_of(&client).filter(|_| has_moved) {
            let releases = &self.commons.releases;
            let mut releases = releases.lock().unwrap_or_else(PoisonError::into_inner);
            // of the other engines' allocations it ended none
            releases.bury(addresses, transaction, Deed::Over, now);
        }
    }

    /// What a Refresh request with lifetime zero did before, if it is remembered.
    pub(crate) fn find_release(
        &self,
        client: &ClientTuple,
        transaction: TransactionId,
        now: Time,
    ) -> Option<Deed> {
        let own = self.tombstones.find(*client, transaction, now);
        own.or_else(|| {
            // mutant: release-of-this-engine-only
            let addresses = self.addresses_of(client)?;
            let releases = &self.commons.releases;
            let releases = releases.lock().unwrap_or_else(PoisonError::into_inner);
            releases.find(addresses, transaction, now)
        })
    }

    /// What a client is called in all engines. Over connections nothing can be sent in its name.
    fn addresses_of(&self, client: &ClientTuple) -> Option<Addresses> {
        let is_plain = client.transport == Transport::Udp;
        is_plain.then(|| (self.listener_address(client.listener), client.remote))
    }
}
