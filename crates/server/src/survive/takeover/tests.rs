//! Calls whose relay addresses the configuration has no more, and where another process listens too.

use std::net::{IpAddr, UdpSocket};

use nix::sys::signal::SigSet;
use turnbuckle_engine::{
    Brought, Connection, Created, Path, RelayProtocol, SharedRelays, Time, Transport, UserRecord,
};
use turnbuckle_wire::TransactionId;

use super::*;
use crate::config::Machine;
use crate::configured::{configured, configured_on};
use crate::control::keys::KeyRing;
use crate::survive::staying::Main;
use crate::translate;

/// Returns the record of a call by UDP that nobody has ended.
pub(crate) fn call(number: u64, client: [SocketAddr; 2], relayed: Relayed) -> Change {
    let [client, server] = client;
    let user = UserRecord {
        name: "alice",
        realm: "example.org",
        quota_name: "alice",
        expires_unix_s: None,
        lifetime_max_s: u64::MAX,
        mac_key: None,
    };
    Change::Created(Box::new(Created {
        allocation: AllocationId::from_u64(number),
        path: Path {
            server,
            client,
            transport: Transport::Udp,
            connection: Connection::default(),
        },
        user: Arc::new(user.user()),
        transaction: TransactionId::new([7; 12]),
        protocol: RelayProtocol::Udp,
        relays: vec![relayed],
        missing_family: None,
        reservation: None,
        brought: Brought::default(),
        bytes_per_s: None,
        created: Time::ZERO,
        expires: Time::from_secs(1 << 32),
    }))
}

/// Returns what two shards take over where the first has such a record, and such a socket for each of its relay addresses.
pub(crate) fn of_first_shard(
    changes: Vec<Change>,
    socket: impl Fn(SocketAddr) -> OwnedFd,
) -> Takeover {
    let takeover = Takeover::none(2);
    of_shard(0, changes, socket, takeover)
}

fn of_shard(
    index: usize,
    changes: Vec<Change>,
    socket: impl Fn(SocketAddr) -> OwnedFd,
    mut takeover: Takeover,
) -> Takeover {
    let shard = &mut takeover.shards[index];
    shard.record = Record::of(Recorded {
        changes,
        ..Recorded::default()
    });
    for Relayed { local, .. } in shard.record.relays() {
        shard.sockets.put(SocketKind::Relay, local, socket(local));
    }
    takeover
}

/// Stands for a socket.
fn descriptor(_: SocketAddr) -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// Returns the configuration of a machine with these addresses.
fn configuration(addresses: &[&str], options: &[&str]) -> Config {
    let machine = Machine {
        addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        ..Machine::discover().unwrap()
    };
    configured_on(&machine, &[&["--relay-threads=2"], options].concat())
}

fn relayed(local: &str, external: &str) -> Relayed {
    Relayed {
        local: local.parse().unwrap(),
        external: external.parse().unwrap(),
    }
}

fn calls(relays: &[Relayed]) -> Vec<Change> {
    let client = ["203.0.113.7:5000", "10.0.0.1:3478"].map(|it| it.parse().unwrap());
    let calls = (1..).zip(relays);
    calls.map(|(id, it)| call(id, client, *it)).collect()
}

/// Returns what the engine is told of relay addresses: those of new calls, and of others.
fn told(config: &Config) -> [Vec<(String, Option<IpAddr>)>; 2] {
    let engine = translate::engine(config, &KeyRing::new(config)).unwrap();
    [engine.relays.addresses, engine.relays.former].map(|relays| {
        let relays = relays.iter();
        relays
            .map(|it| (it.local.to_string(), it.external))
            .collect()
    })
}

