//! The driver at FerretDB, which speaks MongoDB's protocol, on PostgreSQL from Debian's package.
//!
//! `scripts/test-mongo` builds the server and runs these tests. It has no change streams and no SCRAM: what a stream tells is tried in
//! `src/mongo/events.rs`, with events as MongoDB's manual shows them.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "support/clients.rs"]
mod clients;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "support/postgres.rs"]
mod postgres;
#[expect(dead_code, reason = "what is in SQL is for the others")]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mongodb::bson::{Bson, Document, doc};
use turnbuckle_users::{Change, Connection, MongoSource, Records, Source};

use self::not_run::not_run;
use self::support::verbs::{self, KEY};
use self::support::{Server, all};

/// FerretDB, and the database that it keeps everything in.
struct Ferret {
    server: Server,
    _postgres: Server,
}

fn program() -> Option<PathBuf> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/.build/ferretdb");
    let path = PathBuf::from(path);
    if !path.exists() {
        not_run("FerretDB is not built: scripts/test-mongo");
        return None;
    }
    Some(path)
}

fn uri(port: u16, more: &str) -> String {
    format!("mongodb://127.0.0.1:{port}/coturn{more}")
}

fn source(port: u16) -> Source {
    Source::Mongo(MongoSource::parse(&uri(port, "")).expect("a URI"))
}

fn start(
    prepare: impl FnOnce(&Path),
    options: impl FnOnce(&Path, u16) -> Vec<String>,
    source: impl Fn(u16) -> Source,
) -> Option<Ferret> {
    let program = program()?;
    let postgres = postgres::server_with(|_| Vec::new())?;
    let database = format!("postgres://turn@127.0.0.1:{}/postgres", postgres.port);
    let server = Server::start(
        "postgres",
        |folder| {
            prepare(folder);
            Command::new("true")
        },
        |folder, port| {
            let mut command = Command::new(program);
            command.args(["-postgresql", &database]);
            command.args(options(folder, port));
            command
        },
        source,
    );
    Some(Ferret {
        server,
        _postgres: postgres,
    })
}

fn server() -> Option<Ferret> {
    let listen = |_: &Path, port| vec![format!("-listen=127.0.0.1:{port}")];
    start(|_| {}, listen, source)
}

/// Another program that writes to the database.
struct Writer {
    runtime: tokio::runtime::Runtime,
    database: mongodb::Database,
}

impl Writer {
    fn new(port: u16) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("set up");
        let client = runtime.block_on(mongodb::Client::with_uri_str(uri(port, "")));
        let database = client.expect("a URI").database("coturn");
        Self { runtime, database }
    }

    fn insert(&self, collection: &str, documents: impl IntoIterator<Item = Document>) {
        let collection = self.database.collection::<Document>(collection);
        let inserted = collection.insert_many(documents);
        self.runtime
            .block_on(inserted.into_future())
            .expect("written");
    }

    fn update(&self, collection: &str, filter: Document, update: Document) {
        let collection = self.database.collection::<Document>(collection);
        let updated = collection.update_many(filter, update);
        self.runtime
            .block_on(updated.into_future())
            .expect("written");
    }

    fn delete(&self, collection: &str, filter: Document) {
        let collection = self.database.collection::<Document>(collection);
        let deleted = collection.delete_many(filter);
        self.runtime
            .block_on(deleted.into_future())
            .expect("written");
    }

    fn one(&self, collection: &str, filter: Document) -> Document {
        let collection = self.database.collection::<Document>(collection);
        let found = collection.find_one(filter);
        let found = self.runtime.block_on(found.into_future());
        let mut found = found.expect("read").expect("such a document");
        found.remove("_id");
        found
    }
}

/// Follows until the records are as they should be. Returns how long that took.
fn until(
    connection: &mut Connection,
    records: &mut Records,
    what: &str,
    is_so: impl Fn(&Records) -> bool,
) -> Duration {
    let began = Instant::now();
    while !is_so(records) {
        assert!(
            began.elapsed() < Duration::from_secs(90),
            "{what}: {records:?}"
        );
        connection.follow(&all(), records).expect(what);
        std::thread::sleep(Duration::from_millis(50));
    }
    began.elapsed()
}

