//! What the path does to datagrams: small MTUs, DF, and the ICMP errors of routers. In network namespaces, so as root.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Source, TEST_TIMEOUT, bind, loopback, socket, whole};
use not_run::not_run;
use turnbuckle_datapath::{
    Backend, Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, IcmpError, Received, Run,
    SendFailure, SendQueue, Settings, StreamHandler, TurnHandler, Warning,
};

const INSIDE: &str = "TURNBUCKLE_INSIDE_NAMESPACE";

/// Namespaces named after this process; gone when dropped.
struct Namespaces(Vec<String>);

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split(' '))
        .stdin(Stdio::null())
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip {arguments}"
    );
}

/// Runs `test` inside the first of `count` namespaces that `prepare` has set up. `true`: this is the inside.
fn inside(test: &str, count: usize, prepare: impl FnOnce(&[String])) -> bool {
    if std::env::var_os(INSIDE).is_some_and(|name| name == test) {
        return true;
    }
    if !rustix::process::geteuid().is_root() {
        not_run("needs root, for network namespaces");
        return false;
    }
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = |_| {
        format!(
            "tb-d-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        )
    };
    let names: Vec<String> = (0..count).map(name).collect();
    let mut namespaces = Namespaces(Vec::new());
    for name in names {
        ip(&format!("netns add {name}"));
        namespaces.0.push(name);
    }
    prepare(&namespaces.0);
    let output = Command::new("ip")
        .args(["netns", "exec", &namespaces.0[0]])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Forwards every message to one destination; datagrams that begin with `D` must not be fragmented.
#[derive(Default)]
struct Forwarder {
    way: Option<(EndpointId, SocketAddr)>,
    failures: Vec<(u32, SendFailure)>,
    warnings: Vec<Warning>,
    icmp: Vec<IcmpError>,
}

impl TurnHandler for Forwarder {
    fn warning(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }
}

impl DatagramHandler for Forwarder {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let Some((endpoint, to)) = self.way else {
            return;
        };
        if message.bytes.first() == Some(&b'D') {
            tx.forward_unfragmented(endpoint, to, message, Run::single(0, message.bytes.len()));
        } else {
            tx.forward(endpoint, to, message, whole(message), &[], 0);
        }
    }

    fn icmp(&mut self, _: EndpointId, _: u64, error: IcmpError, _: &mut SendQueue) {
        self.icmp.push(error);
    }

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, cause: SendFailure) {
        self.failures.push((datagrams, cause));
    }
}

impl StreamHandler for Forwarder {}

/// Trains of datagrams that do not fit the device are refused by the kernel whole (`EMSGSIZE`, before Linux 6.14 `EINVAL`).
#[test]
fn trains_larger_than_the_device_takes_are_split_and_fragmented() {
    let test = "trains_larger_than_the_device_takes_are_split_and_fragmented";
    if !inside(test, 1, |names| {
        ip(&format!("-n {} link set lo mtu 1280 up", names[0]))
    }) {
        return;
    }
    for v6 in [false, true] {
        let mut datapath = Datapath::new(Settings {
            backend: Backend::Gso,
            ..Settings::default()
        })
        .unwrap();
        let (entrance, address) = bind(&mut datapath, common::LISTENER, loopback(v6));
        let sink = socket(loopback(v6));
        let to = sink.local_addr().unwrap();
        let mut handler = Forwarder {
            way: Some((entrance, to)),
            ..Forwarder::default()
        };
        // The source's own trains are split the same way; what arrives is joined again by size.
        let bytes: Vec<u8> = (0..5_u8).flat_map(|number| [number; 1300]).collect();
        datapath.send_queue().send(entrance, to, &bytes, 1300);
        datapath.turn(Some(Duration::ZERO), &mut handler).unwrap();
        let mut buffer = [0; 2000];
        for number in 0..5 {
            assert_eq!(sink.recv(&mut buffer).unwrap(), 1300);
            assert_eq!(buffer[0], number);
        }
        let send = &datapath.counters().send;
        assert_eq!(
            (
                send.fallbacks.get(),
                send.gso_disabled.get(),
                send.datagrams.get()
            ),
            (1, 0, 5),
            "v6 {v6}"
        );
        // Trains that fit are still trains.
        let mut source = Source::new(v6);
        source.send(address, &[0; 5000], 1000);
        common::receive(&mut datapath, &mut handler, 5);
        assert_eq!(datapath.counters().send.gso_datagrams.get(), 5);
        assert_eq!((handler.failures, handler.warnings), (vec![], vec![]));
    }
}