#[test]
fn calls_on_an_address_that_the_machine_has_and_nobody_relays_from_any_more_keep_it() {
    // A public address has come, so that private ones are relayed from no more.
    let mut config = configuration(&["10.0.0.1", "10.0.0.2", "1.2.3.4"], &[]);
    let mapped = relayed("10.0.0.1:50000", "5.6.7.8:50000");
    let present = relayed("1.2.3.4:50000", "1.2.3.4:50000");
    let second = relayed("10.0.0.1:50001", "5.6.7.8:50001");
    let takeover = of_first_shard(calls(&[mapped, present, second]), descriptor);
    let lost = calls(&[relayed("10.0.0.2:50000", "10.0.0.2:50000")]);
    let takeover = of_shard(1, lost, descriptor, takeover);
    let its_socket = "10.0.0.2:50000".parse().unwrap();
    let sockets = &takeover.shards[1].sockets;
    assert!(sockets.take(SocketKind::Relay, its_socket).is_some());
    takeover.keep_relays(&mut config);
    let public = Some("5.6.7.8".parse().unwrap());
    let [now, former] = told(&config);
    assert_eq!(now, [("1.2.3.4".to_owned(), None)]);
    assert_eq!(former, [("10.0.0.1".to_owned(), public)]);
}

#[test]
fn calls_that_share_a_socket_keep_it_when_another_address_comes_first() {
    let shared_on = |addresses: &[&str], options: &[&str]| {
        let options = [&["--multiplex-peer"], options].concat();
        let mut config = configuration(addresses, &options);
        let shared = config.datapath.shared_relays.unwrap();
        let [v4, _] = shared.ports_of(1);
        let address = format!("10.0.0.1:{v4}");
        let calls = calls(&[relayed(&address, &address), relayed(&address, &address)]);
        let takeover = of_shard(1, calls, descriptor, Takeover::none(2));
        takeover.keep_relays(&mut config);
        let engine = translate::engine(&config, &KeyRing::new(&config)).unwrap();
        let SharedRelays { addresses, .. } = engine.relays.shared.unwrap();
        let of_v4 = addresses.iter().map(|[v4, _]| v4.unwrap());
        let ips: Vec<_> = of_v4.map(|it| it.ip().to_string()).collect();
        assert_eq!(ips[0], ips[1], "all shards are on one address");
        let former = engine.relays.former.iter();
        let former: Vec<_> = former.map(|it| it.local.to_string()).collect();
        (ips[0].clone(), former.join(" "))
    };
    let on = |ip: &str, former: &str| (ip.to_owned(), former.to_owned());
    // Both are relayed from.
    let both = ["10.0.0.9", "10.0.0.1"];
    assert_eq!(shared_on(&both, &[]), on("10.0.0.1", ""));
    let named = ["--relay-ip=10.0.0.9", "--relay-ip=10.0.0.1"];
    assert_eq!(shared_on(&both, &named), on("10.0.0.1", ""));
    // The machine has it still, and has got a public one.
    let public = ["1.2.3.4", "10.0.0.1"];
    assert_eq!(shared_on(&public, &[]), on("10.0.0.1", "10.0.0.1"));
    // An operator has taken it out, and wants new calls elsewhere.
    assert_eq!(shared_on(&both, &named[..1]), on("10.0.0.9", ""));
}

#[test]
fn where_another_process_listens_too_is_handed_on_from_relay_to_relay() {
    let config = configured(&[]);
    let keys = KeyRing::new(&config);
    let kept = Kept::new(2, &SigSet::empty(), Main::new().unwrap(), (keys, None)).unwrap();
    let shards = [KeptSockets::default(), KeptSockets::default()];
    let addresses = ["192.0.2.1:3478", "192.0.2.2:3478"].map(|it| it.parse().unwrap());
    let [own, shared]: [SocketAddr; 2] = addresses;
    let mut left = HashMap::new();
    for shard in &shards {
        for address in addresses {
            // A socket is known by its cookie, whatever it is bound to.
            let socket = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
            left.insert(socket.as_raw_fd(), socket.try_clone().unwrap());
            shard.put(SocketKind::Datagrams, address, socket);
        }
    }
    for wanted in [vec![], vec![shared], vec![own, shared]] {
        kept.list(&shards, &wanted).unwrap();
        let left = left.iter().map(|(number, it)| (*number, it.try_clone()));
        let left = left.map(|(number, it)| (number, it.unwrap())).collect();
        let takeover = Takeover::sort(kept.listed().unwrap(), &kept.journals, left);
        assert_eq!(takeover.complaints, Vec::<String>::new());
        assert_eq!(takeover.listeners, 4);
        assert_eq!(takeover.shared, wanted);
        for address in addresses {
            assert!(takeover.listens(SocketKind::Datagrams, address));
        }
    }
}
