//! The driver at PostgreSQL from Debian's package.

#[path = "support/following.rs"]
mod following;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "support/postgres.rs"]
mod postgres;
mod support;
#[path = "support/texts.rs"]
mod texts;

use std::process::Command;

use turnbuckle_users::Connection;

use self::postgres::source;
use self::support::{SCHEMA, Server, verbs};

fn server() -> Option<Server> {
    let server = postgres::server_with(|_| Vec::new())?;
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
fn a_text_is_a_value_whatever_it_holds() {
    if let Some(server) = server() {
        let mut execute = psql(server.port);
        texts::OTHER_ROWS.iter().for_each(|row| execute(row));
        texts::are_values(&source(server.port, ""), 10_000);
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
    let (mut execute, mut killing) = (psql(server.port), psql(server.port));
    execute("insert into turnusers_lt select 'r','user'||n,'none' from generate_series(1,1000) n");
    let mut kill = || {
        killing(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename='turn' and pid<>pg_backend_pid()",
        );
    };
    let source = source(server.port, "");
    following::killed_connections_are_made_anew(&source, &server, &mut execute, &mut kill);
}

#[test]
fn users_of_a_server_that_is_away_are_read_when_it_comes_and_stay_when_it_goes() {
    if let Some(mut server) = server() {
        let (source, mut execute) = (source(server.port, ""), psql(server.port));
        following::a_server_that_is_away_takes_nobody_along(&source, &mut server, &mut execute);
    }
}

#[test]
fn users_of_a_server_that_hangs_stay_and_what_is_new_when_it_goes_on_is_named_alone() {
    if let Some(server) = server() {
        let (source, mut execute) = (source(server.port, ""), psql(server.port));
        following::a_server_that_hangs_takes_nobody_along(&source, &server, &mut execute);
    }
}
