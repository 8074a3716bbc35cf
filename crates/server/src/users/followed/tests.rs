//! What is handed over, and when.

use std::time::Duration;

use turnbuckle_engine::{AuthConfig, Realm};
use turnbuckle_users::{CONFIRMED_AFTER, Connection as DatabaseConnection, Read, Secret, Source};

use super::*;

/// A file, a connection that follows it, and what is made of it.
struct Fixture {
    folder: tempfile::TempDir,
    file: rusqlite::Connection,
    connection: DatabaseConnection,
    records: Records,
    wanted: Wanted,
    followed: Followed,
}

fn base() -> Arc<EngineConfig> {
    Arc::new(EngineConfig {
        auth: AuthConfig::new("r").unwrap(),
        ..EngineConfig::default()
    })
}

fn wanted() -> Wanted {
    Wanted {
        realm: "r".to_owned(),
        users: true,
        secrets: false,
        peers: true,
        realms: false,
        token_keys: false,
    }
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    Fixture {
        connection: DatabaseConnection::open(&Source::Sqlite(path.clone())).unwrap(),
        file: rusqlite::Connection::open(path).unwrap(),
        records: Records::default(),
        wanted: wanted(),
        followed: Followed::new(wanted(), base()),
        folder,
    }
}

impl Fixture {
    fn change(&self, text: &str) {
        self.file.execute_batch(text).expect("changed");
    }

    fn add(&self, name: &str) {
        let key = "bc807ee29df3c9ffa736523fb2c4e8ee";
        self.change(&format!(
            "insert into turnusers_lt values('r','{name}','{key}')"
        ));
    }

    fn look(&mut self) -> Outcome {
        self.look_at(Instant::now())
    }

    /// Reads, beginning at `began`.
    fn look_at(&mut self, began: Instant) -> Outcome {
        let (connection, records) = (&mut self.connection, &mut self.records);
        let changed = connection.follow(&self.wanted, records).unwrap();
        let read = Read { records, began };
        let notice = match changed {
            Changed::Nothing => Notice::Same(read),
            changed => Notice::Records(read, changed),
        };
        self.followed.take(notice, began)
    }

    /// Asks for a user of the realm, at `now`.
    fn ask(&mut self, name: &str, now: Instant) -> Outcome {
        let answer = self.connection.ask("r", name).unwrap();
        let question = Question {
            realm: "r".into(),
            name: name.into(),
            tag: 7,
        };
        self.followed
            .take(Notice::Answer(question, Ok(answer)), now)
    }
}

fn users(engine: &EngineConfig) -> Vec<&str> {
    let mut users: Vec<_> = engine.auth.users_without_sha256().collect();
    users.sort_unstable();
    users
}

#[test]
fn a_change_is_handed_over_once_and_nothing_when_nothing_has_changed() {
    let mut fixture = fixture();
    fixture.add("alice");
    assert_eq!(users(&fixture.look().engine.expect("read")), ["alice"]);
    assert!(fixture.look().engine.is_none());
    fixture.add("bob");
    let changed = fixture.look().engine.expect("changed");
    assert_eq!(users(&changed), ["alice", "bob"]);
    assert!(fixture.look().engine.is_none());
    fixture.change("delete from turnusers_lt where name='alice'");
    assert_eq!(users(&fixture.look().engine.expect("changed")), ["bob"]);
    fixture.change("insert into turn_secret values('r','not wanted')");
    assert!(fixture.look().engine.is_none(), "nothing that is wanted");
}

#[test]
fn engines_that_are_let_go_are_freed_by_the_thread_that_follows() {
    let mut fixture = fixture();
    fixture.look();
    fixture.add("alice");
    let shard = fixture.look().engine.expect("changed");
    fixture.add("bob");
    let next = fixture.look().engine.expect("changed");
    assert_eq!(
        Arc::strong_count(&shard),
        2,
        "a shard that drops this one frees nothing"
    );
    drop((shard, next));
}

