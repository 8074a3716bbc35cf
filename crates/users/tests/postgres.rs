//! The driver at PostgreSQL from Debian's package.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "support/postgres.rs"]
mod postgres;
mod support;

use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

use turnbuckle_users::{Changed, Connection, Follower, Names, Notice, Target, Then};

use self::postgres::source;
use self::support::{SCHEMA, Server, all, verbs};

fn server() -> Option<Server> {
    let server = postgres::server()?;
    let mut execute = psql(server.port);
    SCHEMA.iter().for_each(|statement| execute(statement));
    Some(server)
}

/// Carries out statements by the database's own client.
fn psql(port: u16) -> impl FnMut(&str) {
    move |statement| {
        let port = port.to_string();
        let done = Command::new("psql")
            .args([
                "-q",
                "-h",
                "127.0.0.1",
                "-p",
                &port,
                "-U",
                "turn",
                "-c",
                statement,
                "postgres",
            ])
            .status();
        assert!(done.expect("psql").success(), "{statement}");
    }
}

#[test]
fn users_are_followed_through_every_kind_of_change() {
    if let Some(server) = server() {
        verbs::users_are_followed(&source(server.port, ""), &mut psql(server.port));
    }
}

#[test]
fn tables_are_read_changed_and_listed() {
    if let Some(server) = server() {
        verbs::changes_are_listed(&source(server.port, ""));
        verbs::tables_are_read(&source(server.port, ""), &mut psql(server.port));
    }
}

#[test]
fn a_server_that_hangs_or_refuses_is_told_apart() {
    let Some(server) = server() else {
        return;
    };
    verbs::a_hung_server_is_an_error(&source(server.port, ""), &server);
    for (more, expected) in [
        ("dbname=nothing", "database \"nothing\" does not exist"),
        ("user=ghost", "role \"ghost\" does not exist"),
        ("sslmode=verify-full", "give sslrootcert"),
    ] {
        let error = Connection::open(&source(server.port, more))
            .err()
            .expect("refused");
        assert!(
            error.is_permanent() && error.to_string().contains(expected),
            "{error}"
        );
    }
    let error = Connection::open(&source(1, ""))
        .err()
        .expect("nobody listens");
    assert!(!error.is_permanent(), "{error}");
}

#[test]
fn connections_that_are_killed_twenty_times_are_made_anew_and_what_is_new_is_named_alone() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = psql(server.port);
    execute("insert into turnusers_lt select 'r','user'||n,'none' from generate_series(1,1000) n");
    let (tell, told) = channel();
    let target = Target {
        source: source(server.port, ""),
        wanted: all(),
    };
    let follower = Follower::start(target, move |notice| {
        let said = match notice {
            Notice::Records(read, changed) => {
                let known = read.records.users.get("r").map_or(0, |users| users.len());
                tell.send(Ok((known, changed)))
            }
            Notice::Trouble(error) => tell.send(Err(error)),
            _ => Ok(()),
        };
        match said {
            Ok(()) => Then::GoOn,
            Err(_) => Then::End,
        }
    });
    let follower = follower.expect("a thread");
    let patience = Duration::from_secs(60);
    let first = told.recv_timeout(patience).expect("a word");
    assert_eq!(first, Ok((1000, Changed::Everything)));
    for round in 1..=20 {
        execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename='turn' and pid<>pg_backend_pid()",
        );
        let name = format!("round{round}");
        execute(&format!(
            "insert into turnusers_lt values('r','{name}','none')"
        ));
        let mut has_said = 0;
        let (known, changed) = loop {
            match told.recv_timeout(patience).expect("a word") {
                Ok(read) => break read,
                Err(error) => {
                    assert!(!error.is_permanent(), "{error}");
                    has_said += 1;
                }
            }
        };
        assert!(has_said > 0, "the connection was killed");
        let names = Names::from([("r".to_owned(), [name].into())]);
        let tables = false;
        assert_eq!(known, 1000 + round);
        assert_eq!(changed, Changed::Users { names, tables }, "round {round}");
    }
    assert!(
        connections_to(server.port) <= 2,
        "one to follow, one to ask"
    );
    drop(follower);
}

/// Returns how many connections to a port of this machine are open at the end that began them.
fn connections_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("Linux");
    let port = format!(":{port:04X}");
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    // The third column is the other end, the fourth the state: established, or closed by the other end alone.
    lines
        .filter(|columns| columns.len() > 3 && columns[2].ends_with(&port))
        .filter(|columns| matches!(columns[3], "01" | "08"))
        .count()
}

#[test]
fn the_server_of_tls_is_proven_as_far_as_the_mode_says() {
    let (authority, issuer) = certificates::authority();
    let (stranger, _) = certificates::authority();
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("ca.pem"), authority).expect("written");
    std::fs::write(file("stranger.pem"), stranger).expect("written");
    let server = postgres::server_with(|folder| {
        certificates::write(folder, &issuer, "db.example.org");
        let file = |name: &str| folder.join(name).display().to_string();
        [
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", file("cert.pem")),
            format!("ssl_key_file={}", file("key.pem")),
        ]
        .into_iter()
        .flat_map(|option| ["-c".to_owned(), option])
        .collect()
    });
    let Some(server) = server else {
        return;
    };
    for (mode, host, ca, is_right) in [
        ("verify-full", "db.example.org", "ca.pem", true),
        ("verify-full", "other.example.org", "ca.pem", false),
        ("verify-full", "db.example.org", "stranger.pem", false),
        ("verify-ca", "other.example.org", "ca.pem", true),
        ("verify-ca", "db.example.org", "stranger.pem", false),
    ] {
        let words = format!(
            "hostaddr=127.0.0.1 host={host} sslmode={mode} sslrootcert={}",
            file(ca)
        );
        let error = Connection::open(&source(server.port, &words)).err();
        let is_permanent = error.as_ref().map(|error| error.is_permanent());
        let expected = (!is_right).then_some(true);
        assert_eq!(is_permanent, expected, "{words}: {error:?}");
    }
}
