//! TCP allocations (RFC 6062) under virtual time: two engines, clients who connect, are connected to, bind, and try what they may not.
//!
//! Connections lose and repeat nothing, so this is a history of its own beside [`crate::world`]'s, drawn from the same seed: a random
//! schedule of requests, answers of peers, connections that come, end or are late. The page [`model`] says what each may lead to;
//! after each step all that the engines hold is compared with it.

mod model;
mod server;

use std::net::SocketAddr;

use turnbuckle_engine::PeerEnd;
use turnbuckle_wire::{Message, Method};

use self::model::{LIFETIME, Model, State};
use self::server::{Answer, Party, Server};
use crate::message::{Attribute, Draft};
use crate::plan;
use crate::queue::SECOND;
use crate::random::Seeded;
use crate::violation::{Coverage, Violation, ensure};

const TCP: u8 = 6;
const UDP: u8 = 17;
const CONNECTION_ID: u16 = 0x002A;
const CLIENTS: usize = 4;
/// Whose account each client has: two share one.
const USERS: [usize; CLIENTS] = [0, 1, 0, 2];

struct Schedule {
    random: Seeded,
    server: Server,
    clients: Vec<Party>,
    /// CONNECTION-IDs that were given out, those that are over included.
    ids: Vec<u32>,
    coverage: Coverage,
}

/// Runs the history of `seed`.
///
/// # Errors
///
/// The first rule that was broken.
pub fn run(seed: u64, steps: u64) -> Result<Coverage, Violation> {
    let mut random = Seeded::new(seed).fork("connections");
    let masks = random.one_in(2);
    let model = Model {
        allocations: Default::default(),
        connections: Default::default(),
        per_allocation: 5,
        waiting_per_allocation: 3,
        charged_per_user: [1000, 2][random.index(2)],
    };
    let mut server = Server::new(model, masks, random.fork("engines"));
    let clients = (0..CLIENTS).map(|number| server.party(number)).collect();
    let mut schedule = Schedule {
        random,
        server,
        clients,
        ids: vec![1],
        coverage: Coverage::default(),
    };
    for _ in 0..steps {
        schedule.step()?;
        schedule.server.check()?;
    }
    schedule.server.pass(2 * LIFETIME)?;
    schedule.server.check()?;
    ensure(schedule.server.model.connections.is_empty(), "I6", || {
        format!("never ended: {:?}", schedule.server.model.connections)
    })?;
    Ok(schedule.coverage)
}

impl Schedule {
    fn step(&mut self) -> Result<(), Violation> {
        let client = self.random.index(CLIENTS);
        match self.random.below(20) {
            0..=2 => self.allocate(client),
            3 => self.refresh(client),
            4 | 5 => self.permit(client),
            6..=8 => self.connect(client),
            9..=11 => self.peer_answers(),
            12..=14 => self.peer_comes(),
            15..=17 => self.bind(client),
            18 => match self.random.below(3) {
                0 => self.hang_up(client),
                _ => self.data_ends(),
            },
            _ => {
                let seconds = [1, 5, 29, 31, 200][self.random.index(5)];
                self.server.pass(seconds * SECOND)
            }
        }
    }

    fn ask(&mut self, client: usize, draft: &Draft) -> Result<Option<Answer>, Violation> {
        let party = self.clients[client];
        self.server.ask(party, USERS[client], draft)
    }

    /// Compares an answer with the error codes it may have; none stand for success.
    fn judge(
        &mut self,
        method: &'static str,
        answer: Option<&Answer>,
        codes: &[u16],
    ) -> Result<bool, Violation> {
        let Some(answer) = answer else {
            return Err(Violation::new("I8", format!("{method} is not answered")));
        };
        let sound = match codes {
            [] => answer.code == 0,
            codes => codes.contains(&answer.code),
        };
        ensure(sound, "model", || {
            format!("{method} answered {}, expected {codes:?}", answer.code)
        })?;
        self.coverage.count(method, answer.code);
        Ok(answer.code == 0)
    }

    fn allocate(&mut self, client: usize) -> Result<(), Violation> {
        let protocol = if self.random.one_in(8) { UDP } else { TCP };
        let draft = Draft::request(Method::ALLOCATE).with(Attribute::Transport(protocol));
        let codes = match self.server.model.allocations.contains_key(&client) {
            true => vec![437],
            false => Vec::new(),
        };
        let answer = self.ask(client, &draft)?;
        if self.judge("Allocate (TCP)", answer.as_ref(), &codes)? {
            let relayed = answer.and_then(|answer| {
                let message = Message::parse(&answer.bytes).ok()?;
                message.xor_relayed_address().ok()?
            });
            let Some(relayed) = relayed else {
                return Err(Violation::new("model", "no relayed address"));
            };
            let (now, held) = (self.server.now, (USERS[client], relayed, protocol == TCP));
            self.server.model.allocated(client, held, now);
        }
        Ok(())
    }

