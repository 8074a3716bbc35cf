//! Secrets of a configuration: wherever it is shown, and whatever is wrong with it, they are not.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::{Command, Output};

use turnbuckle_server::config::entries;

use crate::console::Visitor;
use crate::control::ctl;
use crate::harness::{Authority, Key, Site};
use crate::metrics::Watched;

/// What must not be seen, plain and as base64: 32 bytes, as a key of tokens has to be.
const PLANTED: &str = "planted-in-the-configuration-123";
const PLANTED_BASE64: &str = "cGxhbnRlZC1pbi10aGUtY29uZmlndXJhdGlvbi0xMjM=";

/// Nobody listens there.
const NOBODY: &str = "127.0.0.1";

/// Returns each secret key, with a value that has the secret in it.
fn planted() -> Vec<(&'static str, String)> {
    let server = format!("host={NOBODY} port=1 user=turn password={PLANTED} dbname=turn");
    let redis = format!("ip={NOBODY} port=1 password={PLANTED}");
    vec![
        ("user", format!("somebody:{PLANTED}")),
        ("static-auth-secret", PLANTED.to_owned()),
        ("cli-password", PLANTED.to_owned()),
        ("stateless-nonce-secret", PLANTED.to_owned()),
        ("oauth-key", format!("north:{PLANTED_BASE64}")),
        ("pkey-pwd", PLANTED.to_owned()),
        ("redis-statsdb", redis.clone()),
        ("psql-userdb", server.clone()),
        ("mysql-userdb", server),
        ("redis-userdb", redis),
        (
            "mongo-userdb",
            format!("mongodb://turn:{PLANTED}@{NOBODY}:1/turn"),
        ),
    ]
}

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turnbuckle"));
    command.args(arguments).output().unwrap()
}

#[track_caller]
fn is_free_of_secrets(what: &str, text: &str) {
    for secret in [PLANTED, PLANTED_BASE64] {
        assert!(!text.contains(secret), "{what}: {text}");
    }
}

/// Returns what a program prints, on both ways.
fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &output.stderr].concat()).into_owned()
}

#[test]
fn no_secret_of_a_configuration_is_shown_by_a_report_a_command_the_console_the_log_or_a_page() {
    let planted = planted();
    let keys: BTreeSet<_> = planted.iter().map(|(key, _)| *key).collect();
    let secret = entries().filter(|entry| entry.is_secret);
    assert_eq!(keys, secret.map(|entry| entry.name).collect());
    let (databases, others): (Vec<_>, Vec<_>) = planted
        .iter()
        .partition(|(key, _)| key.ends_with("-userdb"));
    // A build without MongoDB does not start with its key; `check` knows it.
    for (database, words) in &databases {
        let site = Site::new();
        let authority = Authority::new();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("relay.conf");
        let socket = directory.path().join("control.sock");
        let mut lines: Vec<_> = others
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        lines.push(format!("{database}={words}"));
        lines.extend(["oauth", "lt-cred-mech", "status-page"].map(str::to_owned));
        lines.extend(["cli".to_owned(), "cli-port=5767".to_owned()]);
        lines.push(format!("cli-ip={}", site.ip(1)));
        let tls = authority.options(Key::P256);
        lines.extend(tls.map(|option| option.trim_start_matches('-').to_owned()));
        std::fs::write(&file, lines.join("\n") + "\nrealm=example.org\n").unwrap();
        let file_option = format!("--config={}", file.display());
        for more in [&[][..], &["--json"]] {
            let report = run(&[&["check", &*file.display().to_string()], more].concat());
            let text = printed(&report);
            assert!(report.status.success(), "{database}: {text}");
            assert!(text.contains(database), "{text}");
            is_free_of_secrets("check", &text);
        }
        if *database == "mongo-userdb" {
            continue;
        }
        let key = format!("--control-socket={}", socket.display());
        let watched = Watched::start(site, &[&file_option, &key]);
        let command = |words: &[&str]| {
            let ran = ctl(&socket, words);
            is_free_of_secrets(words[0], &format!("{}{}", ran.out, ran.error));
            ran
        };
        let shown = command(&["config", "--all"]).expect(0).out;
        for (key, _) in others.iter().copied().chain([&(*database, words.clone())]) {
            assert!(shown.contains(&format!("{key}=")), "{key}: {shown}");
        }
        command(&["config", "--all", "--json"]).expect(0);
        for words in [
            &["info"][..],
            &["health"],
            &["counters"],
            &["sessions"],
            &["certificates"],
        ] {
            command(words);
        }
        let console = SocketAddr::new(site.ip(1), 5767);
        let mut visitor = Visitor::enter(console, PLANTED);
        for typed in ["pc", "?", "ps"] {
            is_free_of_secrets(typed, &visitor.says(typed));
        }
        for path in ["/metrics", "/readyz", "/status", "/status.json"] {
            is_free_of_secrets(path, &watched.get(path, "").1);
        }
        // What is wrong is said without what may be a secret.
        let mut broken = lines.clone();
        broken.push(format!(
            "cli-password={PLANTED}\nuser={PLANTED}\noauth-key={PLANTED}"
        ));
        std::fs::write(&file, broken.join("\n") + "\n").unwrap();
        let refused = command(&["reload"]).expect(1);
        assert!(refused.error.contains("user"), "{}", refused.error);
        is_free_of_secrets("greeting", &watched.server.greeting());
        is_free_of_secrets("log", &watched.server.lines_so_far().join("\n"));
    }
}

#[test]
fn what_is_wrong_with_a_secret_is_said_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("relay.conf");
    let check = |line: &str| {
        std::fs::write(&file, format!("{line}\nrealm=example.org\n")).unwrap();
        let texts = [&[][..], &["--json"]].map(|more| {
            let report = run(&[&["check", &*file.display().to_string()], more].concat());
            printed(&report)
        });
        texts.concat()
    };
    for (key, value) in planted() {
        // What stands before a `=` is the name of a key, and PostgreSQL takes a word that stands alone for that of a database.
        let scheme = match key {
            "psql-userdb" => "postgres",
            "mongo-userdb" => "mongodb",
            _ => "redis",
        };
        let of_database = [
            format!("other={PLANTED}"),
            format!("{value} other={PLANTED}"),
            format!("{scheme}://turn:{PLANTED}@[::"),
        ];
        let of_others = [
            PLANTED.to_owned(),
            format!("{PLANTED}={PLANTED}"),
            format!("{value} {PLANTED}"),
            format!("{value}:{PLANTED}"),
            PLANTED.repeat(80),
        ];
        let wrong = match key.ends_with("db") {
            true => &of_database[..],
            false => &of_others,
        };
        for wrong in wrong {
            is_free_of_secrets(key, &check(&format!("{key}={wrong}")));
            is_free_of_secrets(key, &check(&format!("{key}={wrong}\n{key}={value}")));
        }
    }
}
