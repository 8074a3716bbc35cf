//! The engine: its entry points and the dispatch by method.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use turnbuckle_wire::{Class, Message, Method, ParseError, TransactionId};

use crate::address::PeerAddress;
use crate::allocate::Answered;
use crate::allocation::{Allocation, Entry};
use crate::auth::{Authenticator, Proof, Rejection};
use crate::bandwidth::Direction;
use crate::change::Change;
use crate::command::{
    ClientRoute, Command, Framing, IcmpError, Outcome, PeerRoute, RelayOpenError,
};
use crate::commons::Commons;
use crate::config::{Config, RelayAddress, Service};
use crate::credential::User;
use crate::discovery::Discovery;
use crate::drop_reason::DropReason;
use crate::id::{
    AllocationId, ClientTuple, Endpoint, Family, RelayHandle, RelayRequest, Transport,
};
use crate::nonce::NonceKey;
use crate::outbox::Outbox;
use crate::policy::{Explanation, InterfaceAddress, OwnAddresses, OwnRelay, Policy};
use crate::random::Random;
use crate::reject::Reject;
use crate::reply::{Request, Served, unknown_attributes};
use crate::table::Table;
use crate::tcp::table::PeerConnections;
use crate::ticket::Tickets;
use crate::time::{Now, Time};
use crate::timers::Wheel;
use crate::tombstone::Tombstones;

/// All allocations of one thread, and the rules for them.
pub struct Engine<R> {
    pub(crate) config: Arc<Config>,
    pub(crate) commons: Arc<Commons>,
    pub(crate) random: R,
    pub(crate) listeners: Vec<(Endpoint, SocketAddr)>,
    /// The listeners that serve NAT behaviour discovery.
    pub(crate) discovery_by_listener: BTreeMap<Endpoint, Discovery>,
    /// The rules of realms without their own.
    pub(crate) policy: Policy,
    policy_by_realm: BTreeMap<Box<str>, Policy>,
    own: OwnAddresses,
    pub(crate) authenticator: Authenticator,
    pub(crate) table: Table<Entry>,
    /// One timer an allocation, by the index of its slot.
    pub(crate) wheel: Wheel,
    pub(crate) tombstones: Tombstones,
    /// When reservations made here run out, in order: all live equally long.
    pub(crate) reservation_deadlines: VecDeque<Time>,
    pub(crate) outbox: Outbox,
    pub(crate) changes: VecDeque<Change>,
    /// Which shard this is to the others.
    pub(crate) shard: u32,
    /// Peer data connections of TCP allocations.
    pub(crate) tcp: PeerConnections,
    /// The peers of the CreatePermission request at hand; empty in between.
    pub(crate) peers: Vec<IpAddr>,
    pub(crate) statistics: Statistics,
    pub(crate) is_draining: bool,
    /// From this slot of the table on, permissions and channels are yet to be judged by the policy as it is now.
    unjudged_from: Option<u32>,
    pub(crate) tickets: Option<Tickets>,
    /// Second paths to allocations, each in its allocation too.
    pub(crate) new_paths: BTreeMap<ClientTuple, AllocationId>,
}

/// Live counts, for invariants and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Allocations in use.
    pub allocations: usize,
    /// Allocate requests that wait for a relay socket.
    pub pending: usize,
    /// Peer data connections, those under way included.
    pub peer_connections: usize,
    /// Finished transactions that are remembered.
    pub tombstones: usize,
    /// Finished transactions that were forgotten, for want of room, while the same request could still be good (V-22).
    pub tombstones_forgotten_early: u64,
    /// ChannelBind requests for a number that RFC 5766 had and RFC 8656 §12 reserves.
    pub channel_numbers_reserved: u64,
}

