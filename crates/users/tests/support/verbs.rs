//! What every database of a network must do, for the tests of each.

use std::time::{Duration, Instant};

use turnbuckle_users::{
    Change, Changed, Connection, Database, Delta, Driver as _, Listing, News, Records, Source,
};

use super::{Server, all};

pub(crate) const KEY: &str = "bc807ee29df3c9ffa736523fb2c4e8ee";

fn put<'a>(realm: &'a str, name: &'a str) -> Change<'a> {
    let key = KEY;
    Change::PutUser { realm, name, key }
}

fn names(records: &Records, realm: &str) -> Vec<String> {
    let users = records.users.get(realm).into_iter().flatten();
    users.map(|(name, _)| name.to_owned()).collect()
}

/// Follows until the users are these, or time is up.
fn await_names(connection: &mut Connection, records: &mut Records, expected: &[&str]) {
    let end = Instant::now() + Duration::from_secs(30);
    while names(records, "r") != expected {
        assert!(
            Instant::now() < end,
            "{:?}, not {expected:?}",
            names(records, "r")
        );
        connection
            .follow(&all(), records)
            .expect("the database answers");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Fails unless each change of users is seen: new ones, other keys, names that replace others, and those that are gone.
pub(crate) fn users_are_followed(source: &Source, execute: &mut dyn FnMut(&str)) {
    let mut writer = Connection::open(source).expect("the database answers");
    writer
        .change(put("r", "alice"))
        .expect("the database answers");
    writer
        .change(put("other", "nobody"))
        .expect("the database answers");
    let (mut reader, mut records) = (
        Connection::open(source).expect("the database answers"),
        Records::default(),
    );
    let changed = reader.follow(&all(), &mut records);
    assert_ne!(changed.expect("the database answers"), Changed::Nothing);
    assert_eq!(names(&records, "r"), ["alice"]);
    assert!(
        !records.users.contains_key("other"),
        "a realm that nothing names"
    );
    writer
        .change(put("r", "bob"))
        .expect("the database answers");
    await_names(&mut reader, &mut records, &["alice", "bob"]);
    execute("update turnusers_lt set name='carol' where name='bob'");
    await_names(&mut reader, &mut records, &["alice", "carol"]);
    execute("delete from turnusers_lt where name='alice'");
    await_names(&mut reader, &mut records, &["carol"]);
    // One goes and another comes: the number of rows is the same.
    let delete = Change::DeleteUser {
        realm: "r",
        name: "carol",
    };
    writer.change(delete).expect("the database answers");
    writer
        .change(put("r", "dave"))
        .expect("the database answers");
    await_names(&mut reader, &mut records, &["dave"]);
    execute("update turnusers_lt set hmackey='not a key' where name='dave'");
    let end = Instant::now() + Duration::from_secs(30);
    while records.user("r", "dave") != Some(None) {
        assert!(Instant::now() < end, "the key is as before");
        reader
            .follow(&all(), &mut records)
            .expect("the database answers");
        std::thread::sleep(Duration::from_millis(20));
    }
    // A realm whose users nobody wanted before.
    execute("insert into turn_origin_to_realm values('https://o:443','other')");
    let end = Instant::now() + Duration::from_secs(30);
    while names(&records, "other") != ["nobody"] {
        assert!(Instant::now() < end, "{records:?}");
        reader
            .follow(&all(), &mut records)
            .expect("the database answers");
        std::thread::sleep(Duration::from_millis(20));
    }
    let delete = Change::DeleteUser {
        realm: "r",
        name: "dave",
    };
    writer.change(delete).expect("the database answers");
    await_names(&mut reader, &mut records, &[]);
}

/// Fails if it is said that nothing has changed after a row was written and before it is shown, also while the driver rests from a reading of many
/// rows.
pub(crate) fn a_rest_is_not_taken_for_a_reading(source: &Source, write: impl FnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (wanted, known) = (all(), Records::default());
        let database = Database::connect(source, false).await;
        let mut database = database.expect("connected");
        let first = database.follow(&wanted, &known).await;
        assert!(matches!(first, Ok(News::Whole(_))), "{first:?}");
        write();
        let end = Instant::now() + Duration::from_secs(120);
        loop {
            assert!(Instant::now() < end, "it rests for ever");
            let news = database.follow(&wanted, &known).await;
            match news.expect("the database answers") {
                News::Part(delta) if delta == Delta::default() => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                News::Whole(records) => {
                    return assert!(records.user("r", "new").is_some(), "not read");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

/// Fails unless every table is read as it stands, and one user is asked for.
pub(crate) fn tables_are_read(source: &Source, execute: &mut dyn FnMut(&str)) {
    for statement in [
        "insert into turn_secret values('r','logen'),('other','bloody9')",
        "insert into allowed_peer_ip values('','10.0.0.0-10.0.0.9')",
        "insert into denied_peer_ip values('r','192.0.2.7')",
        "insert into turn_origin_to_realm values('https://o:443','other')",
        "insert into turn_realm_option values('r','user-quota','3')",
        "insert into oauth_key values('north','Y2FybGVvbg==',1800000000,3600,'A128GCM',null)",
    ] {
        execute(statement);
    }
    let mut connection = Connection::open(source).expect("the database answers");
    connection
        .change(put("r", "alice"))
        .expect("the database answers");
    let mut records = Records::default();
    connection
        .follow(&all(), &mut records)
        .expect("the database answers");
    let tables = &records.tables;
    assert_eq!(tables.secrets["r"][0].expose(), b"logen");
    assert_eq!(tables.secrets["other"][0].expose(), b"bloody9");
    assert_eq!(tables.allowed[""], ["10.0.0.0-10.0.0.9"]);
    assert_eq!(tables.denied["r"], ["192.0.2.7"]);
    assert_eq!(
        tables.origins,
        [("https://o:443".to_owned(), "other".to_owned())]
    );
    assert_eq!(tables.options[0].value, "3");
    let key = &tables.token_keys[0];
    assert_eq!(
        (key.timestamp.as_str(), key.lifetime.as_str()),
        ("1800000000", "3600")
    );
    assert_eq!((key.cipher.as_str(), key.realm.as_str()), ("A128GCM", ""));
    let answer = connection.ask("r", "alice").expect("the database answers");
    assert_eq!(Some(answer.key), records.user("r", "alice"));
    assert_eq!(answer.secrets, tables.secrets["r"]);
    let answer = connection
        .ask("r", "x' or '1'='1")
        .expect("the database answers");
    assert_eq!(answer.key, None);
}

/// Fails unless whatever is put is listed, replaced and deleted, and a value is never a statement.
pub(crate) fn changes_are_listed(source: &Source) {
    let mut connection = Connection::open(source).expect("the database answers");
    let listed = |connection: &mut Connection, listing, realm| -> Vec<String> {
        let rows = connection
            .list(listing, realm)
            .expect("the database answers");
        let rows = rows
            .iter()
            .map(|row| format!("{}[{}]{}", row.name, row.realm, row.value));
        rows.collect()
    };
    let secret = "a');delete from turn_secret;--";
    for change in [
        put("r", "bob"),
        put("r", "alice"),
        put("r", "alice"),
        put("q", "Zed"),
        Change::AddSecret { realm: "r", secret },
        Change::AddSecret { realm: "r", secret },
        Change::PutOrigin {
            origin: "https://o:443",
            realm: "q",
        },
        Change::PutOrigin {
            origin: "https://o:443",
            realm: "r",
        },
        Change::PutRealmOptions {
            realm: "r",
            options: &[("max-bps", 5), ("user-quota", 6)],
        },
        Change::PutRealmOptions {
            realm: "r",
            options: &[("max-bps", 0), ("user-quota", 7)],
        },
        Change::PutAdmin {
            name: "bayaz",
            realm: "",
            password: "$5$a$b",
        },
    ] {
        connection.change(change).expect("the database answers");
    }
    let users = listed(&mut connection, Listing::Users, None);
    assert_eq!(users, ["Zed[q]", "alice[r]", "bob[r]"]);
    let users = listed(&mut connection, Listing::Users, Some("r"));
    assert_eq!(users, ["alice[r]", "bob[r]"]);
    let secrets = listed(&mut connection, Listing::Secrets, None);
    assert_eq!(secrets, [format!("{secret}[r]")]);
    assert_eq!(
        listed(&mut connection, Listing::Origins, None),
        ["https://o:443[r]"]
    );
    let options = listed(&mut connection, Listing::RealmOptions, None);
    assert_eq!(options, ["user-quota[r]7"]);
    assert_eq!(listed(&mut connection, Listing::Admins, None), ["bayaz[]"]);
    for change in [
        Change::DeleteUser {
            realm: "q",
            name: "Zed",
        },
        Change::DeleteUser {
            realm: "r",
            name: "alice",
        },
        Change::DeleteUser {
            realm: "r",
            name: "bob",
        },
        Change::DeleteSecret { realm: "r", secret },
        Change::DeleteSecrets { realm: "q" },
        Change::DeleteOrigin {
            origin: "https://o:443",
        },
        Change::PutRealmOptions {
            realm: "r",
            options: &[("user-quota", 0)],
        },
        Change::DeleteAdmin { name: "bayaz" },
    ] {
        connection.change(change).expect("the database answers");
    }
    for listing in [
        Listing::Users,
        Listing::Secrets,
        Listing::Origins,
        Listing::RealmOptions,
        Listing::Admins,
    ] {
        assert!(
            listed(&mut connection, listing, None).is_empty(),
            "{listing:?}"
        );
    }
}

/// Fails unless a server that answers nothing is an error within a bounded time, for a connection that is open and for a new one.
pub(crate) fn a_hung_server_is_an_error(source: &Source, server: &Server) {
    let (mut connection, mut records) = (
        Connection::open(source).expect("the database answers"),
        Records::default(),
    );
    connection
        .follow(&all(), &mut records)
        .expect("the database answers");
    server.hang();
    let began = Instant::now();
    let error = connection.follow(&all(), &mut records).expect_err("hung");
    let other = Connection::open(source).err().expect("hung");
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
    for error in [error, other] {
        assert!(
            !error.is_permanent() && error.to_string().contains("no answer within"),
            "{error}"
        );
    }
    server.go_on();
    Connection::open(source).expect("it answers again");
}
