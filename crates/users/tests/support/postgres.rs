//! PostgreSQL from Debian's package.

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;

use turnbuckle_users::{PostgresSource, Source};

use crate::not_run::not_run;
use crate::support::{Server, program};

const VERSIONS: &str = "/usr/lib/postgresql";

pub(crate) fn source(port: u16, more: &str) -> Source {
    let words =
        format!("host=127.0.0.1 port={port} user=turn dbname=postgres sslmode=disable {more}");
    Source::Postgres(PostgresSource::parse(&words).expect("words"))
}

/// Starts a server with options that name files of its folder, which `prepare` puts there.
pub(crate) fn server_with(prepare: impl FnOnce(&Path) -> Vec<String>) -> Option<Server> {
    let made = RefCell::new(Vec::new());
    let Some((initdb, postgres)) = program("initdb", VERSIONS).zip(program("postgres", VERSIONS))
    else {
        not_run("PostgreSQL is not installed: scripts/setup test");
        return None;
    };
    let server = Server::start(
        "postgres",
        |folder| {
            *made.borrow_mut() = prepare(folder);
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
            command.args(&*made.borrow());
            command
        },
        |port| source(port, ""),
    );
    Some(server)
}