impl<R: Random> Engine<R> {
    /// An engine without listeners and allocations.
    pub fn new(config: Arc<Config>, commons: Arc<Commons>, mut random: R) -> Self {
        let relays = config.relays.iter().map(|relay| OwnRelay {
            local: relay.local,
            external: relay.external,
        });
        let own = OwnAddresses {
            services: Vec::new(),
            interfaces: Vec::new(),
            relays: relays.collect(),
            relay_ports: config.relay_ports.clone(),
        };
        let authenticator = Authenticator::new(&config.auth, &mut random);
        commons.unverified.set_key(&mut random);
        let mut engine = Self {
            policy: Policy::new(config.policy.clone()),
            policy_by_realm: policies(&config),
            own,
            authenticator,
            table: Table::new(&mut random),
            wheel: Wheel::new(Time::ZERO),
            tombstones: Tombstones::new(
                config.limits.tombstones,
                config.auth.nonce_lifetime.replay_memory(),
            ),
            reservation_deadlines: VecDeque::new(),
            outbox: Outbox::default(),
            changes: VecDeque::new(),
            shard: 0,
            tcp: PeerConnections::default(),
            peers: Vec::new(),
            statistics: Statistics::default(),
            is_draining: false,
            unjudged_from: None,
            tickets: config.mobility.as_ref().map(Tickets::new),
            new_paths: BTreeMap::new(),
            listeners: Vec::new(),
            discovery_by_listener: BTreeMap::new(),
            config,
            commons,
            random,
        };
        engine.tell_policies_own_addresses();
        engine
    }

    /// Makes a listener known: its name and the address clients reach it at, the same for UDP and for connections. No peer may
    /// be reached there (V-07).
    pub fn add_listener(&mut self, endpoint: Endpoint, local: SocketAddr) {
        self.listeners.push((endpoint, local));
        self.own.services.push(local);
        self.tell_policies_own_addresses();
    }

    /// Knows `relays` as addresses of relay sockets too ([`Commons::set_relays`]).
    pub fn add_relays(&mut self, relays: &[RelayAddress]) {
        for relay in relays {
            let own = OwnRelay {
                local: relay.local,
                external: relay.external,
            };
            if !self.own.relays.contains(&own) {
                self.own.relays.push(own);
            }
        }
        self.tell_policies_own_addresses();
        self.enforce_policy_everywhere();
    }

    /// Replaces what is known of the host: the addresses of its interfaces and its services other than listeners, none of which
    /// clients may reach. What is forbidden from now on carries no data any more; the permissions and channels themselves end at once or
    /// in later calls of [`Engine::handle_timeout`], because there may be very many.
    pub fn set_host_addresses(
        &mut self,
        interfaces: Vec<InterfaceAddress>,
        services: &[SocketAddr],
    ) {
        self.own.interfaces = interfaces;
        self.own.services = self
            .listeners
            .iter()
            .map(|&(_, local)| local)
            .chain(services.iter().copied())
            .collect();
        self.tell_policies_own_addresses();
        self.enforce_policy_everywhere();
    }

    /// Takes over the realms and peer rules of `config`, as they change in a user database. Allocations live on; permissions and
    /// channels that are forbidden from now on end as in [`Engine::set_host_addresses`]. Quotas belong to [`Commons`]; addresses, tables and budgets stay as they are.
    pub fn reconfigure(&mut self, config: &Config) {
        self.authenticator
            .reconfigure(&config.auth, &mut self.random);
        let own = self.policy_by_realm.iter();
        let is_same = *self.policy.rules() == config.policy
            && own
                .map(|(realm, policy)| (realm, policy.rules()))
                .eq(config.realm_policies.iter());
        if !is_same {
            self.policy = Policy::new(config.policy.clone());
            self.policy_by_realm = policies(config);
            self.tell_policies_own_addresses();
            self.enforce_policy_everywhere();
        }
    }

    fn tell_policies_own_addresses(&mut self) {
        let policies = self.policy_by_realm.values_mut();
        for policy in policies.chain([&mut self.policy]) {
            policy.set_own_addresses(&self.own);
        }
    }

    /// The peer rules of a user.
    pub(crate) fn policy_of(&self, user: &User) -> &Policy {
        let own = self.policy_by_realm.get(&user.realm);
        own.unwrap_or(&self.policy)
    }

