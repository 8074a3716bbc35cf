//! The hub with fronts that note what they are asked for.

use std::net::SocketAddr;
use std::sync::mpsc::sync_channel;

use turnbuckle_engine::{Commons, Config as EngineConfig, Endpoint, Transport};
use turnbuckle_wire::{Class, MessageWriter, Method, TransactionId};

use super::*;
use crate::asking::{self, Answered, AskResult, Asker, SharedBounds};
use crate::clock::Clock;
use crate::configured::configured;
use crate::control::keys::KeyRing;
use crate::translate;

mod closing;
mod parking;

pub(in crate::shard) const LISTENER: Endpoint = Endpoint(1);

/// Reaches clients of some transports, and notes who is answered.
struct Noted {
    transports: &'static [Transport],
    answered: Vec<ClientTuple>,
    answers: Vec<Box<[u8]>>,
}

impl Front for Noted {
    fn serves(&self, transport: Transport) -> bool {
        self.transports.contains(&transport)
    }

    fn has_client(&self, _: &ClientTuple) -> bool {
        true
    }

    fn forward(
        &mut self,
        _: Destination,
        _: &Received<'_>,
        _: Run,
        _: Wrapping<'_>,
        _: &mut SendQueue,
    ) {
        panic!("nobody relays here");
    }

    fn reply(&mut self, to: ClientTuple, answer: &[u8], _: &mut SendQueue) {
        self.answered.push(to);
        self.answers.push(answer.into());
    }
}

/// Returns a hub whose listener is at 192.0.2.1, port 3478.
pub(in crate::shard) fn hub() -> Hub {
    hub_with(|_| {})
}

/// Makes a hub as [`hub`] does, with other settings of its engine.
pub(in crate::shard) fn hub_with(change: impl FnOnce(&mut EngineConfig)) -> Hub {
    let configured = configured(&["--realm=example.org", "--listening-ip=192.0.2.1"]);
    let keys = KeyRing::new(&configured);
    let mut config = translate::engine(&configured, &keys).unwrap();
    change(&mut config);
    let commons = Commons::new(&config);
    let mut engine = Engine::new(Arc::new(config), commons, Randomness::of_system());
    engine.add_listener(LISTENER, SocketAddr::from(([192, 0, 2, 1], 3478)));
    let counters = Arc::<ShardCounters>::default();
    let serving = translate::serving(&configured, None);
    let scope = translate::log(&configured, &serving, 0, 1);
    let log = Log::new(sync_channel(1).0, scope, Arc::clone(&counters));
    let sessions = Sessions::new(0, Arc::default(), None);
    Hub::new(engine, Clock::Machine.now(), counters, log, sessions)
}

#[test]
fn an_answer_for_a_client_of_another_front_waits_until_all_are_at_hand() {
    let mut hub = hub();
    let mut tx = SendQueue::new(1);
    let remote = SocketAddr::from(([198, 51, 100, 7], 4000));
    let here = ClientTuple::udp(LISTENER, remote);
    let elsewhere = ClientTuple {
        transport: Transport::Tcp,
        connection: name::connection(0),
        ..here
    };
    let mut buffer = [0; 32];
    let transaction = TransactionId::from([1; 12]);
    let writer = MessageWriter::new(&mut buffer, Class::Request, Method::BINDING, transaction);
    let len = writer.finish().unwrap();
    for client in [here, elsewhere] {
        let _ = hub.engine.handle_stun(hub.now, client, &buffer[..len]);
    }
    let mut one = Noted {
        transports: &[Transport::Udp],
        answered: Vec::new(),
        answers: Vec::new(),
    };
    hub.carry_out_commands(&mut one, &mut tx);
    assert_eq!(one.answered, [here]);
    let mut all = Noted {
        transports: &[
            Transport::Dtls,
            Transport::Tcp,
            Transport::Tls,
            Transport::Udp,
        ],
        answered: Vec::new(),
        answers: Vec::new(),
    };
    hub.carry_out_rest(&mut all, &mut tx);
    assert_eq!(all.answered, [elsewhere]);
    hub.carry_out_rest(&mut all, &mut tx);
    assert_eq!(all.answered, [elsewhere], "once");
}
