//! V-01 to V-05 and V-11: peers that no client may reach, by every path and in every spelling.
//!
//! Each test runs in a namespace whose whole address space leads back to the host, so that one canary hears the relay
//! wherever it sends. A probe names a peer in CreatePermission, ChannelBind and a Send indication, and sends on the channel
//! that was refused; all of that on an IPv4, an IPv6 and a dual allocation, and on one made with a reservation token. Each
//! test ends with peers that are allowed, by the same paths, to show that the canary hears.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use turnbuckle_wire::{AddressFamily, AttributeType};

use crate::harness::{Canary, Client, Namespace, Server, Site, World, channel, relayed};

/// IPv4 addresses that are denied, at least one of every range, with the id of the row that asks for it.
const DENIED_V4: [(&str, [u8; 4]); 31] = [
    ("V-02", [0, 0, 0, 0]),
    ("V-02", [0, 1, 2, 3]),
    ("V-02", [0, 255, 255, 255]),
    ("V-06", [10, 1, 2, 3]),
    ("V-07", [10, 77, 0, 1]),
    ("V-07", [20, 0, 0, 1]),
    ("V-06", [100, 64, 0, 1]),
    ("V-05", [100, 100, 100, 200]),
    ("V-01", [127, 0, 0, 1]),
    ("V-01", [127, 0, 0, 2]),
    ("V-01", [127, 255, 255, 254]),
    ("V-05", [169, 254, 169, 254]),
    ("V-05", [169, 254, 0, 1]),
    ("V-06", [172, 16, 0, 1]),
    ("V-06", [172, 31, 255, 255]),
    ("V-06", [192, 0, 0, 1]),
    ("V-05", [192, 0, 0, 192]),
    ("V-06", [192, 0, 2, 1]),
    ("V-06", [192, 88, 99, 1]),
    ("V-06", [192, 168, 1, 1]),
    ("V-06", [198, 18, 0, 1]),
    ("V-06", [198, 51, 100, 1]),
    ("V-06", [203, 0, 113, 1]),
    ("V-11", [224, 0, 0, 1]),
    ("V-11", [239, 255, 255, 255]),
    ("V-06", [240, 0, 0, 1]),
    ("V-11", [255, 255, 255, 255]),
    ("V-11", [20, 0, 0, 255]),
    ("V-11", [20, 0, 0, 0]),
    ("V-11", [10, 77, 0, 255]),
    ("V-05", [168, 63, 129, 16]),
];

/// IPv6 addresses that are denied for what they are, not for what they carry.
const DENIED_V6: [(&str, &str); 19] = [
    ("V-01", "::1"),
    ("V-02", "::"),
    ("V-05", "fe80::1"),
    ("V-05", "febf::1"),
    ("V-05", "fec0::1"),
    ("V-05", "fc00::1"),
    ("V-05", "fdff::1"),
    ("V-05", "fd00:ec2::254"),
    ("V-05", "fd20:ce::254"),
    ("V-07", "2a00:20::1"),
    ("V-06", "100::1"),
    ("V-06", "2001:db8::1"),
    ("V-06", "2001:2::1"),
    ("V-06", "3fff::1"),
    ("V-06", "5f00::1"),
    ("V-11", "ff01::1"),
    ("V-11", "ff02::1"),
    ("V-11", "ff05::2"),
    ("V-11", "ff0e::1"),
];

/// A peer nothing speaks against, and one of the other family.
const ALLOWED_V4: Ipv4Addr = Ipv4Addr::new(21, 0, 0, 9);
const ALLOWED_V6: Ipv6Addr = Ipv6Addr::new(0x2a00, 9, 0, 0, 0, 0, 0, 9);

type Embed = fn(Ipv4Addr) -> Ipv6Addr;

