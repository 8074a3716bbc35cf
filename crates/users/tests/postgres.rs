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

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use turnbuckle_users::{Connection, Records, Secret};

use self::postgres::source;
use self::support::{SCHEMA, Server, all, verbs};

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
fn a_name_that_the_databases_encoding_lacks_is_nobodys() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = psql(server.port);
    execute(
        "create database latin encoding 'LATIN1' template template0 lc_collate 'C' lc_ctype 'C'",
    );
    let mut connection = Connection::open(&source(server.port, "dbname=latin")).expect("opened");
    for statement in SCHEMA {
        let port = server.port.to_string();
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
                "latin",
            ])
            .status();
        assert!(done.expect("psql").success(), "{statement}");
    }
    for name in ["\u{20ac}", "nul\0", "alice"] {
        let answer = connection.ask("r", name).expect("the connection goes on");
        assert!(answer.key.is_none(), "{name}");
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

/// Follows until this is so, or time is up.
fn until(connection: &mut Connection, records: &mut Records, is_so: impl Fn(&Records) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        connection.follow(&all(), records).expect("it answers");
        if is_so(records) {
            return;
        }
        assert!(Instant::now() < end, "{records:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_users(records: &Records, expected: &[&str]) -> bool {
    records.users["r"].names().eq(expected.iter().copied())
}

fn has_secrets(records: &Records, expected: &[&str]) -> bool {
    let secrets = records.tables.secrets["r"].iter();
    secrets
        .map(Secret::expose)
        .eq(expected.iter().map(|text| text.as_bytes()))
}

#[test]
fn views_in_the_places_of_tables_are_read_again_and_again_because_their_rows_tell_nothing() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = psql(server.port);
    execute(
        "drop table turnusers_lt; create table people (person text primary key, word text);\
         insert into people values('alice',md5('alice:r:w')),('bob',md5('bob:r:w'));\
         create view turnusers_lt as select 'r' realm, person as name, word hmackey from people;\
         drop table turn_secret; create table words (word text primary key);\
         insert into words values('logen'),('bloody9');\
         create view turn_secret as select 'r' realm, word as value from words",
    );
    let mut connection = Connection::open(&source(server.port, "")).expect("it answers");
    let mut records = Records::default();
    until(&mut connection, &mut records, |records| {
        has_users(records, &["alice", "bob"]) && has_secrets(records, &["bloody9", "logen"])
    });
    execute(
        "insert into people values('carol',md5('carol:r:w')); delete from people where person='alice';\
         delete from words where word='logen'",
    );
    until(&mut connection, &mut records, |records| {
        has_users(records, &["bob", "carol"]) && has_secrets(records, &["bloody9"])
    });
}

/// Of a view nobody knows whether what it shows is of this database, whose snapshots do not move for another.
#[test]
fn a_view_of_secrets_is_read_again_and_again_and_users_who_tell_what_has_changed_are_not() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = psql(server.port);
    execute(
        "drop table turn_secret; create view turn_secret as select 'r' realm, clock_timestamp()::text as value;\
         insert into turnusers_lt values('r','alice',md5('alice:r:w'))",
    );
    let mut connection = Connection::open(&source(server.port, "")).expect("it answers");
    let mut records = Records::default();
    connection.follow(&all(), &mut records).expect("it answers");
    // If users were read again, this would be her key once more.
    let users = records.users.get_mut("r").expect("known");
    users.put("alice", None);
    let before = records.tables.secrets.clone();
    until(&mut connection, &mut records, |records| {
        records.tables.secrets != before
    });
    assert_eq!(records.user("r", "alice"), Some(None), "users were read");
}

#[test]
fn a_table_of_which_a_part_is_of_another_server_is_read_again_and_again_and_one_in_parts_is_not() {
    let Some(server) = server() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("set up");
    let file = folder.path().join("users.csv");
    std::fs::write(&file, "r,alice,none\n").expect("written");
    let columns = "realm text, name text, hmackey text";
    let mut execute = psql(server.port);
    execute(&format!(
        "drop table turnusers_lt; create table turnusers_lt ({columns}) partition by list (realm);\
         create table others partition of turnusers_lt for values in ('other');\
         create table here partition of turnusers_lt for values in ('r');\
         insert into turnusers_lt values('r','bob','none')"
    ));
    let mut connection = Connection::open(&source(server.port, "")).expect("it answers");
    let mut records = Records::default();
    connection.follow(&all(), &mut records).expect("it answers");
    // If users were read again, this would be no key once more.
    let users = records.users.get_mut("r").expect("known");
    users.put("bob", Some([1; 16]));
    execute("insert into turnusers_lt values('r','carol','none')");
    until(&mut connection, &mut records, |records| {
        has_users(records, &["bob", "carol"])
    });
    assert_eq!(
        records.user("r", "bob"),
        Some(Some([1; 16])),
        "users were read"
    );

    execute(&format!(
        "drop table here; create extension file_fdw; create server files foreign data wrapper file_fdw;\
         create foreign table there partition of turnusers_lt for values in ('r')\
         server files options (filename '{}', format 'csv')",
        file.display()
    ));
    let mut connection = Connection::open(&source(server.port, "")).expect("it answers");
    until(&mut connection, &mut records, |records| {
        has_users(records, &["alice"])
    });
    std::fs::write(&file, "r,alice,none\nr,dave,none\n").expect("written");
    until(&mut connection, &mut records, |records| {
        has_users(records, &["alice", "dave"])
    });
}

/// Its rows were written before the tables were read.
#[test]
fn a_table_that_takes_the_place_of_another_or_becomes_a_part_of_it_is_read() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = psql(server.port);
    execute(
        "insert into turnusers_lt values('r','alice','none');\
         create table next (realm text, name text, hmackey text) partition by list (realm);\
         create table of_r partition of next for values in ('r'); insert into next values('r','bob','none');\
         create table of_other (realm text, name text, hmackey text);\
         insert into of_other values('other','carol','none')",
    );
    let mut connection = Connection::open(&source(server.port, "")).expect("it answers");
    let mut records = Records::default();
    until(&mut connection, &mut records, |records| {
        has_users(records, &["alice"])
    });
    execute("alter table turnusers_lt rename to former; alter table next rename to turnusers_lt");
    until(&mut connection, &mut records, |records| {
        has_users(records, &["bob"])
    });
    execute("insert into turn_origin_to_realm values('https://o:443','other')");
    until(&mut connection, &mut records, |records| {
        records.users.contains_key("other")
    });
    execute("alter table turnusers_lt attach partition of_other for values in ('other')");
    until(&mut connection, &mut records, |records| {
        records.users["other"].has("carol")
    });
}

#[test]
fn what_was_written_in_the_rest_after_a_reading_is_shown_before_anything_is_said_to_be_as_before() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = psql(server.port);
    execute(
        "alter table turnusers_lt rename to people; create view turnusers_lt as select * from people;\
         insert into people select 'r','user'||n,'none' from generate_series(1,20000) n",
    );
    verbs::a_rest_is_not_taken_for_a_reading(&source(server.port, ""), || {
        execute("insert into people values('r','new','none')");
    });
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
