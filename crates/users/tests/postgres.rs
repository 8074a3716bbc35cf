//! The driver at PostgreSQL from Debian's package.

#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
mod support;

use std::process::Command;

use turnbuckle_users::{Connection, PostgresSource, Source};

use self::not_run::not_run;
use self::support::{SCHEMA, Server, program, verbs};

const VERSIONS: &str = "/usr/lib/postgresql";

fn source(port: u16, more: &str) -> Source {
    let words =
        format!("host=127.0.0.1 port={port} user=turn dbname=postgres sslmode=disable {more}");
    Source::Postgres(PostgresSource::parse(&words).expect("words"))
}

fn server() -> Option<Server> {
    let Some((initdb, postgres)) = program("initdb", VERSIONS).zip(program("postgres", VERSIONS))
    else {
        not_run("PostgreSQL is not installed: scripts/setup test");
        return None;
    };
    let server = Server::start(
        "postgres",
        |folder| {
            let mut command = Command::new(initdb);
            command
                .args(["--no-sync", "-U", "turn", "-A", "trust", "-D"])
                .arg(folder.join("data"));
            command
        },
        |folder, port| {
            let mut command = Command::new(postgres);
            command
                .arg("-D")
                .arg(folder.join("data"))
                .arg("-k")
                .arg(folder);
            command.args([
                "-h",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "-c",
                "fsync=off",
            ]);
            command
        },
        |port| source(port, ""),
    );
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