/// Ways to write an IPv4 address as an IPv6 one (V-03, V-04).
const EMBEDDINGS: [(&str, Embed); 15] = [
    ("mapped", |v4| v4.to_ipv6_mapped()),
    ("compatible", |v4| low_bits("::", v4)),
    ("translated", |v4| low_bits("::ffff:0:0:0", v4)),
    ("NAT64", |v4| low_bits("64:ff9b::", v4)),
    ("local-use NAT64, /96", |v4| low_bits("64:ff9b:1::", v4)),
    ("local-use NAT64, /96 of a subnet", |v4| {
        low_bits("64:ff9b:1:7:8:9::", v4)
    }),
    ("local-use NAT64, /48", |v4| {
        let [a, b, c, d] = v4.octets();
        let words = [
            0x64,
            0xff9b,
            1,
            u16::from_be_bytes([a, b]),
            u16::from(c),
            u16::from(d) << 8,
            0,
            0,
        ];
        Ipv6Addr::from(words)
    }),
    ("local-use NAT64, /64", |v4| {
        let [a, b, c, d] = v4.octets();
        let words = [
            0x64,
            0xff9b,
            1,
            7,
            u16::from(a),
            u16::from_be_bytes([b, c]),
            u16::from(d) << 8,
            0,
        ];
        Ipv6Addr::from(words)
    }),
    ("6to4", |v4| six_to_four(v4, 0)),
    ("6to4 with a host", |v4| six_to_four(v4, 1)),
    ("Teredo", |v4| {
        low_bits("2001:0:1400:1::", Ipv4Addr::from_bits(!v4.to_bits()))
    }),
    ("Teredo with the address as server", |v4| {
        Ipv6Addr::from_bits(0x2001_0000_u128 << 96 | u128::from(v4.to_bits()) << 64)
    }),
    ("ISATAP, link-local", |v4| low_bits("fe80::5efe:0:0", v4)),
    ("ISATAP, global prefix", |v4| {
        low_bits("2a00:5:0:1:0:5efe:0:0", v4)
    }),
    ("ISATAP, global prefix, unique", |v4| {
        low_bits("2a00:5:0:1:200:5efe:0:0", v4)
    }),
];

fn low_bits(prefix: &str, v4: Ipv4Addr) -> Ipv6Addr {
    let prefix: Ipv6Addr = prefix.parse().expect("an IPv6 address");
    Ipv6Addr::from_bits(prefix.to_bits() | u128::from(v4.to_bits()))
}

fn six_to_four(v4: Ipv4Addr, host: u128) -> Ipv6Addr {
    Ipv6Addr::from_bits(0x2002_u128 << 112 | u128::from(v4.to_bits()) << 80 | host)
}

//= V-01
//= V-02
//= V-05
//= V-11
//= TURN-064
//= TURN-071
//= TURN-084
#[test]
fn refuses_special_ipv4_peers_on_every_path() {
    let Some(bench) = Bench::start(&[]) else {
        return;
    };
    let peers = DENIED_V4.map(|(row, octets)| (row.to_owned(), IpAddr::from(octets)));
    bench.refuses(peers);
    bench.reaches_what_is_allowed();
}

//= V-01
//= V-02
//= V-05
//= V-11
#[test]
fn refuses_special_ipv6_peers_on_every_path() {
    let Some(bench) = Bench::start(&[]) else {
        return;
    };
    let peers = DENIED_V6.map(|(row, text)| (row.to_owned(), text.parse().expect("an address")));
    bench.refuses(peers);
    bench.reaches_what_is_allowed();
}

//= V-03
#[test]
fn refuses_ipv4_peers_in_mapped_form() {
    let Some(bench) = Bench::start(&[]) else {
        return;
    };
    let peers = DENIED_V4.map(|(row, octets)| {
        let v4 = Ipv4Addr::from(octets);
        (format!("V-03 of {row}"), v4.to_ipv6_mapped().into())
    });
    bench.refuses(peers);
    bench.refuses([(
        "V-03 of a public address".to_owned(),
        ALLOWED_V4.to_ipv6_mapped().into(),
    )]);
    bench.reaches_what_is_allowed();
}

//= V-04
//= TURN-117
//= TURN-118
#[test]
fn refuses_denied_ipv4_peers_in_every_embedding() {
    let Some(bench) = Bench::start(&[]) else {
        return;
    };
    let peers = EMBEDDINGS.iter().flat_map(|(form, embed)| {
        DENIED_V4
            .map(|(row, octets)| (format!("V-04 {form} of {row}"), embed(octets.into()).into()))
    });
    bench.refuses(peers);
    bench.reaches_what_is_allowed();
}

/// A translator in reach makes its prefix a way into IPv4 networks.
//= V-04
#[test]
fn refuses_denied_ipv4_peers_behind_the_operators_own_translator() {
    let Some(bench) = Bench::start(&["--nat64-prefix=2a00:64::/96"]) else {
        return;
    };
    let prefix: Ipv6Addr = "2a00:64::".parse().unwrap();
    let behind = |v4: Ipv4Addr| Ipv6Addr::from_bits(prefix.to_bits() | u128::from(v4.to_bits()));
    let peers = DENIED_V4.map(|(row, octets)| {
        (
            format!("V-04 {row} behind NAT64"),
            behind(octets.into()).into(),
        )
    });
    bench.refuses(peers);
    bench.reaches_what_is_allowed();
}

