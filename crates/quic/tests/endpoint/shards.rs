//! Several shards and clients that change their addresses: which shard a datagram comes to follows from the address, as with the kernel's hash, and which one
//! has the connection from the connection id. In virtual time, one seed after the other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use turnbuckle_quic::{ConnectionName, Dropped, Endpoint, Ids, Via};

use crate::payload;
use crate::world::{App, Budget, DELAY, Datagram, Port, Random, Seen, World, server_address};

const SHARDS: u8 = 4;
const CLIENTS: u8 = 5;
const SEEDS: u64 = 12;
/// In how many of so many datagrams a client finds itself at another address, and one is lost.
const MOVE_ONE_IN: usize = 40;
const LOSS_ONE_IN: usize = 100;

/// A client with one connection, on which it sends once.
struct Client {
    endpoint: Endpoint<App>,
    name: ConnectionName,
    address: SocketAddr,
    sent: Vec<u8>,
    seen: Arc<Mutex<Seen>>,
    /// When it was connected and began to send.
    sends_since: Option<Instant>,
}

/// The shards of one server, and its clients.
struct Site {
    now: Instant,
    random: Random,
    ids: Ids,
    shards: Vec<Endpoint<App>>,
    clients: Vec<Client>,
    link: VecDeque<Datagram>,
    budget: Budget,
    /// The kernel reads connection ids.
    is_steered: bool,
    arrived: u64,
    handed_over: u64,
    moves: u32,
}

impl Site {
    fn new(seed: u64) -> Self {
        let now = Instant::now();
        let mut random = Random(seed + 1);
        let clients = (0..CLIENTS).map(|index| {
            let seen = Arc::default();
            let (endpoint, name) = World::client(now, 50 + index, &seen);
            let len = 1 + random.below(60_000);
            Client {
                endpoint,
                name,
                address: SocketAddr::from(([10, 0, 1, index], 5000)),
                sent: payload(len),
                seen,
                sends_since: None,
            }
        });
        let clients = clients.collect();
        Self {
            now,
            ids: World::server_ids(),
            shards: (0..SHARDS).map(World::shard).collect(),
            clients,
            link: VecDeque::new(),
            budget: Budget {
                answers_left: u32::MAX,
                is_busy: false,
            },
            is_steered: seed.is_multiple_of(2),
            arrived: 0,
            handed_over: 0,
            moves: 0,
            random,
        }
    }

    /// Has everybody do what is due.
    fn turn(&mut self) {
        let (now, at) = (self.now, self.now + DELAY);
        for client in &mut self.clients {
            let is_connected = client.seen.lock().unwrap().is_connected;
            if is_connected && client.sends_since.is_none() {
                client.sends_since = Some(now);
                let bytes = client.sent.clone().into();
                client.endpoint.with(now, client.name, |connection, app| {
                    let stream = connection.open().expect("a stream");
                    app.send(connection, stream, bytes);
                });
            }
        }
        let servers = self.shards.iter_mut();
        let servers = servers.map(|shard| (shard, server_address()));
        let clients = self.clients.iter_mut();
        let clients = clients.map(|client| (&mut client.endpoint, client.address));
        for (endpoint, from) in servers.chain(clients) {
            endpoint.serve_strangers(now, &mut self.budget);
            endpoint.handle_timeouts(now);
            let link = &mut self.link;
            endpoint.transmit(now, &mut Port { at, from, link });
        }
        for shard in &self.shards {
            let totals = shard.totals();
            let dropped: u64 = Dropped::ALL.iter().map(|&reason| totals.of(reason)).sum();
            let waiting = shard.waiting_count() as u64;
            let known = totals.delivered + totals.begun + totals.answered + dropped + waiting;
            assert_eq!(totals.received, known, "{totals:?}");
            assert_eq!(totals.of(Dropped::OtherShard), 0, "it was handed over");
        }
        let received: u64 = self.shards.iter().map(|it| it.totals().received).sum();
        assert_eq!(received, self.arrived, "each datagram is one shard's");
    }

    /// Goes on to the next moment at which something happens.
    fn step(&mut self) {
        self.turn();
        let now = self.now;
        let arrival = self.link.front().map(|datagram| datagram.at);
        let shards = self.shards.iter().map(|it| it.next_deadline(now));
        let clients = self.clients.iter();
        let clients = clients.map(|it| it.endpoint.next_deadline(now));
        let next = shards.chain(clients).flatten().chain(arrival).min();
        self.now = now.max(next.expect("an idle timeout at least"));
        while let Some(datagram) = self.link.front()
            && datagram.at <= self.now
            && let Some(datagram) = self.link.pop_front()
        {
            if self.random.below(LOSS_ONE_IN) > 0 {
                self.carry(&datagram);
            }
        }
    }

    fn carry(&mut self, datagram: &Datagram) {
        let (now, via) = (self.now, Via::default());
        let Datagram {
            from, to, bytes, ..
        } = datagram;
        if *to != server_address() {
            // What is for an address that a client has left is lost.
            let client = self.clients.iter_mut().find(|it| it.address == *to);
            if let Some(client) = client {
                let budget = &mut self.budget;
                client
                    .endpoint
                    .handle(now, *from, via, bytes, bytes.len(), budget);
                // Nobody may move before the server has the client's last flight (RFC 9000 §9).
                let may_move = |since: Instant| now - since > 6 * DELAY;
                let may_move = client.sends_since.is_some_and(may_move);
                if may_move && self.random.below(MOVE_ONE_IN) == 0 {
                    client.address.set_port(client.address.port() + 1);
                    self.moves += 1;
                }
            }
            return;
        }
        self.arrived += 1;
        let hashed = from.port().wrapping_mul(40_503) ^ u16::from_be_bytes([0, last_octet(*from)]);
        let hashed = u8::try_from(hashed % u16::from(SHARDS)).unwrap();
        let named = self.ids.shard_of_datagram(bytes);
        let ingress = named.filter(|_| self.is_steered).unwrap_or(hashed);
        // What a shard does with a datagram of another one.
        let home = named.unwrap_or(ingress);
        self.handed_over += u64::from(home != ingress);
        let budget = &mut self.budget;
        self.shards[usize::from(home)].handle(now, *from, via, bytes, bytes.len(), budget);
    }

    fn is_done(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.all(|client| client.seen.lock().unwrap().is_finished)
    }
}

fn last_octet(address: SocketAddr) -> u8 {
    match address {
        SocketAddr::V4(address) => address.ip().octets()[3],
        SocketAddr::V6(address) => address.ip().octets()[15],
    }
}

#[test]
fn connections_go_on_while_their_clients_come_to_one_shard_after_another() {
    let (mut moves, mut handed_over) = (0, 0);
    for seed in 0..SEEDS {
        let mut site = Site::new(seed);
        let end = site.now + Duration::from_secs(60);
        while !site.is_done() {
            assert!(site.now < end, "seed {seed}: not within a minute");
            site.step();
        }
        for client in &site.clients {
            let seen = client.seen.lock().unwrap();
            assert!(seen.bytes == client.sent, "seed {seed}: other bytes");
            assert_eq!(seen.closed, None, "seed {seed}");
        }
        let begun: u64 = site.shards.iter().map(|it| it.totals().begun).sum();
        assert_eq!(begun, u64::from(CLIENTS), "seed {seed}: nobody began anew");
        if site.is_steered {
            assert_eq!(site.handed_over, 0, "seed {seed}");
        }
        moves += site.moves;
        handed_over += site.handed_over;
    }
    assert!(moves > 0 && handed_over > 0, "{moves}, {handed_over}");
}
