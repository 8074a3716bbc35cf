//! Random histories: an engine made again from one, or from a journal that was begun anew meanwhile, behaves as the engine that had it, step by step.

use core::net::SocketAddr;
use std::collections::BTreeMap;

use turnbuckle_engine::{Change, DropReason, Endpoint, Outcome, Time};
use turnbuckle_wire::{AddressFamily, MessageWriter, Method};

use crate::rebuild::rebuild;
use crate::support::*;

/// What can be seen of a server from outside, for one client.
#[derive(Debug, PartialEq)]
struct View {
    outcome: Option<Outcome>,
    replies: Vec<Vec<u8>>,
    channels: Vec<Result<(Endpoint, SocketAddr), DropReason>>,
    peers: BTreeMap<SocketAddr, Vec<String>>,
}

fn view(server: &mut Server, client: &Client, request: Option<&[u8]>) -> View {
    server.random.reseed(99); // the same ports and nonces from here on
    let outcome = request.map(|request| server.receive(client.tuple, request));
    let replies = server.replies.drain(..).map(|(_, bytes)| bytes).collect();
    let channels = (0x4000..0x4004)
        .map(|number| {
            server
                .channel_data(client, number)
                .map(|route| (route.relay, route.peer.address()))
        })
        .collect();
    let addresses: Vec<SocketAddr> = server
        .sockets
        .values()
        .map(|socket| socket.address)
        .collect();
    let peers = addresses
        .into_iter()
        .map(|address| {
            let routes = PEERS.map(|peer| format!("{:?}", server.peer_data(address, peer)));
            (address, routes.to_vec())
        })
        .collect();
    View {
        outcome,
        replies,
        channels,
        peers,
    }
}

const PEERS: [&str; 4] = [PEER, "93.184.216.21:9", PEER_V6, "[2606:4700::21]:9"];

fn random_request(dice: &Seeded, client: &mut Client) -> Vec<u8> {
    let transaction = client.next_transaction();
    let pick = |bound| usize::try_from(dice.below(bound)).unwrap();
    let (kind, peer, number) = (
        pick(10),
        PEERS[pick(4)].parse().unwrap(),
        0x4000 + u16::try_from(dice.below(4)).unwrap(),
    );
    let lifetime = [0, 600, 900][pick(3)];
    let family = [AddressFamily::V4, AddressFamily::V6][pick(2)];
    let allocate = |writer: &mut MessageWriter<'_>| {
        writer.requested_transport(17);
    };
    match kind {
        0 => client.request(Method::ALLOCATE, transaction, allocate),
        1 | 2 => client.request(Method::ALLOCATE, transaction, |writer| {
            allocate(writer);
            writer.additional_address_family(AddressFamily::V6);
        }),
        3 => client.request(Method::ALLOCATE, transaction, |writer| {
            allocate(writer);
            writer.even_port(true);
        }),
        4 => client.request(Method::REFRESH, transaction, |writer| {
            writer.lifetime(lifetime);
        }),
        5 => client.request(Method::REFRESH, transaction, |writer| {
            writer.lifetime(lifetime).requested_address_family(family);
        }),
        6 | 7 => client.request(Method::CREATE_PERMISSION, transaction, |writer| {
            writer.xor_peer_address(peer);
        }),
        _ => client.request(Method::CHANNEL_BIND, transaction, |writer| {
            writer
                .channel_number(number.try_into().unwrap())
                .xor_peer_address(peer);
        }),
    }
}

/// A journal that is begun anew while its engine goes on, as a host does it: what had ended not long before, then the state of the engine place by
/// place, and behind the allocations that they are about the ends of families. Changes that come meanwhile stand between.
struct Anew {
    records: Vec<Change>,
    families: Vec<Change>,
    slot: u32,
}

impl Anew {
    fn begin(server: &Server) -> Self {
        let memory = server.config.auth.nonce_lifetime.replay_memory();
        let is_recent = |time: Time| server.now.time.since(time) < memory;
        let (mut records, mut families) = (Vec::new(), Vec::new());
        for change in &server.changes {
            match change {
                Change::Ended(ended) if is_recent(ended.time) => records.push(change.clone()),
                Change::FamilyEnded { time, .. } if is_recent(*time) => {
                    families.push(change.clone());
                }
                _ => {}
            }
        }
        Self {
            records,
            families,
            slot: 0,
        }
    }

