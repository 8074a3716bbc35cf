//! The pages for operators, carried out as written: every configuration and command line on them is checked and served, every application's snippet
//! gives a credential in the way of that application, and a datagram passes the relay each way with it.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::sign::Signer;
use serde_json::Value;
use turnbuckle_client::blocking::{Answer, Session, Target, plain};
use turnbuckle_client::{Credentials, Transport, UDP};
use turnbuckle_wire::{Class, Message, Method};

#[path = "../threats/harness/namespace.rs"]
#[expect(
    dead_code,
    clippy::unwrap_in_result,
    reason = "it is of the tests of threats, which use more of it"
)]
mod namespace;
#[path = "../not_run/mod.rs"]
mod not_run;
mod page;
mod relay;

use namespace::{Namespace, World};
use not_run::not_run;
use page::Page;
use relay::Relay;

/// How long anything may take that has to come about.
const PATIENCE: Duration = Duration::from_secs(60);
/// The addresses of the pages.
const PUBLIC: [&str; 3] = ["203.0.113.10", "203.0.113.11", "203.0.113.12"];
const PRIVATE: &str = "10.0.1.5";
const BRIDGED: &str = "172.17.0.2";
/// A peer somewhere in the Internet.
const PEER: &str = "21.0.0.9";

/// What a client is told: a URL, and who it is there.
struct IceServer {
    url: String,
    user: Credentials,
}

