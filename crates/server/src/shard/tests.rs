//! Engine, server and data path joined on one thread: what a relayed datagram takes from the heap.

use std::ffi::OsString;
use std::net::{SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use allocation_counter::measure;
use turnbuckle_datapath::Datapath;
use turnbuckle_datapath::offload::{Beyond, Carried, Line, Refused, Route, Routes};
use turnbuckle_engine::Commons;
use turnbuckle_wire::{ChannelData, ChannelNumber, Class, MessageWriter, Method, TransactionId};

use super::relay::Relay;
use super::thread::{Followers, HostAddresses, Listeners, Plan, set_up};
use crate::config::{Config, Machine, Request as Wish, load};
use crate::control::keys::KeyRing;
use crate::counters::ShardCounters;
use crate::log::Log;
use crate::translate;

#[path = "../../benches/relay/turn.rs"]
mod turn;

mod crossing;
mod failing;
mod lifetimes;
mod looks;
mod messages;
mod pages;
mod proxied;
pub(crate) mod several;
mod tunnels;

/// Datagrams of one round, each way and of each kind.
const DATAGRAMS: usize = 8;
/// Turns that a round may take.
const TURNS_MAX: usize = 1000;

/// Returns an address of loopback that no other process uses.
fn loopback(port: u16) -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 | high & 63, middle, low], port))
}

