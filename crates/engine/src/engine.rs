//! The engine: its parts and its entry points. Those for messages are in `dispatch`, those for relayed data in `routes`, and
//! rebuilding is in `rebuild`.
//!
//! Each entry point hands the parts that its topic may touch to the topic's file. No topic knows the engine.

mod dispatch;
mod rebuild;
mod routes;
mod snapshot;

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use turnbuckle_wire::TransactionId;

use crate::address::PeerAddress;
use crate::allocation::lease::SharedRelay;
use crate::allocations::Allocations;
use crate::auth::{Authenticator, WrongPassword};
use crate::change::Change;
use crate::command::{Command, IcmpError, Outcome};
use crate::commons::Commons;
use crate::config::{Config, RelayAddress};
use crate::credential::User;
use crate::discovery::Discovery;
use crate::held::Opened;
use crate::id::{
    AllocationId, ClientTuple, ConnectionId, Endpoint, Family, RelayHandle, RelayProtocol,
    RelayRequest,
};
use crate::listeners::Listeners;
use crate::nonce::NonceKey;
use crate::out::Out;
use crate::policies::Policies;
use crate::policy::{Explanation, InterfaceAddress};
use crate::random::{Random, transaction_id};
use crate::refusal::RelayOpenError;
use crate::rules::Rules;
use crate::session::Session;
use crate::tcp::Way;
use crate::tcp::handover::Handover;
use crate::tcp::peer_end::PeerEnd;
use crate::ticket::Tickets;
use crate::time::{Now, Time};
use crate::tunnel::{TunnelRefusal, TunnelSession};
use crate::{allocate, ending, icmp, judging, mobility, opening, tcp, tunnel};

/// All allocations of one thread, and the rules for them.
pub struct Engine<R> {
    rules: Rules,
    authenticator: Authenticator,
    allocations: Allocations,
    out: Out,
    random: R,
    /// The peers of the CreatePermission request at hand; empty in between.
    peers: Vec<PeerAddress>,
}

/// Live counts, for invariants and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Allocations in use.
    pub allocations: usize,
    /// Allocate requests and tunnels that wait for a relay socket.
    pub pending: usize,
    /// Tunnels in use.
    pub tunnels: usize,
    /// Peer data connections, those under way included.
    pub peer_connections: usize,
    /// Finished transactions on record.
    pub tombstones: usize,
    /// Records of finished transactions that were discarded, because the table was full, while the same request could still be
    /// valid (V-22).
    pub tombstones_forgotten_early: u64,
    /// ChannelBind requests for a number that RFC 5766 had and RFC 8656 §12 reserves.
    pub channel_numbers_reserved: u64,
}

impl<R: Random> Engine<R> {
    /// Makes an engine without listeners and allocations.
    pub fn new(config: Arc<Config>, commons: Arc<Commons>, mut random: R) -> Self {
        let mut authenticator = Authenticator::new(&config.auth, &mut random);
        authenticator.share_calendar(&commons.calendar);
        commons.unverified.set_key(&mut random);
        Self {
            authenticator,
            allocations: Allocations::new(&config, &mut random),
            rules: Rules {
                listeners: Listeners::default(),
                policies: Policies::new(&config),
                shared: [None, None],
                tickets: config.mobility.key.as_ref().map(Tickets::new),
                shard: 0,
                is_draining: false,
                config,
                commons,
            },
            out: Out::default(),
            random,
            peers: Vec::new(),
        }
    }

    /// Makes a listener known: its name and the address clients reach it at, the same for UDP and for connections. No peer may
    /// be reached there (V-07).
    pub fn add_listener(&mut self, endpoint: Endpoint, local: SocketAddr) {
        self.rules.listeners.add(endpoint, local);
        self.rules.policies.add_service(local);
    }

    /// Makes an address known where other engines of the server listen, and this one cannot: the listeners after it have the same places as theirs.
    pub fn skip_listener(&mut self, local: SocketAddr) {
        self.rules.listeners.skip(local);
        self.rules.policies.add_service(local);
    }

    /// Makes a shared relay socket known: its name and the address it is bound to, one of [`crate::SharedRelays::addresses`]. Allocations
    /// of its family are made on it.
    pub fn add_shared_relay(&mut self, endpoint: Endpoint, local: SocketAddr) {
        let mut relays = self.rules.config.relays.all();
        let relay = relays.find(|relay| relay.local == local.ip());
        let external = relay.and_then(|relay| relay.external);
        let external = external.map_or(local, |ip| SocketAddr::new(ip, local.port()));
        self.rules.shared[Family::of(&local).index()] = Some(Arc::new(SharedRelay {
            endpoint,
            local,
            external,
        }));
    }

