//! What a client does of its own accord.

use std::net::SocketAddr;

use turnbuckle_wire::{Class, Method};

use super::{Client, Effect, Held, Signalling};
use crate::features::Feature;
use crate::message::{Attribute, Draft, channel_data};
use crate::plan;
use crate::queue::SECOND;

const UNKNOWN_METHOD: Method = Method::new(0x0FF).expect("12 bits");
const UDP: u8 = 17;
const IPV4: u8 = 1;
const IPV6: u8 = 2;

impl Client {
    /// Does the next thing.
    pub fn act(&mut self, now: u64, signalling: &mut Signalling) -> Vec<Effect> {
        if !self.outstanding.is_empty() && self.random.one_in(2) {
            return Vec::new();
        }
        if self.features.has(Feature::OddRequests) && self.random.one_in(8) {
            return self.odd_request(signalling);
        }
        let Some(held) = &self.allocation else {
            return self.without_allocation(signalling);
        };
        if held.expires <= now {
            self.allocation = None;
            return Vec::new();
        }
        let neglect = self.features.has(Feature::Neglect) && self.random.one_in(3);
        if !neglect && let Some(draft) = held.due(now) {
            return self.send(draft, 0);
        }
        if let Some(ticket) = held.ticket.clone()
            && self.random.one_in(12)
        {
            return self.move_somehow(ticket, signalling);
        }
        match self.random.below(24) {
            0..=2 => self.create_permission(signalling),
            3..=5 => self.channel_bind(signalling),
            6..=10 => self.send_indication(signalling),
            11..=18 => self.channel_message(),
            19 => self.send(Draft::request(Method::BINDING), 0),
            20 => self.indicate(Draft {
                class: Class::Indication,
                ..Draft::request(Method::BINDING)
            }),
            21 => self.refresh(),
            22 if self.random.one_in(4) => self.release(),
            22 => self.allocate(signalling),
            _ => Vec::new(),
        }
    }

    /// Moves with its ticket, or does with it what it should not.
    fn move_somehow(&mut self, ticket: Vec<u8>, signalling: &Signalling) -> Vec<Effect> {
        match self.random.below(8) {
            0 => self.refresh_with(ticket), // without having moved
            1 => {
                // A ticket of its own that is spent, or one of somebody else.
                let any = self.random.choose(&signalling.tickets).cloned();
                self.refresh_with(any.unwrap_or(ticket))
            }
            2 => {
                // Two networks after the other, before any data.
                let mut effects = self.travel(ticket.clone());
                effects.extend(self.travel(ticket));
                effects
            }
            _ => self.travel(ticket),
        }
    }

    pub(super) fn refresh_with(&mut self, ticket: Vec<u8>) -> Vec<Effect> {
        let mut draft = Draft::request(Method::REFRESH).with(Attribute::Ticket(ticket));
        match self.random.below(16) {
            0 => draft = draft.with(Attribute::Lifetime(0)),
            1..=4 => draft = draft.with(Attribute::Lifetime(1200)),
            _ => {}
        }
        if self.features.has(Feature::Families) && self.random.one_in(6) {
            let family = if self.random.one_in(2) { IPV4 } else { IPV6 };
            draft = draft.with(Attribute::Family(family));
        }
        self.send(draft, 0)
    }

    fn without_allocation(&mut self, signalling: &mut Signalling) -> Vec<Effect> {
        match self.random.below(12) {
            0 => self.send(Draft::request(Method::BINDING), 0),
            1 => self.channel_bind(signalling),
            2 => self.send_indication(signalling),
            3 => self.refresh(),
            4 => {
                self.restart();
                Vec::new()
            }
            _ => self.allocate(signalling),
        }
    }

    fn allocate(&mut self, signalling: &mut Signalling) -> Vec<Effect> {
        let mut draft = Draft::request(Method::ALLOCATE).with(Attribute::Transport(UDP));
        if self.random.one_in(3) {
            let seconds = [0, 1, 300, 600, 900, 3600, 7200, u32::MAX][self.random.index(8)];
            draft = draft.with(Attribute::Lifetime(seconds));
        }
        if self.random.one_in(6) {
            draft = draft.with(Attribute::DontFragment);
        }
        if self.features.has(Feature::Mobility) && !self.random.one_in(4) {
            draft = draft.with(Attribute::Ticket(Vec::new()));
        }
        let even = self.features.has(Feature::EvenPorts);
        if even && !signalling.tokens.is_empty() && self.random.one_in(3) {
            let token = signalling
                .tokens
                .swap_remove(self.random.index(signalling.tokens.len()));
            return self.send(draft.with(Attribute::Token(token)), 0);
        }
        let families = self.features.has(Feature::Families);
        draft = match self.random.below(4) {
            0 if families => draft.with(Attribute::AdditionalFamily(IPV6)),
            1 if families => draft.with(Attribute::Family(IPV6)),
            2 if families => draft.with(Attribute::Family(IPV4)),
            _ => draft,
        };
        if even && self.random.one_in(2) {
            draft = draft.with(Attribute::EvenPort(self.random.one_in(2)));
        }
        self.send(draft, 0)
    }

