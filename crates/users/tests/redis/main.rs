//! The Redis driver against real servers from Debian's package, which each test starts and stops.

#[path = "../support/certificates.rs"]
mod certificates;
#[path = "../support/clients.rs"]
mod clients;
#[path = "../../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "../../../turnbuckle/tests/ports/mod.rs"]
mod ports;
mod server;
#[path = "../support/texts.rs"]
#[expect(dead_code, reason = "rows are for the others")]
mod texts;
mod tls;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use server::Server;
use turnbuckle_users::{
    Change, Changed, Connection, Database, Delta, Driver as _, Listed, Listing, News, RealmUsers,
    Records, RedisAddress, Secret, Source, Wanted,
};

/// The key of user gorst of realm north.gov with password hero, as coturn's documents give it.
const GORST: &str = "7da2270ccfa49786e0115366d3a3d14d";

fn wanted() -> Wanted {
    Wanted {
        realm: "north.gov".to_owned(),
        users: true,
        secrets: true,
        peers: true,
        realms: true,
        token_keys: true,
    }
}

fn open(words: &str) -> Connection {
    Connection::open(&source(words)).unwrap_or_else(|error| panic!("{error}"))
}

fn source(words: &str) -> Source {
    Source::Redis(RedisAddress::parse(words).expect("words"))
}