#[test]
fn rules_for_peers_are_due_until_the_first_reading_also_by_another_configuration() {
    let mut fixture = fixture();
    fixture.change("insert into denied_peer_ip values('','192.0.2.1')");
    let mut due = base();
    Arc::make_mut(&mut due).answers.are_peer_rules_due = true;
    fixture.followed = Followed::new(wanted(), due);
    assert_eq!(fixture.followed.denies(), None);
    let of = |wanted: Wanted| Base {
        engine: base(),
        wanted,
        has_same_users: true,
    };
    let records = Records::default();
    let outcome = fixture.followed.rebase(of(wanted()), &records);
    assert!(outcome.engine.unwrap().answers.are_peer_rules_due);
    let engine = fixture.look().engine.expect("read");
    assert!(!engine.answers.are_peer_rules_due);
    assert_eq!(engine.policy.rules.len(), 1);
    assert_eq!(fixture.followed.denies(), Some(true));
    fixture.change("delete from denied_peer_ip");
    fixture.look();
    assert_eq!(fixture.followed.denies(), Some(false));
    // Where rows have nothing to say of peers by now, nobody waits for them.
    let mut due = base();
    Arc::make_mut(&mut due).answers.are_peer_rules_due = true;
    let mut followed = Followed::new(wanted(), due);
    let without = Wanted {
        peers: false,
        ..wanted()
    };
    let outcome = followed.rebase(of(without), &records);
    assert!(!outcome.engine.unwrap().answers.are_peer_rules_due);
}

#[test]
fn an_error_is_said_once_and_so_is_its_end() {
    let missing = Source::Sqlite("/nonexistent/turndb".into());
    let error = DatabaseConnection::open(&missing)
        .err()
        .expect("no such file");
    let now = Instant::now();
    let records = Records::default();
    let read = Read {
        records: &records,
        began: now,
    };
    let mut followed = Followed::new(wanted(), base());
    let outcome = followed.take(Notice::Trouble(error.clone()), now);
    assert!(outcome.engine.is_none() && !followed.is_read());
    let [line] = outcome.lines.as_slice() else {
        panic!("{:?}", outcome.lines);
    };
    assert!(line.contains("serves nobody until then"), "{line}");
    assert!(
        followed
            .take(Notice::Trouble(error.clone()), now)
            .lines
            .is_empty()
    );
    let outcome = followed.take(Notice::Records(read, Changed::Everything), now);
    assert!(outcome.engine.is_some(), "also without a row");
    assert_eq!(outcome.lines, ["user database: read again"]);
    let lines = followed.take(Notice::Trouble(error), now).lines;
    assert!(lines[0].contains("as they were read last"), "{lines:?}");
    let lines = followed.take(Notice::Same(read), now).lines;
    assert_eq!(lines, ["user database: read again"]);
}

#[test]
fn a_row_that_cannot_be_read_takes_back_nothing_that_was_denied() {
    let mut fixture = fixture();
    fixture.change("insert into denied_peer_ip values('','10.0.0.0-10.255.255.255'),('r','192.168.0.0-192.168.255.255')");
    let denied = |engine: &EngineConfig| {
        let of_realm = engine.realms.policies.get("r");
        let of_realm = of_realm.map_or(0, |policy| policy.rules.len());
        (engine.policy.rules.len(), of_realm)
    };
    assert_eq!(denied(&fixture.look().engine.expect("read")), (1, 2));
    // Somebody edits the row, and mistypes it.
    fixture.change("update denied_peer_ip set ip_range='10.0.0.0-10.255.255' where realm=''");
    let outcome = fixture.look();
    let engine = outcome.engine.expect("changed");
    assert_eq!(denied(&engine), (1, 2), "10.0.0.0/8 is denied as before");
    let complaints = outcome.lines.join("\n");
    assert!(complaints.contains("stays denied"), "{complaints}");
    // Still so after another change elsewhere, and no more when the row is right or gone.
    fixture.change("insert into denied_peer_ip values('r','172.16.0.0-172.31.255.255')");
    assert_eq!(denied(&fixture.look().engine.expect("changed")), (1, 3));
    fixture.change("delete from denied_peer_ip where realm=''");
    assert_eq!(denied(&fixture.look().engine.expect("changed")), (0, 2));
}