    fn create_permission(&mut self, signalling: &Signalling) -> Vec<Effect> {
        let mut draft = Draft::request(Method::CREATE_PERMISSION);
        for _ in 0..self.random.between(1, 3) {
            let peer = self.any_peer(signalling);
            draft = draft.with(Attribute::Peer(peer));
        }
        self.send(draft, 0)
    }

    fn channel_bind(&mut self, signalling: &Signalling) -> Vec<Effect> {
        let number = self.channel_number();
        let peer = self.any_peer(signalling);
        let draft = Draft::request(Method::CHANNEL_BIND)
            .with(Attribute::Channel(number))
            .with(Attribute::Peer(peer));
        self.send(draft, 0)
    }

    fn send_indication(&mut self, signalling: &Signalling) -> Vec<Effect> {
        let peer = if self.random.one_in(4) {
            self.any_peer(signalling)
        } else {
            self.held_peer()
                .unwrap_or_else(|| plan::peer(0, false, 4000))
        };
        let data = self.payload();
        let mut draft = Draft::send(peer, &data);
        if self.random.one_in(6) {
            draft = draft.with(Attribute::DontFragment);
        }
        self.indicate(draft)
    }

    fn channel_message(&mut self) -> Vec<Effect> {
        let bound = self.allocation.iter().flat_map(|held| held.channels.keys());
        let bound: Vec<u16> = bound.copied().collect();
        let number = if self.random.one_in(10) {
            self.channel_number()
        } else {
            self.random.choose(&bound).copied().unwrap_or(0x4001)
        };
        let mut bytes = channel_data(number, &self.payload());
        if self.random.one_in(8) {
            let len = self.random.index(4);
            bytes.extend(self.random.bytes(len)); // padding that UDP does not need
        }
        let is_old = self.previous.is_some() && self.random.one_in(4);
        vec![if is_old {
            Effect::SendOld(bytes)
        } else {
            Effect::Send(bytes)
        }]
    }

    fn refresh(&mut self) -> Vec<Effect> {
        let seconds = [60, 600, 1200, 3600, 10_000][self.random.index(5)];
        let mut draft = Draft::request(Method::REFRESH);
        if self.random.one_in(2) {
            draft = draft.with(Attribute::Lifetime(seconds));
        }
        if self.features.has(Feature::Families) && self.random.one_in(4) {
            let family = if self.random.one_in(2) { IPV4 } else { IPV6 };
            draft = draft.with(Attribute::Family(family));
        }
        self.send(draft, 0)
    }

    fn release(&mut self) -> Vec<Effect> {
        let mut draft = Draft::request(Method::REFRESH).with(Attribute::Lifetime(0));
        if self.features.has(Feature::Families) && self.random.one_in(2) {
            let family = if self.random.one_in(2) { IPV4 } else { IPV6 };
            draft = draft.with(Attribute::Family(family));
        }
        self.send(draft, 0)
    }

    /// Sends a request that is well authenticated and otherwise drawn by lot.
    fn odd_request(&mut self, signalling: &Signalling) -> Vec<Effect> {
        let methods = [
            Method::ALLOCATE,
            Method::ALLOCATE,
            Method::REFRESH,
            Method::CREATE_PERMISSION,
            Method::CHANNEL_BIND,
            Method::SEND,
            Method::DATA,
            Method::BINDING,
            Method::CONNECT,
            UNKNOWN_METHOD,
        ];
        let mut draft = Draft::request(methods[self.random.index(methods.len())]);
        if self.random.one_in(6) {
            draft.class = [Class::Indication, Class::Success, Class::Error][self.random.index(3)];
        }
        if draft.method == Method::ALLOCATE && !self.random.one_in(6) {
            draft = draft.with(Attribute::Transport(UDP));
        }
        for _ in 0..self.random.between(0, 4) {
            let attribute = self.any_attribute(signalling);
            draft = draft.with(attribute);
        }
        if self.random.one_in(4) {
            let attribute = self.any_attribute(signalling);
            draft.trailing.push(attribute);
        }
        if draft.class == Class::Request {
            self.send(draft, 0)
        } else {
            self.indicate(draft)
        }
    }