//= TURN-069
//= TURN-098
#[test]
fn a_datagram_that_must_not_be_fragmented_is_not() {
    let test = "a_datagram_that_must_not_be_fragmented_is_not";
    if !inside(test, 1, |names| {
        ip(&format!("-n {} link set lo mtu 1280 up", names[0]))
    }) {
        return;
    }
    for v6 in [false, true] {
        for backend in common::BACKENDS {
            let mut datapath = Datapath::new(Settings {
                backend,
                ..Settings::default()
            })
            .unwrap();
            let (entrance, address) = bind(&mut datapath, common::LISTENER, loopback(v6));
            let (relay, _) = bind(&mut datapath, EndpointKind::Relay, loopback(v6));
            let _ = entrance;
            let (client, sink) = (socket(loopback(v6)), socket(loopback(v6)));
            let mut handler = Forwarder {
                way: Some((relay, sink.local_addr().unwrap())),
                ..Forwarder::default()
            };
            for (first, len) in [
                (b'D', 1000),
                (b'D', 1300),
                (b'-', 1300),
                (b'D', 1001),
                (b'-', 1301),
            ] {
                client.send_to(&vec![first; len], address).unwrap();
            }
            common::receive(&mut datapath, &mut handler, 5);
            let mut buffer = [0; 2000];
            for expected in [1000, 1300, 1001, 1301] {
                assert_eq!(
                    sink.recv(&mut buffer).unwrap(),
                    expected,
                    "{backend} v6 {v6}"
                );
            }
            assert_eq!(
                handler.failures,
                [(1, SendFailure::MessageTooLong)],
                "{backend} v6 {v6}"
            );
        }
    }
}

/// A router in the middle has a smaller MTU. Its "fragmentation needed" must reach the handler, RFC 8656 §11.5, and must not
/// change how other datagrams are sent.
#[test]
fn fragmentation_needed_at_a_router_is_reported_and_changes_nothing_else() {
    let test = "fragmentation_needed_at_a_router_is_reported_and_changes_nothing_else";
    let prepare = |names: &[String]| {
        let [relay, router, peer] = names else { return };
        ip(&format!(
            "link add a0 netns {relay} type veth peer name a1 netns {router}"
        ));
        ip(&format!(
            "link add b0 netns {peer} type veth peer name b1 netns {router}"
        ));
        for (name, device, address) in [
            (relay, "a0", "10.98.1.1"),
            (router, "a1", "10.98.1.2"),
            (router, "b1", "10.98.2.2"),
            (peer, "b0", "10.98.2.1"),
        ] {
            ip(&format!("-n {name} addr add {address}/24 dev {device}"));
            ip(&format!("-n {name} link set {device} up"));
        }
        for name in names {
            ip(&format!("-n {name} link set lo up"));
        }
        ip(&format!("-n {router} link set b1 mtu 1000"));
        ip(&format!("-n {peer} link set b0 mtu 1000"));
        ip(&format!("-n {relay} route add default via 10.98.1.2"));
        ip(&format!("-n {peer} route add default via 10.98.2.2"));
        ip(&format!(
            "netns exec {router} sysctl -qw net.ipv4.ip_forward=1"
        ));
    };
    if !inside(test, 3, prepare) {
        return;
    }
    let address = SocketAddr::from(([10, 98, 1, 1], 0));
    let peer = SocketAddr::from(([10, 98, 2, 1], 7000));
    let mut datapath = Datapath::new(Settings {
        backend: Backend::Gso,
        ..Settings::default()
    })
    .unwrap();
    let (_, entrance) = bind(&mut datapath, common::LISTENER, address);
    let relay = datapath
        .bind(Bind {
            address,
            kind: EndpointKind::Relay,
            token: 0,
        })
        .unwrap();
    let client = socket(address);
    let mut handler = Forwarder {
        way: Some((relay, peer)),
        ..Forwarder::default()
    };
    client.send_to(&[b'D'; 1200], entrance).unwrap();
    while handler.icmp.is_empty() {
        datapath.turn(Some(TEST_TIMEOUT), &mut handler).unwrap();
    }
    // Destination unreachable, fragmentation needed.
    assert_eq!(
        handler.icmp,
        [IcmpError {
            peer,
            kind: 3,
            code: 4,
            mtu: 1000,
            v6: false
        }]
    );
    // A train to the same peer still leaves whole: the news is the peer's, not ours to act upon.
    let before = datapath.counters().send.gso_sends.get();
    datapath.send_queue().send(relay, peer, &[0; 3600], 1200);
    datapath.turn(Some(Duration::ZERO), &mut handler).unwrap();
    assert_eq!(datapath.counters().send.gso_sends.get(), before + 1);
    assert_eq!(handler.failures, []);
}

/// A namespace whose loopback interface was never brought up.
#[test]
fn the_probe_does_not_need_the_loopback_interface() {
    let test = "the_probe_does_not_need_the_loopback_interface";
    if !inside(test, 1, |_| {}) {
        return;
    }
    let (backend, line) = Backend::probe();
    assert_eq!(backend, Backend::Gso, "{line}");
    assert!(line.contains("could not be tried"), "{line}");
}