    /// Has a listener take part in NAT behaviour discovery. Without this, requests that ask for it get 420 there (RFC 5780 §6).
    pub fn set_discovery(&mut self, listener: Endpoint, discovery: Discovery) {
        self.rules.listeners.set_discovery(listener, discovery);
    }

    /// Sets the number of the shard that this engine belongs to, for connections that are moved between shards. It is 0 until this
    /// is called.
    pub fn set_shard(&mut self, shard: u32) {
        self.rules.shard = shard;
    }

    /// Starts draining: from now on Allocate requests get 403. Existing allocations continue, and retransmitted requests get their
    /// answer again (coturn's SIGUSR1).
    pub fn drain(&mut self) {
        // mutant: draining-lets-in
        self.rules.is_draining = true;
    }

    /// Takes new allocations again after [`Engine::drain`].
    pub fn undrain(&mut self) {
        self.rules.is_draining = false;
    }

    /// Knows `relays` as addresses of relay sockets too ([`Commons::set_relays`]).
    pub fn add_relays(&mut self, now: Time, relays: &[RelayAddress]) {
        self.rules.policies.add_relays(relays);
        judging::judge_all(now, &mut self.rules, &mut self.allocations, &mut self.out);
    }

    /// Replaces the description of the host: the addresses of its interfaces, and its services other than listeners. Clients may
    /// reach none of these. A peer that is forbidden from now on gets no data any more. Its permissions and channels end at once or
    /// in later calls of [`Engine::handle_timeout`], because there may be very many.
    pub fn set_host_addresses(
        &mut self,
        now: Time,
        interfaces: Vec<InterfaceAddress>,
        services: &[SocketAddr],
    ) {
        let listeners = self.rules.listeners.addresses();
        let services = listeners.chain(services.iter().copied()).collect();
        self.rules.policies.set_own(interfaces, services);
        judging::judge_all(now, &mut self.rules, &mut self.allocations, &mut self.out);
    }

    /// Takes over `config`, which the host has read again or assembled from a user database. Allocations continue, unless relaying of
    /// their kind is switched off. Permissions and channels that are forbidden from now on end as in
    /// [`Engine::set_host_addresses`], and so do allocations and tunnels. Quotas, rates and budgets belong to [`Commons`].
    /// What tables and pools were made from stays as it is and has to be the same in `config`: relay addresses and ports, shared relays, and
    /// the sizes in its limits. Without mobility tickets are refused; those that are out are good again with the same key.
    pub fn reconfigure(&mut self, now: Time, config: &Arc<Config>) {
        // mutant: shards-know-removed-users
        self.authenticator
            .reconfigure(&config.auth, &mut self.random);
        self.rules.tickets = config.mobility.key.as_ref().map(Tickets::new);
        let is_switched_off = [RelayProtocol::Udp, RelayProtocol::Tcp]
            .into_iter()
            .any(|it| self.rules.config.relays_over(it) && !config.relays_over(it));
        self.rules.config = Arc::clone(config);
        if self.rules.policies.reconfigure(config) || is_switched_off {
            judging::judge_all(now, &mut self.rules, &mut self.allocations, &mut self.out);
        }
    }

    /// Begins a new generation of nonces; those of the one before are accepted until the next call (V-22).
    pub fn rotate_nonce_key(&mut self, key: NonceKey) {
        self.authenticator.rotate_nonce_key(key);
    }

    /// Returns the allocation of a client, by the one hash lookup of each received message.
    #[inline]
    pub fn client(&self, client: &ClientTuple) -> Option<AllocationId> {
        self.allocations.client(client)
    }

    /// Returns whether any allocation has a new path beside its old one.
    #[inline]
    pub fn has_new_paths(&self) -> bool {
        self.allocations.has_new_paths()
    }

    /// Returns the allocation of a client that sends channel messages. If the 5-tuple is the allocation's new path, it becomes the
    /// only path.
    ///
    /// Call this instead of [`Engine::client`] while any allocation has a new path.
    pub fn client_of_data(&mut self, client: &ClientTuple, now: Now) -> Option<AllocationId> {
        mobility::client_of_data(
            client,
            now,
            &self.rules,
            &mut self.allocations,
            &mut self.out,
        )
    }

