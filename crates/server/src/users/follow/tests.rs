//! What is handed over, and when.

use turnbuckle_engine::AuthConfig;

use super::*;

const WANTED: Wanted = Wanted {
    users: true,
    secrets: false,
    peers: false,
    realms: false,
    token_keys: false,
};

fn follower(path: PathBuf) -> Follower {
    let base = EngineConfig {
        auth: AuthConfig::new("r").unwrap(),
        ..EngineConfig::default()
    };
    Follower::open(path, "r".into(), WANTED, Arc::new(base)).expect("opened")
}

fn users(engine: &EngineConfig) -> Vec<&str> {
    let mut users: Vec<_> = engine.auth.users_without_sha256().collect();
    users.sort_unstable();
    users
}

fn add(database: &Database, name: &str) {
    let key = "bc807ee29df3c9ffa736523fb2c4e8ee";
    database
        .change("insert into turnusers_lt values('r',?1,?2)", [name, key])
        .expect("added");
}

#[test]
fn a_change_is_handed_over_once_and_nothing_when_nothing_has_changed() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    let other = Database::open(&path).unwrap();
    add(&other, "alice");
    let mut follower = follower(path);
    assert_eq!(users(&follower.current()), ["alice"]);
    assert!(follower.look().unwrap().is_none());
    add(&other, "bob");
    let changed = follower.look().unwrap().expect("changed");
    assert_eq!(users(&changed), ["alice", "bob"]);
    assert!(follower.look().unwrap().is_none());
    other
        .change("delete from turnusers_lt where name='alice'", [])
        .unwrap();
    assert_eq!(users(&follower.look().unwrap().expect("changed")), ["bob"]);
}

#[test]
fn a_file_that_is_gone_changes_nothing_and_one_that_takes_its_place_is_read() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    let mut follower = follower(path.clone());
    std::fs::remove_file(&path).unwrap();
    assert!(follower.look().is_err());
    assert!(users(&follower.current()).is_empty());
    let place = folder.path().join("other");
    let other = Database::open(&place).unwrap();
    add(&other, "carol");
    std::fs::rename(&place, &path).unwrap();
    let changed = follower.look().unwrap().expect("changed");
    assert_eq!(users(&changed), ["carol"]);
    assert!(follower.look().unwrap().is_none());
}

#[test]
fn engines_that_are_let_go_are_freed_by_the_thread_that_follows() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    let other = Database::open(&path).unwrap();
    let mut follower = follower(path);
    add(&other, "alice");
    let shard = follower.look().unwrap().expect("changed");
    add(&other, "bob");
    let next = follower.look().unwrap().expect("changed");
    assert_eq!(
        Arc::strong_count(&shard),
        2,
        "a shard that drops this one frees nothing"
    );
    drop((shard, next));
}

#[test]
fn a_database_that_cannot_be_opened_is_waited_for_and_read_when_it_can() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("later/turndb");
    let base = Arc::new(EngineConfig {
        auth: AuthConfig::new("r").unwrap(),
        ..EngineConfig::default()
    });
    let mut follower = Follower::open_or_wait(path.clone(), "r".into(), WANTED, base);
    assert!(!follower.is_open() && users(&follower.current()).is_empty());
    let complaints = follower.take_complaints();
    assert!(complaints[0].contains("tried again"), "{complaints:?}");
    assert!(follower.look().is_err());
    std::fs::create_dir(folder.path().join("later")).unwrap();
    add(&Database::open(&path).unwrap(), "alice");
    let read = follower.look().unwrap().expect("read");
    assert_eq!(users(&read), ["alice"]);
    assert!(follower.is_open() && follower.look().unwrap().is_none());
}

#[test]
fn a_row_that_cannot_be_read_takes_back_nothing_that_was_denied() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    let other = Database::open(&path).unwrap();
    let deny = |realm: &str, range: &str| {
        let row = "insert into denied_peer_ip values(?1,?2)";
        other.change(row, [realm, range]).unwrap();
    };
    deny("", "10.0.0.0-10.255.255.255");
    deny("r", "192.168.0.0-192.168.255.255");
    let wanted = Wanted {
        peers: true,
        ..WANTED
    };
    let base = Arc::new(EngineConfig {
        auth: AuthConfig::new("r").unwrap(),
        ..EngineConfig::default()
    });
    let mut follower = Follower::open(path, "r".into(), wanted, base).expect("opened");
    let denied = |engine: &EngineConfig| {
        let of_realm = engine
            .realms
            .policies
            .get("r")
            .map_or(0, |policy| policy.rules.len());
        (engine.policy.rules.len(), of_realm)
    };
    assert_eq!(denied(&follower.current()), (1, 2));
    // Somebody edits the row, and mistypes it.
    other
        .change(
            "update denied_peer_ip set ip_range='10.0.0.0-10.255.255' where realm=''",
            [],
        )
        .unwrap();
    let engine = follower.look().unwrap().expect("changed");
    assert_eq!(denied(&engine), (1, 2), "10.0.0.0/8 is denied as before");
    let complaints = follower.take_complaints().join("\n");
    assert!(complaints.contains("stays denied"), "{complaints}");
    // Still so after another change elsewhere, and no more when the row is right or gone.
    deny("r", "172.16.0.0-172.31.255.255");
    assert_eq!(denied(&follower.look().unwrap().expect("changed")), (1, 3));
    other
        .change("delete from denied_peer_ip where realm=''", [])
        .unwrap();
    let engine = follower.look().unwrap().expect("changed");
    assert_eq!(denied(&engine), (0, 2));
}