/// Takes what the database tells until the records are as they should be, which takes less than a second.
fn until(
    connection: &mut Connection,
    records: &mut Records,
    what: &str,
    is_so: impl Fn(&Records) -> bool,
) {
    let begun = Instant::now();
    while !is_so(records) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        connection.follow(&wanted(), records).expect(what);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads everything.
fn read(server: &Server) -> Records {
    let mut records = Records::default();
    let changed = open(&server.words()).follow(&wanted(), &mut records);
    assert_ne!(changed.expect("read"), Changed::Nothing);
    records
}

fn has_user(records: &Records, realm: &str, name: &str) -> bool {
    let users = records.users.get(realm);
    users.is_some_and(|users| users.has(name))
}

#[test]
fn what_coturns_sample_commands_write_is_read() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    for command in [
        "SET turn/realm/north.gov/user/gorst/key 7da2270ccfa49786e0115366d3a3d14d",
        "SET turn/realm/crinna.org/user/whirrun/key 6972e85e51f36e53b0b61759c5a5219a",
        "SET turn/realm/unknown.org/user/nobody/key 6972e85e51f36e53b0b61759c5a5219a",
        "SET turn/realm/north.gov/user/broken/key short",
        "SADD turn/realm/north.gov/secret logen bloody9",
        "SADD turn/realm/crinna.org/secret north library",
        "SET turn/realm/north.gov/max-bps 500000",
        "SET turn/realm/crinna.org/user-quota 8000",
        "SET turn/origin/http://crinna.org:80 crinna.org",
        "SADD turn/realm/north.gov/allowed-peer-ip 172.17.13.201 172.17.13.200",
        "SADD turn/realm/crinna.org/denied-peer-ip 123::77",
        "SADD turn/realm//denied-peer-ip 10.9.0.0-10.9.255.255",
        "HMSET turn/oauth/kid/oldempire ikm_key MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIK as_rs_alg A256GCM",
        "HMSET turn/admin_user/skarling realm north.gov password hoodless",
        // Other things that a key of such a name may hold, and keys of other programs.
        "SADD turn/realm/north.gov/user/odd/key x",
        "SET turn/realm/crinna.org/allowed-peer-ip x",
        "SET turn/realm/north.gov/user/gorst/allocation/000000000000000001/status new",
        "SET session:1 x",
    ] {
        server.command(command);
    }
    let records = read(&server);
    let names = |realm: &str| records.users[realm].names().collect::<Vec<_>>();
    assert_eq!(
        records.users.keys().collect::<Vec<_>>(),
        ["crinna.org", "north.gov"]
    );
    assert_eq!(names("crinna.org"), ["whirrun"]);
    assert_eq!(names("north.gov"), ["broken", "gorst"]);
    assert_eq!(records.user("north.gov", "broken"), Some(None));
    assert_eq!(
        records.user("north.gov", "gorst"),
        Some(turnbuckle_users::user_key(GORST))
    );
    let tables = &records.tables;
    let secrets = |realm: &str| {
        let secrets = tables.secrets[realm].iter().map(Secret::expose);
        secrets.map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    assert_eq!(
        secrets("north.gov"),
        [b"bloody9".to_vec(), b"logen".to_vec()]
    );
    assert_eq!(
        secrets("crinna.org"),
        [b"library".to_vec(), b"north".to_vec()]
    );
    let options: Vec<_> = tables
        .options
        .iter()
        .map(|option| (&*option.realm, &*option.option, &*option.value))
        .collect();
    assert_eq!(
        options,
        [
            ("crinna.org", "user-quota", "8000"),
            ("north.gov", "max-bps", "500000")
        ]
    );
    let ranges = |by_realm: &BTreeMap<String, Vec<String>>, realm: &str| by_realm[realm].clone();
    assert_eq!(
        ranges(&tables.allowed, "north.gov"),
        ["172.17.13.200", "172.17.13.201"]
    );
    assert_eq!(ranges(&tables.denied, "crinna.org"), ["123::77"]);
    assert_eq!(ranges(&tables.denied, ""), ["10.9.0.0-10.9.255.255"]);
    assert_eq!(
        tables.origins,
        [("http://crinna.org:80".to_owned(), "crinna.org".to_owned())]
    );
    let [key] = &tables.token_keys[..] else {
        panic!("one key");
    };
    assert_eq!(
        (&*key.name, &*key.timestamp, &*key.lifetime, &*key.cipher),
        ("oldempire", "0", "0", "A256GCM")
    );
}

#[test]
fn each_change_is_told_by_itself_and_everything_after_flushdb() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    server.command("SET turn/realm/north.gov/user/gorst/key 7da2270ccfa49786e0115366d3a3d14d");
    let mut connection = open(&server.words());
    let mut records = Records::default();
    until(&mut connection, &mut records, "the first look", |records| {
        has_user(records, "north.gov", "gorst")
    });
    server
        .command("SET turn/realm/north.gov/user/brief/key a82c12e88b44b32d01c1f5610abb14bc PX 300");
    until(&mut connection, &mut records, "a user comes", |records| {
        has_user(records, "north.gov", "brief")
    });
    server.command("DEL turn/realm/north.gov/user/gorst/key");
    until(&mut connection, &mut records, "users go", |records| {
        !has_user(records, "north.gov", "gorst") && !has_user(records, "north.gov", "brief")
    });
    server.command("SADD turn/realm/north.gov/secret one two");
    server.command("SREM turn/realm/north.gov/secret one");
    until(&mut connection, &mut records, "a secret comes", |records| {
        records.tables.secrets.get("north.gov") == Some(&vec![Secret::new(*b"two")])
    });
    // With an origin comes a realm, and with the realm its users.
    server.command("SET turn/realm/other.org/user/al/key a82c12e88b44b32d01c1f5610abb14bc");
    server.command("SET turn/origin/http://other.org:80 other.org");
    until(&mut connection, &mut records, "a realm comes", |records| {
        has_user(records, "other.org", "al")
    });
    server.command("FLUSHDB");
    until(&mut connection, &mut records, "all are gone", |records| {
        records.users.values().all(RealmUsers::is_empty) && records.tables.secrets.is_empty()
    });
}

