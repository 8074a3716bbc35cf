//! What RFC 8656 says becomes of a message, in the RFC's order.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::DropReason;
use turnbuckle_wire::{AddressFamily, AttributeError, AttributeType, Class, Message, Method};

use super::expect::Expect;
use super::memory::{Asked, Finished, Model, Pending};
use super::proof::{Proof, quota_name};
use super::rules::SECOND;
use super::state::{Allocation, Tuple};
use super::wrong::Wrong;
use crate::plan::{self, Place};

const UDP: u8 = 17;

/// The comprehension-required attributes of RFC 8489 §18.3.1 and RFC 8656 §18.
const UNDERSTOOD: [u16; 21] = [
    0x0001, 0x0006, 0x0008, 0x0009, 0x000A, 0x000C, 0x000D, 0x0012, 0x0013, 0x0014, 0x0015, 0x0016,
    0x0017, 0x0018, 0x0019, 0x001C, 0x001D, 0x001E, 0x0020, 0x0022, 0x001A,
];

/// Where a peer's datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// To a client, on a channel or else in a Data indication.
    Client(Tuple, Option<u16>),
    /// Nowhere.
    Silence(DropReason),
}

impl Model {
    /// Returns what becomes of a STUN message, given what it proved.
    #[must_use]
    pub fn message(
        &self,
        now: u64,
        shard: usize,
        from: Tuple,
        message: &Message<'_>,
        proof: &Proof,
    ) -> Expect {
        let indicated = matches!(
            message.method(),
            Method::SEND | Method::DATA | Method::CONNECTION_ATTEMPT
        );
        let known = matches!(
            message.method(),
            Method::BINDING
                | Method::ALLOCATE
                | Method::REFRESH
                | Method::CREATE_PERMISSION
                | Method::CHANNEL_BIND
        );
        match message.class() {
            Class::Success | Class::Error => Expect::Silence(vec![
                DropReason::ResponseUnexpected,
                DropReason::MethodUnknown,
            ]),
            Class::Indication => self.indication(from, message),
            // RFC 8656 §17: Send and Data are never requests.
            Class::Request if indicated => {
                Expect::Silence(vec![DropReason::ClassUnexpected, DropReason::MethodUnknown])
            }
            Class::Request if !known => Expect::silence(DropReason::MethodUnknown),
            Class::Request if message.method() == Method::BINDING => {
                if self.has_unknown(from, message) {
                    Expect::error(420)
                } else {
                    Expect::success()
                }
            }
            Class::Request => match &proof.user {
                None => Expect::errors(proof.codes.clone()),
                Some(_) if self.has_unknown(from, message) => Expect::error(420),
                Some(user) if message.method() == Method::ALLOCATE => {
                    self.allocate(now, shard, from, message, user)
                }
                Some(user) => match (self.held(from), message.mobility_ticket()) {
                    (_, Some(ticket)) if message.method() == Method::REFRESH => {
                        self.resume(now, from, message, ticket, user)
                    }
                    (None, _) => Expect::error(437),
                    (Some(held), _) if held.user != *user => Expect::error(441),
                    (Some(held), _) => match message.method() {
                        Method::REFRESH => self.refresh(from, held, message, Wrong::default()),
                        Method::CREATE_PERMISSION => self.create_permission(held, message),
                        _ => self.channel_bind(held, message),
                    },
                },
            },
        }
    }

    fn held(&self, from: Tuple) -> Option<&Allocation> {
        self.allocations.get(&self.holder(from)?)
    }