    fn refresh(&mut self, client: usize) -> Result<(), Violation> {
        let releases = self.random.one_in(3);
        let mut draft = Draft::request(Method::REFRESH);
        if releases {
            draft = draft.with(Attribute::Lifetime(0));
        }
        let codes = match self.server.model.allocations.contains_key(&client) {
            true => Vec::new(),
            false => vec![437],
        };
        if releases {
            self.server.end(client);
        }
        let answer = self.ask(client, &draft)?;
        let done = self.judge("Refresh (TCP)", answer.as_ref(), &codes)?;
        let expires = self.server.now + LIFETIME;
        if let Some(held) = self.server.model.allocations.get_mut(&client)
            && done
        {
            held.expires = expires;
        }
        Ok(())
    }

    fn permit(&mut self, client: usize) -> Result<(), Violation> {
        let peer = self.peer();
        let draft = Draft::request(Method::CREATE_PERMISSION).with(Attribute::Peer(peer));
        let answer = self.ask(client, &draft)?;
        let Some(answer) = answer else {
            return Err(Violation::new("I8", "CreatePermission is not answered"));
        };
        if answer.code == 0 {
            self.server.model.permit(client, peer.ip(), self.server.now);
        }
        Ok(())
    }

    fn connect(&mut self, client: usize) -> Result<(), Violation> {
        let peer = self.peer();
        let codes = self.server.model.connect(client, USERS[client], peer);
        let draft = Draft::request(Method::CONNECT).with(Attribute::Peer(peer));
        let answer = self.ask(client, &draft)?;
        if !codes.is_empty() {
            self.judge("Connect", answer.as_ref(), &codes)?;
            return Ok(());
        }
        ensure(answer.is_none(), "I8", || {
            format!("Connect to {peer} is answered before the peer: {answer:?}")
        })?;
        let Some((id, to, transaction)) = self.server.host.asked.take() else {
            return Err(Violation::new("model", "nobody is connected to"));
        };
        ensure(to == peer, "I1", || format!("{to} in place of {peer}"))?;
        let fresh = !self.ids.contains(&id);
        ensure(fresh, "model", || format!("{id} a second time"))?;
        self.ids.push(id);
        let wait = (transaction, self.server.now);
        self.server.model.connecting(id, client, peer, wait);
        self.coverage.count("Connect under way", 0);
        Ok(())
    }

    /// Has a peer accept or refuse, in time or when nobody waits any more.
    fn peer_answers(&mut self) -> Result<(), Violation> {
        let is_connected = !self.random.one_in(3);
        let waiting: Vec<u32> = self.server.host.connecting.iter().copied().collect();
        let late = self.random.one_in(6);
        let id = self.random.choose(if late { &self.ids } else { &waiting });
        let Some(id) = id.copied().filter(|id| !late || !self.is_held(*id)) else {
            return Ok(());
        };
        let known = self.server.model.connections.get(&id).map(|c| c.state);
        match (known, is_connected) {
            (Some(State::Connecting(transaction, _)), true) => {
                let deadline = self.server.now + model::WAIT;
                self.server.owe(transaction, vec![0]);
                self.server.set_state(id, State::Unbound(deadline));
            }
            (Some(State::Connecting(transaction, until)), false) if self.server.masks => {
                self.server.set_state(id, State::Failed(transaction, until));
            }
            (Some(State::Connecting(transaction, _)), false) => {
                self.server.owe(transaction, vec![447]);
                self.server.model.connections.remove(&id);
            }
            _ => {}
        }
        self.coverage
            .count("peer answered", u16::from(is_connected));
        self.server.peer_answered(id, is_connected)
    }

    fn is_held(&self, id: u32) -> bool {
        self.server.model.connections.contains_key(&id)
    }

    /// Has somebody connect to a relayed transport address.
    fn peer_comes(&mut self) -> Result<(), Violation> {
        let client = self.random.index(CLIENTS);
        let Some(held) = self.server.model.allocations.get(&client) else {
            return Ok(());
        };
        if !held.is_tcp {
            return Ok(());
        }
        let (relay, source) = (held.relay, self.peer());
        let source = SocketAddr::new(source.ip(), source.port().max(1));
        if !source.is_ipv4() {
            return Ok(()); // another family cannot come there
        }
        let now = self.server.now;
        let may_stay = self.server.model.accept(client, source, now);
        let party = self.clients[client];
        match self.server.peer_comes(party, relay, source)? {
            Ok(id) => {
                ensure(may_stay, "I2", || {
                    format!("{source} was let in at {relay}: {:?}", self.server.model)
                })?;
                self.ids.push(id);
                self.server.model.accepted(id, client, source, now);
                self.coverage.count("ConnectionAttempt", 0);
            }
            Err(cause) => {
                ensure(!may_stay, "model", || {
                    format!("{source} was turned away from {relay}: {cause:?}")
                })?;
                self.coverage.count("turned away", cause as u16);
            }
        }
        Ok(())
    }