#[test]
fn nobody_may_reach_the_hosts_of_the_database_whatever_the_rules_allow() {
    let mut engine = EngineConfig::clone(&base());
    let database = "203.0.113.5".parse().unwrap();
    let allowed = Rule {
        action: Action::Allow,
        range: IpAddr::into(database),
    };
    engine.policy.rules.push(allowed);
    let mut followed = Followed::new(wanted(), Arc::new(engine));
    let outcome = followed.take(Notice::Addresses(vec![database]), Instant::now());
    let engine = outcome.engine.expect("changed");
    let policy = turnbuckle_engine::Policy::new(engine.policy.clone());
    let check = |address: &str| policy.check(address.parse().unwrap());
    assert!(check("203.0.113.5:5432").is_err());
    let is_rule = |rule: &Rule| rule.action == Action::Deny;
    assert_eq!(
        engine
            .policy
            .rules
            .iter()
            .filter(|rule| is_rule(rule))
            .count(),
        1
    );
}

#[test]
fn who_is_asked_for_is_known_before_the_database_is_read_and_only_until_reading_shows_otherwise() {
    let mut fixture = fixture();
    let began = Instant::now();
    let at = |ms| began + Duration::from_millis(ms);
    fixture.look_at(at(0));
    let vain = fixture.ask("alice", at(10));
    assert!(vain.engine.is_none());
    assert_eq!(vain.answer, Some((7, AskResult::Vain)));

    fixture.add("alice");
    let found = fixture.ask("alice", at(20));
    assert_eq!(users(&found.engine.expect("a user")), ["alice"]);
    assert_eq!(found.answer, Some((7, AskResult::Found)));
    let again = fixture.ask("alice", at(30));
    assert_eq!(again.answer, Some((7, AskResult::Vain)), "nothing is new");

    // She is removed before any reading has shown her: readings show no change, and she stays no longer than they take to be sure.
    fixture.change("delete from turnusers_lt where name='alice'");
    assert!(fixture.look_at(at(1000)).engine.is_none());
    fixture.add("bob");
    let both = fixture.look_at(at(1500)).engine.expect("bob");
    assert_eq!(
        users(&both),
        ["alice", "bob"],
        "the reading may have missed her"
    );
    let confirmed = 20 + u64::try_from(CONFIRMED_AFTER.as_millis()).unwrap();
    let gone = fixture.look_at(at(confirmed)).engine.expect("a change");
    assert_eq!(users(&gone), ["bob"]);
    assert!(fixture.look_at(at(confirmed + 500)).engine.is_none());
}

#[test]
fn what_was_asked_for_and_is_read_later_changes_nothing() {
    let mut fixture = fixture();
    let began = Instant::now();
    fixture.look_at(began);
    fixture.add("alice");
    fixture.ask("alice", began);
    let shown = fixture.look_at(began + CONFIRMED_AFTER / 2).engine;
    assert!(shown.is_none(), "she is known already");
    assert_eq!(users(&fixture.followed.current()), ["alice"]);
    let confirmed = fixture.look_at(began + CONFIRMED_AFTER).engine;
    assert!(confirmed.is_none());
}

