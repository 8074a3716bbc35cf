//! Allocations that outlive their 5-tuple (RFC 8016): a client that has moved brings the ticket and goes on.
//!
//! Two paths exist between a Refresh request with the ticket and the first data on the new 5-tuple: the old one carries data
//! both ways, the new one is answered (RFC 8016 §3.2.2). Data on the new path, or the end of the old one's connection, makes
//! the new one *the* path. An allocation has at most one new path; another resume takes its place (V-30).
//!
//! The invariant: every 5-tuple in `Engine::new_paths` is the new path of the allocation it names, and no other allocation's.

pub(crate) mod paths;

use core::time::Duration;

use self::paths::NoncePath;
use crate::allocation::{Allocation, Entry};
use crate::auth::Proof;
use crate::change::{Change, Moved, Resumed};
use crate::command::Outcome;
use crate::engine::Engine;
use crate::id::{AllocationId, ClientTuple, RelayProtocol};
use crate::random::Random;
use crate::reject::Reject;
use crate::reply::Request;
use crate::ticket::{Creator, TICKET_LEN, Ticket};
use crate::time::{Now, Time};
use crate::tombstone::Deed;
use turnbuckle_wire::{Method, TransactionId};

/// How long the request that resumed an allocation is answered again: a client repeats it for 39.5 s (RFC 8489 §6.2.1), and RFC
/// 8016 §3.2.2 asks for 30 s.
const RETRANSMISSION: Duration = Duration::from_secs(40);

/// What an allocation has that was asked for with MOBILITY-TICKET.
#[derive(Debug)]
pub(crate) struct Mobility {
    /// The 5-tuple that it was created on; `None` for a connection of a process that is gone.
    pub(crate) first: Option<ClientTuple>,
    /// Which ticket is good.
    pub(crate) number: u32,
    /// A path that was resumed on and has carried no data yet.
    pub(crate) new_path: Option<ClientTuple>,
    /// The connection is gone; the next resume is the path at once.
    pub(crate) is_parked: bool,
    /// The last resume, so that its retransmission is recognised.
    pub(crate) resumed: Option<LastResume>,
}

/// A resume that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastResume {
    pub(crate) client: ClientTuple,
    pub(crate) transaction: TransactionId,
    /// Up to when a retransmission is recognised.
    pub(crate) until: Time,
}

impl LastResume {
    pub(crate) fn new(client: ClientTuple, transaction: TransactionId, now: Time) -> Self {
        Self {
            client,
            transaction,
            until: now + RETRANSMISSION,
        }
    }
}

impl Mobility {
    pub(crate) fn new(first: ClientTuple) -> Self {
        Self {
            first: Some(first),
            number: 1,
            new_path: None,
            is_parked: false,
            resumed: None,
        }
    }
}

/// What a Refresh request with a ticket is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resume {
    /// To open a new path; the number of the next ticket.
    NewPath(u32),
    /// It did before, and is answered once more.
    Repeated,
}

impl<R: Random> Engine<R> {
    /// Whether any allocation has a new path beside its old one.
    #[inline]
    pub fn has_new_paths(&self) -> bool {
        !self.new_paths.is_empty()
    }

    /// The allocation of a client that sends channel messages. On a new path they make it the allocation's only one.
    ///
    /// To be called instead of [`Engine::client`] while there are new paths.
    pub fn client_of_data(&mut self, client: &ClientTuple, now: Now) -> Option<AllocationId> {
        if let Some(&id) = self.new_paths.get(client) {
            // mutant: old-path-for-ever
            self.move_over(id, now.time);
            return Some(id);
        }
        self.client(client)
    }

    /// The engine that an authenticated Refresh request with a ticket is for, if that is another one. Who has an allocation here
    /// is refused here: a 5-tuple names one allocation of the whole server.
    pub(crate) fn elsewhere(&self, request: &Request<'_>) -> Option<Outcome> {
        let message = &request.message;
        if message.method() != Method::REFRESH {
            return None;
        }
        let ticket = self.tickets.as_ref()?.open(message.mobility_ticket()?)?;
        // mutant: ticket-names-no-shard
        let is_elsewhere = ticket.shard != self.shard && self.client(&request.from).is_none();
        is_elsewhere.then_some(Outcome::Elsewhere {
            shard: ticket.shard,
        })
    }