//= V-03
#[test]
fn a_denied_range_of_mapped_addresses_leaves_ipv4_peers_alone() {
    let Some(bench) = Bench::start(&["--denied-peer-ip=::ffff:0.0.0.0-::ffff:255.255.255.255"])
    else {
        return;
    };
    let mapped = ALLOWED_V4.to_ipv6_mapped();
    bench.refuses([("V-03".to_owned(), mapped.into())]);
    bench.reaches_what_is_allowed();
}

//= V-04
#[test]
fn refuses_denied_ipv4_peers_inside_ipv6_ranges_that_the_operator_allowed() {
    // A translator in reach is a reason to allow its prefix. That must not open what the IPv4 rules deny.
    let allowed = [
        "--allowed-peer-ip=64:ff9b::/96",
        "--allowed-peer-ip=64:ff9b:1::/48",
        "--allowed-peer-ip=2a00:5::/32",
        "--allowed-peer-ip=2002::/16",
        "--allowed-peer-ip=2001::/32",
        "--allowed-peer-ip=::ffff:0:0:0/96",
    ];
    let Some(bench) = Bench::start(&allowed) else {
        return;
    };
    let peers = EMBEDDINGS.iter().flat_map(|(form, embed)| {
        DENIED_V4
            .map(|(row, octets)| (format!("V-04 {form} of {row}"), embed(octets.into()).into()))
    });
    bench.refuses(peers);
    // Teredo and 6to4 stay closed whatever they carry (RFC 8656 §21.4).
    let tunnels = EMBEDDINGS
        .iter()
        .filter(|(form, _)| form.starts_with("Teredo") || form.starts_with("6to4"))
        .map(|(form, embed)| {
            (
                format!("V-04 {form} of a public address"),
                embed(ALLOWED_V4).into(),
            )
        });
    bench.refuses(tunnels);
    bench.reaches_what_is_allowed();
    let through_the_translator = low_bits("64:ff9b::", ALLOWED_V4);
    bench.reaches(through_the_translator.into());
}

//= V-03
//= V-04
#[test]
fn a_range_that_the_operator_denies_is_denied_in_every_embedding() {
    let Some(bench) = Bench::start(&[
        "--denied-peer-ip=21.0.0.0/24",
        "--allowed-peer-ip=64:ff9b::/96",
    ]) else {
        return;
    };
    let plain = std::iter::once(("plain".to_owned(), ALLOWED_V4.into()));
    let embedded = EMBEDDINGS.iter().map(|(form, embed)| {
        (
            format!("{form} of a denied range"),
            embed(ALLOWED_V4).into(),
        )
    });
    bench.refuses(plain.chain(embedded));
    bench.reaches(Ipv4Addr::new(21, 0, 1, 9).into());
}

//= V-05
#[test]
fn an_allow_rule_over_everything_opens_neither_metadata_services_nor_this_host() {
    let Some(bench) = Bench::start(&["--allowed-peer-ip=0.0.0.0/0", "--allowed-peer-ip=::/0"])
    else {
        return;
    };
    let v4 = DENIED_V4.map(|(row, octets)| (row.to_owned(), IpAddr::from(octets)));
    let v6 = DENIED_V6.map(|(row, text)| (row.to_owned(), text.parse().expect("an address")));
    bench.refuses(v4.into_iter().chain(v6));
    bench.reaches_what_is_allowed();
}

//= V-06
#[test]
fn a_private_network_is_reached_once_the_operator_allows_it() {
    let Some(bench) = Bench::start(&["--allowed-peer-ip=10.0.0.0/8"]) else {
        return;
    };
    bench.reaches(IpAddr::from([10, 1, 2, 3]));
    bench.refuses([
        ("V-07".to_owned(), IpAddr::from([10, 77, 0, 1])),
        ("V-11".to_owned(), IpAddr::from([10, 77, 0, 255])),
    ]);
}