    /// Takes what has changed since the last call, and shows the next place, if there is one.
    fn go_on(&mut self, server: &Server, changed: &[Change]) {
        self.records.extend_from_slice(changed);
        if self.slot < server.engine.session_slots() {
            let slot = self.slot;
            server.engine.snapshot(server.now.time, slot, |change| {
                self.records.push(change.clone());
            });
            self.slot += 1;
        }
    }

    /// Shows all places that are left, and returns the whole journal.
    fn end(mut self, server: &Server) -> Vec<Change> {
        while self.slot < server.engine.session_slots() {
            self.go_on(server, &[]);
        }
        self.records.append(&mut self.families);
        self.records
    }
}

#[test]
fn random_histories_rebuilt_behave_as_before() {
    for seed in 0..200 {
        let dice = Seeded::new(seed);
        let mut server = Server::with(|config| {
            config.auth.nonce_key = Some(turnbuckle_engine::NonceKey::from_secret(
                b"the same for both",
            ));
        });
        let mut clients: Vec<Client> = (0..4)
            .map(|n| server.client(&format!("203.0.113.{}:1", 1 + n)))
            .collect();
        let mut past = Vec::new();
        let steps = 20 + dice.below(60);
        let begun_anew_at = dice.below(steps);
        let mut anew = None;
        for step in 0..steps {
            let known = server.changes.len();
            let client = &mut clients[usize::try_from(dice.below(4)).unwrap()];
            server.challenge_if_stale(client);
            let request = random_request(&dice, client);
            assert_eq!(server.receive(client.tuple, &request), Outcome::Done);
            past.push((client.clone(), request));
            if dice.below(4) == 0 {
                server.wait_s(dice.below(150));
            }
            if step == begun_anew_at {
                anew = Some(Anew::begin(&server));
            } else if let Some(anew) = &mut anew {
                anew.go_on(&server, &server.changes[known..]);
            }
        }
        server.replies.clear();
        let anew = anew.unwrap().end(&server);
        let history = server.take_changes();
        let mut others =
            [("all changes", &history), ("a journal begun anew", &anew)].map(|(what, records)| {
                let rebuilt = rebuild(&server, records);
                assert_eq!(
                    rebuilt.engine.statistics().allocations,
                    server.engine.statistics().allocations,
                    "seed {seed}, of {what}"
                );
                (what, rebuilt)
            });

        for step in 0..40 {
            let client = &mut clients[usize::try_from(dice.below(4)).unwrap()];
            if step % 10 == 0 {
                let wait_s = dice.below(200);
                server.wait_s(wait_s);
                for (_, rebuilt) in &mut others {
                    rebuilt.wait_s(wait_s);
                }
            }
            server.challenge_if_stale(client);
            server.replies.clear();
            // old requests again, and new ones
            let (from, request) = if dice.below(2) == 0 {
                past[usize::try_from(dice.below(steps)).unwrap()].clone()
            } else {
                let request = random_request(&dice, client);
                (client.clone(), request)
            };
            let expected = view(&mut server, &from, Some(&request));
            for (what, rebuilt) in &mut others {
                assert_eq!(
                    view(rebuilt, &from, Some(&request)),
                    expected,
                    "seed {seed} step {step}, of {what}"
                );
            }
        }
        for _ in 0..8 {
            server.wait_s(120);
            for (what, rebuilt) in &mut others {
                rebuilt.wait_s(120);
                for client in &clients {
                    assert_eq!(
                        view(rebuilt, client, None),
                        view(&mut server, client, None),
                        "seed {seed}, of {what}"
                    );
                }
            }
        }
        server.wait_s(4_000);
        server.assert_nothing_is_held();
        for (_, rebuilt) in &mut others {
            rebuilt.wait_s(4_000);
            rebuilt.assert_nothing_is_held();
        }
    }
}