    /// Whether an Allocate request asks for a ticket (RFC 8016 §3.1.2).
    ///
    /// A TCP allocation ends with its control connection (RFC 6062 §4.2), so it cannot move.
    pub(crate) fn wants_ticket(
        &self,
        request: &Request<'_>,
        protocol: RelayProtocol,
    ) -> Result<bool, Reject> {
        let is_allowed = self.tickets.is_some() && protocol == RelayProtocol::Udp;
        match request.message.mobility_ticket() {
            None => Ok(false),
            Some([]) if is_allowed => Ok(true),
            Some([]) => Err(Reject::MobilityForbidden),
            Some(_) => Err(Reject::BadRequest("MOBILITY-TICKET not empty")),
        }
    }

    /// Finds the allocation that a Refresh request with a ticket is about, and whether it may move (RFC 8016 §3.2.2).
    pub(crate) fn check_resume(
        &mut self,
        sealed: &[u8],
        request: &Request<'_>,
        proof: &Proof,
    ) -> Result<(AllocationId, Resume), Reject> {
        let tickets = self.tickets.as_ref().ok_or(Reject::MobilityForbidden)?;
        let ticket = tickets
            .open(sealed)
            .ok_or(Reject::BadRequest("MOBILITY-TICKET not valid"))?;
        if ticket.shard != self.shard {
            return Err(Reject::AllocationMismatch);
        }
        let (id, from, now) = (ticket.allocation, request.from, request.now);
        if self
            .live(id)
            .is_some_and(|allocation| allocation.wake <= now.time)
        {
            self.expire(id, now); // it is as it is at this moment, although timers may be late
        }
        let allocation = self.live(id).ok_or(Reject::AllocationMismatch)?;
        let mobility = allocation.mobility.as_deref();
        let mobility =
            mobility.filter(|_| Creator::new(&allocation.transaction) == ticket.created_by);
        let mobility = mobility.ok_or(Reject::AllocationMismatch)?;
        // guard: V-30-owner
        if !allocation.quota.user().is_same_as(&proof.user) {
            return Err(Reject::WrongCredentials);
        }
        self.check_origin(allocation, request)?;
        let transaction = request.message.transaction_id();
        let is_repeated = mobility.resumed.is_some_and(|resumed| {
            resumed.transaction == transaction && resumed.client == from && now.time < resumed.until
        });
        let next = ticket
            .number
            .checked_add(1)
            .ok_or(Reject::BadRequest("MOBILITY-TICKET not valid"))?;
        // mutant: lost-answer-stays-lost
        if is_repeated && next == mobility.number {
            return Ok((id, Resume::Repeated));
        }
        let is_known = allocation.client == from && !mobility.is_parked;
        // guard: V-30-once
        if ticket.number != mobility.number || is_known || mobility.new_path == Some(from) {
            return Err(Reject::BadRequest("MOBILITY-TICKET not valid"));
        }
        // mutant: path-of-another-allocation
        if self.client(&from).is_some_and(|other| other != id) {
            return Err(Reject::AllocationMismatch); // it has an allocation of its own
        }
        if !self.policy.accepts_client(from.remote) {
            return Err(Reject::Forbidden); // RFC 8656 §21.4
        }
        Ok((id, Resume::NewPath(next)))
    }

    /// Where the nonce of a Refresh request with a ticket may have been given out too, if that is allowed: on a path that the
    /// allocation has, or had last. The ticket is the one that is good, or was for the request that is repeated here.
    pub(crate) fn paths_of_ticket(&self, request: &Request<'_>) -> Vec<NoncePath> {
        let message = &request.message;
        if !self.config.resume_with_old_nonce || message.method() != Method::REFRESH {
            return Vec::new();
        }
        let tickets = self.tickets.as_ref();
        let ticket = message.mobility_ticket();
        let ticket = tickets.and_then(|tickets| tickets.open(ticket?));
        ticket.map_or_else(Vec::new, |ticket| self.commons.mobile_paths.of(&ticket))
    }

