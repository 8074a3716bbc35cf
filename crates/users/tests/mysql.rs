//! The driver at MariaDB from Debian's package.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/clients.rs"]
mod clients;
#[path = "support/following.rs"]
mod following;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
mod support;
#[path = "support/texts.rs"]
mod texts;

use std::cell::RefCell;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use openssl::x509::X509;
use rcgen::{Issuer, KeyPair};
use turnbuckle_users::{Connection, MysqlSource, Records, Source};

use self::not_run::not_run;
use self::support::{SCHEMA, Server, all, program, verbs};

fn source(port: u16, more: &str) -> Source {
    let words = format!("host=127.0.0.1 port={port} {more}");
    Source::Mysql(MysqlSource::parse(&words).expect("words"))
}

fn turn(port: u16) -> Source {
    source(port, "user=turn password=a-secret dbname=turn")
}

fn server() -> Option<Server> {
    server_with(|_| Vec::new())
}

/// Starts a server with options that name files of its folder, which `prepare` puts there.
fn server_with(prepare: impl FnOnce(&Path) -> Vec<String>) -> Option<Server> {
    let made = RefCell::new(Vec::new());
    let Some((install, mariadbd)) =
        program("mariadb-install-db", "/nonexistent").zip(program("mariadbd", "/nonexistent"))
    else {
        not_run("MariaDB is not installed: scripts/setup test");
        return None;
    };
    let server = Server::start(
        "mysql",
        |folder| {
            *made.borrow_mut() = prepare(folder);
            let mut command = Command::new(install);
            let data = folder.join("data");
            let first = folder.join("first.sql");
            // An anonymous user of the host would come before one of any host.
            let statements = "create database if not exists turn;\n\
                create user if not exists turn@localhost identified by 'a-secret';\n\
                create user if not exists turn@'127.0.0.1' identified by 'a-secret';\n\
                create user if not exists sealed@localhost identified by 'a-secret' require ssl;\n\
                create user if not exists sealed@'127.0.0.1' identified by 'a-secret' require ssl;\n\
                create user if not exists proven@localhost identified by 'a-secret' require x509;\n\
                create user if not exists proven@'127.0.0.1' identified by 'a-secret' require x509;\n\
                create user if not exists named@localhost identified by 'a-secret' require subject '/CN=client';\n\
                create user if not exists named@'127.0.0.1' identified by 'a-secret' require subject '/CN=client';\n\
                grant all on turn.* to turn@localhost, turn@'127.0.0.1', sealed@localhost, sealed@'127.0.0.1',\
                proven@localhost, proven@'127.0.0.1', named@localhost, named@'127.0.0.1';\n";
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
            command.args(&*made.borrow());
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
        let done = command(port, statement).status();
        assert!(done.expect("mariadb").success(), "{statement}");
    }
}

/// Ends all connections but the one that says so.
fn killer(port: u16) -> impl FnMut() {
    move || {
        let query = "select id from information_schema.processlist where user='turn' and id<>connection_id()";
        let others = command(port, query).output().expect("mariadb");
        for id in String::from_utf8_lossy(&others.stdout).split_whitespace() {
            // One may just have ended.
            let killed = command(port, &format!("kill connection {id}")).output();
            killed.expect("mariadb");
        }
    }
}

fn command(port: u16, statement: &str) -> Command {
    let mut command = Command::new("mariadb");
    let port = format!("--port={port}");
    let login = [
        "--host=127.0.0.1",
        &port,
        "--user=turn",
        "--password=a-secret",
    ];
    command.arg("--no-defaults").args(login);
    command.args(["--batch", "--skip-column-names", "-e", statement, "turn"]);
    command
}

#[test]
fn users_are_followed_through_every_kind_of_change() {
    if let Some(server) = server() {
        verbs::users_are_followed(&turn(server.port), &mut client(server.port));
    }
}

/// Follows until the users of `r` are these, or time is up.
fn await_names(connection: &mut Connection, records: &mut Records, expected: &[&str]) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        connection.follow(&all(), records).expect("it answers");
        let names: Vec<_> = records.users["r"].names().collect();
        if names == expected {
            return;
        }
        assert!(Instant::now() < end, "{names:?}, not {expected:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Follows until no change of a second that has been read can follow.
fn settle(connection: &mut Connection, records: &mut Records) {
    let end = Instant::now() + Duration::from_secs(4);
    while Instant::now() < end {
        connection.follow(&all(), records).expect("it answers");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The server says of a table that is truncated that it was written to when it was before.
#[test]
fn users_and_secrets_of_a_table_that_is_truncated_are_gone() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = client(server.port);
    execute("insert into turnusers_lt values('r','alice',md5('alice:r:w'))");
    execute("insert into turn_secret values('r','logen')");
    let mut connection = Connection::open(&turn(server.port)).expect("it answers");
    let mut records = Records::default();
    settle(&mut connection, &mut records);
    assert_eq!(records.tables.secrets["r"].len(), 1);
    execute("truncate table turnusers_lt");
    await_names(&mut connection, &mut records, &[]);
    settle(&mut connection, &mut records);
    execute("truncate table turn_secret");
    let end = Instant::now() + Duration::from_secs(30);
    while !records.tables.secrets["r"].is_empty() {
        assert!(Instant::now() < end, "the secret is still there");
        connection.follow(&all(), &mut records).expect("it answers");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// After a start the server says of neither table when it was written to.
#[test]
fn a_table_that_takes_the_place_of_another_is_read_although_neither_was_written_to_since_the_start()
{
    let Some(mut server) = server() else {
        return;
    };
    let (source, mut execute) = (turn(server.port), client(server.port));
    execute(
        "create table others like turnusers_lt; insert into others values('r','bob',md5('bob:r:w'));\
         insert into turnusers_lt values('r','alice',md5('alice:r:w'))",
    );
    server.stop();
    server.start_again(&source);
    let mut connection = Connection::open(&source).expect("it answers");
    let mut records = Records::default();
    settle(&mut connection, &mut records);
    execute("rename table turnusers_lt to former, others to turnusers_lt");
    await_names(&mut connection, &mut records, &["bob"]);
}

#[test]
fn a_view_in_the_place_of_a_table_is_read_again_and_again_because_nothing_says_when_it_changes() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = client(server.port);
    execute(
        "drop table turnusers_lt; create table people (person varchar(99) primary key, word char(32));\
         insert into people values('alice',md5('alice:r:w')),('bob',md5('bob:r:w'));\
         create view turnusers_lt as select 'r' realm, person name, word hmackey from people",
    );
    let mut connection = Connection::open(&turn(server.port)).expect("it answers");
    let mut records = Records::default();
    await_names(&mut connection, &mut records, &["alice", "bob"]);
    execute(
        "insert into people values('carol',md5('carol:r:w')); delete from people where person='alice'",
    );
    await_names(&mut connection, &mut records, &["bob", "carol"]);
}

#[test]
fn what_was_written_in_the_rest_after_a_reading_is_shown_before_anything_is_said_to_be_as_before() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = client(server.port);
    execute("insert into turnusers_lt select 'r',concat('user',seq),'none' from seq_1_to_20000");
    verbs::a_rest_is_not_taken_for_a_reading(&turn(server.port), || {
        execute("insert into turnusers_lt values('r','new','none')");
    });
}

#[test]
fn secrets_that_change_are_read_without_users() {
    let Some(server) = server() else {
        return;
    };
    let mut execute = client(server.port);
    execute("insert into turnusers_lt values('r','alice',md5('alice:r:w'))");
    let mut connection = Connection::open(&turn(server.port)).expect("it answers");
    let mut records = Records::default();
    settle(&mut connection, &mut records);
    // If users were read again, this one would go.
    let ghosts = records.users.get_mut("r").expect("known");
    ghosts.put("ghost", None);
    execute("insert into turn_secret values('r','logen')");
    let end = Instant::now() + Duration::from_secs(30);
    while records.tables.secrets["r"].is_empty() {
        assert!(Instant::now() < end, "no secret");
        connection.follow(&all(), &mut records).expect("it answers");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(records.users["r"].has("ghost"), "users were read");
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

#[test]
fn a_text_is_a_value_whatever_it_holds() {
    // As Debian's package has it.
    if let Some(server) = server_with(|_| vec!["--character-set-server=utf8mb4".to_owned()]) {
        let mut execute = client(server.port);
        texts::OTHER_ROWS.iter().for_each(|row| execute(row));
        texts::are_values(&turn(server.port), 10_000);
    }
}

#[test]
fn connections_that_are_killed_twenty_times_are_made_anew_and_what_is_new_is_named_alone() {
    let Some(server) = server() else {
        return;
    };
    let (mut execute, mut kill) = (client(server.port), killer(server.port));
    execute("insert into turnusers_lt select 'r',concat('user',seq),'none' from seq_1_to_1000");
    let source = turn(server.port);
    following::killed_connections_are_made_anew(&source, &server, &mut execute, &mut kill);
}

#[test]
fn users_of_a_server_that_is_away_are_read_when_it_comes_and_stay_when_it_goes() {
    if let Some(mut server) = server() {
        let (source, mut execute) = (turn(server.port), client(server.port));
        following::a_server_that_is_away_takes_nobody_along(&source, &mut server, &mut execute);
    }
}

#[test]
fn users_of_a_server_that_hangs_stay_and_what_is_new_when_it_goes_on_is_named_alone() {
    if let Some(server) = server() {
        let (source, mut execute) = (turn(server.port), client(server.port));
        following::a_server_that_hangs_takes_nobody_along(&source, &server, &mut execute);
    }
}

#[test]
fn the_server_of_tls_needs_a_certificate_of_the_authority() {
    let authority = certificates::authority();
    let (stranger, _) = certificates::stranger();
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (hash, other) = (hash_of(&authority.0), hash_of(&stranger));
    for (name, content) in [
        ("ca.pem".to_owned(), &authority.0),
        ("stranger.pem".to_owned(), &stranger),
        // An authority for all servers that is not called by its hash is none.
        ("unnamed/ca.pem".to_owned(), &authority.0),
        ("strangers/server.pem".to_owned(), &authority.0),
        (format!("strangers/{other}.0"), &stranger),
        (format!("both/{other}.0"), &stranger),
        (format!("both/{hash}.0"), &authority.0),
        ("both/README".to_owned(), &"no certificate".to_owned()),
        (format!("both/folder/{hash}.0"), &authority.0),
    ] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, content).expect("written");
    }
    let Some(server) = server_with(|folder| options_for_tls(folder, &authority)) else {
        return;
    };
    let open = |more: &str| {
        let words = format!("user=sealed password=a-secret dbname=turn {more}");
        Connection::open(&source(server.port, &words)).err()
    };
    let error = open("").expect("this user needs TLS");
    assert!(error.to_string().contains("Access denied"), "{error}");
    for right in [
        format!("ca={}", file("ca.pem")),
        format!("capath={}", file("both")),
        format!("ca={} capath={}", file("stranger.pem"), file("both")),
    ] {
        assert_eq!(open(&right), None, "{right}");
    }
    for (wrong, expected) in [
        (
            format!("ca={}", file("stranger.pem")),
            "certificate verify failed",
        ),
        (
            format!("capath={}", file("strangers")),
            "certificate verify failed",
        ),
        (
            format!("capath={}", file("unnamed")),
            "no certificate is called by its hash",
        ),
        (format!("capath={}", file("nowhere")), "No such file"),
    ] {
        let error = open(&wrong).unwrap_or_else(|| panic!("{wrong}"));
        let text = error.to_string();
        assert!(
            error.is_permanent() && text.contains(expected),
            "{wrong}: {text}"
        );
        assert!(!text.contains("a-secret"), "{text}");
    }
}

/// Returns what the file of a certificate is called in a folder of authorities, but for its number.
fn hash_of(pem: &str) -> String {
    let certificate = X509::from_pem(pem.as_bytes()).expect("a certificate");
    format!("{:08x}", certificate.subject_name_hash())
}

/// Writes what a server proves itself by, and its clients. Returns the options that name it.
fn options_for_tls(
    folder: &Path,
    (authority, issuer): &(String, Issuer<'static, KeyPair>),
) -> Vec<String> {
    certificates::write(folder, issuer, "db.example.org");
    std::fs::write(folder.join("ca.pem"), authority).expect("written");
    let options = ["ca", "cert", "key"].map(|name| {
        let path = folder.join(name).with_extension("pem");
        format!("--ssl-{name}={}", path.display())
    });
    options.into()
}

#[test]
fn a_user_who_needs_a_certificate_is_let_in_with_that_of_the_words_and_with_no_other() {
    let authority = certificates::authority();
    let folder = tempfile::tempdir().expect("a directory");
    clients::write(folder.path(), &authority.1);
    std::fs::write(folder.path().join("ca.pem"), &authority.0).expect("written");
    // What a server thinks of a certificate it says at its place in the handshake, and from 1.3 on afterwards, when we may be writing already.
    for (version, says_all) in [("TLSv1.2", true), ("TLSv1.3", false)] {
        let server = server_with(|folder| {
            let mut options = options_for_tls(folder, &authority);
            options.push(format!("--tls-version={version}"));
            options
        });
        let Some(server) = server else {
            return;
        };
        certificates_are_judged(server.port, folder.path(), says_all);
    }
}

fn certificates_are_judged(port: u16, folder: &Path, says_all: bool) {
    let file = |name: &str| folder.join(name).display().to_string();
    for (user, certificate, expected) in [
        ("proven", "client", None),
        ("proven", "other", None),
        ("proven", "chain", None),
        ("proven", "stranger", Some("unknown ca")),
        ("proven", "", Some("Access denied")),
        ("named", "client", None),
        ("named", "other", Some("Access denied")),
    ] {
        let files = match certificate {
            "" => String::new(),
            name => format!("key={}.key cert={}.pem", file(name), file(name)),
        };
        let words = format!(
            "user={user} password=a-secret dbname=turn ca={} {files}",
            file("ca.pem")
        );
        let error = Connection::open(&source(port, &words)).err();
        let Some(expected) = expected else {
            assert_eq!(error, None, "{words}");
            continue;
        };
        let error = error.unwrap_or_else(|| panic!("{words}"));
        let text = error.to_string();
        let is_said = error.is_permanent() && text.contains(expected);
        let may_be_unsaid = !says_all && certificate == "stranger";
        assert!(is_said || may_be_unsaid, "{words}: {text}");
        assert!(!text.contains("a-secret"), "{text}");
    }
}
