//! Tunnels of UDP in HTTP/3 (RFC 9298): requests on connections of this front.
//!
//! What a request says is read by [`turnbuckle_masque`]; whether it is granted is the engine's to say, as by HTTP/1.1 (`front/stream/door.rs`): the
//! same users, quotas and peer policy, and a name is resolved before the answer. What there is of a request is kept in `door.rs`.
//!
//! A request whose user is unknown waits once for the user database, as by HTTP/1.1, and is kept there meanwhile.
//!
//! Invariant: a payload from a client is in when it has come out of QUIC, and one for a client is carried when QUIC has sent it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_datapath::SendQueue;
use turnbuckle_engine::{ClientTuple, Time, TunnelEnd, User};
use turnbuckle_masque::h3::Event;
use turnbuckle_masque::{Asked, Refusal};
use turnbuckle_quic::ConnectionName;

use super::Quic;
use super::door::Tunnel;
use super::lookups::Waiting;
use crate::counters::{CloseReason, QuicDrop};
use crate::shard::front::TunnelEvent;
use crate::shard::front::tunnels::{self, Begun, FAILURES_MAX, Identified, granted};
use crate::shard::hub::Hub;

/// How long a client has for its settings after its request is granted.
const SETTINGS_WAIT_MAX: Duration = Duration::from_secs(2);
/// Streams that a client may have open after it has shown who it is: at least, and at most.
const STREAMS: (usize, usize) = (16, 128);

impl Quic {
    /// Takes what came before tunnels were open, and goes on with what has waited for this turn.
    pub(super) fn take_early(&mut self, hub: &mut Hub, tx: &mut SendQueue) {
        for name in std::mem::take(&mut self.door.early) {
            self.take(name, hub, tx);
        }
        self.door.go_on(hub, tx);
    }

    /// Goes on with requests about whose users the database has been asked. Takes what the resolver has found, and does what has waited long enough.
    pub(super) fn attend(&mut self, hub: &mut Hub) {
        for at in std::mem::take(&mut self.door.users_asked) {
            // One that its client has given up meanwhile is not here any more.
            if let Some(Tunnel::Identifying { asked, .. }) = self.forget(at, hub.now.time) {
                self.answer(at, *asked, false, hub);
            }
        }
        self.take_resolved(hub);
        while let Some(&(until, name, client)) = self.door.unsettled.front() {
            let waits = self.door.has_client(&client) && !self.has_settings(name);
            if waits && until > hub.now.time {
                return;
            }
            self.door.unsettled.pop_front();
            // guard: V-87-settings
            if waits {
                self.close(name, CloseReason::MessageLate);
            }
        }
    }

    /// Takes what has come on a connection.
    pub(super) fn take(&mut self, name: ConnectionName, hub: &mut Hub, tx: &mut SendQueue) {
        let mut came = std::mem::take(&mut self.door.came);
        let taken = self
            .endpoint
            .with(self.now, name, |_, http| http.take(&mut came));
        self.door.take_in(name, &mut came, hub, tx);
        self.door.came = came;
        let Some(taken) = taken else {
            return;
        };
        let dropped = taken.dropped;
        for (reason, count) in [
            (QuicDrop::NoTunnel, dropped.no_tunnel),
            (QuicDrop::ContextUnknown, dropped.context_unknown),
            (QuicDrop::CapsuleUnknown, dropped.capsule_unknown),
            (QuicDrop::AddressMissing, dropped.no_address),
            (QuicDrop::MalformedCapsule, dropped.malformed),
        ] {
            if count > 0 {
                hub.counters.datagrams.client_in.add(count);
                hub.counters.dropped(reason, count);
            }
        }
        for event in taken.events {
            match event {
                Event::Asked { stream, asked } => self.asked((name, stream), asked, hub),
                Event::Registered {
                    stream,
                    tunnel,
                    context,
                    peer,
                } => {
                    let is_allowed = hub.engine.may_name(tunnel, peer);
                    self.endpoint.with(self.now, name, |connection, http| {
                        let (server, mut below) = http.on(connection);
                        server.judged(&mut below, stream, context, is_allowed);
                    });
                }
                Event::Ended { stream, .. } => {
                    if let Some(tunnel) = self.forget((name, stream), hub.now.time) {
                        tunnel.give_up(hub);
                    }
                }
            }
        }
    }