fn names(records: &Records, realm: &str) -> Vec<String> {
    let users = records.users.get(realm).into_iter().flatten();
    users.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn users_who_come_go_and_change_are_followed() {
    let Some(ferret) = server() else {
        return;
    };
    let port = ferret.server.port;
    let (writer, mut reader) = (
        Writer::new(port),
        Connection::open(&source(port)).expect("it answers"),
    );
    let user = |realm: &str, name: &str| doc! { "realm": realm, "name": name, "hmackey": KEY };
    writer.insert(
        "turnusers_lt",
        [user("r", "alice"), user("other", "nobody")],
    );
    let mut records = Records::default();
    until(&mut reader, &mut records, "the first reading", |records| {
        names(records, "r") == ["alice"]
    });
    assert!(
        !records.users.contains_key("other"),
        "a realm that nothing names"
    );
    writer.insert("turnusers_lt", [user("r", "bob")]);
    let took = until(&mut reader, &mut records, "one more", |records| {
        names(records, "r") == ["alice", "bob"]
    });
    assert!(
        took < Duration::from_secs(25),
        "the number shows it, after {took:?}"
    );
    writer.delete("turnusers_lt", doc! { "name": "alice" });
    let took = until(&mut reader, &mut records, "one less", |records| {
        names(records, "r") == ["bob"]
    });
    assert!(
        took < Duration::from_secs(25),
        "the number shows it, after {took:?}"
    );
    // A realm whose users nobody wanted before, and another key: the numbers stay, so that it shows half a minute later.
    writer.insert("realm", [doc! { "realm": "q" }]);
    for _ in 0..3 {
        reader.follow(&all(), &mut records).expect("it answers");
    }
    writer.update(
        "realm",
        doc! { "realm": "q" },
        doc! { "$set": { "realm": "other", "origin": ["https://o:443"] } },
    );
    writer.update(
        "turnusers_lt",
        doc! { "name": "bob" },
        doc! { "$set": { "hmackey": "not a key" } },
    );
    until(
        &mut reader,
        &mut records,
        "another key and realm",
        |records| records.user("r", "bob") == Some(None) && names(records, "other") == ["nobody"],
    );
}

#[test]
fn what_coturns_test_data_holds_is_read() {
    let Some(ferret) = server() else {
        return;
    };
    let writer = Writer::new(ferret.server.port);
    writer.insert(
        "turnusers_lt",
        [doc! { "realm": "r", "name": "alice", "hmackey": KEY }],
    );
    writer.insert(
        "turn_secret",
        [
            doc! { "realm": "r", "value": "logen" },
            doc! { "realm": "other", "value": "bloody9" },
        ],
    );
    writer.insert("realm", [
        doc! {
            "realm": "r",
            "options": { "max-bps": 500_000_i64, "total-quota": 12_000.0, "user-quota": 10_000_i32 },
            "denied_peer_ip": ["192.0.2.7", "123::45"],
        },
        doc! { "realm": "other", "origin": ["https://o:443", "http://o:80"] },
        doc! { "realm": "", "allowed_peer_ip": ["10.0.0.0-10.0.0.9"] },
    ]);
    writer.insert("oauth_key", [doc! {
        "kid": "north", "ikm_key": "Y2FybGVvbg==", "timestamp": 1_800_000_000_i64, "lifetime": 3600_i32, "as_rs_alg": "A128GCM",
    }]);
    let mut connection = Connection::open(&source(ferret.server.port)).expect("it answers");
    let mut records = Records::default();
    connection.follow(&all(), &mut records).expect("it answers");
    let tables = &records.tables;
    assert_eq!(tables.secrets["r"][0].expose(), b"logen");
    assert_eq!(tables.secrets["other"][0].expose(), b"bloody9");
    assert_eq!(tables.allowed[""], ["10.0.0.0-10.0.0.9"]);
    assert_eq!(tables.denied["r"], ["192.0.2.7", "123::45"]);
    let origin = |origin: &str| (origin.to_owned(), "other".to_owned());
    assert_eq!(
        tables.origins,
        [origin("http://o:80"), origin("https://o:443")]
    );
    let values: Vec<_> = tables
        .options
        .iter()
        .map(|option| option.value.as_str())
        .collect();
    assert_eq!(values, ["500000", "12000", "10000"]);
    let key = &tables.token_keys[0];
    assert_eq!(
        (key.timestamp.as_str(), key.lifetime.as_str()),
        ("1800000000", "3600")
    );
    assert_eq!((key.cipher.as_str(), key.realm.as_str()), ("A128GCM", ""));
    let answer = connection.ask("r", "alice").expect("it answers");
    assert_eq!(Some(answer.key), records.user("r", "alice"));
    assert!(answer.key.is_some());
    assert_eq!(answer.secrets, tables.secrets["r"]);
    let answer = connection.ask("r", "x' || '1'=='1").expect("it answers");
    assert_eq!(answer.key, None);
}

#[test]
fn changes_are_written_as_coturn_keeps_them_and_listed() {
    let Some(ferret) = server() else {
        return;
    };
    let source = source(ferret.server.port);
    verbs::changes_are_listed(&source);
    let writer = Writer::new(ferret.server.port);
    let mut connection = Connection::open(&source).expect("it answers");
    writer.insert(
        "realm",
        [doc! { "realm": "n", "denied_peer_ip": ["192.0.2.7"] }],
    );
    for change in [
        Change::PutOrigin {
            origin: "https://o:443",
            realm: "n",
        },
        Change::PutOrigin {
            origin: "https://p:443",
            realm: "n",
        },
        Change::PutOrigin {
            origin: "https://p:443",
            realm: "n",
        },
        Change::PutRealmOptions {
            realm: "n",
            options: &[("max-bps", 5), ("user-quota", 6)],
        },
        Change::PutRealmOptions {
            realm: "n",
            options: &[("user-quota", 0)],
        },
        Change::PutRealmOptions {
            realm: "nowhere",
            options: &[("user-quota", 0)],
        },
    ] {
        connection.change(change).expect("it answers");
    }
    let expected = doc! {
        "realm": "n",
        "denied_peer_ip": ["192.0.2.7"],
        "origin": ["https://o:443", "https://p:443"],
        "options": { "max-bps": 5_i32 },
    };
    assert_eq!(writer.one("realm", doc! { "realm": "n" }), expected);
    connection
        .change(Change::PutAdmin {
            name: "skarling",
            realm: "n",
            password: "$5$a$b",
        })
        .expect("it answers");
    let admin = writer.one("admin_user", doc! { "name": "skarling" });
    assert_eq!(admin.get("password"), Some(&Bson::from("$5$a$b")));
}

/// Returns the statements `db.COLLECTION.createIndex({FIELD: 1, ...}, {unique: true})` of the page about databases.
fn indexes_of_the_page() -> Vec<(String, Document)> {
    let page = include_str!("../../../docs/operating/databases.md");
    let lines = page.lines().filter_map(|line| line.strip_prefix("db."));
    let statements = lines.filter_map(|line| {
        let (collection, rest) = line.split_once(".createIndex({")?;
        let (fields, options) = rest.split_once('}')?;
        assert_eq!(options, ", {unique: true})", "{line}");
        let fields = fields.split(", ").map(|field| {
            let name = field.strip_suffix(": 1").expect("ascending");
            (name.to_owned(), Bson::Int32(1))
        });
        Some((collection.to_owned(), fields.collect()))
    });
    statements.collect()
}

#[test]
fn with_the_indexes_of_the_page_changes_are_written_and_no_user_is_there_twice() {
    let Some(ferret) = server() else {
        return;
    };
    let writer = Writer::new(ferret.server.port);
    let indexes = indexes_of_the_page();
    assert_eq!(indexes.len(), 5);
    for (collection, keys) in indexes {
        let name = format!("of {collection}");
        let index = doc! { "key": keys, "name": name, "unique": true };
        let command = doc! { "createIndexes": collection, "indexes": [index] };
        let made = writer.database.run_command(command);
        writer.runtime.block_on(made.into_future()).expect("made");
    }
    verbs::changes_are_listed(&source(ferret.server.port));
    let users = writer.database.collection::<Document>("turnusers_lt");
    let twice = vec![doc! { "realm": "r", "name": "alice" }; 2];
    let inserted = users.insert_many(twice);
    let inserted = writer.runtime.block_on(inserted.into_future());
    assert!(inserted.is_err(), "two users of one name");
}

#[test]
fn a_server_that_hangs_or_refuses_is_told_apart() {
    let Some(ferret) = server() else {
        return;
    };
    verbs::a_hung_server_is_an_error(&source(ferret.server.port), &ferret.server);
    let began = Instant::now();
    let error = Connection::open(&source(1)).err().expect("nobody listens");
    assert!(!error.is_permanent(), "{error}");
    assert!(error.to_string().contains("onnection refused"), "{error}");
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "it is said at once"
    );
}