    /// Returns what is expected of an Allocate request by RFC 8656 §7.2, steps 2 to 10. Step 1 is the caller's.
    fn allocate(
        &self,
        now: u64,
        shard: usize,
        from: Tuple,
        message: &Message<'_>,
        user: &str,
    ) -> Expect {
        let id = *message.transaction_id().as_bytes();
        if let Some(held) = self.held(from) {
            return if held.transaction == id && held.user == user {
                Expect::success()
            } else {
                Expect::error(437)
            };
        }
        if let Some(held) = self.pending.get(&from) {
            return if held.transaction == id {
                Expect::silence(DropReason::RequestInProgress)
            } else {
                Expect::error(437)
            };
        }
        if self.finished.contains_key(&(from, id)) {
            return Expect::error(437); // it created one already, and that has ended
        }
        let transport = message.requested_transport();
        let family = message.requested_address_family();
        let additional = message.additional_address_family();
        let even = message.even_port();
        let token = message.reservation_token();
        let lifetime = message.lifetime();
        let mut wrong = Wrong::default();
        match transport {
            Ok(Some(UDP)) => {}
            Ok(Some(_)) => wrong.step(442),
            Ok(None) => wrong.step(400),
            Err(_) => wrong.malformed(),
        }
        let names_family = present(message, AttributeType::REQUESTED_ADDRESS_FAMILY);
        let names_additional = message.has_additional_address_family();
        let names_even = present(message, AttributeType::EVEN_PORT);
        let names_token = present(message, AttributeType::RESERVATION_TOKEN);
        let mut redeemed = None;
        let mut reserved_by = None;
        if names_token {
            if names_even || names_family || names_additional {
                wrong.step(400);
            }
            match token {
                Ok(Some(token)) => match self.reservations.get(&token) {
                    Some(reservation) => {
                        redeemed = Some(reservation.address);
                        reserved_by = Some(quota_name(&reservation.user));
                    }
                    None => wrong.step(508),
                },
                _ => wrong.malformed(),
            }
        }
        if names_family && names_additional {
            wrong.step(400);
        }
        let mut wanted = [true, false];
        match family {
            Ok(Some(AddressFamily::V6)) => wanted = [false, true],
            Ok(_) => {}
            Err(AttributeError::UnsupportedFamily(_)) => wrong.step(440),
            Err(_) => wrong.malformed(),
        }
        if wanted[1] && self.relay_ip(true).is_none() {
            wrong.step(440);
        }
        if names_even && even.is_err() {
            wrong.malformed();
        }
        let even = even.ok().flatten();
        if even == Some(true) && names_additional {
            wrong.step(400);
        }
        let mut missing = None;
        match additional {
            Ok(None) => {}
            Ok(Some(AddressFamily::V6)) if self.relay_ip(true).is_none() => {
                missing = Some((true, 440));
            }
            Ok(Some(AddressFamily::V6)) => wanted = [true, true],
            Ok(Some(AddressFamily::V4)) => wrong.step(400),
            Err(AttributeError::UnsupportedFamily(_)) => wrong.step_of(&[400, 440]),
            Err(_) => wrong.malformed(),
        }
        if lifetime.is_err() {
            wrong.malformed();
        }
        match message.mobility_ticket() {
            Some([]) if !self.rules.mobility => wrong.also(405), // RFC 8016 §3.1.2
            Some([]) | None => {}
            Some(_) => wrong.also(400),
        }
        if let Some(address) = redeemed {
            wanted = [address.is_ipv4(), address.is_ipv6()];
        } else {
            let v4 = wanted[0] && !self.has_port(false, even);
            let v6 = wanted[1] && !self.has_port(true, even);
            match wanted {
                [true, true] if v4 && v6 => wrong.full(508),
                [true, true] if v4 => missing = Some((false, 508)),
                [true, true] if v6 => missing = Some((true, 508)),
                _ if v4 || v6 => wrong.full(508),
                _ => {}
            }
            if let Some((v6, _)) = missing {
                wanted[usize::from(v6)] = false;
            }
        }
        if even == Some(true) && self.reservations.len() >= self.rules.bounds.reservations {
            wrong.full(508);
        }
        // What a token was charged for becomes the allocation; somebody else who redeems it is charged in place of who reserved.
        let name = quota_name(user);
        let of_user = self.charged_to(Some(name), None);
        let of_all = self.charged_to(None, None) - usize::from(reserved_by.is_some());
        let units = 1 + usize::from(even == Some(true));
        let has_room = of_user + units <= self.rules.bounds.user_quota
            && of_all + units <= self.rules.bounds.total_quota;
        if reserved_by != Some(name) && !has_room {
            wrong.full(486);
        }
        let of_shard = self.allocations.values().filter(|held| held.shard == shard);
        let pending = self.pending.values().filter(|held| held.shard == shard);
        if of_shard.count() + pending.count() >= self.rules.bounds.shard {
            wrong.full(508);
        }
        if let Some(expect) = wrong.verdict() {
            return expect;
        }
        Expect::Open(Pending {
            shard,
            user: user.to_owned(),
            transaction: id,
            asked: Asked {
                wanted,
                missing,
                even,
                redeemed,
                lifetime_s: self.lifetime_s(lifetime.ok().flatten()),
                mobile: message.mobility_ticket().is_some(),
            },
            since: now,
            in_use: Vec::new(),
            opening: Vec::new(),
            opened: Vec::new(),
        })
    }