#[test]
fn the_secrets_of_a_realm_are_asked_for_too_and_replace_no_configured_user_or_secret() {
    let mut base = EngineConfig::clone(&base());
    base.auth.add_user("alice", "wonderland").unwrap();
    base.auth.add_rest_secret(b"configured").unwrap();
    let mut followed = Followed::new(
        Wanted {
            secrets: true,
            ..wanted()
        },
        Arc::new(base),
    );
    let mut ask = |secrets: &[&str]| {
        let question = Question {
            realm: "r".into(),
            name: "alice".into(),
            tag: 0,
        };
        let answer = Answer {
            key: Some([9; 16]),
            secrets: secrets
                .iter()
                .map(|&text| Secret::new(text.as_bytes()))
                .collect(),
        };
        let notice = Notice::Answer(question, Ok(answer));
        followed.take(notice, Instant::now()).engine
    };
    assert!(ask(&[]).is_none(), "she is configured");
    let engine = ask(&["fresh"]).expect("a secret");
    let mut expected = Realm::new("r").unwrap();
    expected.add_rest_secret(b"configured").unwrap();
    expected.add_rest_secret(b"fresh").unwrap();
    assert!(
        engine
            .auth
            .realms()
            .next()
            .unwrap()
            .has_secrets_of(&expected)
    );
    assert_eq!(
        users(&engine),
        [""; 0],
        "her password is the configured one"
    );
    assert!(ask(&["fresh"]).is_none());
}

/// Whoever comes, changes or goes, one by one: settings that follow are those that all rows make.
#[test]
fn what_follows_row_by_row_is_what_all_rows_amount_to() {
    let mut base = EngineConfig::clone(&base());
    base.auth.add_user("configured", "password").unwrap();
    let mut fixture = fixture();
    fixture.wanted.secrets = true;
    fixture.wanted.realms = true;
    fixture.followed = Followed::new(fixture.wanted.clone(), Arc::new(base));
    let key = |byte: u8| format!("{:032x}", u128::from(byte));
    let put = |realm: &str, name: &str, byte| {
        let key = key(byte);
        format!("insert or replace into turnusers_lt values('{realm}','{name}','{key}')")
    };
    let prepared = "ren\u{e9}";
    for change in [
        put("r", "alice", 1),
        put("r", "bob", 2),
        put("r", "alice", 3),
        put("r", "configured", 4),
        "delete from turnusers_lt where name='bob'".to_owned(),
        "delete from turnusers_lt where name='configured'".to_owned(),
        "update turnusers_lt set hmackey='none' where name='alice'".to_owned(),
        put("r", "alice", 5),
        "insert into turn_secret values('r','north')".to_owned(),
        // Beside another table.
        format!(
            "{};insert into turn_secret values('r','south')",
            put("r", "carol", 6)
        ),
        put("other", "dave", 7),
        // A realm that comes, with who is in it.
        "insert into turn_origin_to_realm values('http://o:80','other')".to_owned(),
        put("other", "erin", 8),
        "delete from turnusers_lt where name='dave'".to_owned(),
        "delete from turn_origin_to_realm".to_owned(),
        "insert into turn_origin_to_realm values('http://o:80','other')".to_owned(),
        put("r", "b\u{7}b", 1),
        // Two rows that stand for one user, of which one goes.
        put("r", prepared, 1),
        put("r", "rene\u{301}", 2),
        format!("delete from turnusers_lt where name='{prepared}'"),
        put("r", "frank", 9),
        "delete from turnusers_lt where name='rene\u{301}'".to_owned(),
        put("r", "grace", 9),
    ] {
        fixture.change(&change);
        fixture.look();
        let (records, followed) = (&fixture.records, &fixture.followed);
        let (realm, mut denied) = (&followed.wanted.realm, Denied::default());
        let all = assembled(records, realm, &followed.base, &mut denied, None);
        let (one, other) = (&followed.current, &all.engine);
        let text = |engine: &EngineConfig| format!("{:?}", engine.auth);
        // Names, and how many users and secrets there are.
        assert_eq!(text(one), text(other), "{change}");
        for (mine, others) in one.auth.realms().zip(other.auth.realms()) {
            assert!(mine.has_secrets_of(others), "{change}");
            // And each has the key of its row.
            let mut mine = mine.clone();
            let rows = records.users.get(mine.name()).into_iter().flatten();
            for (name, key) in rows.filter_map(|(name, key)| Some((name, key?))) {
                // The configuration has a user, and two rows stand for one.
                let is_hers = name == "configured" || name.starts_with("ren");
                let changes = mine.put_user_by_md5_key(name, key);
                assert!(is_hers || changes != Ok(true), "{change}: {name}");
            }
        }
    }
}

