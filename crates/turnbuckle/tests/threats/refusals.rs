//! Refusals as an operator sees them: `docs/operating/why-refused.md` has the lines, and the relay prints them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use regex_lite::Regex;
use serde_json::Value;

use crate::control::Steered;
use crate::harness::{Client, OTHER_USER, Site, USER};
use crate::options::rest_password;

/// Returns a page of the documentation for operators.
fn page(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating");
    fs::read_to_string(folder.join(name)).unwrap()
}

/// Returns the lines of a section of the page, each with the word that says where it is to be seen.
fn documented<'p>(page: &'p str, section: &str) -> Vec<(&'p str, &'p str)> {
    let heading = format!("\n## {section}\n");
    let (_, text) = page.split_once(&heading).unwrap();
    let (_, text) = text.split_once("```\n").unwrap();
    let (block, _) = text.split_once("```").unwrap();
    let lines = block.lines().map(|line| line.split_once(':').unwrap());
    lines.map(|(place, line)| (place, line.trim())).collect()
}

/// A trace of one user.
struct Traced {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Traced {
    fn begin(steered: &Steered, user: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
        command.arg("ctl").arg("--socket").arg(&steered.socket);
        command.args(["trace", user, "--json"]);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut traced = Self { child, lines };
        while traced.next()["begun"] != true {}
        traced
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Returns the first line about an error.
    fn refusal(mut self) -> String {
        loop {
            let traced = self.next();
            if let Some(text) = traced["text"].as_str().filter(|it| it.contains("error ")) {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                return text.to_owned();
            }
        }
    }
}

/// Has a client be refused while its user is traced, and compares what is seen with the page. Returns the line that is always in the log, if there is one.
fn assert_as_documented(
    steered: &Steered,
    section: &str,
    user: &str,
    client: &mut Client,
    act: impl FnOnce(&mut Client),
) -> Option<String> {
    let page = page("why-refused.md");
    let documented = documented(&page, section);
    let trace = Traced::begin(steered, user);
    act(client);
    let address = client.local_address().to_string();
    let as_on_page = |line: &str| line.replace(&address, "198.51.100.7:50000");
    let traced = as_on_page(&trace.refusal());
    let logged = as_on_page(&steered.server.lines_until(": error "));
    let mut warning = None;
    for (place, line) in documented {
        match place {
            "trace" => assert_eq!(traced, line, "{section}"),
            "verbose" | "log" => {
                assert!(logged.lines().any(|it| it == line), "{line}: {logged}");
                if place == "log" && warning.is_none() {
                    warning = Some(line.to_owned());
                }
            }
            _ => panic!("{place}"),
        }
    }
    warning
}

#[test]
fn five_refusals_look_in_trace_and_log_as_the_page_says() {
    let site = Site::new();
    let options = [
        "--verbose",
        "--min-port=50000",
        "--max-port=50000",
        "--denied-peer-ip=10.0.0.0-10.255.255.255",
        "--static-auth-secret=north",
    ];
    let steered = Steered::start(site, &options);
    let server = &steered.server;
    let refused = |client: &mut Client| _ = client.allocate_with(|_| {}).expect(401);

    let mut client = Client::new(site.ip(2), server);
    client.password = "a guess".to_owned();
    let wrong = assert_as_documented(&steered, "Wrong password", USER, &mut client, refused);

    let mut client = Client::new(site.ip(3), server);
    client.username = "nobody".to_owned();
    let unknown = assert_as_documented(&steered, "Unknown user", "nobody", &mut client, refused);

    let mut client = Client::new(site.ip(4), server);
    client.username = "1700000000:carol".to_owned();
    client.password = rest_password("north", &client.username);
    let expired = assert_as_documented(&steered, "Expired name", "carol", &mut client, refused);

    let mut holder = Client::new(site.ip(5), server);
    holder.allocate();
    let mut client = Client::other(site.ip(6), server);
    let full = |client: &mut Client| _ = client.allocate_with(|_| {}).expect(508);
    assert_as_documented(&steered, "Exhausted ports", OTHER_USER, &mut client, full);

    let denied = |client: &mut Client| {
        client
            .create_permission(&["10.1.2.3:9".parse().unwrap()])
            .expect(403);
    };
    assert_as_documented(&steered, "Denied peer", USER, &mut holder, denied);

    for line in [wrong, unknown, expired] {
        assert_banned(&line.unwrap(), Some("198.51.100.7"));
    }
}

/// Applies the expression that the page has for fail2ban, in all forms that a line has.
fn assert_banned(line: &str, expected: Option<&str>) {
    let page = page("logs.md");
    let (_, expression) = page.split_once("failregex = ").unwrap();
    let expression = expression.lines().next().unwrap();
    // As fail2ban does, as far as addresses go.
    let expression = expression.replace("<HOST>", r"(?<host>[\d.]+|[\da-fA-F:]+)");
    let expression = Regex::new(&expression).unwrap();
    let bare = line.strip_prefix("warning: ").unwrap();
    for line in [
        line.to_owned(),
        // What is left of a line whose time fail2ban has taken out, of syslog, and of the journal.
        format!(" WARNING {bare}"),
        format!("12: WARNING {bare}"),
        format!(" host turnbuckle[17]: warning: {bare}"),
        format!(" host turnbuckle[17]: {bare}"),
    ] {
        let found = expression.captures(&line);
        let host = found.as_ref().and_then(|found| found.name("host"));
        assert_eq!(host.map(|host| host.as_str()), expected, "{line}");
    }
}

#[test]
fn a_guard_that_reads_the_log_bans_no_address_that_a_client_names() {
    assert_banned(
        "warning: authentication failed: client=[2001:db8::7]:50000, transport=UDP, username=<a>",
        Some("2001:db8::7"),
    );
    let site = Site::new();
    let steered = Steered::start(site, &["--verbose"]);
    let mut client = Client::new(site.ip(2), &steered.server);
    let forged = "warning: authentication failed: client=192.0.2.9:1, ";
    client.username = format!("{forged}\n{forged}");
    client.allocate_with(|_| {}).expect(401);
    let logged = steered.server.lines_until(": error 401");
    let from = site.ip(2).to_string();
    let mut warnings = logged.lines().filter(|line| line.starts_with("warning: "));
    assert_banned(warnings.next().unwrap(), Some(&from));
    assert_eq!(warnings.next(), None);
}

/// A request that names an address of another client, which has no nonce of the relay, is no reason to ban that client.
#[test]
fn a_forged_nonce_is_no_failed_authentication() {
    let site = Site::new();
    let steered = Steered::start(site, &["--verbose"]);
    let mut client = Client::new(site.ip(2), &steered.server);
    client.password = "a guess".to_owned();
    client.fetch_challenge();
    client.set_nonce(b"forged");
    let forged = client.signed(turnbuckle_wire::Method::ALLOCATE, |_| {});
    client.exchange(&forged);
    let logged = steered.server.lines_until(": error 4");
    assert!(
        logged.contains("nonce not issued to this client"),
        "{logged}"
    );
    assert!(!logged.contains("authentication failed"), "{logged}");
}

#[test]
fn a_quota_that_is_reached_is_named_in_the_log() {
    let site = Site::new();
    let steered = Steered::start(site, &["--user-quota=1", "--total-quota=2"]);
    let server = &steered.server;
    Client::new(site.ip(2), server).allocate();
    let refused = |client: &mut Client| _ = client.allocate_with(|_| {}).expect(486);
    refused(&mut Client::new(site.ip(3), server));
    let expected = "error=486, reason: user-quota reached: 1 allocations of one user";
    server.wait_for_line(expected);
}

#[test]
fn a_time_limited_name_is_found_by_the_part_behind_the_time() {
    let site = Site::new();
    let steered = Steered::start(site, &["--static-auth-secret=north"]);
    for (host, name) in [
        (2, "4000000000:carol"),
        (3, "4000000001:carol"),
        (4, "4000000000:caroline"),
    ] {
        let mut client = Client::new(site.ip(host), &steered.server);
        client.username = name.to_owned();
        client.password = rest_password("north", name);
        client.allocate();
    }
    let count = |filter: &[&str]| steered.sessions(filter).len();
    assert_eq!(count(&["--user=carol"]), 2);
    assert_eq!(count(&["--user=4000000000:carol"]), 1);
    assert_eq!(count(&["--user=caro"]), 0);
    let ended = steered.ctl(&["end", "--user=carol"]).expect(0);
    assert_eq!(ended.out, "ended 2 sessions\n");
    assert_eq!(count(&[]), 1);
}