#[test]
fn the_server_of_tls_needs_a_certificate_of_the_authority_for_its_host() {
    let (authority, issuer) = certificates::authority();
    let (_, stranger) = certificates::stranger();
    let folder = tempfile::tempdir().expect("a directory");
    let ca = folder.path().join("ca.pem").display().to_string();
    std::fs::write(&ca, authority).expect("written");
    let tls = |port, more: &str| {
        let uri = uri(
            port,
            &format!("?ssl=true&sslCertificateAuthorityFile={ca}{more}"),
        );
        Source::Mongo(MongoSource::parse(&uri).expect("a URI"))
    };
    for (issuer, name, expected) in [
        (&issuer, "127.0.0.1", None),
        (&issuer, "192.0.2.1", Some("certificate verify failed")),
        (&stranger, "127.0.0.1", Some("certificate verify failed")),
    ] {
        let ferret = start(
            |folder| certificates::write(folder, issuer, name),
            |folder, port| {
                let file = |name: &str| folder.join(name).display().to_string();
                vec![
                    format!("-listen-tls=127.0.0.1:{port}"),
                    format!("-certificate={}", file("cert.pem")),
                    format!("-key={}", file("key.pem")),
                ]
            },
            |port| {
                tls(
                    port,
                    "&sslAllowInvalidHostnames=true&sslAllowInvalidCertificates=true",
                )
            },
        );
        let Some(ferret) = ferret else {
            return;
        };
        let opened = Connection::open(&tls(ferret.server.port, ""));
        match expected {
            None => drop(opened.expect("the right server")),
            Some(expected) => {
                let error = opened.err().expect("another server");
                let text = error.to_string();
                assert!(error.is_permanent() && text.contains(expected), "{text}");
            }
        }
    }
}

