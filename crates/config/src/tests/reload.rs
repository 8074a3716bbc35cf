//! What a reload changes, key by key.

use super::keys::{ANOTHER, companion};
use super::{file, machine};
use crate::entry::Support;
use crate::*;

/// Values of keys that the list of other values lacks, most of them because they go with few others.
const MORE: &[(&str, &str)] = &[
    ("keep-address-family", "true"),
    ("no-udp", "true"),
    ("no-tcp", "true"),
    ("user", "carol:another"),
    ("no-dynamic-realms", "true"),
];

/// Keys whose other value is refused: always, or on a machine with these addresses.
const REFUSED: &[&str] = &["lt-cred-mech", "no-auth", "rfc5780"];

/// Returns another value for a key than its default.
fn another(entry: &Entry) -> String {
    let found = MORE
        .iter()
        .chain(ANOTHER)
        .find(|(key, _)| *key == entry.name);
    match (found, entry.kind) {
        (Some((_, value)), _) => (*value).to_owned(),
        (None, Kind::Flag) => (entry.values.default != "true").to_string(),
        (None, _) => render::example(entry).to_owned(),
    }
}

fn of(lines: &str) -> Loaded {
    file(lines).unwrap_or_else(|problems| panic!("{lines}: {problems}"))
}

/// Returns what is compared of a configuration: everything but secrets.
fn text(config: &Config) -> String {
    format!("{config:?}")
}

#[test]
fn a_key_has_the_class_that_a_reload_gives_it() {
    let (mut counts, mut refused) = ([0; 3], Vec::new());
    for entry in entries() {
        let Support::Works = entry.support else {
            assert_eq!(entry.reload(), None, "{}", entry.name);
            continue;
        };
        let class = entry.reload().unwrap();
        counts[class as usize] += 1;
        // Without relaying by UDP there has to be some by TCP, and only a rate has a capacity.
        let with = match entry.name {
            "bps-capacity" => "max-bps=64000\n",
            "userdb" => "redis-userdb=ip=127.0.0.1\n",
            "psql-userdb" | "mysql-userdb" | "mongo-userdb" | "redis-userdb" => "userdb=turndb\n",
            "prometheus-tls" => "cert=chain.pem\npkey=key.pem\n",
            "no-udp-relay" => "no-tcp-relay=false\n",
            name => companion(name),
        };
        let base = format!("{with}user=alice:secret\n");
        // Some companions have no effect alone, which is refused.
        let running = file(&base).unwrap_or_else(|_| of("user=alice:secret\n"));
        let Ok(next) = file(&format!("{base}{}={}\n", entry.name, another(entry))) else {
            refused.push(entry.name);
            continue;
        };
        let Reloaded {
            loaded,
            changed,
            pending,
        } = reload(&running, &next, &machine()).unwrap();
        let names = |entries: &[&Entry]| entries.iter().map(|it| it.name).collect::<Vec<_>>();
        let (changed, pending) = (names(&changed), names(&pending));
        let is_same = text(&loaded.config) == text(&running.config);
        let name = entry.name;
        // Some values say what holds anyway, and secrets are not shown.
        let is_seen = entry.is_secret || text(&next.config) != text(&running.config);
        if class == Reload::Restart || ["cert", "pkey"].contains(&name) {
            assert!(is_same, "{name} holds before a restart");
            assert!(changed.is_empty(), "{name}: {changed:?}");
            assert!(
                !is_seen || pending.contains(&name) || is_shown_alike(&running, &next, entry),
                "{name}: {pending:?}"
            );
        } else {
            assert!(pending.is_empty(), "{name}: {pending:?}");
            assert!(
                !is_same || entry.is_secret || !is_seen,
                "{name} does not hold"
            );
            assert_eq!(
                is_seen && !is_shown_alike(&running, &next, entry),
                changed.contains(&name),
                "{name}: {changed:?}"
            );
        }
    }
    assert_eq!(refused, REFUSED);
    assert!(counts.iter().all(|&count| count >= 4), "{counts:?}");
}

/// Returns whether a key that is no secret reads back as the same value.
fn is_shown_alike(one: &Loaded, other: &Loaded, entry: &Entry) -> bool {
    let shown = |loaded: &Loaded| {
        let mut all = effective(loaded).into_iter();
        all.find(|it| it.entry.name == entry.name)
            .map(|it| it.values)
    };
    !entry.is_secret && shown(one) == shown(other)
}