    /// Returns what is expected of a Refresh request (RFC 8656 §8.2).
    pub(super) fn refresh(
        &self,
        from: Tuple,
        held: &Allocation,
        message: &Message<'_>,
        mut wrong: Wrong,
    ) -> Expect {
        let id = *message.transaction_id().as_bytes();
        let lifetime = message.lifetime();
        if lifetime == Ok(Some(0)) && wrong.is_nothing() {
            match self.finished.get(&(from, id)) {
                // A retransmission gets its answer again, as long as it speaks of this allocation.
                Some((Finished::EndedFamily(serial), _)) if *serial == held.serial => {
                    return Expect::success();
                }
                Some(_) => return Expect::error(437),
                None => {}
            }
        }
        match message.requested_address_family() {
            Ok(None) => {}
            Ok(Some(family)) if held.has_family(family == AddressFamily::V6) => {}
            Ok(Some(_)) => wrong.also(443),
            Err(AttributeError::UnsupportedFamily(_)) => wrong.step_of(&[400, 440, 443]),
            Err(_) => wrong.malformed(),
        }
        if lifetime.is_err() {
            wrong.malformed();
        }
        wrong.verdict().unwrap_or_else(Expect::success)
    }

    fn check_peer(&self, held: &Allocation, peer: SocketAddr, wrong: &mut Wrong) {
        if held.relay_towards(peer.ip()).is_none() {
            wrong.also(443);
        }
        if !self.may_be_peer(peer) {
            wrong.also(403);
        }
    }

    /// Returns whether anybody may send to `peer`. Of the server's own addresses only relayed transport
    /// addresses are peers (V-07).
    #[must_use]
    pub fn may_be_peer(&self, peer: SocketAddr) -> bool {
        match plan::place(peer) {
            Place::Relay => {
                let relayed = peer.port() == 0 || self.rules.ports.contains(&peer.port());
                relayed && self.rules.relays.contains(&peer.ip())
            }
            _ => plan::may_be_peer(peer.ip()),
        }
    }

    /// Returns whether data may go to `peer` now: a relayed transport address has to be an allocation's (V-07).
    fn is_open(&self, peer: SocketAddr) -> bool {
        !matches!(plan::place(peer), Place::Relay)
            || self.in_use().contains(&peer)
            || self.lingering.contains(&peer)
    }

    /// Attributes that must be understood and are not: everything comprehension-required outside of
    /// RFC 8489 and RFC 8656, but for the two that ICE agents put into Binding requests. Without the
    /// means to set DF, DONT-FRAGMENT is one of them (RFC 8656 §7.2 step 4, §11.2).
    fn has_unknown(&self, from: Tuple, message: &Message<'_>) -> bool {
        !self.unknown(from, message).is_empty()
    }

    /// Returns the types for UNKNOWN-ATTRIBUTES.
    #[must_use]
    pub fn unknown(&self, from: Tuple, message: &Message<'_>) -> BTreeSet<u16> {
        // RFC 8656 §3.7: no DF for an allocation that translates from IPv4 to IPv6.
        let to_v6 = message.requested_address_family() == Ok(Some(AddressFamily::V6))
            || message.has_additional_address_family();
        let translates = message.method() == Method::ALLOCATE && from.client.is_ipv4() && to_v6;
        let unknown = |kind: &u16| match *kind {
            0x001A => !self.rules.dont_fragment || translates,
            0x0024 | 0x0025 => message.method() != Method::BINDING,
            _ => *kind < 0x8000 && !UNDERSTOOD.contains(kind),
        };
        let kinds = message
            .attributes()
            .map(|attribute| attribute.kind.number());
        kinds.filter(unknown).collect()
    }

    /// Returns what is expected of a CreatePermission request (RFC 8656 §10.2).
    fn create_permission(&self, held: &Allocation, message: &Message<'_>) -> Expect {
        let mut peers = Vec::new();
        let mut wrong = Wrong::default();
        for peer in message.xor_peer_addresses() {
            match peer {
                Ok(peer) => peers.push(peer),
                Err(_) => wrong.also(400),
            }
        }
        if peers.is_empty() {
            wrong.also(400);
        }
        for peer in &peers {
            self.check_peer(held, *peer, &mut wrong);
        }
        let mut after: Vec<IpAddr> = held.permissions.keys().copied().collect();
        after.extend(peers.iter().map(SocketAddr::ip));
        after.sort_unstable();
        after.dedup();
        if after.len() > self.rules.bounds.permissions {
            wrong.full(508);
        }
        wrong.verdict().unwrap_or_else(Expect::success)
    }