    /// The policy has changed: judges as much as one call may, and remembers that the rest is to be judged.
    fn enforce_policy_everywhere(&mut self) {
        self.unjudged_from = Some(0);
        self.judge_some();
    }

    /// Goes on with what [`Self::enforce_policy_everywhere`] began.
    fn judge_some(&mut self) {
        let Some(from) = self.unjudged_from else {
            return;
        };
        let count = self.table.slot_count();
        let to = from.saturating_add(self.config.limits.timeouts_per_call.max(1));
        for index in from..to.min(count) {
            if let Some(id) = self.table.id_at(index) {
                self.enforce_policy(id);
            }
        }
        self.unjudged_from = (to < count).then_some(to);
    }

    /// Whether the policy forbids `peer` to an allocation whose permissions and channels are yet to be judged by it.
    #[inline]
    pub(crate) fn is_forbidden_by_now(&self, id: AllocationId, peer: PeerAddress) -> bool {
        // guard: V-07-judged-on-use
        self.unjudged_from.is_some_and(|from| from <= id.index) && self.is_forbidden(id, peer)
    }

    #[cold]
    fn is_forbidden(&self, id: AllocationId, peer: PeerAddress) -> bool {
        let user = self.table.at(id).map(Entry::user);
        let policy = user.map_or(&self.policy, |user| self.policy_of(user));
        policy.check(peer.address()).is_err()
    }

    /// The allocation of a client: the one hash lookup of each received message.
    #[inline]
    pub fn client(&self, client: &ClientTuple) -> Option<AllocationId> {
        match self.table.find(client) {
            None if !self.new_paths.is_empty() => self.new_paths.get(client).copied(),
            found => found,
        }
    }

