//! What is handed over, and when.

use turnbuckle_engine::AuthConfig;
use turnbuckle_users::{Connection, Source, Wanted};

use super::*;

/// A file, a connection that follows it, and what is made of it.
struct Fixture {
    _folder: tempfile::TempDir,
    file: rusqlite::Connection,
    connection: Connection,
    records: Records,
    followed: Followed,
}

fn base() -> Arc<EngineConfig> {
    Arc::new(EngineConfig {
        auth: AuthConfig::new("r").unwrap(),
        ..EngineConfig::default()
    })
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    Fixture {
        connection: Connection::open(&Source::Sqlite(path.clone())).unwrap(),
        file: rusqlite::Connection::open(path).unwrap(),
        records: Records::default(),
        followed: Followed::new("r".into(), base()),
        _folder: folder,
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
        let wanted = Wanted {
            realm: "r".to_owned(),
            users: true,
            secrets: false,
            peers: true,
            realms: false,
            token_keys: false,
        };
        let has_changed = self.connection.follow(&wanted, &mut self.records).unwrap();
        self.followed.take(match has_changed {
            false => Notice::Same,
            true => Notice::Records(&self.records),
        })
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
fn an_error_is_said_once_and_so_is_its_end() {
    let missing = Source::Sqlite("/nonexistent/turndb".into());
    let error = Connection::open(&missing).err().expect("no such file");
    let mut followed = Followed::new("r".into(), base());
    let outcome = followed.take(Notice::Trouble(error.clone()));
    assert!(outcome.engine.is_none() && !followed.is_read());
    let [line] = outcome.lines.as_slice() else {
        panic!("{:?}", outcome.lines);
    };
    assert!(line.contains("serves nobody until then"), "{line}");
    assert!(
        followed
            .take(Notice::Trouble(error.clone()))
            .lines
            .is_empty()
    );
    let outcome = followed.take(Notice::Records(&Records::default()));
    assert!(outcome.engine.is_some(), "also without a row");
    assert_eq!(outcome.lines, ["user database: read again"]);
    let lines = followed.take(Notice::Trouble(error)).lines;
    assert!(lines[0].contains("as they were read last"), "{lines:?}");
    let lines = followed.take(Notice::Same).lines;
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
    let mut followed = Followed::new("r".into(), Arc::new(engine));
    let outcome = followed.take(Notice::Addresses(vec![database]));
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
