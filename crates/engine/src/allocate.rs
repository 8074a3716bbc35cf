//! Allocate (RFC 8656 §7.2).
//!
//! The request is checked and everything it needs is taken at once: a quota unit and the ports. Then the host opens the
//! sockets, and [`Engine::settle`] answers. Whatever goes wrong in between, dropping what was taken gives it back.

use core::time::Duration;

use turnbuckle_wire::{AddressFamily, AttributeError, AttributeType, IntegrityKey, Method};

use crate::allocation::{Allocation, Entry, Opening, Pending, Rare, Relay};
use crate::auth::{CanonicalOrigin, Proof};
use crate::bandwidth::Exhausted;
use crate::change::{Change, Created, Relayed, Reserved, Usage};
use crate::channel::Channels;
use crate::command::RelayOpenError;
use crate::config::DefaultFamily;
use crate::engine::Engine;
use crate::id::{AllocationId, Endpoint, Family, RelayHandle, RelayProtocol, RelayRequest};
use crate::mobility::Mobility;
use crate::permission::Permissions;
use crate::ports::{PortKind, PortLease};
use crate::random::{Random, random_u64};
use crate::reject::{Reject, reason_phrase};
use crate::reply::{Envelope, Request};
use crate::reservation::ReservationToken;
use crate::time::Now;

/// The numbers of TCP and UDP in REQUESTED-TRANSPORT.
const TCP: u8 = 6;
const UDP: u8 = 17;

/// How long the host may take to open a socket before the client is told 508. Clients give up after 39.5 s (RFC 8489 §6.2.1).
const OPENING_MAX: Duration = Duration::from_secs(10);

/// No reservation is shorter (RFC 8656 §7.2).
pub(crate) const RESERVATION_MIN: Duration = Duration::from_secs(30);

/// What a valid Allocate request asks for.
struct Wish {
    /// By [`Family::index`].
    families: [bool; 2],
    port: PortKind,
    protocol: RelayProtocol,
    token: Option<ReservationToken>,
    lifetime: Option<u32>,
    is_mobile: bool,
}

impl<R: Random> Engine<R> {
    /// RFC 8656 §7.2; step 1, authentication, is done.
    pub(crate) fn allocate(
        &mut self,
        request: &Request<'_>,
        proof: &Proof,
    ) -> Result<Answered, Reject> {
        let now = request.now.time;
        let transaction = request.message.transaction_id();

        // Step 2: the 5-tuple is in use. A retransmission of the request that created the allocation gets the same answer again.
        if let Some(id) = self.client(&request.from) {
            return self.allocate_again(id, request, proof);
        }
        if self
            .tombstones
            .find(request.from, transaction, now)
            .is_some()
        {
            // guard: V-22-replayed-allocation
            return Err(Reject::AllocationMismatch); // it created one already, and that has ended
        }
        // Step 11 allows this at any point: here it is the first thing to know for who has nothing here yet.
        if self.redirect(request, Some(&proof.response_key)).is_some() {
            return Ok(Answered::Now);
        }
        if self.is_draining {
            return Err(Reject::Forbidden);
        }
        if !self.policy.accepts_client(request.from.remote) {
            return Err(Reject::Forbidden); // RFC 8656 §21.4
        }

        // Steps 3 and 5 to 9, as far as the request alone decides. Step 4 is among the unknown attributes.
        let wish = self.read_wish(request)?;

        // Step 5: the token can be redeemed.
        if let Some(token) = wish.token
            && !self.commons.reservations.holds(token, now)
        {
            return Err(Reject::InsufficientCapacity);
        }

        // Step 10: the quota. Before it come this engine's own bounds, so that what the ledger counts can be had.
        let limits = &self.config.limits;
        // mutant: allocations-without-limit
        if self.table.len() >= limits.allocations as usize
            || self.statistics.pending >= limits.pending_opens as usize
        {
            return Err(Reject::InsufficientCapacity);
        }
        if self.commons.quota.is_used_up(&proof.user) {
            return Err(Reject::QuotaReached);
        }
        let shaper = self.commons.bandwidth.reserve(&proof.user.realm);
        let shaper = shaper.map_err(|Exhausted| Reject::QuotaReached)?;

        // Steps 8 and 9: the ports.
        // mutant: dual-counts-twice
        let openings = self.lease_ports(&wish, request.now)?;

        // The unit comes last: one that is held by a request that fails would be missed by another that is refused meanwhile.
        let quota = self.commons.quota.take(&proof.user);
        let quota = quota.ok_or(Reject::QuotaReached)?;
        let pending = Box::new(Pending {
            envelope: request.envelope(),
            key: proof.response_key.clone(),
            quota,
            shaper: shaper.map(Box::new),
            is_mobile: wish.is_mobile,
            origin: match self.config.check_origin {
                true => CanonicalOrigin::first_of(&request.message),
                false => None,
            },
            lifetime: wish.lifetime,
            kind: wish.port,
            protocol: wish.protocol,
            redeemed: wish.token,
            openings,
            in_use: Vec::new(),
            deadline: now + OPENING_MAX,
        });
        let deadline = pending.deadline;
        let id = self.table.insert(Entry::Pending(pending));
        self.statistics.pending += 1;
        self.wheel.schedule(id.index, deadline);
        self.ask_host(id);
        Ok(Answered::Later)
    }