    /// Tells all engines where nonces for an allocation that can move were given out.
    pub(crate) fn tell_paths(&self, id: AllocationId) {
        if !self.config.resume_with_old_nonce {
            return;
        }
        let Some(allocation) = self.live(id) else {
            return;
        };
        let Some(mobility) = &allocation.mobility else {
            return;
        };
        let paths = allocation
            .paths()
            .map(|path| (path.remote, self.listener_address(path.listener)));
        let known = &self.commons.mobile_paths;
        known.set(self.shard, id, mobility.number, paths);
    }

    /// Opens the new path; from now on only the next ticket is good.
    pub(crate) fn resume(&mut self, id: AllocationId, request: &Request<'_>, resume: &Resume) {
        let &Resume::NewPath(number) = resume else {
            return;
        };
        let (path, now) = (request.from, request.now.time);
        let resumed = LastResume::new(path, request.message.transaction_id(), now);
        let is_parked = self.open_path(id, resumed, number);
        self.changes.push_back(Change::Resumed(Box::new(Resumed {
            allocation: id,
            server: self.listener_address(path.listener),
            client: path.remote,
            transport: path.transport,
            connection: path.connection,
            transaction: resumed.transaction,
            number,
            until: resumed.until,
        })));
        // mutant: old-path-gone-at-once
        if is_parked {
            self.move_over(id, now);
        }
    }

    /// Puts a new path in the place of the one there may be. Returns whether there is no old path any more.
    pub(crate) fn open_path(&mut self, id: AllocationId, resumed: LastResume, number: u32) -> bool {
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return false;
        };
        let Some(mobility) = &mut allocation.mobility else {
            return false;
        };
        mobility.number = number;
        mobility.resumed = Some(resumed);
        let is_parked = mobility.is_parked;
        // guard: V-30-flood
        if let Some(other) = mobility.new_path.replace(resumed.client) {
            self.new_paths.remove(&other);
        }
        self.new_paths.insert(resumed.client, id);
        self.tell_paths(id);
        is_parked
    }

    /// Makes the new path of an allocation its only one.
    pub(crate) fn move_over(&mut self, id: AllocationId, now: Time) {
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return;
        };
        let Some(mobility) = &mut allocation.mobility else {
            return;
        };
        let Some(path) = mobility.new_path.take() else {
            return;
        };
        // mutant: move-charged-twice
        mobility.is_parked = false;
        let (old, transaction) = (allocation.client, allocation.transaction);
        self.new_paths.remove(&path);
        self.table.move_to(id, &old, |entry| {
            if let Entry::Live(allocation) = entry {
                allocation.client = path;
            }
        });
        self.tell_paths(id);
        // the request that created it must not create another one on the 5-tuple that is free now (V-22)
        // mutant: move-leaves-the-request
        self.tombstones.bury(old, transaction, Deed::Over, now);
        let server = self.listener_address(path.listener);
        // mutant: stream-omits-move
        self.changes.push_back(Change::Moved(Box::new(Moved {
            allocation: id,
            server,
            client: path.remote,
            transport: path.transport,
            connection: path.connection,
            time: now,
        })));
    }

    /// What the end of a connection means for an allocation that can move. Returns whether it lives on.
    pub(crate) fn outlives(&mut self, id: AllocationId, client: &ClientTuple, now: Time) -> bool {
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return false;
        };
        let Some(mobility) = &mut allocation.mobility else {
            return false;
        };
        if allocation.client != *client {
            self.new_paths.remove(client);
            mobility.new_path = None;
        } else if mobility.new_path.is_some() {
            self.move_over(id, now);
        } else {
            mobility.is_parked = true;
        }
        true
    }

    /// The ticket of an allocation that can move.
    pub(crate) fn ticket(&self, id: AllocationId) -> Option<[u8; TICKET_LEN]> {
        let allocation = self.live(id)?;
        self.tickets.as_ref()?.seal(&Ticket {
            shard: self.shard,
            allocation: id,
            number: allocation.mobility.as_ref()?.number,
            created_by: Creator::new(&allocation.transaction),
        })
    }

    /// Forgets the paths of an allocation that ends.
    pub(crate) fn forget_paths(&mut self, id: AllocationId, allocation: &Allocation) {
        if allocation.mobility.is_some() {
            self.commons.mobile_paths.remove(self.shard, id);
        }
        // mutant: new-path-outlives
        for path in allocation.paths().skip(1) {
            self.new_paths.remove(&path);
        }
    }
}
