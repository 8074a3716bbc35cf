//! What the front takes for QUIC, and whom it answers.

use std::sync::RwLock;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::*;
use crate::counters::Accounting;
use crate::resolve::Resolver;
use crate::shard::book::CrowdLimits;
use crate::shard::hub::tests::{LISTENER, hub};

mod pair;
mod streams;
mod users;

/// The shard of the front under test.
const SHARD: u8 = 1;

fn front(counters: &Arc<ShardCounters>) -> (QuicFront, Ids) {
    let (front, ids, _) = front_with(None, counters);
    (front, ids)
}

/// Makes a front as [`front`] does, which serves tunnels if it has a resolver, and returns its certificate too.
fn front_with(
    resolver: Option<Resolver>,
    counters: &Arc<ShardCounters>,
) -> (QuicFront, Ids, CertificateDer<'static>) {
    let certified = rcgen::generate_simple_self_signed(vec!["relay.example".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    let certificate: CertificateDer<'static> = certified.cert.into();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::from(key))
        .unwrap();
    let long = Duration::from_secs(60);
    let service = QuicService {
        surroundings: Surroundings::Machine(Arc::new(RwLock::new(Arc::new(tls)))),
        keys: Keys::new(&[5; 32]),
        is_steered: true,
        serves_bound: false,
        book: BookLimits {
            handshake: long,
            first_message: long,
            message: long,
            idle: long,
            unallocated: long,
            crowd: CrowdLimits {
                total: 100,
                per_source: 100,
            },
        },
        resolver,
    };
    let ids = service.keys.ids();
    let mut front = QuicFront::new(Some(service), Arc::clone(counters));
    front.begin(SHARD.into(), Waker::flag());
    (front, ids, certificate)
}

fn from(address: [u8; 4], port: u16) -> ClientTuple {
    ClientTuple::udp(LISTENER, SocketAddr::from((address, port)))
}

/// Returns a datagram of a version that is not spoken, which is answered with the one that is.
fn of_unknown_version() -> Vec<u8> {
    let mut bytes = vec![0; 1200];
    bytes[..7].copy_from_slice(&[0xc0, 0xfa, 0xce, 0xb0, 0x0c, 8, 1]);
    bytes
}

fn short(id: &[u8]) -> Vec<u8> {
    [&[0x41], id, &[0x55; 40]].concat()
}

#[test]
fn nothing_is_answered_to_the_servers_own_ports() {
    let mut hub = hub();
    let counters = Arc::clone(&hub.counters);
    let (mut front, _) = front(&counters);
    let mut tx = SendQueue::new(1);
    let bytes = of_unknown_version();
    let datagrams = (&bytes[..], bytes.len());
    let own = from([192, 0, 2, 1], 3478);
    front.received(own, Sight::All, datagrams, 0, &mut hub);
    front.work(&mut hub, &mut tx);
    front.flush(&mut hub, &mut tx);
    assert!(tx.is_empty());
    let dropped = Accounting::of([&*counters]).dropped("source_invalid");
    assert_eq!(dropped, 1);
    let other = from([192, 0, 2, 1], 3479);
    front.received(other, Sight::All, datagrams, 0, &mut hub);
    front.work(&mut hub, &mut tx);
    front.flush(&mut hub, &mut tx);
    assert!(
        !tx.is_empty(),
        "a port that is not the server's is answered"
    );
}

#[test]
fn who_has_no_connection_id_of_this_server_is_no_client_of_quic() {
    let mut hub = hub();
    let counters = Arc::clone(&hub.counters);
    let (mut front, ids) = front(&counters);
    let client = from([198, 51, 100, 7], 4000);
    let own = short(&ids.make(SHARD, [1, 2, 3, 4, 5, 6, 7]));
    let foreign = short(&Keys::new(&[6; 32]).ids().make(SHARD, [1, 2, 3, 4, 5, 6, 7]));
    let long = of_unknown_version();
    for (sight, bytes, is_quic) in [
        (Sight::All, &own, true),
        (Sight::All, &foreign, false),
        (Sight::Long, &own, false),
        (Sight::Long, &long, true),
        (Sight::All, &long, true),
        (Sight::All, &vec![0x41], false),
        (Sight::All, &vec![0x80; 40], false),
        (Sight::All, &vec![0x16; 40], false),
    ] {
        let datagrams = (&bytes[..], bytes.len());
        let taken = front.received(client, sight, datagrams, 0, &mut hub);
        assert_eq!(
            taken,
            is_quic.then_some(bytes.len()),
            "{sight:?} {bytes:02x?}"
        );
    }
}

#[test]
fn in_one_buffer_each_datagram_goes_where_it_belongs() {
    let mut hub = hub();
    let counters = Arc::clone(&hub.counters);
    let (mut front, ids) = front(&counters);
    let client = from([198, 51, 100, 7], 4000);
    let own = short(&ids.make(SHARD, [1; 7]));
    let other = short(&ids.make(SHARD + 1, [2; 7]));
    let foreign = short(&[9; 12]);
    let len = own.len();
    let bytes = [&own[..], &own, &other, &foreign, &own[..20]].concat();
    let mut next = |start| front.received(client, Sight::All, (&bytes, len), start, &mut hub);
    assert_eq!(next(0), Some(2 * len), "both are for this shard");
    assert_eq!(next(2 * len), Some(3 * len), "handed over");
    assert_eq!(next(3 * len), None, "no packet of QUIC");
    assert_eq!(next(4 * len), Some(4 * len + 20), "a shorter last one");
}

#[test]
fn only_a_client_with_an_allocation_and_no_connection_sends_channel_data_alone() {
    let counters = Arc::<ShardCounters>::default();
    let (front, _) = front(&counters);
    let client = SocketAddr::from(([198, 51, 100, 7], 4000));
    assert_eq!(front.sight(client, false), Sight::All);
    assert_eq!(front.sight(client, true), Sight::Long);
    let off = QuicFront::new(None, counters);
    assert_eq!(off.sight(client, false), Sight::Nothing);
}

/// Returns how many datagrams of connections wait for a turn, how many were lost because of that, and how many were handled.
fn fates(front: &QuicFront, counters: &Arc<ShardCounters>) -> [u64; 3] {
    let quic = front.quic.as_ref().unwrap();
    let lost = Accounting::of([&**counters]).dropped("quic_backlog");
    let waiting = counters.connections.quic_waiting.get();
    [waiting, lost, quic.endpoint.totals().received]
}

#[test]
fn a_turn_handles_a_share_of_what_connections_receive_and_the_rest_waits_or_is_lost() {
    let mut hub = hub();
    let counters = Arc::clone(&hub.counters);
    let (mut front, ids) = front(&counters);
    let mut tx = SendQueue::new(1);
    let client = from([198, 51, 100, 7], 4000);
    let mut own = short(&ids.make(SHARD, [1; 7]));
    own.resize(1200, 0x55);
    let share = backlog::DATAGRAMS_PER_TURN;
    // As a hot tunnel has it: one buffer of the kernel holds dozens of them, and one reading brings dozens of buffers.
    let buffer = own.repeat(50);
    let mut now = Time::ZERO;
    let mut turn = |front: &mut QuicFront, hub: &mut Hub, buffers: usize| {
        now = now + Duration::from_millis(1);
        front.turn_started(now, false);
        for _ in 0..buffers {
            let datagrams = (&buffer[..], own.len());
            front.received(client, Sight::All, datagrams, 0, hub);
        }
        front.work(hub, &mut tx);
        front.flush(hub, &mut tx);
    };
    turn(&mut front, &mut hub, 20);
    let (came, share) = (1000, share as u64);
    assert_eq!(fates(&front, &counters), [came - share, 0, share]);
    assert_eq!(
        front.next_timeout(),
        Some(Time::ZERO),
        "the next turn waits for nothing"
    );
    // They are handled one share after the other, in whole buffers, while nothing else comes.
    while front.quic.as_ref().unwrap().backlog.len() > 0 {
        let before = fates(&front, &counters)[2];
        turn(&mut front, &mut hub, 0);
        let handled = fates(&front, &counters)[2] - before;
        assert!(handled > 0 && handled < share + 50, "{handled}");
    }
    assert_eq!(fates(&front, &counters), [0, 0, came]);
    // As many may wait as there are bytes for. All others are lost, and each is accounted for.
    turn(&mut front, &mut hub, 100);
    let [waiting, lost, handled] = fates(&front, &counters);
    assert!(waiting * 1200 <= backlog::BYTES_MAX as u64, "{waiting}");
    assert!(lost > 0, "{lost}");
    assert_eq!(waiting + lost + handled, came + 5000);
    // Who has proven nothing takes no room from connections, and waits elsewhere.
    let strange = of_unknown_version();
    let before = front.quic.as_ref().unwrap().backlog.len();
    front.received(client, Sight::All, (&strange, strange.len()), 0, &mut hub);
    let quic = front.quic.as_ref().unwrap();
    assert_eq!(
        (quic.backlog.len(), quic.endpoint.waiting_count()),
        (before, 1)
    );
    front.stop(&mut hub, &mut tx);
    assert_eq!(fates(&front, &counters)[0], 0);
    let ended = Accounting::of([&*counters]).dropped("socket_closed");
    assert_eq!(ended, before as u64 + 1);
}

#[test]
fn while_there_are_calls_connections_wait_until_what_those_have_is_out() {
    let mut hub = hub();
    let counters = Arc::clone(&hub.counters);
    let (mut front, ids) = front(&counters);
    let mut tx = SendQueue::new(1);
    let client = from([198, 51, 100, 7], 4000);
    let own = short(&ids.make(SHARD, [1; 7]));
    let buffer = own.repeat(200);
    let share = backlog::DATAGRAMS_BESIDE_CALLS as u64;
    front.turn_started(Time::ZERO, true);
    assert!(!front.keeps_calls(), "nothing has come");
    for datagrams in [&own, &buffer, &own] {
        front.received(client, Sight::All, (datagrams, own.len()), 0, &mut hub);
    }
    assert_eq!(fates(&front, &counters)[2], 0, "they wait");
    assert!(front.keeps_calls(), "what is queued is to leave first");
    front.work(&mut hub, &mut tx);
    front.flush(&mut hub, &mut tx);
    // Whole buffers, until the share is used up.
    assert_eq!(fates(&front, &counters), [1, 0, 201]);
    assert!(share < 201);
    front.turn_started(Time::ZERO + Duration::from_millis(1), true);
    front.work(&mut hub, &mut tx);
    assert_eq!(fates(&front, &counters)[2], 202);
    // Without calls they are handled as they come.
    front.turn_started(Time::ZERO + Duration::from_millis(2), false);
    front.received(client, Sight::All, (&own, own.len()), 0, &mut hub);
    assert_eq!(fates(&front, &counters)[2], 203);
    assert!(!front.keeps_calls());
}
