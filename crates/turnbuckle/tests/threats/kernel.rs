//! V-63 where the kernel relays: the next relay takes the program's links over, and has a program with what it allows itself in place of the last.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Instant;

use nix::sys::signal::Signal;
use tempfile::NamedTempFile;

use crate::harness::{Call, Client, Namespace, Server, peer_socket};
use crate::survival::{Processes, TIMEOUT, await_end, pause, send};

const CLIENT: [u8; 4] = [20, 0, 1, 2];
const LISTENER: [u8; 4] = [20, 0, 1, 1];
const RELAY: [u8; 4] = [20, 0, 2, 1];
const PEER: [u8; 4] = [20, 0, 2, 2];

/// Three hosts in a row, and a call between the outer ones that the kernel relays, both ways.
struct Row {
    call: Call,
    server: Server,
    processes: Processes,
    /// In the order in which the thread leaves them.
    _hosts: [Namespace; 3],
}

impl Row {
    /// Starts the relay between two hosts, and a call. Without root it says so and returns nothing.
    fn start(options: &[&str]) -> Option<Self> {
        let relays = Namespace::enter(&format!(
            "link set lo up
             link add c0 type veth peer name c1
             link add p0 type veth peer name p1
             address add {}/24 dev c0
             address add {}/24 dev p0
             link set c0 up
             link set p0 up",
            IpAddr::from(LISTENER),
            IpAddr::from(RELAY)
        ))?;
        // The program can send where the far end receives by NAPI, and reads no checksum that is left to a device.
        let outer = |device: &str, address: [u8; 4]| {
            let host = Namespace::enter(&format!(
                "link set lo up
                 -n {} link set {device} netns HERE
                 address add {}/24 dev {device}
                 link set {device} up
                 ethtool -K {device} gro on tx off",
                relays.name(),
                IpAddr::from(address)
            ));
            host.expect("root")
        };
        let relay_ip = format!("--relay-ip={}", IpAddr::from(RELAY));
        let own = ["--xdp=on", "--survive=on", relay_ip.as_str()];
        let listener = SocketAddr::new(LISTENER.into(), 3478);
        let server = Server::start(listener, &[&own[..], options].concat());
        let processes = Processes::of(&server);
        let clients = outer("c1", CLIENT);
        let client = Client::new(CLIENT.into(), &server);
        let peers = outer("p1", PEER);
        let mut row = Self {
            call: Call::between(client, peer_socket(PEER.into())),
            server,
            processes,
            _hosts: [peers, clients, relays],
        };
        row.await_kernel();
        Some(row)
    }

    /// Waits until a datagram each way reaches no socket of the relay.
    fn await_kernel(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let before = received(self.processes.keeper);
            exchange(&mut self.call);
            if received(self.processes.keeper) == before {
                return;
            }
            assert!(Instant::now() < deadline, "the kernel relays nothing");
            pause();
        }
    }
}

/// Sends one datagram each way, and waits until both have arrived.
fn exchange(call: &mut Call) {
    call.send();
    let deadline = Instant::now() + TIMEOUT;
    loop {
        call.hear();
        if call.lost() == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{} are lost", call.lost());
    }
}

/// Returns how many datagrams sockets of a process's host have received.
fn received(process: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/net/snmp")).expect("it is there");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let mut fields = names.split(' ').zip(values.split(' '));
    let field = fields.find(|&(name, _)| name == "InDatagrams");
    field.expect("a field").1.parse().expect("a number")
}

/// Returns the numbers of the XDP links that a process has open (`bpf_link_show_fdinfo` in Linux).
fn links_of(process: i32) -> BTreeSet<u32> {
    let folder = format!("/proc/{process}");
    let open = fs::read_dir(Path::new(&folder).join("fdinfo")).expect("it is there");
    let descriptions = open.map(|entry| {
        // Closed meanwhile, it is none.
        fs::read_to_string(entry.expect("a descriptor").path()).unwrap_or_default()
    });
    let links = descriptions.filter(|it| it.contains("link_type:\txdp\n"));
    let number = |description: String| {
        let mut lines = description.lines();
        let number = lines.find_map(|line| line.strip_prefix("link_id:"));
        number.expect("a number").trim().parse().expect("a number")
    };
    links.map(number).collect()
}

#[test]
fn relays_by_the_same_links_while_there_is_no_relay_and_with_the_next_one() {
    let Some(mut row) = Row::start(&[]) else {
        return;
    };
    let links = links_of(row.processes.keeper);
    assert_eq!(links.len(), 2, "one for each device");
    // The keeper sees nothing of it yet.
    send(row.processes.keeper, Signal::SIGSTOP);
    send(row.processes.relay, Signal::SIGKILL);
    await_end(row.processes.relay);
    for _ in 0..20 {
        exchange(&mut row.call);
    }
    send(row.processes.keeper, Signal::SIGCONT);
    let Row {
        call,
        server,
        processes,
        ..
    } = &mut row;
    processes.await_relay(server, &mut || exchange(call));
    assert_eq!(links_of(row.processes.keeper), links);
    row.await_kernel();
    row.call.client.refresh(0).expect(200);
    row.server.stop_kept(row.processes.keeper);
}

#[test]
fn relays_nothing_that_the_next_relay_does_not_allow() {
    let file = NamedTempFile::new().unwrap();
    let config = format!("--config={}", file.path().display());
    let Some(mut row) = Row::start(&[&config]) else {
        return;
    };
    let denied = format!("denied-peer-ip={}\n", IpAddr::from(PEER));
    fs::write(file.path(), denied).unwrap();
    row.processes.kill_relay(&row.server, &mut pause);
    row.call.send();
    row.call.client.settle();
    row.call.hear();
    assert_eq!(row.call.lost(), 2, "neither way");
    row.call.client.refresh(0).expect(200);
    row.server.stop_kept(row.processes.keeper);
}