    /// Routes a train of `datagrams` channel messages of one channel with `bytes` bytes of payload in all (RFC 8656 §12.6).
    ///
    /// `channel` is the number as it stands in the message. The traffic is counted here.
    ///
    /// # Errors
    ///
    /// The reason to drop the whole train under.
    #[inline]
    pub fn route_channel_data(
        &mut self,
        now: Time,
        id: AllocationId,
        channel: u16,
        datagrams: u32,
        bytes: u64,
    ) -> Result<PeerRoute, DropReason> {
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return Err(DropReason::NoAllocation);
        };
        allocation
            .usage
            .client_received
            .add(datagrams, framed(datagrams, bytes));
        let Some(channel) = allocation
            .channels
            .of_number(channel)
            // mutant: channel-never-ends
            .filter(|channel| now < channel.expires)
        else {
            let is_number = (0x4000..=0x4FFF).contains(&channel);
            return Err(if is_number {
                DropReason::ChannelNotBound
            } else {
                DropReason::ChannelReserved
            });
        };
        let peer = channel.peer;
        let family = Family::of(&peer.peer().address());
        let relay = allocation
            .live_relay(family, now)
            .ok_or(DropReason::NoAllocation)?
            .endpoint;
        // the permission may be over while the channel lives, and data does not renew it
        // guard: V-13-data.from-client
        if !allocation.permissions.permits(peer.ip(), now) {
            return Err(DropReason::NoPermission);
        }
        if !self.commons.ports.may_reach(peer) || self.is_forbidden_by_now(id, peer.peer()) {
            return Err(DropReason::PeerForbidden);
        }
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return Err(DropReason::NoAllocation);
        };
        let admitted = allocation.shape(Direction::ToPeers, now, datagrams, bytes)?;
        let bytes = share(bytes, datagrams, admitted);
        allocation.usage.peer_sent.add(admitted, bytes);
        Ok(PeerRoute {
            relay,
            peer,
            datagrams: admitted,
        })
    }

    /// Routes a train of `datagrams` datagrams from one peer with `bytes` bytes in all (RFC 8656 §11.3).
    ///
    /// `peer` is the source as the socket saw it. The traffic is counted here.
    ///
    /// # Errors
    ///
    /// The reason to drop the whole train under.
    #[inline]
    pub fn route_from_peer(
        &mut self,
        now: Time,
        relay: RelayHandle,
        peer: SocketAddr,
        datagrams: u32,
        bytes: u64,
    ) -> Result<ClientRoute, DropReason> {
        let peer = self.policy.admit(peer);
        let is_forbidden = self.is_forbidden_by_now(relay.allocation, peer);
        let Some(Entry::Live(allocation)) = self.table.at_mut(relay.allocation) else {
            return Err(DropReason::RelayClosed);
        };
        allocation
            .live_relay(relay.family, now)
            .ok_or(DropReason::RelayClosed)?;
        allocation.usage.peer_received.add(datagrams, bytes);
        // guard: V-13-data.from-peer
        if !allocation.permissions.permits(peer.ip(), now) {
            return Err(DropReason::NoPermission);
        }
        if is_forbidden {
            return Err(DropReason::NoPermission);
        }
        if let Some(mobility) = &allocation.mobility
            && mobility.is_parked
        {
            return Err(DropReason::ClientAway);
        }
        let admitted = allocation.shape(Direction::ToClient, now, datagrams, bytes)?;
        let bytes = share(bytes, datagrams, admitted);
        let client = allocation.client;
        let channel = allocation
            .channels
            .of_peer(peer)
            // mutant: indication-despite-channel
            .filter(|channel| now < channel.expires);
        let (framing, sent) = match channel {
            Some(channel) => (Framing::Channel(channel.number), framed(admitted, bytes)),
            None => (
                Framing::DataIndication {
                    peer: peer.address(),
                },
                bytes,
            ),
        };
        allocation.usage.client_sent.add(admitted, sent);
        Ok(ClientRoute {
            client,
            framing,
            datagrams: admitted,
        })
    }

    /// A fresh transaction id, for a Data indication.
    pub fn transaction_id(&mut self) -> TransactionId {
        let mut bytes = [0; 12];
        self.random.fill(&mut bytes);
        TransactionId::new(bytes)
    }

    /// Handles one STUN message; `bytes` is the whole datagram.
    pub fn handle_stun(&mut self, now: Now, from: ClientTuple, bytes: &[u8]) -> Outcome {
        self.handle_message(now, from, bytes, false)
    }

    /// Handles one STUN message of a client whose connection another shard has: it is never joined here.
    pub fn handle_handed_on(&mut self, now: Now, from: ClientTuple, bytes: &[u8]) -> Outcome {
        self.handle_message(now, from, bytes, true)
    }

    fn handle_message(
        &mut self,
        now: Now,
        from: ClientTuple,
        bytes: &[u8],
        is_handed_on: bool,
    ) -> Outcome {
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(ParseError::FingerprintMismatch) => {
                return Outcome::Dropped(DropReason::FingerprintMismatch);
            }
            Err(ParseError::MagicCookie) if from.transport == Transport::Dtls => {
                return self.refuse_classic(now, from, bytes);
            }
            Err(ParseError::MagicCookie)
                if from.transport == Transport::Udp && self.config.rfc3489_binding =>
            {
                return self.classic_binding(now, from, bytes);
            }
            Err(_) => return Outcome::Dropped(DropReason::MalformedStun),
        };
        let method = message.method();
        if !is_served(method) && !self.serves_connections(method) {
            return Outcome::Dropped(DropReason::MethodUnknown);
        }
        let request = Request {
            message,
            from,
            now,
            is_handed_on,
        };
        match message.class() {
            Class::Request if takes_requests(method) || self.serves_connections(method) => {
                self.handle_request(&request)
            }
            Class::Indication if matches!(method, Method::BINDING | Method::SEND) => {
                self.handle_indication(&request)
            }
            Class::Request | Class::Indication => Outcome::Dropped(DropReason::ClassUnexpected),
            // guard: V-41-responses
            Class::Success | Class::Error => Outcome::Dropped(DropReason::ResponseUnexpected),
        }
    }

    fn handle_indication(&mut self, request: &Request<'_>) -> Outcome {
        let served = Served {
            connections: self.config.tcp.is_some(),
            discovery: false,
            dont_fragment: true, // a Send indication has its own answer to it
            passes_over_discovery: self.config.passes_over_discovery,
            tokens: false,
        };
        if unknown_attributes(&request.message, served)
            .next()
            .is_some()
        {
            Outcome::Dropped(DropReason::UnknownAttribute)
        } else if request.message.method() == Method::BINDING {
            Outcome::Dropped(DropReason::KeepAlive)
        } else {
            self.send(request)
        }
    }

    #[cold]
    fn handle_request(&mut self, request: &Request<'_>) -> Outcome {
        let is_binding = request.message.method() == Method::BINDING;
        let is_disabled = match self.config.service {
            Service::StunAndTurn => false,
            Service::StunOnly => !is_binding,
            Service::TurnOnly => is_binding,
        };
        if is_disabled {
            return Outcome::Dropped(DropReason::ServiceDisabled);
        }
        if !self.is_possible_source(request.from.remote) {
            return Outcome::Dropped(DropReason::SourceInvalid);
        }
        if !self.outbox.has_room(self.config.limits.reply_queue_bytes) {
            return Outcome::Dropped(DropReason::ReplyQueueFull);
        }
        if self.is_refused_anyway(request) {
            return Outcome::Dropped(DropReason::UnverifiedBudget);
        }
        if is_binding {
            return self.binding(request);
        }

        // RFC 8489 §6.3: authentication first, unknown attributes after it
        // guard: V-30-elsewhere
        let proof = match self.authenticate(request) {
            Ok(proof) => proof,
            // guard: V-26-another-user
            Err(rejection) => {
                let sent_elsewhere = self.redirect_stranger(request);
                return sent_elsewhere.unwrap_or_else(|| self.challenge(request, &rejection));
            }
        };
        // only now: who proved nothing is answered here, and takes no room between the engines
        if let Some(elsewhere) = self.elsewhere(request) {
            return elsewhere;
        }
        if unknown_attributes(&request.message, self.served(request))
            .next()
            .is_some()
        {
            self.reply_unknown_attributes(request, Some(&proof.response_key));
            return Outcome::Done;
        }
        self.bring_up_to_date(request);
        let method = request.message.method();
        let result = if method == Method::ALLOCATE {
            self.allocate(request, &proof)
        } else if method == Method::REFRESH {
            self.refresh(request, &proof).map(|()| Answered::Now)
        } else if method == Method::CREATE_PERMISSION {
            self.create_permission(request, &proof)
                .map(|()| Answered::Now)
        } else if method == Method::CHANNEL_BIND {
            self.bind_channel(request, &proof).map(|()| Answered::Now)
        } else if method == Method::CONNECT {
            self.connect(request, &proof).map(|()| Answered::Later)
        } else {
            match self.bind_connection(request, &proof) {
                Ok(outcome) => return outcome,
                Err(reject) => Err(reject),
            }
        };
        match result {
            Ok(Answered::Now | Answered::Later) => Outcome::Done,
            Ok(Answered::InProgress) => Outcome::Dropped(DropReason::RequestInProgress),
            Err(reject) => {
                // mutant: no-answer-to-441
                self.reply_reject(&request.envelope(), Some(&proof.response_key), reject);
                Outcome::Done
            }
        }
    }

    /// Whether the source may be sent nothing and this request cannot change that: only a fresh nonce can be followed by a proof.
    ///
    /// Found out before users are looked up and an answer is made and signed, or a flood would pay for both.
    fn is_refused_anyway(&mut self, request: &Request<'_>) -> bool {
        let from = &request.from;
        // Who completed a handshake is where it says it is, and is judged by the number of answers alone.
        if from.transport.proves_address()
            || !self
                .commons
                .unverified
                .is_exhausted(request.now.time, from.remote.ip())
        {
            return false;
        }
        let listener = self.listener_address(from.listener);
        let session = self.client(from);
        let session = session.and_then(|id| self.table.at(id)).map(Entry::user);
        !self.authenticator.has_fresh_nonce(
            request.now,
            from.remote,
            listener,
            &request.message,
            session,
        )
    }

    /// Begins a new generation of nonces; those of the one before are accepted until the next call (V-22).
    pub fn rotate_nonce_key(&mut self, key: NonceKey) {
        self.authenticator.rotate_nonce_key(key);
    }

    /// Handles an ICMP error that arrived at a relay socket (RFC 8656 §11.5).
    pub fn handle_icmp(&mut self, now: Now, relay: RelayHandle, error: IcmpError) -> Outcome {
        match self.relay_icmp(now, relay, &error) {
            Ok(()) => Outcome::Done,
            Err(reason) => Outcome::Dropped(reason),
        }
    }

    /// The connection of `client` is gone: what it had ends, and it is not heard of again (RFC 8656 §5).
    pub fn disconnected(&mut self, now: Now, client: &ClientTuple) {
        self.end_disconnected(client, now);
    }

    /// Takes the host's answer to [`Command::OpenRelay`]; each is to be answered once.
    pub fn relay_opened(
        &mut self,
        now: Now,
        request: RelayRequest,
        result: Result<Endpoint, RelayOpenError>,
    ) {
        self.take_opened(now, request, result);
    }

    /// When [`Engine::handle_timeout`] wants to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        let reservation = self.reservation_deadlines.front().copied();
        let unjudged = self.unjudged_from.map(|_| Time::ZERO);
        self.wheel
            .next_timeout()
            .into_iter()
            .chain(reservation)
            .chain(unjudged)
            .min()
    }

    /// Ends what has run out. The work of one call is bounded; while more is due, [`Engine::next_timeout`] stays in the past.
    pub fn handle_timeout(&mut self, now: Now) {
        self.judge_some();
        let mut budget = self.config.limits.timeouts_per_call.max(1);
        while let Some(index) = self.wheel.pop_due(now.time, &mut budget) {
            if let Some(id) = self.table.id_at(index) {
                self.expire(id, now);
            }
        }
        if self
            .reservation_deadlines
            .front()
            .is_some_and(|&deadline| deadline <= now.time)
        {
            self.commons.reservations.purge(now.time);
            while self
                .reservation_deadlines
                .front()
                .is_some_and(|&deadline| deadline <= now.time)
            {
                self.reservation_deadlines.pop_front();
            }
        }
    }

    /// Hands every queued command to `handle`, in order.
    pub fn with_commands(&mut self, handle: impl FnMut(Command<'_>)) {
        self.outbox.drain(handle);
    }

    /// The next change of durable state, oldest first. The host takes them all before it waits again: they pile up otherwise.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Live counts.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            allocations: self.table.len() - self.statistics.pending,
            peer_connections: self.tcp.len(),
            tombstones: self.tombstones.len(),
            tombstones_forgotten_early: self.tombstones.forgotten_early(),
            ..self.statistics
        }
    }

    pub(crate) fn live(&self, id: AllocationId) -> Option<&Allocation> {
        match self.table.at(id)? {
            Entry::Live(allocation) => Some(allocation),
            Entry::Pending(_) => None,
        }
    }

    pub(crate) fn live_mut(&mut self, id: AllocationId) -> Option<&mut Allocation> {
        match self.table.at_mut(id)? {
            Entry::Live(allocation) => Some(allocation),
            Entry::Pending(_) => None,
        }
    }

    /// The allocation a request other than Allocate is about (RFC 8656 §5).
    pub(crate) fn allocation_of(
        &self,
        request: &Request<'_>,
        proof: &Proof,
    ) -> Result<AllocationId, Reject> {
        let id = self
            .client(&request.from)
            .ok_or(Reject::AllocationMismatch)?;
        let allocation = self.live(id).ok_or(Reject::AllocationMismatch)?;
        let owner = allocation.quota.user();
        let is_owner = match request.message.method() {
            Method::REFRESH => owner.may_become(&proof.user),
            _ => owner.is_same_as(&proof.user),
        };
        // guard: V-28-owner
        if is_owner {
            self.check_origin(allocation, request)?;
            Ok(id)
        } else {
            Err(Reject::WrongCredentials)
        }
    }

    /// Whether a request about an allocation comes from where it has to, if that plays a part.
    pub(crate) fn check_origin(
        &self,
        allocation: &Allocation,
        request: &Request<'_>,
    ) -> Result<(), Reject> {
        match self.config.check_origin && !allocation.has_origin_of(&request.message) {
            true => Err(Reject::WrongCredentials),
            false => Ok(()),
        }
    }

    /// Makes sure the timer of an allocation fires by `deadline`.
    pub(crate) fn wake_by(&mut self, id: AllocationId, deadline: Time) {
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return;
        };
        // mutant: timer-forgotten
        if deadline < allocation.wake {
            allocation.wake = deadline;
            self.wheel.schedule(id.index, deadline);
        }
    }

    /// Seconds since 1970 by a calendar that never goes back, which is what credentials are judged by (V-32).
    pub(crate) fn calendar_s(&mut self, now: Now) -> u64 {
        self.authenticator.calendar_s(now)
    }

    pub(crate) fn authenticate(&mut self, request: &Request<'_>) -> Result<Proof, Rejection> {
        let listener = self.listener_address(request.from.listener);
        let client = request.from.remote;
        let proof = self.authenticate_on(request, client, listener);
        let Err(rejection) = &proof else {
            return proof;
        };
        if rejection.code != STALE_NONCE {
            return proof;
        }
        let elsewhere = self.control_connection(request).into_iter();
        for (client, listener) in elsewhere.chain(self.paths_of_ticket(request)) {
            if let Ok(proof) = self.authenticate_on(request, client, listener) {
                return Ok(proof);
            }
        }
        proof
    }

    /// The same for a nonce that was given to `client` at `listener`.
    fn authenticate_on(
        &mut self,
        request: &Request<'_>,
        client: SocketAddr,
        listener: SocketAddr,
    ) -> Result<Proof, Rejection> {
        let session = self.client(&request.from);
        let session = session.and_then(|id| self.table.at(id)).map(Entry::user);
        let holder = match (session, &self.config.auth.third_parties) {
            (None, Some(_)) => self.token_holder(request),
            _ => None,
        };
        let session = session.or(holder.as_ref());
        self.authenticator.authenticate_within(
            request.now,
            &mut self.random,
            client,
            listener,
            &request.message,
            session,
        )
    }

    /// Answers a request that proved nothing.
    pub(crate) fn challenge(&mut self, request: &Request<'_>, rejection: &Rejection) -> Outcome {
        // mutant: remembers-strangers
        let config = Arc::clone(&self.config);
        let third_parties = config.auth.third_parties.as_ref();
        let answer_len = self.write_error(&request.envelope(), None, rejection.code, |writer| {
            if let Some(challenge) = &rejection.challenge {
                writer
                    .realm(challenge.realm.as_bytes())
                    .nonce(challenge.nonce.as_bytes());
                if let Some(third_parties) = third_parties {
                    writer.third_party_authorization(third_parties.server_name().as_bytes());
                }
                if !challenge.password_algorithms.is_empty() {
                    writer.password_algorithms(challenge.password_algorithms);
                }
            }
        });
        let message = &request.message;
        let is_guess = rejection.code == UNAUTHENTICATED
            && (message.has_integrity_sha256() || message.has_integrity_sha1());
        match is_guess {
            true => self.spend_guess(request, answer_len),
            false => self.spend_unverified(request, answer_len),
        }
    }

    /// Where a listener stands in the order in which they were made known, to be named to another engine of the server.
    pub fn listener_index(&self, endpoint: Endpoint) -> Option<usize> {
        let mut listeners = self.listeners.iter();
        listeners.position(|&(listener, _)| listener == endpoint)
    }

    /// The listener that stands there.
    pub fn listener_at(&self, index: usize) -> Option<Endpoint> {
        self.listeners.get(index).map(|&(listener, _)| listener)
    }

    /// The address of a listener.
    pub fn listener_address(&self, endpoint: Endpoint) -> SocketAddr {
        let listener = self
            .listeners
            .iter()
            .find(|(listener, _)| *listener == endpoint);
        listener.map_or(UNKNOWN_LISTENER, |&(_, local)| local)
    }

    /// What the policy for a client says of a peer, and which rule decided, for a log.
    pub fn explain(&self, client: &ClientTuple, peer: SocketAddr) -> Explanation<'_> {
        let allocation = self.client(client).and_then(|id| self.live(id));
        let policy = allocation.map(|allocation| self.policy_of(allocation.quota.user()));
        policy.unwrap_or(&self.policy).explain(peer)
    }

    /// A request sees the allocation as it is at this moment, although timers may be a tick late.
    fn bring_up_to_date(&mut self, request: &Request<'_>) {
        if let Some(id) = self.client(&request.from)
            && self
                .live(id)
                .is_some_and(|allocation| allocation.wake <= request.now.time)
        {
            self.expire(id, request.now);
        }
    }

    /// Whether this is a method of RFC 6062, and there are TCP allocations.
    fn serves_connections(&self, method: Method) -> bool {
        self.config.tcp.is_some() && matches!(method, Method::CONNECT | Method::CONNECTION_BIND)
    }

    /// Whether a client can be there at all. An answer to an own listener would come back as a message (V-41).
    pub fn is_possible_source(&self, source: SocketAddr) -> bool {
        let is_client = match source.ip() {
            IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_broadcast(),
            IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        };
        is_client && source.port() != 0 && !self.listeners.iter().any(|&(_, local)| local == source)
    }

    /// Ends the permissions, channels and connections of an allocation that the policy forbids.
    pub(crate) fn enforce_policy(&mut self, id: AllocationId) {
        // guard: V-10-accept-policy
        self.enforce_policy_on_connections(id);
        let Some(Entry::Live(allocation)) = self.table.at_mut(id) else {
            return;
        };
        let own = self.policy_by_realm.get(&allocation.quota.user().realm);
        let (policy, changes) = (own.unwrap_or(&self.policy), &mut self.changes);
        allocation.permissions.retain_peers(
            |peer| policy.check(SocketAddr::new(peer, 0)).is_ok(),
            |peer| {
                changes.push_back(Change::PermissionExpired {
                    allocation: id,
                    peer,
                })
            },
        );
        allocation.channels.retain(
            |channel| policy.check(channel.peer.peer().address()).is_ok(),
            |channel| {
                changes.push_back(Change::ChannelExpired {
                    allocation: id,
                    number: channel.number,
                })
            },
        );
    }
}