    /// Returns a fresh transaction id, for a Data indication.
    pub fn transaction_id(&mut self) -> TransactionId {
        transaction_id(&mut self.random)
    }

    /// Returns the error code of the answer that the last message did not get because its source has reached its limit
    /// ([`DropReason::UnverifiedBudget`](crate::DropReason::UnverifiedBudget)); `None` if it was no error.
    pub fn withheld_error(&self) -> Option<u16> {
        self.out.withheld
    }

    /// Handles an ICMP error that arrived at a relay socket (RFC 8656 §11.5).
    pub fn handle_icmp(&mut self, now: Now, relay: RelayHandle, error: IcmpError) -> Outcome {
        let (rules, allocations) = (&self.rules, &mut self.allocations);
        if let Some(reason) =
            tunnel::take_icmp(now.time, relay, &error, rules, allocations, &mut self.out)
        {
            return Outcome::Dropped(reason);
        }
        let result = icmp::relay_icmp(
            now,
            relay,
            &error,
            &self.rules,
            &self.allocations,
            &mut self.out,
            &mut self.random,
        );
        match result {
            Ok(()) => Outcome::Done,
            Err(reason) => Outcome::Dropped(reason),
        }
    }

    /// Handles the end of a client's connection: ends what the client had on it. The same `client` must not occur again
    /// (RFC 8656 §5).
    pub fn disconnected(&mut self, now: Now, client: &ClientTuple) {
        ending::end_disconnected(
            client,
            now,
            &self.rules,
            &mut self.authenticator,
            &mut self.allocations,
            &mut self.out,
            &mut self.random,
        );
    }

    /// Takes the host's answer to [`Command::OpenRelay`]; each is to be answered once.
    pub fn relay_opened(
        &mut self,
        now: Now,
        request: RelayRequest,
        result: Result<Opened, RelayOpenError>,
    ) {
        let Self {
            rules,
            authenticator,
            allocations,
            out,
            random,
            ..
        } = self;
        if opening::take_opened(request, result, rules, allocations, out, random) {
            let id = request.handle.allocation;
            tunnel::settle(id, now.time, rules, allocations, out);
            allocate::settle(id, now, rules, authenticator, allocations, out, random);
            // It may have been switched off since it was asked for.
            judging::end_switched_off(id, now.time, rules, allocations, out);
        }
    }

    /// Returns the user of `realm` with this name and password, as it was sent in a protocol that protects it. The work is the same whether
    /// or not there is such a user (V-26).
    ///
    /// # Errors
    ///
    /// There is none; a user database may know better.
    pub fn check_password(
        &mut self,
        now: Now,
        realm: &str,
        name: &str,
        password: &str,
    ) -> Result<Arc<User>, WrongPassword> {
        let are_users_due = self.rules.config.answers.are_users_due;
        self.authenticator
            .check_password(now, realm, name, password, are_users_due)
    }

    /// Returns the realm of whom a request in HTTP is for, which names the host and perhaps the port, and came by TLS if `is_secure`. It is the
    /// realm of that origin, or the one of the host's name, or else the first.
    pub fn realm_of_authority(&self, is_secure: bool, authority: &str) -> Arc<str> {
        self.authenticator.realm_of_authority(is_secure, authority)
    }

    /// Returns whether tunnels are served at all: they relay over UDP, which the configuration may forbid.
    pub fn serves_tunnels(&self) -> bool {
        self.rules.config.relays_over(RelayProtocol::Udp)
    }