    /// The same transaction gets the same answer (RFC 8656 §7.2, the note at its end); any other request a 437.
    fn allocate_again(
        &mut self,
        id: AllocationId,
        request: &Request<'_>,
        proof: &Proof,
    ) -> Result<Answered, Reject> {
        let envelope = request.envelope();
        match self.table.at(id) {
            // mutant: 437-for-a-retransmission
            Some(Entry::Live(allocation))
                if allocation.transaction == envelope.transaction
                    && allocation.quota.user().is_same_as(&proof.user) =>
            {
                let lifetime = allocation.expires().since(request.now.time);
                self.answer_allocate(id, &envelope, &proof.response_key, lifetime);
                Ok(Answered::Now)
            }
            Some(Entry::Pending(pending))
                if pending.envelope.transaction == envelope.transaction
                    && pending.quota.user().is_same_as(&proof.user) =>
            {
                // mutant: second-request-while-opening
                Ok(Answered::InProgress)
            }
            _ => Err(Reject::AllocationMismatch),
        }
    }

    /// Step 4 of RFC 8656 §7.2: whether DONT-FRAGMENT is an attribute this server understands, in this request.
    ///
    /// Not in one that asks for translation from IPv4 to IPv6: the DF bit of what the client sends is not to be seen through a
    /// socket, and then the request has to be refused (RFC 8656 §3.7).
    pub(crate) fn serves_dont_fragment(&self, request: &Request<'_>) -> bool {
        let message = &request.message;
        let translates = message.method() == Method::ALLOCATE
            && Family::of(&request.from.remote) == Family::V4
            && (message.has_additional_address_family()
                || self.requested_family(request) == Ok(Family::V6));
        self.config.dont_fragment && !translates
    }

    /// Step 7 of RFC 8656 §7.2, as far as the request and the configuration go.
    fn requested_family(&self, request: &Request<'_>) -> Result<Family, Reject> {
        match request.message.requested_address_family() {
            Ok(Some(AddressFamily::V4)) => Ok(Family::V4),
            Ok(Some(AddressFamily::V6)) => Ok(Family::V6),
            Ok(None) => Ok(match self.config.default_family {
                DefaultFamily::V4 => Family::V4,
                DefaultFamily::V6 => Family::V6,
                DefaultFamily::Client => Family::of(&request.from.remote),
            }),
            Err(AttributeError::UnsupportedFamily(_)) => Err(Reject::FamilyUnsupported),
            Err(AttributeError::Length | AttributeError::Value) => {
                Err(Reject::BadRequest("REQUESTED-ADDRESS-FAMILY malformed"))
            }
        }
    }

