//! Metrics: who gets them, that they tell the truth beside the final accounts, and what a scraper can do to the relay.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use turnbuckle_wire::{Class, Method};

use crate::harness::{
    Authority, Client, Key, Server, Site, Tls, channel, peer_receives, peer_socket, plain,
};
use crate::not_run::not_run;

const TIMEOUT: Duration = Duration::from_secs(30);

/// What coturn serves after the calls of [`of_the_same_calls_coturns_families_say_what_coturn_says`]: its families in their order, with their texts, types and
/// labels. Behind a value, `~` says that coturn's is another one: it counts requests and answers as data of the client, and the packets of UDP in another place.
/// `*` stands for what each server has its own number of, and here is another one each time: sources of refused requests, and how many datagrams one
/// system call moves.
const COTURN: &str = include_str!("coturn.prom");

/// Returns what of a scrape is coturn's, and comes first.
fn of_coturn(metrics: &str) -> &str {
    let end = metrics.find("# HELP turnbuckle_");
    &metrics[..end.expect("our own families")]
}

/// Returns what is declared in a scrape or in a part of it, without values.
fn declared(metrics: &str) -> Vec<&str> {
    let lines = metrics.lines();
    lines.filter(|line| line.starts_with('#')).collect()
}

/// A server that serves metrics beside clients.
pub(crate) struct Watched {
    pub(crate) server: Server,
    pub(crate) metrics: SocketAddr,
}

impl Watched {
    pub(crate) fn start(site: Site, options: &[&str]) -> Self {
        Self::start_in(site, options, &[])
    }

    /// Starts a relay as [`Self::start`] does, with variables of the environment.
    pub(crate) fn start_in(site: Site, options: &[&str], environment: &[(&str, &str)]) -> Self {
        let ip = site.ip(1);
        let metrics = SocketAddr::new(ip, 9641);
        let address = format!("--prometheus-address={ip}");
        let own = ["--prometheus", &address];
        let server = Server::start_in(site.server(), &[&own, options].concat(), environment);
        Self { server, metrics }
    }

    /// Sends a request as it stands, and returns the answer's head and body; both are empty if there is none.
    pub(crate) fn raw(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.metrics).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The server may close before it has read everything.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (head.to_owned(), body.to_owned())
    }

    pub(crate) fn get(&self, path: &str, more: &str) -> (String, String) {
        let host = self.metrics;
        self.raw(&format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n"
        ))
    }

    /// Reads the metrics.
    pub(crate) fn scrape(&self) -> String {
        let (head, body) = self.get("/metrics", "");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        body
    }

    /// Scrapes until a sample has this value.
    fn until(&self, sample: &str, value: u64) {
        let begin = Instant::now();
        while values(&self.scrape()).get(sample) != Some(&value) {
            assert!(begin.elapsed() < TIMEOUT, "{sample}: {}", self.scrape());
        }
    }
}