/// Enters a network in which all addresses of the pages lead to this host.
fn enter() -> Option<World> {
    let world = World::enter()?;
    for address in PUBLIC {
        relay::run(&format!("ip address add {address}/24 dev tb0"));
    }
    Some(world)
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Returns the time in so many seconds.
fn after(seconds: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("after 1970").as_secs() + seconds
}

/// Returns base64(HMAC-SHA1(secret, name)), which all of these applications send as the password. Not made by our client's code.
fn password(secret: &str, name: &str) -> String {
    let key = PKey::hmac(secret.as_bytes()).expect("a key");
    let mut signer = Signer::new(MessageDigest::sha1(), &key).expect("SHA-1");
    let mac = signer.sign_oneshot_to_vec(name.as_bytes()).expect("a MAC");
    openssl::base64::encode_block(&mac)
}

fn user(secret: &str, name: &str) -> Credentials {
    Credentials::user(name, &password(secret, name))
}

/// Relays a datagram each way for whom `server` is given to, through the relay at `relay`, from a peer at `peer`.
#[track_caller]
fn relays(relay: &str, server: &IceServer, peer: IpAddr) {
    let (transport, port) = way(&server.url);
    let at = SocketAddr::new(address(relay), port);
    let target = Target::new(at, port, server.user.clone()).expect("memory for OpenSSL");
    let mut session = Session::over(&Arc::new(target), transport)
        .unwrap_or_else(|error| panic!("{}: {error}", server.url));
    let allocated = session.allocate(UDP, |_| {});
    let allocated = allocated.unwrap_or_else(|code| panic!("{}: Allocate: {code}", server.url));
    let relayed = allocated
        .message()
        .expect("a message")
        .xor_relayed_address();
    let relayed = relayed.expect("well formed").expect("an address");
    let peer = UdpSocket::bind((peer, 0)).expect("a peer");
    peer.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let peer_at = peer.local_addr().expect("its address");
    let permitted = session.request(Method::CREATE_PERMISSION, |writer| {
        writer.xor_peer_address(peer_at);
    });
    assert_eq!(permitted.as_ref().map(Answer::code), Some(200));
    session.send(&plain(Class::Indication, Method::SEND, |writer| {
        writer.xor_peer_address(peer_at).data(b"to the peer");
    }));
    let mut buffer = [0; 64];
    let (len, from) = peer.recv_from(&mut buffer).expect("the datagram comes");
    assert_eq!((&buffer[..len], from), (&b"to the peer"[..], relayed));
    peer.send_to(b"to the client", relayed).expect("sent");
    let data = session.receive(PATIENCE).expect("the datagram comes");
    let data = Message::parse(&data).expect("a Data indication");
    assert_eq!(data.data(), Some(&b"to the client"[..]));
    session.refresh(0);
}

/// Returns the transport and the port that a URL names (RFC 7065).
fn way(url: &str) -> (Transport, u16) {
    let (scheme, rest) = url.split_once(':').expect("a scheme");
    let (place, query) = rest.split_once('?').unwrap_or((rest, "transport=udp"));
    let (transport, port) = match (scheme, query) {
        ("turn", "transport=udp") => (Transport::Udp, 3478),
        ("turn", "transport=tcp") => (Transport::Tcp, 3478),
        ("turns", "transport=tcp") => (Transport::Tls, 5349),
        _ => panic!("{url}"),
    };
    let written = place.split_once(':').map(|(_, port)| port);
    (
        transport,
        written.map_or(port, |port| port.parse().expect("a port")),
    )
}

/// Serves each configuration of a page in turn, and has `servers` use it from a peer in the Internet, and from one beside the relay if that is opened.
fn each_configuration(page: &str, servers: impl Fn(&Page) -> Vec<IceServer>) {
    let Some(_world) = enter() else {
        return;
    };
    let page = Page::read(page);
    let servers = servers(&page);
    assert!(!servers.is_empty());
    for configuration in page.blocks("conf") {
        let relay = Relay::configured(configuration);
        for server in &servers {
            relays(PUBLIC[0], server, address(PEER));
            if configuration.contains("allowed-peer-ip") {
                relays(PUBLIC[0], server, address(PUBLIC[0]));
            }
        }
        relay.stop();
    }
}

#[test]
fn synapse() {
    each_configuration("synapse", |page| {
        let [yaml] = page.blocks("yaml")[..] else {
            panic!("one homeserver.yaml")
        };
        assert_eq!(page::value(yaml, "turn_user_lifetime: "), "1h");
        // synapse/rest/client/voip.py: the time and the whole Matrix ID
        let name = format!("{}:@alice:example.org", after(3600));
        let user = user(page::value(yaml, "turn_shared_secret: "), &name);
        let urls = page::values(yaml, "- ").into_iter();
        let servers = urls.map(|url| IceServer {
            url: url.to_owned(),
            user: user.clone(),
        });
        servers.collect()
    });
}

#[test]
fn jitsi_meet() {
    each_configuration("jitsi", |page| {
        let [lua] = page.blocks("lua")[..] else {
            panic!("one configuration of Prosody")
        };
        let secret = page::value(lua, "external_service_secret = ");
        let services = lua.lines().filter(|line| line.contains("secret = true"));
        let servers = services.map(|line| {
            let field = |name: &str| page::value(line, &format!("{name} = "));
            // mod_external_services.lua: without a user name the time alone
            let name = after(field("ttl").parse().expect("seconds")).to_string();
            let place = format!("{}:{}", field("host"), field("port"));
            IceServer {
                url: format!("{}:{place}?transport={}", field("type"), field("transport")),
                user: user(secret, &name),
            }
        });
        servers.collect()
    });
}

#[test]
fn nextcloud_talk() {
    each_configuration("nextcloud-talk", |page| {
        let [commands] = page.blocks("sh")[..] else {
            panic!("one block of commands")
        };
        let line = commands.lines().find(|line| line.contains("talk:turn:add"));
        let words: Vec<&str> = line.expect("a relay").split_whitespace().collect();
        let [.., "talk:turn:add", schemes, place, transports, secret] = words[..] else {
            panic!("{words:?}")
        };
        let secret = secret.strip_prefix("--secret=").expect("a secret");
        // lib/Config.php: the time and 16 letters
        let user = user(secret, &format!("{}:Xq3vK8pLm2RtYw9z", after(86_400)));
        let urls = schemes.split(',').flat_map(|scheme| {
            let transports = transports.split(',');
            transports.map(move |transport| format!("{scheme}:{place}?transport={transport}"))
        });
        // Browsers have no DTLS to a relay.
        let urls = urls.filter(|url| !(url.starts_with("turns:") && url.ends_with("udp")));
        urls.map(|url| IceServer {
            url,
            user: user.clone(),
        })
        .collect()
    });
}

#[test]
fn livekit() {
    each_configuration("livekit", |page| {
        let [yaml] = page.blocks("yaml")[..] else {
            panic!("one config.yaml")
        };
        let servers = yaml.split("- host: ").skip(1).map(|server| {
            let host = server.lines().next().expect("a host");
            let field = |name: &str| page::value(server, &format!("{name}: "));
            // pkg/service/roommanager.go: the time and the participant's ID
            let name = format!(
                "{}:PA_9d3kQzWvXyTb",
                after(field("ttl").parse().expect("seconds"))
            );
            let (scheme, transport) = match field("protocol") {
                "tls" => ("turns", "tcp"),
                transport => ("turn", transport),
            };
            IceServer {
                url: format!("{scheme}:{host}:{}?transport={transport}", field("port")),
                user: user(field("secret"), &name),
            }
        });
        servers.collect()
    });
}

/// The examples run as programs, and what they print is what a client is given.
#[test]
fn examples_of_credentials() {
    let secret = "north-by-northwest";
    each_configuration("application-credentials", |page| {
        let folder = tempfile::tempdir().expect("a folder");
        let languages = [
            ("js", "example.js", &["node"][..]),
            ("python", "example.py", &["python3"]),
            ("go", "example.go", &["go", "run"]),
        ];
        let servers = languages.into_iter().flat_map(|(language, file, program)| {
            let [example] = page.blocks(language)[..] else {
                panic!("one example in {language}")
            };
            let path = folder.path().join(file);
            fs::write(&path, example).expect("written");
            let mut command = Command::new(program[0]);
            command
                .args(&program[1..])
                .arg(&path)
                .env("TURN_SECRET", secret);
            let Ok(output) = command.output() else {
                not_run(&format!("{} is not there", program[0]));
                return Vec::new();
            };
            assert!(output.status.success(), "{language}: {output:?}");
            let server: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let text = |value: &Value| value.as_str().expect("a text").to_owned();
            let user = Credentials::user(&text(&server["username"]), &text(&server["credential"]));
            let urls = server["urls"].as_array().expect("URLs").iter();
            let servers = urls.map(|url| IceServer {
                url: text(url),
                user: user.clone(),
            });
            servers.collect()
        });
        servers.collect()
    });
}

#[test]
fn several_nodes() {
    let Some(_world) = enter() else {
        return;
    };
    let page = Page::read("several-nodes");
    let relays_of: Vec<Relay> = page
        .blocks("conf")
        .into_iter()
        .map(Relay::configured)
        .collect();
    assert_eq!(relays_of.len(), PUBLIC.len());
    let url = "turn:turn.example.org?transport=udp".to_owned();
    let user = user("north-by-northwest", &format!("{}:alice", after(3600)));
    let server = IceServer { url, user };
    relays(PUBLIC[0], &server, address(PEER));
    relays(PUBLIC[1], &server, address(PEER));
    // The third sends its clients to both in turn.
    let mut named: Vec<IpAddr> = (0..2)
        .map(|_| {
            let at = SocketAddr::new(address(PUBLIC[2]), 3478);
            let target = Target::new(at, 5349, server.user.clone()).expect("memory for OpenSSL");
            let mut session = Session::udp(&Arc::new(target)).expect("a socket");
            let answer = session.request(Method::ALLOCATE, |writer| {
                writer.requested_transport(UDP);
            });
            let answer = answer.expect("an answer");
            assert_eq!(answer.code(), 300);
            let message = answer.message().expect("a message");
            let other = message.alternate_server().expect("well formed");
            other.expect("ALTERNATE-SERVER").ip()
        })
        .collect();
    named.sort_unstable();
    assert_eq!(named, [address(PUBLIC[0]), address(PUBLIC[1])]);
    relays_of.into_iter().for_each(Relay::stop);
}

/// A network beyond a translator: clients and peers here, the relay in a namespace of its own whose only way out is translated.
struct Translated {
    outside: Namespace,
}

impl Translated {
    /// Makes it with the relay at `inside`. `rules` are commands of nft in the translator, in which `pre` and `post` are the chains of its table.
    fn enter(inside: &str, rules: &[String]) -> Option<Self> {
        let gateway = inside
            .rsplit_once('.')
            .map_or(inside, |(network, _)| network);
        let outside = Namespace::enter(
            "link set lo up
             netns add HERE-nat
             netns add HERE-in
             link add out type veth peer name translator netns HERE-nat
             address add 21.0.0.2/8 dev out
             address add 21.0.0.9/8 dev out
             link set out up
             -n HERE-nat link set lo up
             -n HERE-nat address add 203.0.113.10/32 dev translator
             -n HERE-nat link set translator up
             -n HERE-nat route add 21.0.0.0/8 dev translator
             route add default via 203.0.113.10 dev out onlink",
        )?;
        let translated = Self { outside };
        let (nat, relay) = (translated.name("nat"), translated.name("in"));
        for line in [
            format!("ip -n {nat} link add in type veth peer name eth0 netns {relay}"),
            format!("ip -n {nat} address add {gateway}.1/24 dev in"),
            format!("ip -n {nat} link set in up"),
            format!("ip -n {relay} link set lo up"),
            format!("ip -n {relay} address add {inside}/24 dev eth0"),
            format!("ip -n {relay} link set eth0 up"),
            format!("ip -n {relay} route add default via {gateway}.1"),
            format!("ip netns exec {nat} sysctl -qw net.ipv4.ip_forward=1"),
            format!("ip netns exec {nat} nft add table ip nat"),
            format!(
                "ip netns exec {nat} nft add chain ip nat pre {{ type nat hook prerouting priority -100 ; }}"
            ),
            format!(
                "ip netns exec {nat} nft add chain ip nat post {{ type nat hook postrouting priority 100 ; }}"
            ),
        ] {
            relay::run(&line);
        }
        for rule in rules {
            relay::run(&format!("ip netns exec {nat} nft add rule ip nat {rule}"));
        }
        Some(translated)
    }

    fn name(&self, part: &str) -> String {
        format!("{}-{part}", self.outside.name())
    }
}

impl Drop for Translated {
    fn drop(&mut self) {
        for part in ["nat", "in"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.name(part)])
                .status();
        }
    }
}

