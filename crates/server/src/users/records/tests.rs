//! What rows amount to.

use std::sync::Arc;

use rusqlite::Connection as File;
use turnbuckle_engine::{ThirdParties, TokenCipher};
use turnbuckle_users::{Connection as DatabaseConnection, Source, Wanted};

use super::*;

/// A database of which everything is read.
struct Database {
    file: File,
    source: Source,
}

impl Database {
    fn read(&self, wants_any: bool) -> Records {
        let wanted = Wanted {
            realm: "north.gov".to_owned(),
            users: wants_any,
            secrets: wants_any,
            peers: wants_any,
            realms: wants_any,
            token_keys: wants_any,
        };
        let mut connection = DatabaseConnection::open(&self.source).unwrap();
        let mut records = Records::default();
        connection.follow(&wanted, &mut records).unwrap();
        records
    }

    fn added_to(&self, base: &EngineConfig) -> (Arc<EngineConfig>, Vec<String>) {
        let records = self.read(true);
        let all = assembled(&records, "north.gov", base, &mut Denied::new(), None);
        (Arc::new(all.engine), all.complaints)
    }
}

/// Returns a database with these rows, on a file that goes with the directory.
fn database(rows: &str) -> (tempfile::TempDir, Database) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    let source = Source::Sqlite(path.clone());
    drop(DatabaseConnection::open(&source).unwrap());
    let file = File::open(path).unwrap();
    file.execute_batch(rows).unwrap();
    (folder, Database { file, source })
}

fn base() -> EngineConfig {
    EngineConfig {
        auth: AuthConfig::new("north.gov").unwrap(),
        ..EngineConfig::default()
    }
}

/// Rows of coturn's own sample database, whose keys are known, and some that nobody can use.
const ROWS: &str = "
    insert into turnusers_lt values('north.gov','ninefingers','bc807ee29df3c9ffa736523fb2c4e8ee');
    insert into turnusers_lt values('north.gov','gorst','7da2270ccfa49786e0115366d3a3d14d                                ');
    insert into turnusers_lt values('crinna.org','whirrun','6972e85e51f36e53b0b61759c5a5219a');
    insert into turnusers_lt values('north.gov','broken','not a key');
    insert into turnusers_lt values('north.gov','b' || char(7) || 'll','7da2270ccfa49786e0115366d3a3d14d');
    insert into turn_secret values('north.gov','logen'),('north.gov','bloody9'),('crinna.org','north');
    insert into allowed_peer_ip values('','10.0.0.0-10.0.0.9'),('crinna.org','10.1.0.1');
    insert into denied_peer_ip values('north.gov','198.51.100.7'),('north.gov','no-range'),(null,'2001:db8::1');
    insert into turn_realm_option values('north.gov','user-quota','3'),('north.gov','total-quota','0'),('north.gov','max-bps','5'),('north.gov','min-bps','5'),('crinna.org','user-quota','9')";