    /// Sends a ConnectionBind request, mostly on a new connection, for a connection of the client's, of somebody else's, or for none.
    fn bind(&mut self, client: usize) -> Result<(), Violation> {
        let id = match self.random.below(4) {
            0 => self.random.choose(&self.ids).copied().unwrap_or(0),
            _ => {
                let held: Vec<u32> = self.server.model.connections.keys().copied().collect();
                self.random.choose(&held).copied().unwrap_or(7)
            }
        };
        let on_control = self.random.one_in(10);
        let control = self.clients[client];
        let party = match on_control {
            true => control,
            // It comes to whichever shard, and perhaps with the nonce of the control connection.
            false => {
                let party = self.server.party(client);
                let shard = self.random.index(2);
                let party = Party { shard, ..party };
                if self.random.one_in(2) {
                    self.server.share_nonce(control, party);
                }
                party
            }
        };
        let user = USERS[client];
        let has_allocation = self.server.model.allocations.contains_key(&client);
        let code = match on_control && has_allocation {
            true => Some(400),
            false => self.server.model.bind(id, user, self.server.now),
        };
        let draft = Draft::request(Method::CONNECTION_BIND)
            .with(Attribute::Raw(CONNECTION_ID, id.to_be_bytes().to_vec()));
        let answer = self.server.ask(party, user, &draft)?;
        let codes: Vec<u16> = code.into_iter().collect();
        if self.judge("ConnectionBind", answer.as_ref(), &codes)? {
            self.server.set_state(id, State::Bound);
            ensure(
                self.server.host.joined.take() == Some((id, party.tuple)),
                "model",
                || format!("{id} is not joined with {:?}", party.tuple),
            )?;
            if on_control {
                // From now on it carries data.
                self.clients[client] = self.server.party(client);
            }
        }
        Ok(())
    }

    /// Ends the control connection of a client, whose place another takes.
    fn hang_up(&mut self, client: usize) -> Result<(), Violation> {
        let party = std::mem::replace(&mut self.clients[client], self.server.party(client));
        self.server.end(client);
        self.coverage.count("control connection gone", 0);
        self.server.disconnected(party)
    }

    /// Ends a data connection, bound or not.
    fn data_ends(&mut self) -> Result<(), Violation> {
        let held: Vec<u32> = self.server.host.held.iter().copied().collect();
        let Some(id) = self.random.choose(&held).copied() else {
            return Ok(());
        };
        self.server.model.connections.remove(&id);
        self.server.peer_gone(id, PeerEnd::PeerClosed)
    }

    fn peer(&mut self) -> SocketAddr {
        match self.random.below(16) {
            0 => SocketAddr::from(([127, 0, 0, 1], 4000)),
            1 => plan::peer(0, true, 4000),
            2 => plan::peer(0, false, [0, 80][self.random.index(2)]),
            3 | 4 => {
                let held = self.server.model.allocations.values();
                let relays: Vec<SocketAddr> = held.map(|held| held.relay).collect();
                let nobody = SocketAddr::new(plan::RELAY_V4, 50_001);
                self.random.choose(&relays).copied().unwrap_or(nobody)
            }
            _ => plan::peer(
                self.random.index(3),
                false,
                4000 + self.random.between_u16(0, 1),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_of_connections_keeps_every_rule_and_everything_happens_in_it() {
        let mut coverage = Coverage::default();
        for seed in 0..150 {
            match run(seed, 300) {
                Ok(seen) => coverage.add(&seen),
                Err(violation) => panic!("seed {seed} broke {violation}"),
            }
        }
        let happened: [(&str, &[u16]); 7] = [
            ("Connect", &[403, 437, 443, 446, 447, 486, 508]),
            ("ConnectionAttempt", &[0]),
            ("ConnectionBind", &[0, 400, 441]),
            ("Connect under way", &[0]),
            ("control connection gone", &[0]),
            ("peer answered", &[0, 1]),
            ("turned away", &[]),
        ];
        for (what, kinds) in happened {
            for kind in kinds.iter().filter(|kind| **kind != 447) {
                assert!(coverage.of(what, *kind) > 0, "never: {what} {kind}");
            }
        }
    }
}