    /// Takes note of what has become of a client's tunnel.
    pub(super) fn changed(&mut self, client: &ClientTuple, event: TunnelEvent, now: Time) {
        let Some((name, stream)) = self.door.stream_of(client) else {
            return;
        };
        match event {
            TunnelEvent::Opened { tunnel, target } => {
                self.endpoint.with(self.now, name, |connection, http| {
                    let (server, mut below) = http.on(connection);
                    server.grant(&mut below, stream, tunnel, granted(target));
                });
                self.door.early.push(name);
                if !self.has_settings(name) {
                    let until = now + SETTINGS_WAIT_MAX;
                    self.door.unsettled.push_back((until, name, *client));
                }
            }
            TunnelEvent::UserAsked => self.door.users_asked.push((name, stream)),
            TunnelEvent::Ended(cause) => {
                self.forget((name, stream), now);
                self.endpoint.with(self.now, name, |connection, http| {
                    let (server, mut below) = http.on(connection);
                    match cause {
                        TunnelEnd::NotOpened => {
                            server.refuse(&mut below, stream, Refusal::NoCapacity, "");
                        }
                        // RFC 9298 §3.1: without a socket there is no stream.
                        TunnelEnd::Cancelled
                        | TunnelEnd::Forbidden
                        | TunnelEnd::Idle
                        | TunnelEnd::Unreachable
                        | TunnelEnd::UserGone => server.end(&mut below, stream),
                    }
                });
            }
        }
    }

    /// Returns whether the client of a bound tunnel wants what comes from `source`.
    pub(super) fn wants(&mut self, client: &ClientTuple, source: SocketAddr) -> bool {
        let Some((name, stream)) = self.door.stream_of(client) else {
            return false;
        };
        let wants = self.endpoint.with(self.now, name, |connection, http| {
            http.on(connection).0.wants(stream, source)
        });
        wants == Some(true)
    }

    /// Says to all clients that no further requests are taken.
    pub(super) fn go_away(&mut self) {
        for name in self.door.names() {
            self.endpoint.with(self.now, name, |connection, http| {
                let (server, mut below) = http.on(connection);
                server.go_away(&mut below);
            });
        }
    }

    fn has_settings(&mut self, name: ConnectionName) -> bool {
        let has = self.endpoint.with(self.now, name, |connection, http| {
            http.on(connection).0.has_settings()
        });
        has == Some(true)
    }

    /// Takes a request.
    fn asked(&mut self, at: (ConnectionName, u64), asked: Asked, hub: &mut Hub) {
        self.connections.progressed(hub.now.time, at.0);
        self.answer(at, asked, true, hub);
    }

    /// Answers a request, or begins what its answer waits for. If it `may_ask`, the user database is asked once about a user who is not known.
    fn answer(&mut self, at: (ConnectionName, u64), asked: Asked, may_ask: bool, hub: &mut Hub) {
        let (name, _) = at;
        let Some(source) = self.door.connection(name).map(|it| it.source()) else {
            return;
        };
        let realm = hub.engine.realm_of_authority(true, &asked.authority);
        let client = || {
            self.door
                .connection(name)
                .map(|connection| connection.client(name))
        };
        let whence = (&*realm, source);
        let begun = match tunnels::identify(&asked, whence, may_ask, client, hub) {
            Identified::Known(user) => self.begin(at, asked, &user, hub),
            Identified::Refused(why) => Err(why),
            Identified::Waits(client) => {
                let asked = Box::new(asked);
                self.keep(at, Tunnel::Identifying { client, asked }, hub.now.time);
                return;
            }
        };
        self.allow_streams(name);
        let Err(refusal) = begun else {
            return;
        };
        if matches!(refusal, Refusal::TooManyAttempts | Refusal::Unauthorized)
            && let Some(connection) = self.door.connection(name)
        {
            connection.failures += 1;
            // guard: V-93-attempts
            if connection.failures >= FAILURES_MAX {
                return self.close(name, CloseReason::RequestsExceeded);
            }
        }
        self.refuse(at, refusal, &realm);
        self.forget(at, hub.now.time);
    }

    /// Opens more streams to a client that has shown who it is, if it has come to need them.
    fn allow_streams(&mut self, name: ConnectionName) {
        let Some(connection) = self.door.connection(name) else {
            return;
        };
        let allowed = streams_for(connection.tunnels.len());
        if connection.session.is_none() || connection.allowed >= allowed {
            return;
        }
        connection.allowed = allowed;
        self.endpoint.with(self.now, name, |connection, http| {
            http.on(connection).1.allow_streams(allowed);
        });
    }

    /// Begins a tunnel for a user.
    fn begin(
        &mut self,
        (name, stream): (ConnectionName, u64),
        asked: Asked,
        user: &Arc<User>,
        hub: &mut Hub,
    ) -> Result<(), Refusal> {
        let serves_bound = self.door.serves_bound;
        let connection = self.door.connection(name).ok_or(Refusal::NoCapacity)?;
        let client = connection.client(name);
        let (session, port) = (&mut connection.session, asked.target.port);
        let tunnel = match tunnels::begin(session, client, asked.target, user, serves_bound, hub)? {
            Begun::Opening(client) => Tunnel::Begun { client },
            Begun::Named(host) => {
                let lookups = &mut self.door.lookups;
                let number = lookups.ask(hub.now.time, (host, port), (name, stream), user)?;
                Tunnel::Resolving { number }
            }
        };
        self.keep((name, stream), tunnel, hub.now.time);
        Ok(())
    }