#[test]
fn one_user_that_changes_is_read_and_no_other() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let source = source(&server.words());
    let (wanted, known) = (wanted(), Records::default());
    runtime.block_on(async {
        let mut database = Database::connect(&source, false).await.expect("connected");
        let first = database.follow(&wanted, &known).await.expect("read");
        assert!(matches!(first, News::Whole(_)));
        let second = database.follow(&wanted, &known).await.expect("read");
        assert_eq!(second, News::Nothing);
        server.command("SET turn/realm/north.gov/user/al/key a82c12e88b44b32d01c1f5610abb14bc");
        let begun = Instant::now();
        let news = loop {
            database.await_change().await;
            match database.follow(&wanted, &known).await.expect("followed") {
                News::Nothing => assert!(begun.elapsed() < Duration::from_secs(20)),
                news => break news,
            }
        };
        let News::Delta(delta) = &news else {
            panic!("one user is read, not all: {news:?}");
        };
        assert_eq!(delta.put.keys().collect::<Vec<_>>(), ["north.gov"]);
        assert_eq!(delta.put["north.gov"].names().collect::<Vec<_>>(), ["al"]);
        assert_eq!((delta.deleted.len(), &delta.tables), (0, &None));
    });
}

#[test]
fn a_server_that_may_not_tell_of_changes_is_read_again_and_again() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    server.command("ACL SETUSER turn on >secret ~turn/* +@all -client");
    let words = format!("{} user=turn password=secret", server.words());
    let mut connection = open(&words);
    let mut records = Records::default();
    until(&mut connection, &mut records, "read", |records| {
        records.users.contains_key("north.gov")
    });
    server.command("SET turn/realm/north.gov/user/gorst/key 7da2270ccfa49786e0115366d3a3d14d");
    until(&mut connection, &mut records, "read again", |records| {
        has_user(records, "north.gov", "gorst")
    });
}