    /// Steps 3 and 5 to 9 of RFC 8656 §7.2, as far as they look at the request and the configuration alone.
    fn read_wish(&self, request: &Request<'_>) -> Result<Wish, Reject> {
        let message = &request.message;
        // Step 3
        let protocol = match message.requested_transport() {
            Ok(Some(UDP)) if self.config.udp_relays => RelayProtocol::Udp,
            Ok(Some(UDP)) => return Err(Reject::Forbidden), // RFC 6062 §5.1
            Ok(Some(TCP)) if self.config.tcp.is_some() => RelayProtocol::Tcp,
            Ok(Some(_)) => return Err(Reject::TransportUnsupported),
            Ok(None) | Err(_) => {
                return Err(Reject::BadRequest(
                    "REQUESTED-TRANSPORT missing or malformed",
                ));
            }
        };
        let needs_udp = [
            AttributeType::DONT_FRAGMENT,
            AttributeType::EVEN_PORT,
            AttributeType::RESERVATION_TOKEN,
        ];
        if protocol == RelayProtocol::Tcp
            && (!request.from.transport.is_stream()
                || needs_udp.iter().any(|&kind| message.contains(kind)))
        {
            return Err(Reject::BadRequest(
                "TCP relay over UDP, or with an attribute of UDP relays",
            )); // RFC 6062 §5.1
        }
        let even_port = message
            .even_port()
            .map_err(|_| Reject::BadRequest("EVEN-PORT malformed"))?;
        let token = message
            .reservation_token()
            .map_err(|_| Reject::BadRequest("RESERVATION-TOKEN malformed"))?
            .map(ReservationToken);
        let lifetime = message
            .lifetime()
            .map_err(|_| Reject::BadRequest("LIFETIME malformed"))?;
        let is_mobile = self.wants_ticket(request, protocol)?;
        let names_family = message.contains(AttributeType::REQUESTED_ADDRESS_FAMILY);
        let names_additional = message.has_additional_address_family();

        // Step 5
        if token.is_some() && (even_port.is_some() || names_family || names_additional) {
            return Err(Reject::BadRequest(
                "RESERVATION-TOKEN with EVEN-PORT or an address family",
            ));
        }
        // Step 6
        if names_family && names_additional {
            return Err(Reject::BadRequest(
                "REQUESTED-ADDRESS-FAMILY with ADDITIONAL-ADDRESS-FAMILY",
            ));
        }
        // Step 7
        let family = self.requested_family(request)?;
        // Step 8
        if even_port == Some(true) && names_additional {
            return Err(Reject::BadRequest(
                "EVEN-PORT with ADDITIONAL-ADDRESS-FAMILY",
            ));
        }
        // Step 9
        let is_dual = match message.additional_address_family() {
            Ok(None) => false,
            Ok(Some(AddressFamily::V6)) => true,
            Ok(Some(AddressFamily::V4)) | Err(AttributeError::Length | AttributeError::Value) => {
                return Err(Reject::BadRequest(
                    "ADDITIONAL-ADDRESS-FAMILY malformed or not IPv6",
                ));
            }
            Err(AttributeError::UnsupportedFamily(_)) => return Err(Reject::FamilyUnsupported),
        };
        if !is_dual && token.is_none() && !self.commons.ports.supports(family) {
            return Err(Reject::FamilyUnsupported);
        }
        let port = match even_port {
            None => PortKind::Any,
            Some(false) => PortKind::Even,
            Some(true) => PortKind::EvenPair,
        };
        let families = [
            is_dual || family == Family::V4,
            is_dual || family == Family::V6,
        ];
        Ok(Wish {
            families,
            port,
            protocol,
            token,
            lifetime,
            is_mobile,
        })
    }

    /// Leases what is wished for; in a dual allocation one family may fail (RFC 8656 §7.2 step 9).
    fn lease_ports(&mut self, wish: &Wish, now: Now) -> Result<[Opening; 2], Reject> {
        let mut openings = [Opening::Unwanted, Opening::Unwanted];
        if let Some(token) = wish.token {
            let lease = self
                .commons
                .reservations
                .redeem(token, now.time)
                .ok_or(Reject::InsufficientCapacity)?;
            let family = lease.family();
            openings[family.index()] = Opening::Waiting {
                attempt: 0,
                lease,
                sibling: None,
            };
            return Ok(openings);
        }
        if wish.port == PortKind::EvenPair && !self.commons.reservations.has_room(now.time) {
            return Err(Reject::InsufficientCapacity);
        }
        for family in [Family::V4, Family::V6] {
            if wish.families[family.index()] {
                openings[family.index()] = if !self.commons.ports.supports(family) {
                    Opening::Failed(Reject::FamilyUnsupported.code())
                } else if let Some((lease, sibling)) = self.lease(family, wish.port, wish.protocol)
                {
                    Opening::Waiting {
                        attempt: 0,
                        lease,
                        sibling,
                    }
                } else {
                    Opening::Failed(Reject::InsufficientCapacity.code())
                };
            }
        }
        let any = openings
            .iter()
            .any(|opening| matches!(opening, Opening::Waiting { .. }));
        if any {
            Ok(openings)
        } else {
            Err(Reject::InsufficientCapacity)
        }
    }

    fn lease(
        &mut self,
        family: Family,
        kind: PortKind,
        protocol: RelayProtocol,
    ) -> Option<(PortLease, Option<PortLease>)> {
        let random = random_u64(&mut self.random);
        let (lease, sibling) = self.commons.ports.lease(family, kind, random)?;
        Some((lease.of(protocol), sibling))
    }