    /// Begins a tunnel for a user to the first of the resolved `addresses` that may be reached.
    fn open(
        &mut self,
        (name, stream): (ConnectionName, u64),
        user: &Arc<User>,
        addresses: impl IntoIterator<Item = Option<SocketAddr>>,
        hub: &mut Hub,
    ) -> Result<(), Refusal> {
        let connection = self.door.connection(name).ok_or(Refusal::NoCapacity)?;
        let client = connection.client(name);
        // another request may have been somebody else's while the name was resolved
        tunnels::charge(&mut connection.session, client, user, hub)?;
        tunnels::open(connection.session.as_ref(), client, addresses, hub)?;
        self.keep((name, stream), Tunnel::Begun { client }, hub.now.time);
        Ok(())
    }

    /// Keeps what there is of a request from now on.
    fn keep(&mut self, (name, stream): (ConnectionName, u64), tunnel: Tunnel, now: Time) {
        let Some(connection) = self.door.connection(name) else {
            return;
        };
        if let Tunnel::Begun { client } | Tunnel::Identifying { client, .. } = &tunnel {
            connection.streams.insert(client.connection.serial, stream);
        }
        let is_begun = matches!(tunnel, Tunnel::Begun { .. });
        connection.tunnels.insert(stream, tunnel);
        if is_begun {
            self.connections.allocated(now, name, true);
        }
    }

    /// Refuses a request. Only one without good credentials is told a realm.
    fn refuse(&mut self, (name, stream): (ConnectionName, u64), refusal: Refusal, realm: &str) {
        self.endpoint.with(self.now, name, |connection, http| {
            let (server, mut below) = http.on(connection);
            server.refuse(&mut below, stream, refusal, realm);
        });
    }

    /// Forgets what there is of a request.
    fn forget(&mut self, (name, stream): (ConnectionName, u64), now: Time) -> Option<Tunnel> {
        let connection = self.door.connection(name)?;
        let tunnel = connection.tunnels.remove(&stream);
        if let Some(Tunnel::Begun { client } | Tunnel::Identifying { client, .. }) = &tunnel {
            connection.streams.remove(&client.connection.serial);
        }
        if connection.streams.is_empty() {
            self.connections.allocated(now, name, false);
        }
        tunnel
    }

    /// Takes what the resolver has found, and refuses what has waited too long for it.
    fn take_resolved(&mut self, hub: &mut Hub) {
        for (waiting, addresses) in self.door.lookups.take_resolved() {
            let at = (waiting.name, waiting.stream);
            let addresses = addresses.into_iter();
            let addresses = addresses.map(|ip| Some(SocketAddr::new(ip, waiting.port)));
            if self.waits(&waiting)
                && let Err(refusal) = self.open(at, &waiting.user, addresses, hub)
            {
                self.refuse(at, refusal, "");
                self.forget(at, hub.now.time);
            }
        }
        while let Some(waiting) = self.door.lookups.take_late(hub.now.time) {
            if self.waits(&waiting) {
                let at = (waiting.name, waiting.stream);
                self.refuse(at, Refusal::DnsTimeout, "");
                self.forget(at, hub.now.time);
            }
        }
    }

    /// Returns whether a request still waits for the resolver.
    fn waits(&mut self, waiting: &Waiting) -> bool {
        let connection = self.door.connection(waiting.name);
        let tunnel = connection.and_then(|connection| connection.tunnels.get(&waiting.stream));
        matches!(tunnel, Some(Tunnel::Resolving { number }) if *number == waiting.number)
    }
}

/// Returns how many streams a client with so many tunnels may have open: as many again, because the stack keeps a place for each that may be opened,
/// 10 KB for 128 of them.
fn streams_for(tunnels: usize) -> u32 {
    let (least, most) = STREAMS;
    let streams = (2 * tunnels).next_power_of_two().clamp(least, most);
    u32::try_from(streams).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::streams_for;

    #[test]
    fn a_client_may_always_open_a_stream_more_until_it_has_128() {
        for tunnels in 0..128 {
            let streams = streams_for(tunnels);
            assert!(streams as usize > tunnels, "{tunnels}");
            assert!(streams <= 128, "{tunnels}");
        }
        assert_eq!([0, 8, 9, 64, 65].map(streams_for), [16, 16, 32, 128, 128]);
    }
}