    /// Returns what is expected of a ChannelBind request (RFC 8656 §12.2).
    fn channel_bind(&self, held: &Allocation, message: &Message<'_>) -> Expect {
        let mut wrong = Wrong::default();
        let number = message.channel_number().ok().flatten();
        let peer = message.xor_peer_address().ok().flatten();
        let (Some(number), Some(peer)) = (number, peer) else {
            wrong.also(400);
            if let Some(peer) = peer {
                self.check_peer(held, peer, &mut wrong);
            }
            return wrong.verdict().unwrap_or_else(Expect::success);
        };
        if !self.rules.channels.contains(&number) || peer.port() == 0 {
            wrong.also(400);
        }
        let bound = held.channels.get(&number).map(|(peer, _)| *peer);
        if bound.is_some_and(|other| other != peer) {
            wrong.also(400);
        }
        if held.channel_of(peer).is_some_and(|other| other != number) {
            wrong.also(400);
        }
        self.check_peer(held, peer, &mut wrong);
        if !self.is_open(peer) {
            wrong.also(403);
        }
        if bound.is_none() && held.channels.len() >= self.rules.bounds.channels {
            wrong.full(508);
        }
        let permitted = held.permissions.contains_key(&peer.ip());
        if !permitted && held.permissions.len() >= self.rules.bounds.permissions {
            wrong.full(508);
        }
        wrong.verdict().unwrap_or_else(Expect::success)
    }

    fn indication(&self, from: Tuple, message: &Message<'_>) -> Expect {
        let mut reasons = Vec::new();
        if self.has_unknown(from, message) {
            reasons.push(DropReason::UnknownAttribute);
        }
        match message.method() {
            Method::SEND => {}
            Method::BINDING => {
                reasons.push(DropReason::KeepAlive);
                return Expect::Silence(reasons);
            }
            _ => {
                reasons.push(DropReason::ClassUnexpected);
                reasons.push(DropReason::MethodUnknown);
                return Expect::Silence(reasons);
            }
        }
        // RFC 8656 §11.2.
        let peer = message.xor_peer_address().ok().flatten();
        let data = message.data();
        match message.dont_fragment() {
            Ok(true) if !self.rules.dont_fragment => {
                reasons.push(DropReason::FragmentationUnsupported);
            }
            Ok(_) => {}
            Err(_) => reasons.push(DropReason::IndicationMalformed),
        }
        let held = self.held(from);
        if held.is_none() {
            reasons.push(DropReason::NoAllocation);
        }
        let (Some(peer), Some(data)) = (peer, data) else {
            reasons.push(DropReason::IndicationMalformed);
            return Expect::Silence(reasons);
        };
        if peer.port() == 0 {
            reasons.push(DropReason::IndicationMalformed);
        }
        if !self.may_be_peer(peer) || !self.is_open(peer) {
            reasons.push(DropReason::PeerForbidden);
        }
        let Some(held) = held else {
            return Expect::Silence(reasons);
        };
        let relay = held.relay_towards(peer.ip());
        if relay.is_none() {
            reasons.push(DropReason::PeerFamilyMismatch);
        }
        if !held.permissions.contains_key(&peer.ip()) {
            reasons.push(DropReason::NoPermission);
        }
        match relay {
            Some(relay) if reasons.is_empty() => Expect::Relay {
                from: relay,
                to: peer,
                data: data.to_vec(),
                // RFC 8656 §13: there is a DF bit only where IPv4 comes in and goes out.
                dont_fragment: message.dont_fragment() == Ok(true)
                    && relay.is_ipv4()
                    && from.client.is_ipv4(),
            },
            _ => Expect::Silence(reasons),
        }
    }

    /// Returns the length of the payload of a Send indication that counts as received for the client's allocation: a well-formed one, whatever becomes of it.
    #[must_use]
    pub fn counted_send(&self, from: Tuple, message: &Message<'_>) -> Option<usize> {
        let sends = message.class() == Class::Indication && message.method() == Method::SEND;
        let sound = matches!(message.xor_peer_address(), Ok(Some(_)))
            && !self.has_unknown(from, message)
            && message.dont_fragment().is_ok();
        let data = message.data().filter(|_| sends && sound);
        data.map(<[u8]>::len)
    }