#[test]
fn only_the_rows_of_the_realm_and_those_of_all_realms_count() {
    let (_folder, database) = database(ROWS);
    let mut base = base();
    base.limits.total_quota = Some(7);
    let (engine, complaints) = database.added_to(&base);
    let mut users: Vec<_> = engine.auth.users_without_sha256().collect();
    users.sort_unstable();
    assert_eq!(users, ["gorst", "ninefingers"]);
    let of_all = ["allow 10.0.0.0-10.0.0.9", "deny 2001:db8::1"];
    assert_eq!(rules(&engine.policy), of_all);
    assert_eq!(
        rules(&engine.realms.policies["north.gov"]),
        [&of_all[..], &["deny 198.51.100.7"]].concat()
    );
    let limits = engine.realms.limits["north.gov"];
    assert_eq!(limits.user_quota, Some(3));
    assert_eq!(limits.total_quota, None, "0 is no bound");
    assert_eq!(limits.bytes_per_s, NonZeroU32::new(5));
    assert_eq!(engine.realms.limits.len(), 1);
    assert_eq!(engine.limits.total_quota, Some(7), "of other realms");
    let debug = format!("{:?}", engine.auth);
    assert!(debug.contains("rest_secrets: 2"), "{debug}");
    let text = complaints.join("\n");
    for expected in [
        "user broken is not 32",
        "user b\\u{7}ll",
        "`no-range`",
        "NOT denied",
        "`min-bps` has no effect",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert_eq!(complaints.len(), 4, "{text}");
    assert!(
        !text.contains("not a key") && !text.contains("7da2"),
        "{text}"
    );
}

fn rules(policy: &turnbuckle_engine::PolicyRules) -> Vec<String> {
    policy.rules.iter().map(ToString::to_string).collect()
}

/// Two more realms: one by an origin, one by a key.
const ORIGINS: &str = "
    insert into turn_origin_to_realm values('http://crinna.org:80','crinna.org'),('https://blackdow.carleon.gov:443','north.gov'),('no' || char(9) || 'ne','north.gov');
    insert into turn_origin_to_realm values('http://bad','b' || char(7) || 'd');
    insert into oauth_key values('north','Y2FybGVvbg==',1800000000,3600,'',''),('union','aGVybw==',0,0,'A128GCM','union.gov'),
        ('oldempire','!',0,0,'',''),('west','aGVybw==','soon',1,'',''),('east','aGVybw==',0,0,'A256CBC',''),('given','aGVybw==',0,0,'','')";

#[test]
fn a_realm_that_an_origin_or_a_key_leads_to_has_its_own_users_secrets_quotas_and_rules() {
    let (_folder, database) = database(&[ROWS, ORIGINS].join(";"));
    let mut base = base();
    base.auth.add_rest_secret(b"static").unwrap();
    base.limits.total_quota = Some(7);
    let mut third_parties = ThirdParties::new("turn.north.gov").unwrap();
    third_parties
        .add_key("given", TokenCipher::Aes256Gcm, b"key", None, None)
        .unwrap();
    base.auth.third_parties = Some(third_parties);
    let (engine, complaints) = database.added_to(&base);
    let realms: Vec<String> = engine
        .auth
        .realms()
        .map(|realm| format!("{realm:?}"))
        .collect();
    assert_eq!(
        realms,
        [
            "Realm { name: \"north.gov\", users: 2, rest_secrets: 3 }",
            "Realm { name: \"crinna.org\", users: 1, rest_secrets: 2 }",
            "Realm { name: \"union.gov\", users: 0, rest_secrets: 1 }",
        ]
    );
    let limits = engine.realms.limits["crinna.org"];
    assert_eq!((limits.user_quota, limits.total_quota), (Some(9), Some(7)));
    assert_eq!(
        rules(&engine.realms.policies["crinna.org"]),
        [
            "allow 10.0.0.0-10.0.0.9",
            "deny 2001:db8::1",
            "allow 10.1.0.1"
        ]
    );
    let text = complaints.join("\n");
    for expected in [
        "`no\\tne`: an origin has",
        "realm b\\u{7}d:",
        "`http://bad`: there is no such realm",
        "oldempire: ikm_key is not base64",
        "west: timestamp is not a number",
        "east: as_rs_alg is neither",
        "given: the configuration has",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    assert!(!text.contains("aGVybw"), "{text}");
    let third_parties = format!("{:?}", engine.auth.third_parties);
    assert!(third_parties.contains("keys: 3"), "{third_parties}");
}

#[test]
fn a_realm_whose_users_and_secrets_come_later_is_read_again_whole() {
    let (_folder, database) =
        database("insert into turn_origin_to_realm values('http://a:80','a')");
    let read = || {
        let (engine, _) = database.added_to(&base());
        engine
            .auth
            .realms()
            .map(Realm::has_credentials)
            .collect::<Vec<_>>()
    };
    assert_eq!(read(), [false, false]);
    let change = |text| database.file.execute_batch(text).unwrap();
    change("insert into turn_secret values('a','logen')");
    assert_eq!(read(), [false, true]);
    change("delete from turn_origin_to_realm");
    assert_eq!(read(), [false]);
}

#[test]
fn tables_that_are_not_wanted_are_not_read() {
    let (_folder, database) = database(ROWS);
    let records = database.read(false);
    let all = assembled(&records, "north.gov", &base(), &mut Denied::new(), None);
    let engine = all.engine;
    assert!(engine.policy.rules.is_empty() && engine.realms.policies.is_empty());
    assert!(engine.realms.limits.is_empty());
    assert_eq!(engine.auth.realms().count(), 1);
    assert!(format!("{:?}", engine.auth).contains("rest_secrets: 0"));
}

#[test]
fn a_configured_user_comes_before_one_of_the_database() {
    let (_folder, database) = database(ROWS);
    let mut base = base();
    base.auth.add_user("gorst", "another password").unwrap();
    let (engine, _) = database.added_to(&base);
    let users: Vec<_> = engine.auth.users_without_sha256().collect();
    assert_eq!(
        users,
        ["ninefingers"],
        "gorst has a password, and so a SHA-256 key"
    );
}

#[test]
fn of_too_many_secrets_the_newest_are_used() {
    let (_folder, database) = database("");
    for number in 0..20 {
        let value = format!("secret-{number}");
        (database.file)
            .execute("insert into turn_secret values('north.gov',?1)", [value])
            .unwrap();
    }
    let newest = database.read(true).tables.secrets["north.gov"][0].clone();
    assert_eq!(newest.expose(), b"secret-19");
    let (_, complaints) = database.added_to(&base());
    assert!(
        complaints.join("").contains("4 secrets are left out"),
        "{complaints:?}"
    );
}
