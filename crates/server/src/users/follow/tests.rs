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
