//! coturn's console: nothing without its password, nothing for browsers, and for who has the password what coturn's clients expect.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use turnbuckle_wire::{Class, Method};

use crate::harness::{Client, Server, Site, USER, channel, peer_receives, peer_socket, plain};

const TIMEOUT: Duration = Duration::from_secs(30);

const PASSWORD: &str = "open sesame";

/// What the console says first.
const GREETING: &str = concat!(
    "TURN Server\r\nTurnbuckle-",
    env!("CARGO_PKG_VERSION"),
    "\r\n\r\nType '?' for help\r\nEnter password: \r\n"
);

/// A server with a console.
struct Consoled {
    server: Server,
    console: SocketAddr,
}

impl Consoled {
    fn start(site: Site, options: &[&str]) -> Self {
        let address = format!("--cli-ip={}", site.ip(1));
        let password = format!("--cli-password={PASSWORD}");
        let own = ["--cli", &address, &password, "--cli-port=5767"];
        Self {
            server: Server::start(site.server(), &[&own, options].concat()),
            console: SocketAddr::new(site.ip(1), 5767),
        }
    }

    fn connect(&self) -> Visitor {
        let stream = TcpStream::connect(self.console).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Visitor(stream)
    }

    fn enter(&self) -> Visitor {
        Visitor::enter(self.console, PASSWORD)
    }
}

/// A connection to a console.
pub(crate) struct Visitor(TcpStream);

impl Visitor {
    /// Comes in by a password, with no end of line behind it.
    pub(crate) fn enter(console: SocketAddr, password: &str) -> Self {
        let stream = TcpStream::connect(console).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut visitor = Self(stream);
        assert_eq!(visitor.until(GREETING), GREETING);
        assert_eq!(visitor.says(password), "> ");
        visitor
    }

    /// Reads until the text ends so.
    fn until(&mut self, end: &str) -> String {
        let mut text = Vec::new();
        while !text.ends_with(end.as_bytes()) {
            let mut byte = [0];
            let read = self.0.read(&mut byte);
            let so_far = String::from_utf8_lossy(&text);
            assert!(matches!(read, Ok(1)), "{read:?} after {so_far}");
            text.push(byte[0]);
        }
        String::from_utf8(text).unwrap()
    }