//= V-11
#[test]
fn no_datagram_is_broadcast_on_an_own_network() {
    // A wire that counts what goes in: without IPv6 that is the relay's packets and nothing else. Its far end comes up first: the
    // other way round the kernel would let packets in only when it has noticed the carrier, some time later.
    let script = "sysctl ipv6/conf/all/disable_ipv6 1
         sysctl ipv6/conf/default/disable_ipv6 1
         link set lo up
         link add tb0 type veth peer name tb1
         address add 20.0.0.1/24 dev tb0
         link set tb1 up
         link set tb0 up
         route add default via 20.0.0.254
         neigh add 20.0.0.9 lladdr 02:00:00:00:00:09 dev tb0";
    let Some(_namespace) = Namespace::enter(script) else {
        return;
    };
    let server = Server::start(World::server(), &["--relay-ip=20.0.0.1"]);
    let mut client = Client::new(IpAddr::from([20, 0, 0, 1]), &server);
    client.allocate();
    let before = frames_sent("tb0");
    for host in [[20, 0, 0, 255], [20, 0, 0, 0], [255, 255, 255, 255]] {
        let peer = SocketAddr::new(host.into(), 9);
        client.create_permission(&[peer]).expect(403);
        client.channel_bind(channel(0), peer).expect(403);
        client.send_indication(peer, b"to everyone");
        client.send_channel_data(channel(0), b"to everyone");
    }
    client.settle();
    assert_eq!(frames_sent("tb0"), before, "the wire stays silent");
    // The counter does count: this peer is somebody else on that network.
    let neighbour = SocketAddr::new(IpAddr::from([20, 0, 0, 9]), 9);
    client.create_permission(&[neighbour]).expect(200);
    client.send_indication(neighbour, b"to one");
    client.settle();
    assert_eq!(frames_sent("tb0"), before + 1);
    assert_eq!(server.stop().dropped_as("peer_forbidden"), 3);
}

/// Returns how many frames left by an interface. There are no ARP requests among them: broadcasts need none, and the neighbour's address is set by hand.
fn frames_sent(interface: &str) -> u64 {
    let table =
        std::fs::read_to_string("/proc/thread-self/net/dev").expect("this namespace's interfaces");
    let line = table
        .lines()
        .find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let mut fields = line.expect("the interface").split_whitespace();
    fields
        .nth(9)
        .and_then(|packets| packets.parse().ok())
        .expect("transmitted packets")
}

//= V-01
//= V-02
//= V-03
#[test]
fn refuses_loopback_peers_on_loopback_by_default() {
    // The same in the host's own namespace, so that it is also proved where there is no root.
    let site = Site::new();
    let server = Server::start(site.server(), &[&format!("--relay-ip={}", site.ip(1))]);
    let canaries = [
        Canary::everywhere(0),
        Canary::at(SocketAddr::new(site.ip(7), 0)),
    ];
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let hidden = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
    let peers = [
        (site.ip(7), 403),
        (Ipv4Addr::LOCALHOST.into(), 403),
        (Ipv4Addr::new(127, 255, 255, 254).into(), 403),
        (Ipv4Addr::UNSPECIFIED.into(), 403),
        (hidden.into(), 443), // of a family that the allocation has not
        (Ipv6Addr::LOCALHOST.into(), 443),
        (Ipv6Addr::UNSPECIFIED.into(), 443),
    ];
    for (ip, code) in peers {
        for canary in &canaries {
            let peer = SocketAddr::new(ip, canary.port());
            probe(&mut client, peer, "loopback", &[code]);
        }
    }
    client.settle();
    canaries.iter().for_each(Canary::assert_silent);
}

//= V-01
#[test]
fn the_switch_for_loopback_peers_opens_them_and_is_announced() {
    let site = Site::new();
    let relay_ip = format!("--relay-ip={}", site.ip(1));
    let server = Server::start(site.server(), &[&relay_ip, "--allow-loopback-peers"]);
    assert!(
        server.greeting().contains("loopback"),
        "printed: {}",
        server.greeting()
    );
    let canary = Canary::at(SocketAddr::new(site.ip(7), 0));
    let mut client = Client::new(site.ip(2), &server);
    client.allocate();
    let peer = SocketAddr::new(site.ip(7), canary.port());
    client.create_permission(&[peer]).expect(200);
    client.send_indication(peer, b"wanted");
    client.settle();
    assert_eq!(canary.hits(), ["wanted"]);
    // What was opened is loopback, not "this host" (V-02).
    let unspecified = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), canary.port());
    client.create_permission(&[unspecified]).expect(403);
}

/// A relay in a [`World`], a canary, and clients with every kind of allocation.
struct Bench {
    server: Server,
    canary: Canary,
    /// The next client's address ends in this: a port that is free again may still be that of an allocation.
    next_client: Cell<u8>,
    /// Left last.
    _world: World,
}

impl Bench {
    fn start(options: &[&str]) -> Option<Self> {
        let world = World::enter()?;
        let options: Vec<&str> = World::RELAYS.iter().chain(options).copied().collect();
        Some(Self {
            server: Server::start(World::server(), &options),
            canary: Canary::everywhere(World::SERVICE_PORT),
            next_client: Cell::new(10),
            _world: world,
        })
    }