impl<R> fmt::Debug for Engine<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

/// RFC 8489 §14.8.
const STALE_NONCE: u16 = 438;
/// RFC 8489 §14.8.
const UNAUTHENTICATED: u16 = 401;

/// Stands for a listener the host has not made known.
const UNKNOWN_LISTENER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn policies(config: &Config) -> BTreeMap<Box<str>, Policy> {
    let policies = config.realm_policies.iter();
    policies
        .map(|(realm, rules)| (realm.clone(), Policy::new(rules.clone())))
        .collect()
}

/// Bytes of channel messages with `bytes` bytes of payload.
fn framed(datagrams: u32, bytes: u64) -> u64 {
    bytes + 4 * u64::from(datagrams)
}

/// What the first `admitted` of `datagrams` datagrams have of `bytes` bytes, when all are of one size. Where the last
/// is shorter this is too little, by less than its shortfall.
#[inline]
fn share(bytes: u64, datagrams: u32, admitted: u32) -> u64 {
    if admitted == datagrams {
        bytes
    } else {
        bytes.div_ceil(u64::from(datagrams).max(1)) * u64::from(admitted)
    }
}

/// The methods of RFC 8489 and RFC 8656.
fn is_served(method: Method) -> bool {
    takes_requests(method) || matches!(method, Method::SEND | Method::DATA)
}

fn takes_requests(method: Method) -> bool {
    matches!(
        method,
        Method::BINDING
            | Method::ALLOCATE
            | Method::REFRESH
            | Method::CREATE_PERMISSION
            | Method::CHANNEL_BIND
    )
}