    /// Opens a session of a user who has proven who it is, for its tunnels. It takes one unit of the user's quota and one rate, until
    /// it and the last of its tunnels are gone.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn open_session(
        &self,
        now: Now,
        from: SocketAddr,
        user: &Arc<User>,
    ) -> Result<TunnelSession, TunnelRefusal> {
        tunnel::open_session(from, user, now.time, &self.rules)
    }

    /// Begins a tunnel to `target`, or a bound one if there is none. `client` names it from then on, and must not have anything else. [`Command::TunnelOpened`] says that it is
    /// open, or [`Command::TunnelEnded`] that it will not be. It ends with [`Engine::disconnected`].
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn open_tunnel(
        &mut self,
        now: Now,
        session: &TunnelSession,
        client: ClientTuple,
        target: Option<SocketAddr>,
    ) -> Result<AllocationId, TunnelRefusal> {
        let Self {
            rules,
            allocations,
            out,
            random,
            ..
        } = self;
        let wish = (client, target);
        tunnel::open(session, wish, now.time, rules, allocations, out, random)
    }

    /// Takes the host's answer to [`crate::Command::Connect`].
    pub fn peer_connected(&mut self, now: Now, connection: ConnectionId, is_connected: bool) {
        tcp::peer_connected(
            now,
            connection,
            is_connected,
            &self.rules,
            &mut self.allocations,
            &mut self.out,
        );
    }

    /// Checks a connection that came to a relayed transport address (RFC 6062 §5.3). If it is accepted, the client gets a
    /// ConnectionAttempt indication, and the host keeps the connection under the returned name without reading from it.
    ///
    /// # Errors
    ///
    /// Returns why the host has to close the connection at once.
    pub fn accept_peer(
        &mut self,
        now: Now,
        relay: RelayHandle,
        remote: SocketAddr,
    ) -> Result<ConnectionId, PeerEnd> {
        tcp::accept_peer(
            now,
            relay,
            remote,
            &self.rules,
            &mut self.allocations,
            &mut self.out,
            &mut self.random,
        )
    }

    /// Takes a ConnectionBind request from another engine, together with the client's connection, which is `client` here.
    pub fn take_over(&mut self, now: Now, client: ClientTuple, handover: Handover) {
        tcp::take_over(
            now,
            client,
            handover,
            &self.rules,
            &mut self.allocations,
            &mut self.out,
        );
    }

    /// Answers a ConnectionBind request that could not be handed to the engine it is for; the connection is `client` now.
    pub fn decline(&mut self, client: ClientTuple, handover: Handover) {
        tcp::decline(client, handover, &self.rules.config, &mut self.out);
    }

    /// Takes note that a peer data connection is gone, and so is the client data connection that was joined with it.
    pub fn peer_disconnected(&mut self, connection: ConnectionId, cause: PeerEnd) {
        tcp::peer_disconnected(connection, cause, &mut self.allocations, &mut self.out);
    }

    /// Counts `bytes` bytes of a reading that the host relays from one data connection to the other. When they go beyond the
    /// allocation's rate, until when the host has to read no more of that connection.
    pub fn relayed(
        &mut self,
        now: Now,
        connection: ConnectionId,
        way: Way,
        bytes: u64,
    ) -> Option<Time> {
        tcp::relayed(now, connection, way, bytes, &mut self.allocations)
    }

    /// Returns when [`Engine::handle_timeout`] has to be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        let reservation = self.allocations.reservation_deadlines.front().copied();
        let unjudged = self.rules.policies.unjudged_from.map(|_| Time::ZERO);
        self.allocations
            .wheel
            .next_timeout()
            .into_iter()
            .chain(reservation)
            .chain(unjudged)
            .min()
    }

    /// Ends what has run out. The work of one call is bounded; while more is due, [`Engine::next_timeout`] stays in the past.
    pub fn handle_timeout(&mut self, now: Now) {
        let Self {
            rules,
            authenticator,
            allocations,
            out,
            random,
            ..
        } = self;
        judging::judge_some(now.time, rules, allocations, out);
        let mut budget = rules.config.limits.timeouts_per_call.max(1);
        while let Some(index) = allocations.wheel.pop_due(now.time, &mut budget) {
            if let Some(id) = allocations.table.id_at(index) {
                ending::expire(id, now, rules, authenticator, allocations, out, random);
            }
        }
        let deadlines = &mut allocations.reservation_deadlines;
        let is_due = |deadline: Option<&Time>| deadline.is_some_and(|&it| it <= now.time);
        if is_due(deadlines.front()) {
            rules.commons.reservations.purge(now.time);
            while is_due(deadlines.front()) {
                deadlines.pop_front();
            }
        }
    }

    /// Hands every queued command to `handle`, in order.
    pub fn with_commands(&mut self, handle: impl FnMut(Command<'_>)) {
        self.out.outbox.drain(handle);
    }

    /// Returns the next change of durable state, oldest first. The host has to take them all before it waits again, because they
    /// accumulate otherwise.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.out.changes.pop_front()
    }

    /// Returns the allocation or tunnel at a place of the table ([`AllocationId::slot`]), if there is one in use.
    pub fn session_at(&self, slot: u32) -> Option<Session<'_>> {
        let id = self.allocations.table.id_at(slot)?;
        Session::of(id, self.allocations.table.at(id)?, &self.rules)
    }

    /// Returns the number of places in the table, taken or free.
    pub fn session_slots(&self) -> u32 {
        self.allocations.table.slot_count()
    }

    /// Shows the allocation at a place of the table as changes, in their order; none if the place is free. Places end at
    /// [`Self::session_slots`]. An engine rebuilt from what all places show has the same allocations.
    pub fn snapshot(&self, now: Time, slot: u32, each: impl FnMut(&Change)) {
        snapshot::show(now, slot, &self.rules, &self.allocations, each);
    }

    /// Ends an allocation or a tunnel because the operator wants it so. The client of an allocation learns of it by 437 at its next request
    /// (RFC 8656 §5), that of a tunnel by [`Command::TunnelEnded`].
    pub fn cancel(&mut self, now: Now, id: AllocationId) {
        let (rules, allocations, out) = (&self.rules, &mut self.allocations, &mut self.out);
        ending::cancel(id, now.time, rules, allocations, out);
    }

    /// Returns whether this names a tunnel that is open or being opened.
    pub fn is_tunnel(&self, id: AllocationId) -> bool {
        self.allocations.tunnel(id).is_some()
    }

    /// Returns the live counts.
    pub fn statistics(&self) -> Statistics {
        let allocations = &self.allocations;
        Statistics {
            allocations: allocations.table.len() - allocations.pending - allocations.tunnels,
            pending: allocations.pending,
            tunnels: allocations.tunnels,
            peer_connections: allocations.connections.len(),
            tombstones: allocations.tombstones.len(),
            tombstones_forgotten_early: allocations.tombstones.forgotten_early(),
            channel_numbers_reserved: allocations.channel_numbers_reserved,
        }
    }

    /// Returns the number of peer data connections that were tried or came in, and how many of them ended for each reason, by
    /// [`PeerEnd::index`]. Those that have not ended are [`Statistics::peer_connections`].
    pub fn peer_ends(&self) -> (u64, &[u64; PeerEnd::ALL.len()]) {
        let connections = &self.allocations.connections;
        (connections.attempts, &connections.ends)
    }

    /// Returns the place of a listener in the order in which the listeners were added, which names it to the other engines of the
    /// server.
    pub fn listener_index(&self, endpoint: Endpoint) -> Option<usize> {
        self.rules.listeners.index(endpoint)
    }

    /// Returns the listener at this place, if this engine has it.
    pub fn listener_at(&self, index: usize) -> Option<Endpoint> {
        self.rules.listeners.at(index)
    }

    /// Returns the address of a listener.
    pub fn listener_address(&self, endpoint: Endpoint) -> SocketAddr {
        self.rules.listeners.address(endpoint)
    }

    /// Returns whether `source` can be a client's address. An answer to one of the server's own listeners would come back as a
    /// message (V-41).
    pub fn is_possible_source(&self, source: SocketAddr) -> bool {
        self.rules.listeners.is_possible_source(source)
    }

    /// Returns whether `answer_len` bytes may go to a source that proved nothing, for its `received_len` bytes, and charges them if they may. For
    /// the answers of other protocols on the same sockets.
    pub fn admits_unverified(
        &self,
        now: Time,
        source: IpAddr,
        received_len: usize,
        answer_len: usize,
    ) -> bool {
        let budget = &self.rules.commons.unverified;
        budget.admit(now, source, received_len, answer_len)
    }

    /// Returns the part of a user's name that stays the same when a time-limited credential is renewed; `None` for a name without a time.
    pub fn id_in_name<'n>(&self, name: &'n str) -> Option<&'n str> {
        self.authenticator.id_in_name(name)
    }

    /// Returns the policy's verdict on a peer for a client, and the rule that decided, for a log.
    pub fn explain(&self, client: &ClientTuple, peer: SocketAddr) -> Explanation<'_> {
        let allocation = self.client(client).and_then(|id| self.allocations.live(id));
        let policies = &self.rules.policies;
        let policy = allocation.map(|allocation| policies.of(allocation.account.user()));
        policy.unwrap_or(&policies.usual).explain(peer)
    }
}

impl<R> fmt::Debug for Engine<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("pending", &self.allocations.pending)
            .finish_non_exhaustive()
    }
}