#[test]
fn keys_that_may_change_do_and_the_others_wait_for_a_restart() {
    let running = of("user=alice:a\nlistening-port=4000\nuser-quota=5\ndenied-peer-ip=192.0.2.1\n");
    let next =
        of("listening-port=5000\nuser=alice:b\ndenied-peer-ip=192.0.2.2\nmax-allocations=5\n");
    let reloaded = reload(&running, &next, &machine()).unwrap();
    let names = |entries: &[&Entry]| entries.iter().map(|it| it.name).collect::<Vec<_>>();
    assert_eq!(
        names(&reloaded.changed),
        ["user", "user-quota", "denied-peer-ip"]
    );
    assert_eq!(
        names(&reloaded.pending),
        ["listening-port", "max-allocations"]
    );
    let config = &reloaded.loaded.config;
    assert_eq!(
        config.addresses.listeners,
        running.config.addresses.listeners
    );
    assert_eq!(config.limits.allocations_per_user, None);
    assert_ne!(config.limits.allocations_per_shard, 5);
    // What was pending still is, against what has run since the start.
    let again = reload(&reloaded.loaded, &next, &machine()).unwrap();
    assert!(again.changed.is_empty());
    assert_eq!(names(&again.pending), ["listening-port", "max-allocations"]);
    let back = reload(&again.loaded, &running, &machine()).unwrap();
    assert_eq!(
        names(&back.changed),
        ["user", "user-quota", "denied-peer-ip"]
    );
    assert!(back.pending.is_empty());
    assert_eq!(text(&back.loaded.config), text(&running.config));
}

#[test]
fn what_is_written_in_another_way_is_no_change() {
    let running = of("user=a:b\nsecure-stun\nstale-nonce=600\n");
    let next = of("# moved\nstale-nonce=600\nsecure-stun=true\nuser=a:b\nlistening-port=3478\n");
    let Reloaded {
        changed, pending, ..
    } = reload(&running, &next, &machine()).unwrap();
    assert!(
        changed.is_empty() && pending.is_empty(),
        "{changed:?} {pending:?}"
    );
}

#[test]
fn a_password_that_was_made_up_outlives_a_reload() {
    let mut running = of("realm=example.org\n");
    // What this machine calls random is always the same.
    let made_up = Secret::new(b"made up at the start".to_vec());
    let authentication = &mut running.config.authentication;
    authentication.keep_made_up_password(&made_up);
    let password = |loaded: &Loaded| match &loaded.config.authentication.users[0].credential {
        Credential::Password(password) => password.expose().to_vec(),
        Credential::Md5Key(_) => panic!("a password"),
    };
    for line in ["denied-peer-ip=192.0.2.2", "rest-api-separator=."] {
        let next = of(&format!("realm=example.org\n{line}\n"));
        let Reloaded {
            loaded, changed, ..
        } = reload(&running, &next, &machine()).unwrap();
        assert_eq!(changed.len(), 1, "{line}");
        assert_eq!(password(&loaded), password(&running), "{line}");
    }
}

#[test]
fn beside_a_user_database_keys_change_as_without_and_the_database_itself_may_be_another_one() {
    let running = of("userdb=turndb\nuser=a:b\n");
    let next =
        of("redis-userdb=ip=127.0.0.1\nuser=a:c\ndenied-peer-ip=192.0.2.2\nno-dynamic-ip-list\n");
    let reloaded = reload(&running, &next, &machine()).unwrap();
    let names = |entries: &[&Entry]| entries.iter().map(|it| it.name).collect::<Vec<_>>();
    let mut changed = names(&reloaded.changed);
    changed.sort_unstable();
    assert_eq!(
        changed,
        [
            "denied-peer-ip",
            "no-dynamic-ip-list",
            "redis-userdb",
            "user",
            "userdb"
        ]
    );
    assert!(reloaded.pending.is_empty());
    let config = &reloaded.loaded.config;
    assert_eq!(config.relays.peers.denied.len(), 1);
    assert_eq!(
        config.authentication.database,
        next.config.authentication.database
    );
}

#[test]
fn whether_there_is_a_user_database_is_a_matter_of_the_start() {
    let (without, with) = (of("user=a:b\n"), of("user=a:b\nuserdb=turndb\n"));
    for (running, next) in [(&without, &with), (&with, &without)] {
        let reloaded = reload(running, next, &machine()).unwrap();
        assert!(reloaded.changed.is_empty());
        assert_eq!(reloaded.pending[0].name, "userdb");
        assert_eq!(text(&reloaded.loaded.config), text(&running.config));
    }
}

#[test]
fn what_calls_of_before_need_of_relay_addresses_outlives_a_reload() {
    let mut running = of("user=a:b\nrelay-ip=10.1.2.3\nrelay-ip=10.1.2.4\n");
    let relayed = |local: &str| turnbuckle_engine::Relayed {
        local: local.parse().unwrap(),
        external: local.parse().unwrap(),
    };
    let addresses = &mut running.config.addresses;
    addresses.keep_relay(&relayed("10.1.2.5:50000"));
    addresses.keep_shared_relay(&relayed("10.1.2.4:3480"));
    let former = addresses.former.clone();
    assert_eq!(former.addresses.len(), 1);
    assert_eq!(addresses.shared_relays()[0], "10.1.2.4".parse().ok());
    let next = of("user=c:d\nrelay-ip=10.1.2.3\nmax-bps=64000\n");
    let reloaded = reload(&running, &next, &machine()).unwrap();
    assert!(!reloaded.changed.is_empty());
    assert_eq!(reloaded.loaded.config.addresses.former, former);
}