#[test]
fn a_server_that_wants_a_certificate_is_given_that_of_the_uri_and_refuses_others_and_none() {
    let (authority, issuer) = certificates::authority();
    let folder = tempfile::tempdir().expect("a directory");
    let path = |name: &str| folder.path().join(name);
    let read = |name: &str| std::fs::read_to_string(path(name)).expect("written");
    clients::write(folder.path(), &issuer);
    for name in ["client", "chain", "stranger"] {
        let both = [format!("{name}.pem"), format!("{name}.key")].map(|name| read(&name));
        std::fs::write(path(name), both.concat()).expect("written");
    }
    std::fs::write(path("ca.pem"), &authority).expect("written");
    // The driver sends the first certificate of the file, and what OpenSSL finds to it among the authorities.
    let more = format!("{authority}{}", read("chain.pem"));
    std::fs::write(path("more.pem"), more).expect("written");
    let source = |port, name: &str, ca: &str| {
        let file = |name: &str| path(name).display().to_string();
        let own = match name {
            "" => String::new(),
            name => format!("&tlsCertificateKeyFile={}", file(name)),
        };
        let uri = uri(port, &format!("?tls=true&tlsCAFile={}{own}", file(ca)));
        Source::Mongo(MongoSource::parse(&uri).expect("a URI"))
    };
    let ferret = start(
        |folder| {
            certificates::write(folder, &issuer, "127.0.0.1");
            std::fs::write(folder.join("ca.pem"), &authority).expect("written");
        },
        |folder, port| {
            let file = |name: &str| folder.join(name).display().to_string();
            vec![
                format!("-listen-tls=127.0.0.1:{port}"),
                format!("-certificate={}", file("cert.pem")),
                format!("-key={}", file("key.pem")),
                format!("-authority={}", file("ca.pem")),
            ]
        },
        |port| source(port, "client", "ca.pem"),
    );
    let Some(ferret) = ferret else {
        return;
    };
    for (name, ca, is_right) in [
        ("client", "ca.pem", true),
        ("chain", "more.pem", true),
        ("chain", "ca.pem", false),
        ("stranger", "ca.pem", false),
        ("", "ca.pem", false),
    ] {
        let error = Connection::open(&source(ferret.server.port, name, ca)).err();
        assert_eq!(error.is_none(), is_right, "{name}, {ca}: {error:?}");
    }
    let error = Connection::open(&source(ferret.server.port, "nothing", "ca.pem"));
    let error = error.err().expect("no such file");
    assert!(error.is_permanent(), "{error}");
}

#[test]
fn connections_that_are_lost_a_hundred_times_leave_no_descriptor() {
    let Some(ferret) = server() else {
        return;
    };
    let source = source(ferret.server.port);
    for _ in 0..100 {
        let mut connection = Connection::open(&source).expect("it answers");
        connection
            .follow(&all(), &mut Records::default())
            .expect("it answers");
        drop(connection);
    }
    let end = Instant::now() + Duration::from_secs(30);
    while connected_to(ferret.server.port) > 0 {
        assert!(Instant::now() < end, "connections are left");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns how many sockets of this machine that somebody has open are connected to a port of it (`proc(5)`, `/proc/net/tcp`).
fn connected_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let end = format!(":{port:04X}");
    let sockets = table.lines().skip(1).filter(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // The remote address, and the inode, which a socket that nobody has open does not have.
        fields[2].ends_with(&end) && fields[9] != "0"
    });
    sockets.count()
}