#[test]
fn what_was_written_in_the_rest_after_a_reading_is_shown_before_anything_is_said_to_be_as_before() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    server.command("ACL SETUSER turn on >secret ~turn/* +@all -client");
    server.command(
        "EVAL \"for n=1,20000 do redis.call('SET','turn/realm/north.gov/user/user'..n..'/key','none') end\" 0",
    );
    let source = source(&format!("{} user=turn password=secret", server.words()));
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let (wanted, known) = (wanted(), Records::default());
    runtime.block_on(async {
        let mut database = Database::connect(&source, false).await.expect("connected");
        let first = database.follow(&wanted, &known).await.expect("read");
        assert!(matches!(first, News::Whole(_)));
        server.command("SET turn/realm/north.gov/user/al/key a82c12e88b44b32d01c1f5610abb14bc");
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            assert!(Instant::now() < end, "it rests for ever");
            match database.follow(&wanted, &known).await.expect("followed") {
                News::Part(delta) if delta == Delta::default() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                News::Whole(records) => return assert!(has_user(&records, "north.gov", "al")),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn the_rights_that_the_documents_name_are_enough_to_be_told_of_changes() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let documents = include_str!("../../../../docs/operating/redis.md");
    let (_, rights) = documents
        .split_once("ACL SETUSER turn on >a-long-secret ")
        .expect("rights");
    let (rights, _) = rights.split_once('\n').expect("their end");
    server.command(&format!("ACL SETUSER turn on >secret {rights}"));
    let words = format!("{} db=2 user=turn password=secret", server.words());
    let mut connection = open(&words);
    let mut records = Records::default();
    let read = connection.follow(&wanted(), &mut records);
    read.expect("the rights are enough to read");
    for command in [
        "SET turn/realm/north.gov/user/gorst/key 7da2270ccfa49786e0115366d3a3d14d",
        "SADD turn/realm/north.gov/secret logen",
        "HMSET turn/oauth/kid/oldempire ikm_key MTIz",
    ] {
        server.command(&format!("SELECT 2\n{command}"));
    }
    until(&mut connection, &mut records, "a change", |records| {
        has_user(records, "north.gov", "gorst")
            && records.tables.secrets.contains_key("north.gov")
            && records.tables.token_keys.len() == 1
    });
    let clients = server.reply("CLIENT LIST");
    assert!(clients.contains("flags=tB"), "it tracks: {clients}");
}

#[test]
fn one_user_can_be_asked_for() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut connection = open(&server.words());
    let nobody = connection.ask("north.gov", "gorst").expect("answered");
    assert_eq!((nobody.key, nobody.secrets.len()), (None, 0));
    server.command("SET turn/realm/north.gov/user/gorst/key 7da2270ccfa49786e0115366d3a3d14d");
    server.command("SADD turn/realm/north.gov/secret logen");
    let answer = connection.ask("north.gov", "gorst").expect("answered");
    assert_eq!(answer.key, turnbuckle_users::user_key(GORST));
    assert_eq!(answer.secrets, [Secret::new(*b"logen")]);
}

#[test]
fn changes_are_written_under_coturns_keys_and_listed_in_order() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut connection = open(&server.words());
    let (realm, other) = ("north.gov", "a*");
    for (realm, name) in [(realm, "gorst"), (realm, "a/b"), (other, "al")] {
        let key = GORST;
        let put = Change::PutUser { realm, name, key };
        connection.change(put).expect("written");
    }
    for (realm, secret) in [(realm, "two"), (realm, "one"), (other, "three")] {
        let add = Change::AddSecret { realm, secret };
        connection.change(add).expect("written");
    }
    let origin = "http://crinna.org:80";
    connection
        .change(Change::PutOrigin { origin, realm })
        .expect("written");
    let options = &[("max-bps", 500), ("user-quota", 7), ("total-quota", 0)];
    connection
        .change(Change::PutRealmOptions { realm, options })
        .expect("written");
    for realm in [realm, ""] {
        let (name, password) = ("bayaz", "$5$salt$hash");
        let put = Change::PutAdmin {
            name,
            realm,
            password,
        };
        connection.change(put).expect("written");
    }
    assert_eq!(server.reply("GET turn/realm/north.gov/user/a/b/key"), GORST);
    assert_eq!(server.reply("GET turn/origin/http://crinna.org:80"), realm);
    assert_eq!(server.reply("GET turn/realm/north.gov/max-bps"), "500");
    assert_eq!(server.reply("EXISTS turn/realm/north.gov/total-quota"), "0");
    assert_eq!(
        server.reply("HGET turn/admin_user/bayaz password"),
        "$5$salt$hash"
    );
    assert_eq!(server.reply("HEXISTS turn/admin_user/bayaz realm"), "0");
    let mut listed = |listing, realm| {
        let rows = connection.list(listing, realm).expect("listed");
        let text = |row: Listed| format!("{}|{}|{}", row.realm, row.name, row.value);
        rows.into_iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(
        listed(Listing::Users, None),
        ["a*|al|", "north.gov|a/b|", "north.gov|gorst|"]
    );
    assert_eq!(listed(Listing::Users, Some(other)), ["a*|al|"]);
    assert_eq!(
        listed(Listing::Secrets, None),
        ["a*|three|", "north.gov|one|", "north.gov|two|"]
    );
    assert_eq!(listed(Listing::Secrets, Some("a")), [""; 0]);
    assert_eq!(
        listed(Listing::RealmOptions, Some(realm)),
        ["north.gov|max-bps|500", "north.gov|user-quota|7"]
    );
    assert_eq!(
        listed(Listing::Origins, Some(realm)),
        ["north.gov|http://crinna.org:80|"]
    );
    assert_eq!(listed(Listing::Origins, Some(other)), [""; 0]);
    assert_eq!(listed(Listing::Admins, None), ["|bayaz|"]);
    let name = "gorst";
    for change in [
        Change::DeleteUser { realm, name },
        Change::DeleteSecret {
            realm,
            secret: "one",
        },
        Change::DeleteSecrets { realm: other },
        Change::DeleteOrigin { origin },
        Change::PutRealmOptions {
            realm,
            options: &[("max-bps", 0)],
        },
        Change::DeleteAdmin { name: "bayaz" },
        Change::DeleteUser {
            realm,
            name: "nobody",
        },
    ] {
        connection.change(change).expect("written");
    }
    let keys = server.reply("KEYS *");
    let mut keys: Vec<_> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "turn/realm/a*/user/al/key",
            "turn/realm/north.gov/secret",
            "turn/realm/north.gov/user-quota",
            "turn/realm/north.gov/user/a/b/key"
        ]
    );
}