    fn send(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Sends a command without an end of line, and returns all that comes up to the prompt, which is a line of its own.
    pub(crate) fn says(&mut self, command: &str) -> String {
        self.send(command);
        let mut said = self.until("> ");
        while said != "> " && !said.ends_with("\n> ") {
            said += &self.until("> ");
        }
        said
    }

    /// Returns what comes until the server closes.
    fn rest(mut self) -> String {
        let mut text = Vec::new();
        // A server that closes with something unread resets the connection.
        let _ = self.0.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }
}

//= V-16
#[test]
fn without_the_password_the_console_does_nothing_and_five_wrong_ones_lock_it() {
    let site = Site::new();
    let consoled = Consoled::start(site, &[]);
    let mut guesser = consoled.connect();
    guesser.until(GREETING);
    for guess in ["stop\r\n", "open\r\n", "\r\nopen sesame!\r\n", "$5$\r\n"] {
        guesser.send(guess);
        guesser.until("Enter password: \r\n");
    }
    guesser.send("drain\r\n");
    assert_eq!(guesser.rest(), "", "the fifth");
    // The password is of no use now.
    assert_eq!(consoled.connect().rest(), "");
    Client::new(site.ip(2), &consoled.server).allocate();
}

//= V-16
#[test]
fn a_page_in_a_browser_does_not_reach_the_console_although_it_knows_the_password() {
    let site = Site::new();
    let consoled = Consoled::start(site, &[]);
    let body = format!("{PASSWORD}\r\nstop\r\n");
    let length = body.len();
    for request in [
        format!("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"),
        format!("\x16\x03\x01\r\n{body}"),
        "x".repeat(2000),
    ] {
        let mut browser = consoled.connect();
        browser.until(GREETING);
        // The server may close before it has read everything.
        let _ = browser.0.write_all(request.as_bytes());
        assert_eq!(browser.rest(), "", "{request}");
    }
    Client::new(site.ip(2), &consoled.server).allocate();
    consoled.enter();
}

#[test]
fn what_is_switched_at_the_console_is_served_or_not_from_then_on() {
    let site = Site::new();
    let consoled = Consoled::start(site, &[]);
    let mut visitor = consoled.enter();
    let mut client = Client::new(site.ip(2), &consoled.server);
    let binding = || plain(Class::Request, Method::BINDING, |_| {});
    let allocate = || plain(Class::Request, Method::ALLOCATE, |_| {});
    let mut switch = |flag: &str, is_on: &str| {
        let said = visitor.says(&format!("tc {flag}"));
        assert_eq!(said, format!("  {flag}: {is_on}\r\n> "));
    };
    for (flag, served, ignored) in [
        ("stun-only", binding(), allocate()),
        ("no-stun", allocate(), binding()),
    ] {
        switch(flag, "ON");
        client.send_raw(&ignored);
        client.exchange(&served);
        switch(flag, "OFF");
        client.exchange(&ignored);
    }
    switch("secure-stun", "ON");
    let challenge = client.exchange(&binding()).expect(401);
    assert!(!challenge.nonce().is_empty());
    switch("secure-stun", "OFF");
    client.exchange(&binding()).expect(200);
    let accounting = consoled.server.stop();
    assert_eq!(accounting.dropped_as("service_disabled"), 2);
}

#[test]
fn sessions_are_told_apart_by_the_origin_that_their_clients_have_named() {
    let site = Site::new();
    let consoled = Consoled::start(site, &[]);
    let of = |host, origin: &str| {
        let mut client = Client::new(site.ip(host), &consoled.server);
        client.origin = origin.as_bytes().to_vec();
        client.allocate();
        client
    };
    let _clients = [
        of(2, "https://Example.com/x"),
        of(3, "http://other"),
        of(4, ""),
    ];
    let mut visitor = consoled.enter();
    let listed = visitor.says("ps");
    assert!(listed.contains("\r\n      origin: https://example.com:443\r\n"));
    assert_eq!(listed.matches("origin: ").count(), 2, "{listed}");
    visitor.says("so https://example.com:443");
    let listed = visitor.says("ps");
    assert_eq!(listed.matches(" id=").count(), 1, "{listed}");
    assert!(listed.contains("  Total sessions for origin https://example.com:443: 1\r\n"));
    // As in coturn it has to be written as it is listed.
    visitor.says("so https://example.com");
    assert!(visitor.says("pu").ends_with(": 0\r\n\r\n> "));
    visitor.says("uo");
    assert!(visitor.says("pu").contains("  Total sessions: 3\r\n"));
}

//= V-16
#[test]
fn strangers_who_wait_hold_eight_places_and_keep_out_nobody_who_is_in() {
    let site = Site::new();
    let consoled = Consoled::start(site, &[]);
    let mut operator = consoled.enter();
    let strangers: Vec<_> = (0..8)
        .map(|_| {
            let mut stranger = consoled.connect();
            stranger.until(GREETING);
            stranger
        })
        .collect();
    assert_eq!(consoled.connect().rest(), "");
    assert!(operator.says("ps").contains("  Total sessions: 0\r\n"));
    drop(strangers);
    // Their places are free as soon as the server has seen that they are gone.
    while consoled.connect().0.read(&mut [0]).unwrap_or(0) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_client_that_ends_no_line_sees_sessions_ends_them_and_changes_what_coturn_changes() {
    let site = Site::new();
    let options = ["--allow-loopback-peers"];
    let consoled = Consoled::start(site, &options);
    let server = &consoled.server;
    let mut client = Client::new(site.ip(2), server);
    let relayed = client.allocate();
    let mut other = Client::other(site.ip(3), server);
    other.allocate();
    let peer = peer_socket(site.ip(20));
    client
        .channel_bind(channel(0), peer.local_addr().unwrap())
        .expect(200);
    client.send_channel_data(channel(0), &[7; 1000]);
    peer_receives(&peer);
    let mut visitor = consoled.enter();
    let listed = visitor.says(&format!("ps {USER}"));
    let lines: Vec<_> = listed.split("\r\n").collect();
    let (client_address, server_address) = (client.local_address(), site.server());
    assert_eq!(lines[0], "");
    let number = lines[1].strip_prefix("    1) id=").unwrap();
    let (number, name) = number.split_once(", ").unwrap();
    assert_eq!((number.len(), name), (18, &*format!("user <{USER}>:")));
    assert_eq!(lines[2], "      realm: example.org");
    assert!(lines[3].starts_with("      started ") && lines[3].ends_with(" secs ago"));
    assert!(lines[4].starts_with("      expiring in "), "{listed}");
    let expected = [
        "      client protocol UDP, relay protocol UDP".to_owned(),
        format!("      client addr {client_address}, server addr {server_address}"),
        format!("      relay addr {relayed}"),
        "      fingerprints enforced: OFF".to_owned(),
        "      mobile: OFF".to_owned(),
    ];
    assert_eq!(lines[5..10], expected);
    assert!(
        lines[10].starts_with("      usage: rp=1, rb=1004, sp=0, sb=0"),
        "{listed}"
    );
    assert!(lines[11].starts_with("       rate: r="), "{listed}");
    assert_eq!(
        lines[12..14],
        ["      peers:", &*format!("          {}", site.ip(20))]
    );
    assert_eq!(lines[14..], ["", "  Total sessions: 1", "", "> "]);
    assert!(visitor.says("psp ali").contains("  Total sessions: 1\r\n"));
    assert!(
        visitor
            .says("pu")
            .contains(&format!("    user: <{USER}>, 1 sessions\r\n"))
    );
    assert!(visitor.says("pu tcp").contains("  Total sessions: 0\r\n"));
    visitor.says("sr nowhere");
    assert!(
        visitor
            .says("ps")
            .contains("  Total sessions for realm nowhere: 0\r\n")
    );
    visitor.says("ur");
    assert_eq!(
        visitor.says("cc cli-max-output-sessions 1"),
        "  cli-max-output-sessions: 1 (**)\r\n> "
    );
    let cut = visitor.says("ps");
    assert!(
        cut.contains("...\r\n\r\n  Total sessions: 2\r\n") && cut.contains("Warning: too many"),
        "{cut}"
    );
    assert_eq!(visitor.says(&format!("cs {number}")), "> ");
    client.refresh(600).expect(437);
    // What coturn changes while it runs.
    assert_eq!(
        visitor.says("cc user-quota 1"),
        "  user-quota: 1 (**)\r\n> "
    );
    assert!(
        visitor
            .says("pc")
            .contains("\r\n  Default user-quota: 1 (**)\r\n")
    );
    let mut second = Client::new(site.ip(4), server);
    second.allocate();
    let mut third = Client::new(site.ip(5), server);
    third.fetch_challenge();
    third.allocate_with(|_| ()).expect(486);
    let refused = visitor.says("tc no-udp-relay");
    assert!(
        refused.contains("without `no-tcp-relay=false` nothing would be relayed"),
        "{refused}"
    );
    let peer = SocketAddr::new(site.ip(21), 4000);
    second.create_permission(&[peer]).expect(200);
    assert_eq!(
        visitor.says("tc allow-loopback-peers"),
        "  allow-loopback-peers: OFF\r\n> "
    );
    second.create_permission(&[peer]).expect(403);
    assert_eq!(
        visitor.says("tc allow-loopback-peers"),
        "  allow-loopback-peers: ON\r\n> "
    );
    // A ticket is granted from then on.
    third
        .allocate_with(|request| {
            request.mobility_ticket(b"");
        })
        .expect(405);
    assert_eq!(visitor.says("tc mobility"), "  mobility: ON\r\n> ");
    visitor.says("cc user-quota 0");
    third
        .allocate_with(|request| {
            request.mobility_ticket(b"");
        })
        .expect(200);
    // No more than the capacity is promised to allocations that begin from then on.
    let refused = visitor.says("cc bps-capacity 1000");
    assert!(
        refused.contains("shares out what `max-bps` promises"),
        "{refused}"
    );
    visitor.says("cc max-bps 1000");
    assert_eq!(
        visitor.says("cc bps-capacity 1000"),
        "  bps-capacity: 1000 (**)\r\n> "
    );
    Client::new(site.ip(6), server).allocate();
    let mut fifth = Client::new(site.ip(7), server);
    fifth.fetch_challenge();
    fifth.allocate_with(|_| ()).expect(486);
    assert!(
        visitor
            .says("pc")
            .contains("\r\n  Allocated bps-capacity: 1000\r\n")
    );
    visitor.says("cc bps-capacity 0");
    Client::new(site.ip(8), server).allocate();
    assert_eq!(visitor.says("tc no-tcp-relay"), "  no-tcp-relay: OFF\r\n> ");
    assert_eq!(visitor.says("tc no-udp-relay"), "  no-udp-relay: ON\r\n> ");
    let mut by_datagrams = Client::new(site.ip(9), server);
    by_datagrams.fetch_challenge();
    by_datagrams.allocate_with(|_| ()).expect(403);
    assert_eq!(visitor.says("tc no-udp-relay"), "  no-udp-relay: OFF\r\n> ");
    // All that were open have ended, and the drain below is not to be over at once.
    Client::new(site.ip(10), server).allocate();
    // Peers of multicast addresses are never served.
    assert!(
        visitor
            .says("tc no-multicast-peers")
            .contains("  Error: unknown or constant parameter: no-multicast-peers.\r\n")
    );
    assert!(
        visitor
            .says("cc user-quota many")
            .contains("  Error: `many` is no number")
    );
    assert_eq!(visitor.says("aas 203.0.113.9"), "> ");
    assert!(
        visitor
            .says("pc")
            .contains("  Alternate server: 203.0.113.9:3478\r\n")
    );
    assert!(
        visitor
            .says("das 203.0.113.8:3478")
            .contains("has no value")
    );
    assert_eq!(visitor.says("das 203.0.113.9:3478"), "> ");
    assert!(!visitor.says("pc").contains("Alternate server"));
    assert_eq!(visitor.says("lr"), "  log reset done\r\n> ");
    assert_eq!(visitor.says("rm -rf"), "Unknown command\r\n\r\n> ");
    assert!(!visitor.says("pc").contains(PASSWORD));
    visitor.send("quit");
    assert_eq!(visitor.rest(), "Bye !\r\n");
    let mut visitor = consoled.enter();
    visitor.send("drain");
    visitor.until("> ");
    visitor.send("stop");
    assert_eq!(visitor.rest(), "TURN server is shutting down\r\n");
}