/// Returns what a client is given that the snippets of these pages serve.
fn alice(transport: &str) -> IceServer {
    IceServer {
        url: format!("turn:turn.example.org?transport={transport}"),
        user: user("north-by-northwest", &format!("{}:alice", after(3600))),
    }
}

#[test]
fn a_cloud_host_behind_one_to_one_nat() {
    let rules = [
        format!("pre ip daddr {} dnat to {PRIVATE}", PUBLIC[0]),
        format!(
            "post ip saddr {PRIVATE} oifname translator snat to {}",
            PUBLIC[0]
        ),
    ];
    let Some(network) = Translated::enter(PRIVATE, &rules) else {
        return;
    };
    let page = Page::read("cloud-nat");
    let [configuration] = page.blocks("conf")[..] else {
        panic!("one configuration")
    };
    let relay = Relay::configured_in(&network.name("in"), configuration);
    for transport in ["udp", "tcp"] {
        relays(PUBLIC[0], &alice(transport), address(PEER));
    }
    relay.stop();
}

/// A container's command: the words after the image's name, and the ports that are published.
fn containers() -> Vec<(String, Vec<String>)> {
    let page = Page::read("docker");
    let commands = page.blocks("sh").into_iter().map(|block| {
        let (container, arguments) = block.split_once(" turnbuckle serve ").expect("an image");
        let words: Vec<&str> = container.split_whitespace().collect();
        let published = words.windows(2).filter(|pair| pair[0] == "-p");
        let published = published.map(|pair| pair[1].to_owned()).collect();
        (arguments.trim().to_owned(), published)
    });
    commands.collect()
}