#[test]
fn a_text_is_a_value_whatever_it_holds() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    server.command(
        "SADD turn/realm//allowed-peer-ip 10.0.0.0-10.0.0.9\nSADD turn/realm/r/denied-peer-ip 192.0.2.7\n\
        HMSET turn/oauth/kid/north ikm_key Y2FybGVvbg== lifetime 3600",
    );
    texts::are_values(&source(&server.words()), 10_000);
}

#[test]
fn a_server_that_refuses_is_told_from_one_that_is_not_there_and_no_secret_is_shown() {
    let Some(server) = Server::start(&["--requirepass", "open-sesame"]) else {
        return;
    };
    let error = |words: &str| {
        let opened = Connection::open(&source(words));
        opened.err().unwrap_or_else(|| panic!("{words}"))
    };
    let words = server.words();
    let wrong = error(&format!("{words} password=hunter2"));
    assert!(wrong.is_permanent(), "{wrong}");
    assert!(wrong.to_string().contains("refuses"), "{wrong}");
    assert!(!wrong.to_string().contains("hunter2"), "{wrong}");
    let wrong = error(&format!("{words} user=turn password=hunter2"));
    assert!(wrong.is_permanent(), "{wrong}");
    let wrong = error(&format!("{words} db=9999 password=open-sesame"));
    assert!(wrong.is_permanent(), "{wrong}");
    assert!(wrong.to_string().contains("no database 9999"), "{wrong}");
    let missing = error(&words);
    assert!(missing.is_permanent(), "{missing}");
    assert!(missing.to_string().contains("NOAUTH"), "{missing}");
    let mut good = open(&format!("{words} db=5 password=open-sesame"));
    let put = Change::AddSecret {
        realm: "r",
        secret: "s",
    };
    good.change(put).expect("written");
    server.command("AUTH open-sesame\nSELECT 5\nEXISTS turn/realm/r/secret");
    drop(server);
    let gone = error(&words);
    assert!(!gone.is_permanent(), "{gone}");
}

#[test]
fn a_server_that_hangs_costs_the_time_that_is_given_and_no_more() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let words = format!("{} timeout=1", server.words());
    let mut connection = open(&words);
    let mut records = Records::default();
    connection.follow(&wanted(), &mut records).expect("read");
    server.pause();
    let begun = Instant::now();
    let error = connection
        .follow(&wanted(), &mut records)
        .expect_err("hangs");
    assert!(!error.is_permanent(), "{error}");
    let again = Connection::open(&source(&words)).err().expect("hangs");
    assert!(!again.is_permanent(), "{again}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    server.go_on();
}

#[test]
fn a_connection_that_is_lost_is_an_error_and_the_next_one_reads_everything() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let mut connection = open(&server.words());
    let mut records = Records::default();
    connection.follow(&wanted(), &mut records).expect("read");
    server.command("CLIENT KILL TYPE normal SKIPME yes");
    let begun = Instant::now();
    while connection.follow(&wanted(), &mut records).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    server.command("SET turn/realm/north.gov/user/gorst/key 7da2270ccfa49786e0115366d3a3d14d");
    assert!(has_user(&read(&server), "north.gov", "gorst"));
}

#[test]
fn a_hundred_thousand_users_are_read_without_stopping_the_server() {
    const COUNT: usize = 100_000;
    let Some(server) = Server::start(&[]) else {
        return;
    };
    server.command(&format!(
        "EVAL \"for i=1,{COUNT} do redis.call('SET','turn/realm/north.gov/user/u'..i..'/key','{GORST}') end\" 0"
    ));
    server.command("CONFIG RESETSTAT");
    let records = read(&server);
    assert_eq!(records.users["north.gov"].len(), COUNT);
    let statistics = server.reply("INFO commandstats");
    assert!(statistics.contains("cmdstat_scan"), "{statistics}");
    for command in ["cmdstat_keys", "cmdstat_save", "cmdstat_bgsave"] {
        assert!(!statistics.contains(command), "{statistics}");
    }
}
