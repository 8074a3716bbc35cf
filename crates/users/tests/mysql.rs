//! The driver at MariaDB from Debian's package.

#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
mod support;

use std::process::Command;

use turnbuckle_users::{Connection, MysqlSource, Source};

use self::not_run::not_run;
use self::support::{SCHEMA, Server, program, verbs};

fn source(port: u16, more: &str) -> Source {
    let words = format!("host=127.0.0.1 port={port} {more}");
    Source::Mysql(MysqlSource::parse(&words).expect("words"))
}

fn turn(port: u16) -> Source {
    source(port, "user=turn password=a-secret dbname=turn")
}

fn server() -> Option<Server> {
    let Some((install, mariadbd)) =
        program("mariadb-install-db", "/nonexistent").zip(program("mariadbd", "/nonexistent"))
    else {
        not_run("MariaDB is not installed: scripts/setup test");
        return None;
    };
    let server = Server::start(
        "mysql",
        |folder| {
            let mut command = Command::new(install);
            let data = folder.join("data");
            let first = folder.join("first.sql");
            // An anonymous user of the host would come before one of any host.
            let statements = "create database turn;\n\
                create user turn@localhost identified by 'a-secret';\n\
                create user turn@'127.0.0.1' identified by 'a-secret';\n\
                grant all on turn.* to turn@localhost, turn@'127.0.0.1';\n";
            std::fs::write(&first, statements).expect("written");
            command.args([
                "--no-defaults",
                "--skip-test-db",
                "--auth-root-authentication-method=normal",
            ]);
            command.arg(format!("--datadir={}", data.display()));
            command
        },
        |folder, port| {
            let mut command = Command::new(mariadbd);
            let path = |name: &str| folder.join(name).display().to_string();
            command.args([
                "--no-defaults",
                "--bind-address=127.0.0.1",
                "--innodb-flush-log-at-trx-commit=0",
            ]);
            command.args([
                format!("--datadir={}", path("data")),
                format!("--socket={}", path("socket")),
                format!("--pid-file={}", path("pid")),
                format!("--init-file={}", path("first.sql")),
                format!("--port={port}"),
            ]);
            command
        },
        turn,
    );
    let mut execute = client(server.port);
    SCHEMA.iter().for_each(|statement| execute(statement));
    Some(server)
}

/// Carries out statements by the database's own client.
fn client(port: u16) -> impl FnMut(&str) {
    move |statement| {
        let port = format!("--port={port}");
        let done = Command::new("mariadb")
            .args([
                "--no-defaults",
                "--host=127.0.0.1",
                &port,
                "--user=turn",
                "--password=a-secret",
            ])
            .args(["-e", statement, "turn"])
            .status();
        assert!(done.expect("mariadb").success(), "{statement}");
    }
}

#[test]
fn users_are_followed_through_every_kind_of_change() {
    if let Some(server) = server() {
        verbs::users_are_followed(&turn(server.port), &mut client(server.port));
    }
}

#[test]
fn tables_are_read_changed_and_listed_and_a_server_that_hangs_or_refuses_is_told_apart() {
    let Some(server) = server() else {
        return;
    };
    verbs::changes_are_listed(&turn(server.port));
    verbs::tables_are_read(&turn(server.port), &mut client(server.port));
    verbs::a_hung_server_is_an_error(&turn(server.port), &server);
    for (words, expected) in [
        (
            "user=turn password=wrong-secret dbname=turn",
            "Access denied for user",
        ),
        ("user=turn password=a-secret dbname=nothing", "nothing"),
    ] {
        let error = Connection::open(&source(server.port, words))
            .err()
            .expect("refused");
        let text = error.to_string();
        assert!(error.is_permanent() && text.contains(expected), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
    let error = Connection::open(&turn(1)).err().expect("nobody listens");
    assert!(!error.is_permanent(), "{error}");
}