#[test]
fn a_container_on_the_network_of_the_host() {
    let Some(_world) = enter() else {
        return;
    };
    let (arguments, published) = containers().remove(0);
    assert!(published.is_empty());
    let relay = Relay::with_arguments(None, &arguments);
    relays(PUBLIC[0], &alice("udp"), address(PEER));
    relay.stop();
}

#[test]
fn a_container_on_a_bridge_with_few_ports() {
    let (arguments, published) = containers().remove(1);
    assert!(!published.is_empty());
    // What Docker does with `-p HOST:CONTAINER/PROTOCOL`, and with what leaves the bridge.
    let mut rules = vec!["post ip saddr 172.17.0.0/16 oifname translator masquerade".to_owned()];
    for ports in &published {
        let (ports, protocol) = ports.split_once('/').expect("a protocol");
        let (outside, inside) = ports.split_once(':').expect("two ports");
        assert_eq!(outside, inside, "relay ports keep their numbers");
        let to = if inside.contains('-') {
            BRIDGED.to_owned()
        } else {
            format!("{BRIDGED}:{inside}")
        };
        rules.push(format!(
            "pre ip daddr {} {protocol} dport {outside} dnat to {to}",
            PUBLIC[0]
        ));
    }
    let Some(network) = Translated::enter(BRIDGED, &rules) else {
        return;
    };
    let relay = Relay::with_arguments(Some(&network.name("in")), &arguments);
    for transport in ["udp", "tcp"] {
        relays(PUBLIC[0], &alice(transport), address(PEER));
    }
    relay.stop();
}

/// Every page that has a configuration for an application is tried here, and the list of pages leads to each.
#[test]
fn every_page_here_is_linked() {
    let list = Page::read("README");
    for page in [
        "application-credentials",
        "cloud-nat",
        "docker",
        "jitsi",
        "livekit",
        "nextcloud-talk",
        "several-nodes",
        "synapse",
    ] {
        assert!(list.text().contains(&format!("({page}.md)")), "{page}");
        assert!(Path::new(&page::path(page)).exists());
    }
}