    /// Returns what becomes of a channel message (RFC 8656 §12.6).
    #[must_use]
    pub fn channel_data(&self, from: Tuple, bytes: &[u8]) -> Expect {
        let [n0, n1, l0, l1, rest @ ..] = bytes else {
            return Expect::Malformed;
        };
        let number = u16::from_be_bytes([*n0, *n1]);
        let mut reasons = Vec::new();
        let Some(data) = rest.get(..usize::from(u16::from_be_bytes([*l0, *l1]))) else {
            return Expect::Malformed;
        };
        let Some(held) = self.held(from) else {
            reasons.push(DropReason::NoAllocation);
            return Expect::Silence(reasons);
        };
        let Some((peer, _)) = held.channels.get(&number) else {
            reasons.push(if number < 0x5000 {
                DropReason::ChannelNotBound
            } else {
                DropReason::ChannelReserved
            });
            return Expect::Silence(reasons);
        };
        if !held.permissions.contains_key(&peer.ip()) {
            reasons.push(DropReason::NoPermission);
        }
        if !self.is_open(*peer) {
            reasons.push(DropReason::PeerForbidden);
        }
        match held.relay_towards(peer.ip()) {
            Some(relay) if reasons.is_empty() => Expect::Relay {
                from: relay,
                to: *peer,
                data: data.to_vec(),
                dont_fragment: false,
            },
            _ => Expect::Silence(reasons),
        }
    }

    /// Returns where a datagram goes that arrives at `relay` (RFC 8656 §11.3).
    #[must_use]
    pub fn from_peer(&self, relay: SocketAddr, source: SocketAddr) -> Inbound {
        let Some((tuple, held)) = self.by_relay(relay) else {
            return Inbound::Silence(DropReason::RelayClosed);
        };
        let source = canonical(source);
        if !held.permissions.contains_key(&source.ip()) {
            return Inbound::Silence(DropReason::NoPermission);
        }
        Inbound::Client(tuple, held.channel_of(source))
    }

    /// Returns the client that learns of an ICMP error (RFC 8656 §11.5).
    #[must_use]
    pub fn from_icmp(
        &self,
        relay: SocketAddr,
        destination: SocketAddr,
        kind: u8,
        v6: bool,
    ) -> Option<Tuple> {
        let (tuple, held) = self.by_relay(relay)?;
        let relayed = if v6 {
            matches!(kind, 1..=3)
        } else {
            matches!(kind, 3 | 11)
        };
        let permitted = held.permissions.contains_key(&canonical(destination).ip());
        (relayed && permitted && relay.is_ipv6() == v6).then_some(tuple)
    }

    /// Returns the lifetime that is granted (RFC 8656 §7.2 and §8.2), in seconds.
    #[must_use]
    pub fn lifetime_s(&self, asked: Option<u32>) -> u64 {
        let default = self.rules.lifetimes.allocation / SECOND;
        let max = self.rules.lifetimes.allocation_max / SECOND;
        asked.map_or(default, |asked| u64::from(asked).min(max).max(default))
    }

    /// Returns the relay address of one family.
    #[must_use]
    pub fn relay_ip(&self, v6: bool) -> Option<IpAddr> {
        let mut relays = self.rules.relays.iter().copied();
        relays.find(|relay| relay.is_ipv6() == v6)
    }

    /// Returns whether a port is free that meets the wish: `Some` for an even one, `true` in it for one
    /// whose successor is free as well.
    #[must_use]
    pub fn has_port(&self, v6: bool, even: Option<bool>) -> bool {
        let Some(ip) = self.relay_ip(v6) else {
            return false;
        };
        let taken = self.taken();
        let free = |port: u16| {
            self.rules.ports.contains(&port) && !taken.contains(&SocketAddr::new(ip, port))
        };
        self.rules.ports.clone().any(|port| match even {
            None => free(port),
            Some(false) => port % 2 == 0 && free(port),
            Some(true) => port % 2 == 0 && free(port) && free(port.saturating_add(1)),
        })
    }
}

fn present(message: &Message<'_>, attribute: AttributeType) -> bool {
    message.raw(attribute).is_some()
}

/// Returns an address, and an IPv4-mapped one as IPv4.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