/// Puts a configuration beneath what is read: with these users of its own, and an address that is denied.
fn rebased(
    fixture: &mut Fixture,
    configured: &[&str],
    wanted: Wanted,
    has_same_users: bool,
) -> Arc<EngineConfig> {
    let mut engine = EngineConfig::clone(&base());
    for name in configured {
        engine.auth.add_user_by_md5_key(name, [7; 16]).unwrap();
    }
    engine.policy.rules.push(Rule {
        action: Action::Deny,
        range: IpAddr::from([192, 0, 2, 9]).into(),
    });
    engine.limits.user_quota = Some(5);
    let base = Base {
        engine: Arc::new(engine),
        wanted,
        has_same_users,
    };
    let outcome = fixture.followed.rebase(base, &fixture.records);
    outcome.engine.expect("the configuration holds")
}

#[test]
fn another_configuration_keeps_the_users_of_the_database_and_its_hosts_denied() {
    let mut fixture = fixture();
    let host = IpAddr::from([203, 0, 113, 5]);
    let addresses = Notice::Addresses(vec![host]);
    fixture.followed.take(addresses, Instant::now());
    fixture.add("alice");
    fixture.change("insert into denied_peer_ip values('','10.0.0.0-10.255.255.255')");
    fixture.look();
    for (configured, has_same_users, expected) in [
        (&[][..], true, &["alice"][..]),
        (&["carol"], false, &["alice", "carol"]),
        (&["carol"], true, &["alice", "carol"]),
        (&[], false, &["alice"]),
    ] {
        let engine = rebased(&mut fixture, configured, wanted(), has_same_users);
        assert_eq!(users(&engine), expected);
        assert_eq!(engine.limits.user_quota, Some(5));
        let policy = turnbuckle_engine::Policy::new(engine.policy.clone());
        for denied in ["192.0.2.9:1", "10.1.1.1:1", "203.0.113.5:5432"] {
            assert!(policy.check(denied.parse().unwrap()).is_err(), "{denied}");
        }
    }
    // What changes later is added to the configuration of the moment.
    fixture.add("bob");
    let engine = fixture.look().engine.expect("changed");
    assert_eq!(users(&engine), ["alice", "bob"]);
    assert_eq!(engine.limits.user_quota, Some(5));
}

#[test]
fn who_was_asked_for_stays_although_the_configuration_is_another_one_before_the_database_is_read() {
    let mut fixture = fixture();
    fixture.look();
    fixture.add("alice");
    fixture.ask("alice", Instant::now()).engine.expect("new");
    for has_same_users in [true, false] {
        let engine = rebased(&mut fixture, &[], wanted(), has_same_users);
        assert_eq!(users(&engine), ["alice"], "{has_same_users}");
    }
}

#[test]
fn a_configuration_that_wants_other_rows_has_them_when_they_are_read() {
    let mut fixture = fixture();
    fixture.add("alice");
    fixture.change("insert into turn_secret values('r','logen')");
    fixture.look();
    fixture.wanted.secrets = true;
    let wanted = fixture.wanted.clone();
    rebased(&mut fixture, &[], wanted, true);
    // As a new connection does.
    let path = fixture.folder.path().join("turndb");
    fixture.connection = DatabaseConnection::open(&Source::Sqlite(path)).unwrap();
    let engine = fixture.look().engine.expect("changed");
    let mut expected = Realm::new("r").unwrap();
    expected.add_rest_secret(b"logen").unwrap();
    let realm = engine.auth.realm_of_name("r").unwrap();
    assert!(realm.has_secrets_of(&expected));
    assert_eq!(users(&engine), ["alice"]);
}