/// Returns the samples of a scrape with whole numbers.
fn values(metrics: &str) -> BTreeMap<String, u64> {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let pairs = samples.filter_map(|line| line.rsplit_once(' '));
    pairs
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

/// Gives a text to a program, and returns whether it took it, and what it said.
fn filter(program: &str, arguments: &[&str], text: &str) -> Option<(bool, String)> {
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.ok()?;
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some((
        output.status.success(),
        String::from_utf8_lossy(&said).into_owned(),
    ))
}

#[test]
fn coturns_metrics_come_first_in_its_order_and_its_form_and_a_series_with_its_first_use() {
    let site = Site::new();
    let watched = Watched::start(site, &["--prometheus-username-labels"]);
    let (head, body) = watched.get("/metrics", "");
    let head = head.to_lowercase();
    assert!(
        head.contains("content-type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(head.contains("connection: close"), "{head}");
    assert_eq!(declared(of_coturn(&body)), declared(COTURN));
    let own = &declared(&body)[declared(COTURN).len()..];
    let is_own = |line: &&str| line.split(' ').nth(2).unwrap().starts_with("turnbuckle_");
    assert!(own.iter().all(is_own), "{own:?}");
    assert!(body.starts_with(
        "# HELP stun_binding_request Incoming STUN Binding requests\n\
         # TYPE stun_binding_request counter\n\
         stun_binding_request 0\n\n\
         # HELP stun_binding_response "
    ));
    assert!(!body.contains("turn_total_allocations{") && !body.contains("turn_traffic_rcvp{"));
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    watched.until("turn_total_allocations{type=\"UDP\"}", 1);
    client.refresh(0).expect(200);
    watched.until("turn_total_allocations{type=\"UDP\"}", 0);
    let body = watched.scrape();
    let series = "\nturn_traffic_rcvp{realm=\"";
    assert!(
        body.contains(series) && body.contains("\",user=\""),
        "{body}"
    );
}

#[test]
fn of_the_same_calls_coturns_families_say_what_coturn_says() {
    let site = Site::new();
    let watched = Watched::start(site, &["--allow-loopback-peers"]);
    let mut client = Client::new(site.ip(2), &watched.server);
    client
        .exchange(&plain(Class::Request, Method::BINDING, |_| {}))
        .expect(200);
    let relayed = client.allocate();
    let peer = peer_socket(site.ip(3));
    let address = peer.local_addr().unwrap();
    client.channel_bind(channel(0), address).expect(200);
    for _ in 0..3 {
        client.send_channel_data(channel(0), &[7; 100]);
        peer_receives(&peer);
    }
    for _ in 0..2 {
        peer.send_to(&[8; 50], relayed).unwrap();
        client.receive();
    }
    client.refresh(0).expect(200);
    watched.until("turn_total_traffic_rcvp", 3);
    let scraped = watched.scrape();
    let found: Vec<_> = of_coturn(&scraped).split('\n').collect();
    let expected: Vec<_> = COTURN.split('\n').collect();
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.into_iter().zip(expected) {
        match expected.strip_suffix('*') {
            Some(name) => {
                let value = found.strip_prefix(name);
                let value: Option<u64> = value.and_then(|value| value.parse().ok());
                assert!(value.is_some(), "{found}, not {expected}");
            }
            None => assert_eq!(found, expected.trim_end_matches(" ~")),
        }
    }
}

#[test]
fn what_a_session_has_relayed_is_in_the_metrics_to_the_byte_and_scrapes_lose_nothing() {
    let site = Site::new();
    let watched = Watched::start(site, &["--allow-loopback-peers"]);
    let mut client = Client::new(site.ip(2), &watched.server);
    let relayed = client.allocate();
    let peer = peer_socket(site.ip(3));
    let address = peer.local_addr().unwrap();
    client.channel_bind(channel(0), address).expect(200);
    for round in 0..50_usize {
        client.send_channel_data(channel(0), &vec![7; 100 + round]);
        peer_receives(&peer);
        peer.send_to(&vec![8; 10 + round], relayed).unwrap();
        client.receive();
        let scraped = values(&watched.scrape());
        assert!(
            scraped["turnbuckle_datagrams_in_flight"] <= 2,
            "{scraped:?}"
        );
    }
    client.refresh(0).expect(200);
    watched.until("turn_total_traffic_rcvp", 50);
    let scraped = values(&watched.scrape());
    let sum: u64 = (0..50).sum();
    for (name, value) in [
        ("turn_total_traffic_rcvb", 50 * 104 + sum),
        ("turn_total_traffic_sentp", 50),
        ("turn_total_traffic_sentb", 50 * 14 + sum),
        ("turn_total_traffic_peer_rcvp", 50),
        ("turn_total_traffic_peer_rcvb", 50 * 10 + sum),
        ("turn_total_traffic_peer_sentp", 50),
        ("turn_total_traffic_peer_sentb", 50 * 100 + sum),
        ("turnbuckle_datagrams_in_flight", 0),
        ("turnbuckle_events_lost_total{consumer=\"metrics\"}", 0),
        (
            "turnbuckle_answers_total{method=\"allocate\",code=\"200\"}",
            1,
        ),
        (
            "turnbuckle_answers_total{method=\"allocate\",code=\"401\"}",
            1,
        ),
        ("turn_unauthenticated_401_responses", 1),
        ("turnbuckle_session_lifetime_seconds_count", 1),
        (
            "turnbuckle_session_lifetime_seconds_bucket{le=\"86400\"}",
            1,
        ),
    ] {
        assert_eq!(scraped[name], value, "{name}");
    }
    let accounting = watched.server.stop();
    let came = scraped["turnbuckle_client_in_total"] + scraped["turnbuckle_peer_in_total"];
    assert_eq!(accounting.received, came);
}

/// A label of the shard multiplies what a scrape costs by the number of shards.
#[test]
fn eight_shards_are_told_of_in_64_kib_and_few_families_tell_them_apart() {
    let site = Site::new();
    let watched = Watched::start(site, &["--relay-threads=8"]);
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    let body = watched.scrape();
    assert!(body.len() <= 64 * 1024, "{} bytes", body.len());
    assert!(body.contains("{shard=\"7\"}"), "{body}");
    let mut families = std::collections::BTreeSet::new();
    let mut family = "";
    for line in body.lines() {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            family = declared;
        } else if line.contains("shard=\"") {
            families.insert(family);
        }
    }
    assert!((1..=12).contains(&families.len()), "{families:?}");
}

#[test]
fn the_exposition_is_one_that_prometheus_itself_approves_of() {
    let site = Site::new();
    let watched = Watched::start(site, &[]);
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    let body = watched.scrape();
    let Some((_, said)) = filter("promtool", &["check", "metrics"], &body) else {
        return not_run("promtool is not there; Debian has it in prometheus");
    };
    // It finds names of coturn's that it would not have chosen, and nothing else.
    for line in said.lines() {
        let is_of_coturn = line.starts_with("stun_") || line.starts_with("turn_");
        assert!(is_of_coturn, "{line}");
    }
    let (head, open) = watched.get("/metrics", "Accept: application/openmetrics-text\r\n");
    assert!(
        head.contains("application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(open.ends_with("\n# EOF\n") && !open.contains("\n\n"));
    assert!(open.contains("# TYPE stun_binding_request unknown\n"));
    assert!(open.contains("# TYPE turnbuckle_drops counter\nturnbuckle_drops_total{"));
}

#[test]
fn only_get_and_only_these_paths_and_names_are_answered() {
    let site = Site::new();
    let watched = Watched::start(site, &["--prometheus-host=turn.example.org"]);
    for (path, status, body) in [
        ("/", "200", "ok"),
        ("/livez", "200", "ok"),
        ("/readyz", "200", "ok"),
        ("/metrics/", "404", "not found"),
        ("/../metrics", "404", "not found"),
        ("/api", "404", "not found"),
    ] {
        let (head, found) = watched.get(path, "");
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{path}: {head}"
        );
        assert_eq!(found, body, "{path}");
    }
    let ip = site.ip(1);
    for method in ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let (head, _) = watched.raw(&format!("{method} /metrics HTTP/1.1\r\nHost: {ip}\r\n\r\n"));
        assert!(head.starts_with("HTTP/1.1 405 "), "{method}: {head}");
        assert!(!head.to_lowercase().contains("access-control"), "{head}");
    }
    // A page of another site whose name was made to mean this address (DNS rebinding).
    for (host, status) in [
        ("evil.example:9641", "421"),
        ("", "421"),
        ("localhost", "200"),
        ("turn.example.org:9641", "200"),
    ] {
        let (head, _) = watched.raw(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status} ")),
            "{host}: {head}"
        );
    }
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    watched.server.drain();
    let begin = Instant::now();
    while !watched.get("/readyz", "").1.contains("draining") {
        assert!(begin.elapsed() < TIMEOUT, "it says that it is ready");
    }
    assert!(watched.get("/livez", "").0.starts_with("HTTP/1.1 200 "));
    client.refresh(0).expect(200);
    watched.server.assert_ends();
}

/// Asks for the health by TLS, and returns the answer; `None` if the server could not prove itself or speaks something else.
fn get_by_tls(tls: &Tls, metrics: SocketAddr) -> Option<String> {
    let mut stream = tls.connect(metrics).ok()?;
    let request = format!("GET /livez HTTP/1.1\r\nHost: {metrics}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    // The server ends the connection after its answer.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).ok()
}

#[test]
fn metrics_over_tls_come_with_the_certificate_of_the_server_and_nothing_comes_in_the_clear() {
    let site = Site::new();
    let authority = Authority::new();
    let [cert, pkey] = authority.options(Key::P256);
    let watched = Watched::start(site, &["--prometheus-tls", &cert, &pkey]);
    let metrics = watched.metrics;
    let answer = get_by_tls(&authority.client(), metrics).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (head, body) = watched.get("/metrics", "");
    assert_eq!((head.contains("HTTP"), body.as_str()), (false, ""));
    let stranger = Authority::new();
    assert_eq!(get_by_tls(&stranger.client(), metrics), None);
}

#[test]
fn metrics_have_a_certificate_of_their_own_if_given_and_a_renewed_one_counts_at_once() {
    let site = Site::new();
    let authority = Authority::new();
    let [cert, pkey] = authority.options(Key::Rsa).map(|option| {
        option
            .replace("--cert=", "--prometheus-cert=")
            .replace("--pkey=", "--prometheus-key=")
    });
    let watched = Watched::start(site, &["--prometheus-tls", &cert, &pkey]);
    let serial = || {
        let stream = authority.client().connect(watched.metrics).unwrap();
        stream.conn.peer_certificates().unwrap()[0].to_vec()
    };
    let before = serial();
    assert_eq!(before, serial());
    // What cannot be read changes nothing.
    authority.write("chain.pem", "half a file");
    assert_eq!(before, serial());
    authority.options(Key::P384);
    assert_ne!(before, serial());
}

#[test]
fn a_connection_that_never_shakes_hands_holds_no_place_for_ever() {
    let site = Site::new();
    let authority = Authority::new();
    let [cert, pkey] = authority.options(Key::P256);
    let watched = Watched::start(site, &["--prometheus-tls", &cert, &pkey]);
    let silent: Vec<_> = (0..4)
        .map(|_| TcpStream::connect(watched.metrics).unwrap())
        .collect();
    let begin = Instant::now();
    while get_by_tls(&authority.client(), watched.metrics).is_none_or(|answer| answer.is_empty()) {
        assert!(begin.elapsed() < TIMEOUT, "the places are never free again");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(silent);
}

#[test]
fn scrapers_that_never_finish_hold_few_places_and_no_memory_and_not_those_of_others() {
    let site = Site::new();
    let watched = Watched::start(site, &[]);
    watched.scrape();
    let before = watched.server.user_memory();
    let mut stalled = Vec::new();
    for _ in 0..1_000 {
        let mut stream = TcpStream::connect(watched.metrics).unwrap();
        // Half a request, which may be refused already.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: local");
        stalled.push(stream);
    }
    // Those of one address beyond the fourth are closed at once.
    let mut closed = 0;
    for stream in &mut stalled {
        stream
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        let end = stream.read(&mut [0; 64]);
        let is_waiting =
            matches!(&end, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
        closed += usize::from(!is_waiting);
    }
    assert!(closed >= 996, "{closed} of 1,000 were closed");
    // Somebody else is served meanwhile, and the relay too.
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    let after = watched.server.user_memory();
    assert!(after < before + 2 * 1024 * 1024, "{before} to {after}");
    // The places are free again when the time for a request's head is over.
    let begin = Instant::now();
    loop {
        let (head, _) = watched.get("/livez", "");
        if head.starts_with("HTTP/1.1 200 ") {
            break;
        }
        assert!(begin.elapsed() < TIMEOUT, "the places are never free again");
        std::thread::sleep(Duration::from_millis(100));
    }
}