    fn any_attribute(&mut self, signalling: &Signalling) -> Attribute {
        match self.random.below(16) {
            0 => Attribute::Transport([UDP, 6, 0][self.random.index(3)]),
            1 => Attribute::Lifetime([0, 1, 600, 3600][self.random.index(4)]),
            2 => Attribute::EvenPort(self.random.one_in(2)),
            3 => Attribute::Family([IPV4, IPV6, 0, 3][self.random.index(4)]),
            4 => Attribute::AdditionalFamily([IPV4, IPV6, IPV6, 9][self.random.index(4)]),
            5 => {
                let mut token = [0; 8];
                self.random.fill_bytes(&mut token);
                let known = self.random.choose(&signalling.tokens).copied();
                Attribute::Token(known.unwrap_or(token))
            }
            6..=8 => Attribute::Peer(self.any_peer(signalling)),
            9 | 10 => Attribute::Channel(self.channel_number()),
            11 => Attribute::DontFragment,
            12 => Attribute::Data(self.payload()),
            13 if self.random.one_in(2) => {
                let ticket = self.random.choose(&signalling.tickets).cloned();
                Attribute::Ticket(ticket.unwrap_or_default())
            }
            13 | 14 => {
                // Unknown: comprehension required or optional.
                let kind = [
                    0x7001, 0x8F01, 0x0003, 0x001B, 0x0024, 0x0026, 0x0027, 0x002A,
                ][self.random.index(8)];
                let len = self.random.index(9);
                Attribute::Raw(kind, self.random.bytes(len))
            }
            _ => {
                // Known, in a shape it cannot have.
                let kind =
                    [0x000C, 0x000D, 0x0012, 0x0017, 0x0018, 0x0019, 0x0022][self.random.index(7)];
                let len = [0, 1, 2, 3, 5, 7, 12, 21][self.random.index(8)];
                Attribute::Raw(kind, self.random.bytes(len))
            }
        }
    }

    fn channel_number(&mut self) -> u16 {
        match self.random.below(16) {
            0 => [0, 0x3FFF, 0x4FFF, 0x5000, 0x7FFF, 0xFFFF][self.random.index(6)],
            1 if self.features.has(Feature::OldChannels) => 0x7FFE + self.random.between_u16(0, 1),
            _ => 0x4000 + self.random.between_u16(0, 5),
        }
    }

    fn held_peer(&mut self) -> Option<SocketAddr> {
        let held = self.allocation.as_ref()?;
        let peers: Vec<SocketAddr> = held.permissions.keys().copied().collect();
        let mut peer = self.random.choose(&peers).copied()?;
        if self.random.one_in(6) {
            peer.set_port(self.random.between_u16(1, 65_535)); // RFC 8656 §9: any port
        }
        Some(peer)
    }

    fn any_peer(&mut self, signalling: &Signalling) -> SocketAddr {
        if self.features.has(Feature::ForbiddenPeers) && self.random.one_in(8) {
            let text = plan::FORBIDDEN[self.random.index(plan::FORBIDDEN.len())];
            if let Ok(ip) = text.parse() {
                return SocketAddr::new(ip, 53);
            }
        }
        if self.features.has(Feature::ForbiddenPeers) && self.random.one_in(20) {
            return plan::LISTENERS[self.random.index(2)];
        }
        if self.features.has(Feature::Hairpin)
            && self.random.one_in(4)
            && let Some(relayed) = self.random.choose(&signalling.relayed)
        {
            return *relayed;
        }
        let mine = self.allocation.iter().flat_map(|held| &held.relayed);
        let v6 = match mine.map(SocketAddr::is_ipv6).next() {
            Some(v6) if !self.random.one_in(8) => v6,
            _ => self.random.one_in(2),
        };
        plan::peer(
            self.random.index(4),
            v6,
            4000 + self.random.between_u16(0, 1),
        )
    }

    fn payload(&mut self) -> Vec<u8> {
        let len = match self.random.below(10) {
            0 => 0,
            1 => self.random.between(1, 4),
            2 => 1200,
            _ => self.random.between(8, 60),
        };
        self.random.bytes(usize::try_from(len).unwrap_or(0))
    }
}

impl Held {
    /// Returns the refresh that a careful client sends now.
    fn due(&self, now: u64) -> Option<Draft> {
        if self.expires < now + 120 * SECOND {
            return Some(Draft::request(Method::REFRESH));
        }
        for (number, (peer, expires)) in &self.channels {
            if *expires < now + 120 * SECOND {
                let draft = Draft::request(Method::CHANNEL_BIND)
                    .with(Attribute::Channel(*number))
                    .with(Attribute::Peer(*peer));
                return Some(draft);
            }
        }
        for (peer, expires) in &self.permissions {
            if *expires < now + 120 * SECOND {
                let draft = Draft::request(Method::CREATE_PERMISSION).with(Attribute::Peer(*peer));
                return Some(draft);
            }
        }
        None
    }
}
