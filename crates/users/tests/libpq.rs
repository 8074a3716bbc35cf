//! How a connection to PostgreSQL is made, which is libpq's way: modes of TLS, certificates, the environment, password files. `psql` is libpq's own
//! client: what is expected of ours is asked of it too.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/clients.rs"]
mod clients;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "support/postgres.rs"]
mod postgres;
#[expect(dead_code, reason = "what is in the tables is for the others")]
mod support;

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use openssl::pkey::PKey;
use openssl::symm::Cipher;
use rcgen::{Issuer, KeyPair};
use turnbuckle_users::{Connection, PostgresSource, Source};

use self::postgres::source;
use self::support::Server;

/// The certificate of an authority, and what it signs with.
type Authority = (String, Issuer<'static, KeyPair>);

/// The newest version of TLS.
const NEWEST: &str = "TLSv1.3";

/// Starts a server that lets others than its owner in as these lines of `pg_hba.conf` say. With TLS there is an authority for its certificate and
/// those of clients, and the version that it has at the most.
fn server(hba: &str, tls: Option<(&Authority, &str)>) -> Option<Server> {
    postgres::server_with(|folder| {
        let file = |name: &str| folder.join(name).display().to_string();
        let lines = format!("host all turn 127.0.0.1/32 trust\n{hba}");
        std::fs::write(file("hba.conf"), lines).expect("written");
        let mut options = vec![format!("hba_file={}", file("hba.conf"))];
        if let Some(((authority, issuer), version)) = tls {
            certificates::write(folder, issuer, "db.example.org");
            std::fs::write(file("ca.pem"), authority).expect("written");
            options.push("ssl=on".to_owned());
            options.push(format!("ssl_max_protocol_version={version}"));
            for (option, name) in [("cert", "cert.pem"), ("key", "key.pem"), ("ca", "ca.pem")] {
                options.push(format!("ssl_{option}_file={}", file(name)));
            }
        }
        let options = options.into_iter();
        options
            .flat_map(|option| ["-c".to_owned(), option])
            .collect()
    })
}

fn source_of(words: &str) -> Source {
    Source::Postgres(PostgresSource::parse(words).expect("words"))
}

fn psql(words: &str, statement: &str) -> Command {
    let mut command = Command::new("psql");
    // Without its user's file of commands, and without a question for a password.
    command.args(["-X", "-w", "-A", "-t", "-q", "-d", words, "-c", statement]);
    command
}

/// Returns what the database answers to a statement of its owner.
fn answer(port: u16, statement: &str) -> String {
    let words = format!("host=127.0.0.1 port={port} user=turn dbname=postgres sslmode=disable");
    let done = psql(&words, statement).output().expect("psql");
    assert!(done.status.success(), "{statement}: {done:?}");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

#[test]
fn the_server_of_tls_is_proven_as_far_as_the_mode_says() {
    let authority = certificates::authority();
    let (stranger, _) = certificates::stranger();
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("ca.pem"), &authority.0).expect("written");
    std::fs::write(file("stranger.pem"), stranger).expect("written");
    let Some(server) = server("", Some((&authority, NEWEST))) else {
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

#[test]
fn without_tls_no_file_of_tls_is_read() {
    let Some(server) = postgres::server_with(|_| Vec::new()) else {
        return;
    };
    let words = "sslcert=/nothing/cert.pem sslkey=/nothing/key.pem";
    let without = source(server.port, words);
    assert!(Connection::open(&without).is_ok());
    let with = source(server.port, &format!("{words} sslmode=require"));
    let error = Connection::open(&with).err().expect("refused");
    assert!(
        error.to_string().contains("sslcert /nothing/cert.pem"),
        "{error}"
    );
}

/// Whether there is TLS on a connection; nothing if the connection is refused.
type Sealed = Option<bool>;

#[test]
fn the_mode_and_the_server_make_the_same_of_tls_as_for_libpq() {
    const OPEN: Sealed = Some(false);
    const SEALED: Sealed = Some(true);
    const REFUSED: Sealed = None;
    // Users who may have TLS, must have it, and must not.
    let users = ["either", "sealed", "open"];
    let hba = "host all either 127.0.0.1/32 trust\n\
        hostssl all sealed 127.0.0.1/32 trust\n\
        hostnossl all open 127.0.0.1/32 trust\n";
    let authority = certificates::authority();
    let with_tls = [
        ("disable", [OPEN, REFUSED, OPEN]),
        ("allow", [OPEN, SEALED, OPEN]),
        ("prefer", [SEALED, SEALED, OPEN]),
        ("require", [SEALED, SEALED, REFUSED]),
    ];
    let without = [
        ("disable", [OPEN, REFUSED, OPEN]),
        ("allow", [OPEN, REFUSED, OPEN]),
        ("prefer", [OPEN, REFUSED, OPEN]),
        ("require", [REFUSED, REFUSED, REFUSED]),
    ];
    for (tls, modes) in [(Some((&authority, NEWEST)), with_tls), (None, without)] {
        let Some(server) = server(hba, tls) else {
            return;
        };
        let port = server.port;
        for user in users {
            answer(port, &format!("create role {user} login"));
        }
        for (mode, expected) in modes {
            for (user, expected) in users.into_iter().zip(expected) {
                let words = format!(
                    "host=127.0.0.1 port={port} user={user} dbname=postgres sslmode={mode}"
                );
                assert_eq!(sealed_by_psql(&words), expected, "psql {words}");
                assert_eq!(sealed(port, &words), expected, "{words}");
            }
        }
    }
}

fn sealed_by_psql(words: &str) -> Sealed {
    let statement = "select ssl from pg_stat_ssl where pid=pg_backend_pid()";
    let done = psql(words, statement).output().expect("psql");
    done.status.success().then(|| done.stdout.starts_with(b"t"))
}

fn sealed(port: u16, words: &str) -> Sealed {
    match Connection::open(&source_of(&format!("{words} application_name=ours"))) {
        Ok(_opened) => {
            // One that is closed may be listed for a moment, so the newest counts.
            let statement = "select ssl from pg_stat_ssl join pg_stat_activity using (pid) \
                where application_name='ours' order by backend_start desc limit 1";
            Some(answer(port, statement) == "t")
        }
        Err(error) => {
            assert!(error.is_permanent(), "{words}: {error}");
            None
        }
    }
}

#[test]
fn a_server_that_wants_a_certificate_is_given_that_of_the_words_and_refuses_others_and_none() {
    let authority = certificates::authority();
    let folder = tempfile::tempdir().expect("a directory");
    clients::write(folder.path(), &authority.1);
    lock_key(folder.path(), "a-secret");
    // What a server thinks of a certificate it says at its place in the handshake, and from 1.3 on afterwards, when we may be writing already.
    for (version, says_all) in [("TLSv1.2", true), (NEWEST, false)] {
        let hba = "hostssl all client 127.0.0.1/32 cert\n";
        let Some(server) = server(hba, Some((&authority, version))) else {
            return;
        };
        certificates_are_judged(server.port, folder.path(), says_all);
    }
}

fn certificates_are_judged(port: u16, folder: &Path, says_all: bool) {
    answer(port, "create role client login");
    let file = |name: &str| folder.join(name).display().to_string();
    for (certificate, key, expected) in [
        ("client.pem", "client.key", None),
        ("chain.pem", "chain.key", None),
        ("client.pem", "locked.key sslpassword=a-secret", None),
        (
            "client.pem",
            "locked.key sslpassword=no-secret",
            Some("sslkey"),
        ),
        ("client.pem", "other.key", Some("sslkey")),
        ("client.pem", "nothing.key", Some("sslkey")),
        ("nothing.pem", "client.key", Some("sslcert")),
        (
            "other.pem",
            "other.key",
            Some("certificate authentication failed for user"),
        ),
        ("stranger.pem", "stranger.key", Some("unknown ca")),
        ("", "", Some("requires a valid client certificate")),
    ] {
        let files = match certificate {
            "" => String::new(),
            _ => format!("sslcert={} sslkey={}", file(certificate), file(key)),
        };
        let words = format!("host=127.0.0.1 port={port} user=client dbname=postgres {files}");
        let done = psql(&words, "select").output().expect("psql");
        assert_eq!(done.status.success(), expected.is_none(), "psql {words}");
        let error = Connection::open(&source_of(&words)).err();
        let Some(expected) = expected else {
            assert_eq!(error, None, "{words}");
            continue;
        };
        let error = error.unwrap_or_else(|| panic!("{words}"));
        let text = error.to_string();
        let is_said = error.is_permanent() && text.contains(expected);
        let may_be_unsaid = !says_all && certificate == "stranger.pem";
        assert!(is_said || may_be_unsaid, "{words}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
}

/// Writes the client's key once more, encrypted.
fn lock_key(folder: &Path, password: &str) {
    let key = std::fs::read(folder.join("client.key")).expect("written before");
    let key = PKey::private_key_from_pem(&key).expect("a key");
    let cipher = Cipher::aes_256_cbc();
    let locked = key.private_key_to_pem_pkcs8_passphrase(cipher, password.as_bytes());
    let locked = String::from_utf8(locked.expect("encrypted")).expect("PEM");
    write_with(&folder.join("locked.key"), &locked, 0o600);
}

/// Has a process of this test connect with these words, because the environment is the same for all tests of a process.
const WORDS: &str = "TURNBUCKLE_TEST_WORDS";

#[test]
fn what_the_words_leave_out_is_in_the_environment_and_the_password_in_its_file() {
    if let Ok(words) = std::env::var(WORDS) {
        let opened = Connection::open(&source_of(&words));
        return drop(opened.unwrap_or_else(|error| panic!("{error}")));
    }
    let authority = certificates::authority();
    let folder = tempfile::tempdir().expect("a directory");
    let hba = "host all locked 127.0.0.1/32 scram-sha-256\nhostssl all client 127.0.0.1/32 cert\n";
    let Some(server) = server(hba, Some((&authority, NEWEST))) else {
        return;
    };
    answer(
        server.port,
        r"create role locked login password 'a:se\cret'",
    );
    answer(server.port, "create role client login");
    let port = server.port.to_string();
    write_files(folder.path(), &authority, &port);
    let file = |name: &str| folder.path().join(name).display().to_string();
    // It takes connections and answers nothing.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_port = silent.local_addr().expect("its own").port();

    let locked = format!("host=127.0.0.1 port={port} user=locked dbname=postgres");
    let named = format!("host=db.example.org port={port} user=locked dbname=postgres");
    let client = format!("host=127.0.0.1 port={port} user=client dbname=postgres");
    let silent = format!("host=127.0.0.1 port={silent_port} user=locked dbname=postgres");
    let (wrong, missing) = ("password authentication failed", "password missing");
    let right = ("PGPASSWORD", r"a:se\cret".to_owned());
    let whole = [
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGUSER", "locked"),
        ("PGDATABASE", "postgres"),
    ];
    let whole = whole.map(|(name, value)| (name, value.to_owned()));
    let with = |more: &[(&'static str, String)]| [more, std::slice::from_ref(&right)].concat();
    let one = |name: &'static str, value: &str| vec![(name, value.to_owned())];
    let given = format!(r"{locked} password='a:se\\cret'");
    let filed = format!("{locked} passfile={}", file("own/.pgpass"));
    for (words, home, environment, expected) in [
        // The password.
        (&*locked, "empty", with(&[]), None),
        (&*locked, "empty", one("PGPASSWORD", "another"), Some(wrong)),
        (&given, "empty", one("PGPASSWORD", "another"), None),
        (&*locked, "empty", vec![], Some(missing)),
        // Its file.
        (&*locked, "own", vec![], None),
        (&*locked, "for-all", vec![], Some(missing)),
        (&*locked, "own", one("PGPASSWORD", "another"), Some(wrong)),
        (
            &*locked,
            "empty",
            one("PGPASSFILE", &file("own/.pgpass")),
            None,
        ),
        (
            &*locked,
            "own",
            one("PGPASSFILE", &file("wrong-first")),
            Some(wrong),
        ),
        (
            &*locked,
            "empty",
            one("PGPASSFILE", &file("others-first")),
            None,
        ),
        (
            &filed,
            "empty",
            one("PGPASSFILE", &file("wrong-first")),
            None,
        ),
        // Where, who and what.
        ("", "empty", with(&whole), None),
        ("", "own", whole.to_vec(), None),
        (&named, "own", one("PGHOSTADDR", "127.0.0.1"), Some(missing)),
        (&named, "by-name", one("PGHOSTADDR", "127.0.0.1"), None),
        // TLS.
        (
            &*locked,
            "empty",
            with(&one("PGSSLMODE", "verify-full")),
            Some("give sslrootcert"),
        ),
        (
            &*locked,
            "empty",
            with(&[
                ("PGSSLMODE", "verify-full".to_owned()),
                ("PGSSLROOTCERT", file("ca.pem")),
            ]),
            Some("certificate verify failed"),
        ),
        (
            &named,
            "empty",
            with(&[
                ("PGHOSTADDR", "127.0.0.1".to_owned()),
                ("PGSSLMODE", "verify-full".to_owned()),
                ("PGSSLROOTCERT", file("ca.pem")),
            ]),
            None,
        ),
        (
            &*locked,
            "empty",
            with(&one("PGSSLMODE", "sometimes")),
            Some("PGSSLMODE is none of"),
        ),
        (
            &client,
            "empty",
            vec![],
            Some("requires a valid client certificate"),
        ),
        (
            &client,
            "empty",
            vec![
                ("PGSSLCERT", file("client.pem")),
                ("PGSSLKEY", file("client.key")),
            ],
            None,
        ),
        (&client, "certified", vec![], None),
        // The rest.
        (
            &*locked,
            "empty",
            with(&one("PGOPTIONS", "-c nonsense=1")),
            Some("unrecognized configuration parameter"),
        ),
        (
            &locked,
            "empty",
            with(&one("PGTARGETSESSIONATTRS", "read-only")),
            Some("database is not read only"),
        ),
        (
            &silent,
            "empty",
            one("PGCONNECT_TIMEOUT", "1"),
            Some("no answer within 1 s"),
        ),
    ] {
        let case = format!("{words} at {home} with {environment:?}");
        let run = |mut command: Command| {
            let path = std::env::var_os("PATH").expect("set");
            command.env_clear().env("PATH", path).env(WORDS, words);
            command.env("HOME", file(home)).envs(environment.clone());
            let done = command.output().expect("started");
            let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
            (done.status.success(), text)
        };
        let (is_open, text) = run(psql(words, "select"));
        assert_eq!(is_open, expected.is_none(), "psql {case}: {text}");
        let mut own = Command::new(std::env::current_exe().expect("this program"));
        let name = std::thread::current().name().expect("a test").to_owned();
        own.args(["--exact", &name, "--nocapture"]);
        let (is_open, text) = run(own);
        assert_eq!(is_open, expected.is_none(), "{case}: {text}");
        assert!(
            text.contains(expected.unwrap_or("1 passed")),
            "{case}: {text}"
        );
        assert!(!text.contains("cret"), "{text}");
    }
}

/// Writes what libpq looks for in the homes of users, and other files of the same kinds.
fn write_files(folder: &Path, (authority, issuer): &Authority, port: &str) {
    let right = |host: &str| format!("{host}:{port}:postgres:locked:a\\:se\\\\cret\n");
    let (all, other) = ("*:*:*:*:another\n", "127.0.0.1:1:*:locked:another\n");
    let lines = right("127.0.0.1");
    for (name, content, mode) in [
        ("empty/nothing", "", 0o600),
        ("own/.pgpass", &*lines, 0o600),
        ("for-all/.pgpass", &lines, 0o644),
        ("by-name/.pgpass", &right("db.example.org"), 0o600),
        ("wrong-first", &format!("{all}{lines}"), 0o600),
        (
            "others-first",
            &format!("#{all}{other}\n*:*:postgres:locked:a\\:se\\\\cret\n{all}"),
            0o600,
        ),
        ("ca.pem", authority, 0o644),
        ("certified/.postgresql/root.crt", authority, 0o644),
    ] {
        write_with(&folder.join(name), content, mode);
    }
    clients::write(folder, issuer);
    for (name, file) in [
        ("client.pem", "postgresql.crt"),
        ("client.key", "postgresql.key"),
    ] {
        let content = std::fs::read_to_string(folder.join(name)).expect("written");
        write_with(
            &folder.join("certified/.postgresql").join(file),
            &content,
            0o600,
        );
    }
}

fn write_with(path: &Path, content: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(path, content).expect("written");
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("set up");
}