    /// Asks for a socket for each lease of a new pending allocation.
    fn ask_host(&mut self, id: AllocationId) {
        if let Some(Entry::Pending(pending)) = self.table.at(id) {
            for (opening, family) in pending.openings.iter().zip([Family::V4, Family::V6]) {
                if let Opening::Waiting { attempt, lease, .. } = opening {
                    let handle = RelayHandle {
                        allocation: id,
                        family,
                    };
                    self.outbox.open_relay(
                        RelayRequest {
                            handle,
                            attempt: *attempt,
                        },
                        lease.local(),
                        lease.protocol(),
                    );
                }
            }
        }
    }

    /// The host's answer to [`Engine::ask_host`].
    pub(crate) fn take_opened(
        &mut self,
        now: Now,
        request: RelayRequest,
        result: Result<Endpoint, RelayOpenError>,
    ) {
        let RelayRequest { handle, attempt } = request;
        let is_awaited = match self.table.at(handle.allocation) {
            Some(Entry::Pending(pending)) => {
                matches!(&pending.openings[handle.family.index()], Opening::Waiting { attempt: a, .. } if *a == attempt)
            }
            _ => false,
        };
        if !is_awaited {
            // given up in the meantime
            // mutant: late-socket-kept-open
            if let Ok(endpoint) = result {
                self.outbox.close_relay(endpoint);
            }
            return;
        }
        // another port, if a port is all that was wrong; a token is for one port
        let retry = (result == Err(RelayOpenError::AddressInUse)
            && attempt.saturating_add(1) < self.config.limits.relay_open_attempts)
            .then(|| match self.table.at(handle.allocation) {
                Some(Entry::Pending(pending)) if pending.redeemed.is_none() => {
                    Some((pending.kind, pending.protocol))
                }
                _ => None,
            })
            .flatten()
            .and_then(|(kind, protocol)| self.lease(handle.family, kind, protocol));

        let Some(Entry::Pending(pending)) = self.table.at_mut(handle.allocation) else {
            return;
        };
        let opening = &mut pending.openings[handle.family.index()];
        let Opening::Waiting { lease, sibling, .. } =
            core::mem::replace(opening, Opening::Unwanted)
        else {
            return;
        };
        match (result, retry) {
            (Ok(endpoint), _) => {
                *opening = Opening::Open {
                    endpoint,
                    lease,
                    sibling,
                }
            }
            (Err(_), Some((other, other_sibling))) => {
                let attempt = attempt.saturating_add(1);
                self.outbox.open_relay(
                    RelayRequest { handle, attempt },
                    other.local(),
                    other.protocol(),
                );
                *opening = Opening::Waiting {
                    attempt,
                    lease: other,
                    sibling: other_sibling,
                };
                pending.in_use.push(lease);
            }
            (Err(_), None) => *opening = Opening::Failed(Reject::InsufficientCapacity.code()),
        }
        if pending
            .openings
            .iter()
            .all(|opening| !matches!(opening, Opening::Waiting { .. }))
        {
            self.settle(handle.allocation, now);
        }
    }