    /// Fails unless every peer is refused on every path and hears nothing.
    fn refuses(&self, peers: impl IntoIterator<Item = (String, IpAddr)>) {
        let mut holders = self.holders();
        let mut probes = 0;
        for (what, ip) in peers {
            let peer = SocketAddr::new(ip, self.canary.port());
            for holder in &mut holders {
                let family = AddressFamily::of(ip);
                let codes: &[u16] = if holder.families.contains(&family) {
                    &[403]
                } else {
                    &[403, 443]
                };
                probe(
                    &mut holder.client,
                    peer,
                    &format!("{what}: {ip}, {}", holder.name),
                    codes,
                );
                probes += 4;
            }
        }
        for holder in &mut holders {
            holder.client.settle();
        }
        println!("{probes} probes refused");
        self.canary.assert_silent();
    }

    /// Fails unless the canary hears what is allowed, so that its silence means something.
    fn reaches_what_is_allowed(&self) {
        self.reaches(ALLOWED_V4.into());
        self.reaches(ALLOWED_V6.into());
    }

    /// Fails unless `ip` is reached by each path of every allocation that has its family.
    fn reaches(&self, ip: IpAddr) {
        let peer = SocketAddr::new(ip, self.canary.port());
        let family = AddressFamily::of(ip);
        for mut holder in self
            .holders()
            .into_iter()
            .filter(|holder| holder.families.contains(&family))
        {
            let client = &mut holder.client;
            client.create_permission(&[peer]).expect(200);
            client.send_indication(peer, b"by indication");
            client.channel_bind(channel(1), peer).expect(200);
            client.send_channel_data(channel(1), b"by channel");
            client.settle();
            let mut hits = self.canary.hits();
            hits.sort();
            assert_eq!(
                hits,
                ["by channel", "by indication"],
                "{ip} from {}",
                holder.name
            );
        }
    }

    fn holders(&self) -> Vec<Holder> {
        let client = || {
            let host = self.next_client.get();
            self.next_client.set(host + 1);
            Client::new(World::client(host), &self.server)
        };
        let holder = |client, name, families| Holder {
            client,
            name,
            families,
        };
        let (v4, v6) = (AddressFamily::V4, AddressFamily::V6);

        let mut only_v4 = client();
        only_v4.allocate();
        let mut only_v6 = client();
        only_v6
            .allocate_with(|writer| {
                writer.requested_address_family(v6);
            })
            .expect(200);
        let mut dual = client();
        let answer = dual
            .allocate_with(|writer| {
                writer.additional_address_family(v6);
            })
            .expect(200);
        assert!(
            relayed(&answer, v4).is_some() && relayed(&answer, v6).is_some(),
            "both families"
        );
        let mut first_of_pair = client();
        let answer = first_of_pair
            .allocate_with(|writer| {
                writer.even_port(true);
            })
            .expect(200);
        let token = answer
            .message()
            .reservation_token()
            .expect("well formed")
            .expect("a token");
        let even = relayed(&answer, v4).expect("IPv4");
        let mut second_of_pair = client();
        let answer = second_of_pair
            .allocate_with(|writer| {
                writer.bytes(AttributeType::RESERVATION_TOKEN, &token);
            })
            .expect(200);
        let odd = relayed(&answer, v4).expect("IPv4");
        assert_eq!(
            odd.port(),
            even.port() + 1,
            "the token stands for the next port"
        );

        vec![
            holder(only_v4, "IPv4 allocation", vec![v4]),
            holder(only_v6, "IPv6 allocation", vec![v6]),
            holder(dual, "dual allocation", vec![v4, v6]),
            holder(second_of_pair, "allocation by reservation token", vec![v4]),
        ]
    }
}

/// A client with an allocation.
struct Holder {
    client: Client,
    name: &'static str,
    families: Vec<AddressFamily>,
}

/// Tries to reach `peer` by every path. The requests are answered with one of `codes`.
#[track_caller]
fn probe(client: &mut Client, peer: SocketAddr, what: &str, codes: &[u16]) {
    let code = client.create_permission(&[peer]).code();
    assert!(
        codes.contains(&code),
        "CreatePermission answered {code} for {what}"
    );
    let code = client.channel_bind(channel(0), peer).code();
    assert!(
        codes.contains(&code),
        "ChannelBind answered {code} for {what}"
    );
    client.send_indication(peer, format!("Send indication, {what}").as_bytes());
    client.send_channel_data(channel(0), format!("ChannelData, {what}").as_bytes());
}