fn socket(port: u16) -> UdpSocket {
    let socket = UdpSocket::bind(loopback(port)).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn configuration(arguments: &[String]) -> Config {
    let machine = Machine::discover().unwrap();
    let arguments = arguments.iter().map(OsString::from);
    let Ok(Wish::Run(loaded)) = load(arguments, &machine) else {
        panic!("a whole configuration");
    };
    loaded.config
}

/// Returns what a shard that is alone begins with.
fn plan(config: &Config) -> Plan {
    let keys = KeyRing::new(config);
    let engine = Arc::new(translate::engine(config, &keys).unwrap());
    let accepting = translate::accepting(config).unwrap();
    let budget = translate::relay_buffer_budget();
    let backend = translate::backend(config.datapath.backend).0;
    let serving = translate::serving(config, None);
    Plan {
        index: 0,
        is_restart: false,
        core: None,
        host: HostAddresses::default(),
        listeners: Listeners {
            datagrams: config.datagram_listeners(),
            ..Listeners::default()
        },
        commons: Commons::new(&engine),
        mailboxes: Arc::default(),
        engine,
        streams: translate::streams(config, &serving, None, None),
        datagrams: translate::datagrams(config, &serving, None, &keys, None),
        datapath: translate::datapath(config, backend, &accepting, &budget, serving.coalesce),
        followers: Followers {
            journal: None,
            asker: None,
            log: translate::log(config, &serving, 0, 1),
            events: None,
        },
    }
}

/// One shard that is served by whoever asks it to turn.
struct OneShard {
    datapath: Datapath,
    relay: Relay,
}

impl OneShard {
    fn new(listener: SocketAddr, backend: &str) -> Self {
        // Tests of this process differ in the port.
        let first = 2 * listener.port() + 20_000;
        let arguments = [
            format!("--listening-port={}", listener.port()),
            format!("--min-port={first}"),
            format!("--max-port={}", first + 1),
            format!("--udp-backend={backend}"),
            format!("--user={}:{}", turn::USER, turn::PASSWORD),
            format!("--realm={}", turn::REALM),
            format!("--listening-ip={}", listener.ip()),
            "--allow-loopback-peers".to_owned(),
        ];
        let plan = plan(&configuration(&arguments));
        let (events, _) = sync_channel(64);
        let counters = Arc::new(ShardCounters::default());
        let log = Log::new(events, plan.followers.log.clone(), Arc::clone(&counters));
        let (mut datapath, relay) = set_up(plan, counters, log, &sync_channel(1).0).unwrap();
        for listener in relay.listeners() {
            datapath.admit_clients(*listener).unwrap();
        }
        Self { datapath, relay }
    }

    fn turn(&mut self) {
        let relay = &mut self.relay;
        let timeout = Some(Duration::from_millis(10));
        self.datapath.turn(timeout, relay).unwrap();
    }

    /// Turns until each socket has received `count` datagrams. Returns where the last came from.
    fn turn_until<const N: usize>(&mut self, sockets: [&UdpSocket; N], count: usize) -> SocketAddr {
        let (mut received, mut from) = ([0; N], loopback(0));
        for _ in 0..TURNS_MAX {
            self.turn();
            for (socket, received) in sockets.iter().zip(&mut received) {
                while let Ok((_, source)) = socket.recv_from(&mut [0; 2048]) {
                    *received += 1;
                    from = source;
                }
            }
            if received == [count; N] {
                return from;
            }
        }
        panic!("{received:?} of {count} datagrams came");
    }
}

/// Writes a Send indication to `peer` into `buffer`, and returns its length.
fn send_indication(buffer: &mut [u8], peer: SocketAddr) -> usize {
    let id = TransactionId::new([7; 12]);
    let mut writer = MessageWriter::new(buffer, Class::Indication, Method::SEND, id);
    writer.xor_peer_address(peer).data(&[0xA5; 100]);
    writer.finish().unwrap()
}

#[test]
fn the_whole_relay_takes_nothing_from_the_heap_for_a_datagram_once_warm() {
    for backend in ["single", "mmsg", "gso"] {
        let listener = loopback(3478);
        let mut shard = OneShard::new(listener, backend);
        let peers = [socket(0), socket(0)].map(|peer| (peer.local_addr().unwrap(), peer));
        let [(bound_to, bound), (named, unbound)] = &peers;
        let (bound_to, number) = (*bound_to, ChannelNumber::try_from(0x4001).unwrap());
        let local = loopback(20_000);
        let setup =
            std::thread::spawn(move || turn::bind_channel(local, listener, bound_to, number));
        while !setup.is_finished() {
            shard.turn();
        }
        setup.join().unwrap().unwrap();
        let client = socket(local.port());

        let mut channel_message = [0xA5; 104];
        channel_message[..4].copy_from_slice(&ChannelData::header(number, 100));
        let mut indication = [0; 256];
        let len = send_indication(&mut indication, *named);
        let mut round = || {
            for _ in 0..DATAGRAMS {
                client.send_to(&channel_message, listener).unwrap();
                client.send_to(&indication[..len], listener).unwrap();
            }
            let relayed = shard.turn_until([bound, unbound], DATAGRAMS);
            for _ in 0..DATAGRAMS {
                bound.send_to(&[0xA5; 100], relayed).unwrap();
                unbound.send_to(&[0xA5; 100], relayed).unwrap();
            }
            shard.turn_until([&client], 2 * DATAGRAMS);
        };
        for _ in 0..20 {
            round();
        }
        let measured = measure(|| {
            for _ in 0..100 {
                round();
            }
        });
        assert_eq!(measured.count_total, 0, "{backend}: {measured:?}");
        let counts = measure(|| drop(std::hint::black_box(Box::new(1))));
        assert_eq!(counts.count_total, 1, "the counter counts on this thread");
    }
}

#[test]
fn a_shard_that_is_started_anew_serves_as_the_configuration_has_said_since() {
    let with = |more: &[&str]| {
        let user = format!("--user={}:{}", turn::USER, turn::PASSWORD);
        let more = more.iter().map(|&option| option.to_owned());
        configuration(&std::iter::once(user).chain(more).collect::<Vec<_>>())
    };
    let mut begun = plan(&with(&[]));
    let next = with(&[
        "--stream-deadline=7",
        "--max-connections-without-allocation=3",
        "--proxy-protocol-source=192.0.2.10",
        "--udp-proxy-protocol-source=192.0.2.11",
        "--respond-http-unsupported",
        "--verbose",
        "--udp-coalesce-us=77",
    ]);
    let shown = |plan: &Plan| {
        let streams = &plan.streams;
        let coalesce = (plan.datapath.coalesce_policy, plan.datapath.coalesce);
        let log = plan.followers.log.logged;
        format!(
            "{:?} {:?} {:?} {log:?} {coalesce:?}",
            streams.limits, streams.proxies, streams.http
        )
    };
    let expected = plan(&next);
    assert_ne!(shown(&begun), shown(&expected));
    begun.serve(&translate::serving(&next, None));
    assert_eq!(shown(&begun), shown(&expected));
}

/// A kernel that only knows which routes are published.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<Option<Route>>>>);

impl Lines {
    fn published(&self) -> usize {
        self.0.lock().unwrap().iter().flatten().count()
    }
}

impl Routes for Lines {
    fn publish(&mut self, route: &Route) -> Option<Line> {
        let mut lines = self.0.lock().unwrap();
        lines.push(Some(*route));
        Some(Line {
            is_v6: false,
            index: u32::try_from(lines.len() - 1).unwrap(),
        })
    }

    fn set_expiry(&mut self, _: Line, _: u64) {}

    fn revoke(&mut self, line: Line) {
        self.0.lock().unwrap()[line.index as usize] = None;
    }

    fn carried(&self, _: Line) -> Carried {
        Carried::default()
    }

    fn take_beyond(&mut self, _: NonZeroU32) -> Beyond {
        Beyond::default()
    }

    fn take_refused(&mut self) -> Refused {
        Refused::default()
    }

    fn free(&mut self, _: Line) {}
}

#[test]
fn what_the_kernel_relays_of_an_address_is_the_shards_again_when_it_becomes_a_proxys() {
    let (listener, local) = (loopback(3479), loopback(20_001));
    let mut shard = OneShard::new(listener, "single");
    let lines = Lines::default();
    shard.relay.set_routes(Box::new(lines.clone()));
    let peer = socket(0);
    let (peer_at, number) = (
        peer.local_addr().unwrap(),
        ChannelNumber::try_from(0x4001).unwrap(),
    );
    let setup = std::thread::spawn(move || turn::bind_channel(local, listener, peer_at, number));
    while !setup.is_finished() {
        shard.turn();
    }
    setup.join().unwrap().unwrap();
    shard.turn();
    assert_eq!(lines.published(), 2);
    let mut serve = |proxy: &str| {
        let user = format!("--user={}:{}", turn::USER, turn::PASSWORD);
        let source = format!("--udp-proxy-protocol-source={proxy}");
        let serving = translate::serving(&configuration(&[user, source]), None);
        shard.relay.serve(&serving);
        shard.turn();
        lines.published()
    };
    assert_eq!(serve("192.0.2.10"), 2);
    assert_eq!(serve(&local.ip().to_string()), 0);
}