    /// Ends the pending state: an allocation and a success response, or neither and a 508.
    pub(crate) fn settle(&mut self, id: AllocationId, now: Now) {
        let pending = match self.table.take(id) {
            Some(Entry::Pending(pending)) => pending,
            Some(live @ Entry::Live(_)) => return self.table.put_back(id, live),
            None => return,
        };
        self.statistics.pending -= 1;
        self.wheel.cancel(id.index);
        let Pending {
            envelope,
            key,
            quota,
            shaper,
            is_mobile,
            origin,
            lifetime,
            redeemed,
            openings,
            ..
        } = *pending;

        let unix_s = self.calendar_s(now);
        let lifetime = self
            .config
            .lifetimes
            .granted(lifetime, quota.user(), unix_s);
        let expires = now.time + lifetime;
        let mut relays = [None, None];
        let mut rare = Rare {
            origin,
            redeemed,
            ..Rare::default()
        };
        let mut reserved_lease = None;
        for (opening, family) in openings.into_iter().zip([Family::V4, Family::V6]) {
            match opening {
                Opening::Open {
                    endpoint,
                    lease,
                    sibling,
                } => {
                    relays[family.index()] = Some(Relay::new(endpoint, expires, lease));
                    reserved_lease = reserved_lease.or(sibling);
                }
                Opening::Failed(code) => rare.missing_family = Some((family, code)),
                // given up: the host's answer will find nobody and be closed
                Opening::Waiting { .. } => {
                    rare.missing_family = Some((family, Reject::InsufficientCapacity.code()))
                }
                Opening::Unwanted => {}
            }
        }
        let reservation = reserved_lease.map(|lease| self.reserve(lease, now));
        if relays.iter().all(Option::is_none) || matches!(reservation, Some(None)) {
            for relay in relays.into_iter().flatten() {
                self.outbox.close_relay(relay.endpoint);
            }
            self.table.vacate(id, &envelope.to);
            self.reply_error(&envelope, &key, Reject::InsufficientCapacity.code());
            return;
        }
        let reservation = reservation.flatten();
        rare.token = reservation.map(|reserved| reserved.token);
        let created = Created {
            allocation: id,
            server: self.listener_address(envelope.to.listener),
            client: envelope.to.remote,
            transport: envelope.to.transport,
            connection: envelope.to.connection,
            user: quota.user().clone(),
            transaction: envelope.transaction,
            protocol: relays
                .iter()
                .flatten()
                .next()
                .map_or(RelayProtocol::Udp, |relay| relay.lease.protocol()),
            relays: relays.iter().flatten().map(Relay::addresses).collect(),
            missing_family: rare.missing_family,
            reservation,
            redeemed,
            is_mobile,
            origin,
            bytes_per_s: shaper.as_ref().map(|shaper| shaper.rate()),
            created: now.time,
            expires,
        };
        let allocation = Allocation {
            client: envelope.to,
            relays,
            permissions: Permissions::default(),
            channels: Channels::default(),
            usage: Usage::default(),
            wake: expires,
            created: now.time,
            quota,
            transaction: envelope.transaction,
            shaper,
            mobility: is_mobile.then(|| Box::new(Mobility::new(envelope.to))),
            rare: rare.boxed(),
        };
        self.table.put_back(id, Entry::Live(allocation));
        self.wheel.schedule(id.index, expires);
        self.tell_paths(id);
        self.changes.push_back(Change::Created(Box::new(created)));
        self.answer_allocate(id, &envelope, &key, lifetime);
    }

    /// Keeps a port for whoever brings its token.
    fn reserve(&mut self, lease: PortLease, now: Now) -> Option<Reserved> {
        let mut token = [0; 8];
        self.random.fill(&mut token);
        let token = ReservationToken(token);
        let expires = now.time + self.config.lifetimes.reservation.max(RESERVATION_MIN);
        let local = lease.local();
        self.commons.reservations.put(token, lease, expires).ok()?;
        self.reservation_deadlines.push_back(expires);
        Some(Reserved {
            token,
            local,
            expires,
        })
    }

    /// The success response, the first time and again (RFC 8656 §7.2).
    fn answer_allocate(
        &mut self,
        id: AllocationId,
        envelope: &Envelope,
        key: &IntegrityKey,
        lifetime: Duration,
    ) {
        let Some(Entry::Live(allocation)) = self.table.at(id) else {
            return;
        };
        let relayed = [Family::V4, Family::V6]
            .map(|family| allocation.relay(family).map(|relay| relay.lease.external()));
        let rare = allocation.rare.as_deref().copied().unwrap_or_default();
        let client = envelope.to.remote;
        let ticket = self.ticket(id);
        // a fraction of a second left is announced as a whole one, never as the end
        let lifetime_s = u32::try_from(lifetime.as_millis().div_ceil(1000)).unwrap_or(u32::MAX);
        self.reply_success(envelope, Some(key), |writer| {
            for address in relayed.into_iter().flatten() {
                writer.xor_relayed_address(address);
            }
            writer.lifetime(lifetime_s).xor_mapped_address(client);
            if let Some(ReservationToken(token)) = rare.token {
                writer.reservation_token(token);
            }
            if let Some(ticket) = ticket {
                writer.mobility_ticket(&ticket);
            }
            if let Some((family, code)) = rare.missing_family {
                writer.address_error_code(family.into(), code, reason_phrase(code));
            }
        });
    }
}

/// When an Allocate request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// By the answer to the request it repeats.
    InProgress,
    /// When the host has opened the sockets.
    Later,
    /// It has been.
    Now,
}

impl Relay {
    pub(crate) fn addresses(&self) -> Relayed {
        Relayed {
            local: self.lease.local(),
            external: self.lease.external(),
        }
    }
}

impl From<Family> for AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::V4,
            Family::V6 => Self::V6,
        }
    }
}
