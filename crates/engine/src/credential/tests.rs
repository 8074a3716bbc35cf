//! Keys, names and time-limited credentials.

use core::cell::Cell;

use super::recent::GENERATION_LEN;
use super::*;
use crate::random::seeded::Seeded;

const NOW: u64 = 1_800_000_000;

fn credentials(users: &[(&str, &str)], secrets: &[&str]) -> Desk {
    let users = table(
        users
            .iter()
            .map(|(name, password)| User::with_password(name, "realm", password)),
    );
    let secrets: Vec<_> = secrets
        .iter()
        .map(|secret| RestSecret::new(secret.as_bytes()))
        .collect();
    Desk::new(users, secrets)
}

/// Who finds users out, and the realm they are asked about in.
struct Desk {
    credentials: Credentials,
    realm: Realm,
}

impl Desk {
    fn new(users: UserTable, secrets: Vec<RestSecret>) -> Self {
        Self {
            credentials: Credentials::new(':', &mut Seeded(1)),
            realm: Realm::with("realm", users, secrets),
        }
    }

    fn verify(
        &mut self,
        claim: Claim<'_>,
        terms: Terms,
        check: impl Fn(&Keys) -> bool,
    ) -> Option<Arc<User>> {
        let verified = self.credentials.verify(&self.realm, claim, terms, check);
        verified.ok()
    }

    fn recent_len(&self) -> usize {
        self.credentials.recent_len()
    }
}

fn table(users: impl IntoIterator<Item = User>) -> UserTable {
    let users: Vec<_> = users.into_iter().collect();
    let mut table = UserTable::default();
    table.extend(users.iter().map(Row::of));
    table
}

fn terms(algorithm: PasswordAlgorithm) -> Terms {
    Terms {
        unix_s: NOW,
        accept_expired: false,
        algorithm,
        refuse: false,
    }
}

const MD5: PasswordAlgorithm = PasswordAlgorithm::Md5;

/// Accepts the keys of one name and password.
fn of(name: &str, password: &str) -> impl Fn(&Keys) -> bool {
    let right = Keys::derive(name.as_bytes(), b"realm", password.as_bytes());
    move |keys| keys.md5 == right.md5 || keys.sha256 == right.sha256
}

fn login(credentials: &mut Desk, name: &str, password: &str) -> Option<Arc<User>> {
    login_at(credentials, NOW, name, password)
}

fn login_at(credentials: &mut Desk, unix_s: u64, name: &str, password: &str) -> Option<Arc<User>> {
    let terms = Terms {
        unix_s,
        ..terms(MD5)
    };
    credentials.verify(Claim::Username(name.as_bytes()), terms, of(name, password))
}

#[test]
fn a_userhash_counts_to_its_last_bit() {
    //= STUN-075
    //= V-26
    let mut credentials = credentials(&[("alice", "wonderland"), ("bob", "builder")], &[]);
    let hash = userhash(b"alice", b"realm");
    let mut found = |hash| {
        let usual = terms(PasswordAlgorithm::Md5);
        let alices = long_term_key_md5(b"alice", b"realm", b"wonderland");
        credentials
            .verify(Claim::Userhash(hash), usual, |keys| keys.md5 == alices)
            .is_some()
    };
    assert!(found(hash));
    for bit in 0..256 {
        let mut other = hash;
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(!found(other), "bit {bit}");
    }
}

#[test]
fn the_key_of_rfc_8489() {
    // RFC 8489 §9.2.2.
    let keys = Keys::derive(b"user", b"realm", b"pass");
    assert_eq!(
        u128::from_be_bytes(keys.md5),
        0x8493_fbc5_3ba5_82fb_4c04_4c45_6bdc_40eb
    );
}

#[test]
fn a_user_known_by_its_key_logs_in_like_one_known_by_its_password() {
    let key = 0x8493_fbc5_3ba5_82fb_4c04_4c45_6bdc_40eb_u128.to_be_bytes();
    let users = table([User::with_md5_key("user", "realm", key)]);
    let mut credentials = Desk::new(users, Vec::new());
    assert!(login(&mut credentials, "user", "pass").is_some());
    assert!(login(&mut credentials, "user", "word").is_none());
    let claim = Claim::Username(b"user");
    let sha256 = terms(PasswordAlgorithm::Sha256);
    assert!(
        credentials.verify(claim, sha256, |_| true).is_none(),
        "a key that does not exist"
    );
}

#[test]
fn time_limited_credentials_log_in_until_their_time() {
    //= V-32
    // HMAC-SHA1 under "north" and "south", computed elsewhere.
    let name = "1800000600:alice";
    for password in [
        "8ZET7dsUGGXZ8WEDxmkDf0cN13Y=",
        "NGOV3vWnju7HE6oXeDcTBYbIxks=",
    ] {
        let mut both = credentials(&[], &["north", "south"]);
        let user = login_at(&mut both, NOW + 600, name, password).unwrap();
        assert_eq!((&*user.name, &*user.quota_name), (name, "alice"));
        assert_eq!(user.expires_unix_s, Some(NOW + 600));
        assert!(
            login_at(&mut both, NOW + 601, name, password).is_none(),
            "although remembered"
        );
        let mut fresh = credentials(&[], &["north", "south"]);
        assert!(login_at(&mut fresh, NOW + 601, name, password).is_none());
        let mut other = credentials(&[], &["east"]);
        assert!(login(&mut other, name, password).is_none());
    }
}

#[test]
fn secrets_and_users_work_side_by_side() {
    let mut credentials = credentials(&[("bob", "builder")], &["north"]);
    assert!(login(&mut credentials, "bob", "builder").is_some());
    assert!(
        login(
            &mut credentials,
            "1800000600:alice",
            "8ZET7dsUGGXZ8WEDxmkDf0cN13Y="
        )
        .is_some()
    );
    assert!(login(&mut credentials, "bob", "plumber").is_none());
    // A name without an expiry is no time-limited credential, whoever signed it.
    let password = RestSecret::new(b"north").password(b"bob");
    assert!(
        login(
            &mut credentials,
            "bob",
            core::str::from_utf8(&password).unwrap()
        )
        .is_none()
    );
}

#[test]
fn an_expired_credential_is_good_where_expiry_is_not_asked() {
    let (name, password) = ("1800000600:alice", "8ZET7dsUGGXZ8WEDxmkDf0cN13Y=");
    let terms = Terms {
        unix_s: NOW + 601,
        accept_expired: true,
        ..terms(MD5)
    };
    let mut credentials = credentials(&[], &["north"]);
    let claim = Claim::Username(name.as_bytes());
    for _ in 0..2 {
        assert!(
            credentials
                .verify(claim, terms, of(name, password))
                .is_some()
        );
    }
}

#[test]
fn where_a_username_has_its_expiry() {
    for (name, expected) in [
        ("1800000600", Some((1_800_000_600, "1800000600"))),
        ("1800000600:", Some((1_800_000_600, "1800000600:"))),
        ("1800000600:alice", Some((1_800_000_600, "alice"))),
        ("1800000600:alice:home", Some((1_800_000_600, "alice:home"))),
        ("alice:1800000600", Some((1_800_000_600, "alice"))),
        ("alice:home:1800000600", Some((1_800_000_600, "alice:home"))),
        (":1800000600", Some((1_800_000_600, ":1800000600"))),
        ("17:18", Some((17, "18"))),
        ("alice", None),
        ("", None),
        (":", None),
        ("+1800000600:alice", None),
        ("1800000600 :alice", None),
        ("99999999999999999999:alice", None),
        ("1800000600:al\nice", None),
        ("1800000600:al\u{7f}ice", None),
    ] {
        let found = RestName::parse(name, ':').map(|rest| (rest.expires_unix_s, rest.quota_name()));
        assert_eq!(found, expected, "{name:?}");
    }
    assert_eq!(
        RestName::parse("1800000600|alice", '|')
            .unwrap()
            .quota_name(),
        "alice"
    );
}

#[test]
fn every_claim_that_fails_costs_the_same_checks() {
    //= V-25
    //= V-26
    let renewed = "1800000600:alice";
    for (secrets, checks) in [
        (vec![], 1),
        (vec![&b"north"[..]], 2),
        (vec![b"north", b"south", b"east"], 4),
    ] {
        let users = table([
            User::with_password("bob", "realm", "builder"),
            User::with_md5_key("carol", "realm", [0; 16]),
        ]);
        let secrets: Vec<_> = secrets
            .iter()
            .map(|secret| RestSecret::new(secret))
            .collect();
        let has_secrets = !secrets.is_empty();
        let mut credentials = Desk::new(users, secrets);
        if has_secrets {
            assert!(login(&mut credentials, renewed, "8ZET7dsUGGXZ8WEDxmkDf0cN13Y=").is_some());
        }
        let usual = terms(MD5);
        for (claim, terms) in [
            (Claim::Username(b"bob"), usual),
            (Claim::Username(b"nobody"), usual),
            (Claim::Username(b""), usual),
            (Claim::Username(b"\xff"), usual),
            (Claim::Username(renewed.as_bytes()), usual),
            (
                Claim::Username(renewed.as_bytes()),
                Terms {
                    unix_s: NOW + 700,
                    ..usual
                },
            ),
            (Claim::Username(b"1800000600:mallory"), usual),
            (Claim::Username(b"carol"), terms(PasswordAlgorithm::Sha256)),
            (Claim::Userhash(userhash(b"bob", b"realm")), usual),
            (Claim::Userhash([0; 32]), usual),
            (
                Claim::Username(b"bob"),
                Terms {
                    refuse: true,
                    ..usual
                },
            ),
        ] {
            let calls = Cell::new(0);
            let user = credentials.verify(claim, terms, |_| {
                calls.set(calls.get() + 1);
                false
            });
            assert!(user.is_none());
            assert_eq!(calls.get(), checks, "{claim:?} {terms:?}");
        }
    }
}

#[test]
fn the_key_nobody_knows_opens_nothing() {
    //= V-26
    // Even if it were known.
    let mut credentials = credentials(&[("bob", "builder")], &["north"]);
    for claim in [
        Claim::Username(b"nobody"),
        Claim::Userhash([0; 32]),
        Claim::Username(b""),
    ] {
        assert!(
            credentials.verify(claim, terms(MD5), |_| true).is_none(),
            "{claim:?}"
        );
    }
    let refuse = Terms {
        refuse: true,
        ..terms(MD5)
    };
    for claim in [
        Claim::Username(b"bob"),
        Claim::Username(b"1800000600:alice"),
    ] {
        assert!(
            credentials.verify(claim, refuse, |_| true).is_none(),
            "{claim:?}"
        );
    }
}

#[test]
fn users_are_found_by_hash_but_time_limited_ones_are_not() {
    let mut credentials = credentials(&[("bob", "builder")], &["north"]);
    let name = "1800000600:alice";
    assert!(login(&mut credentials, name, "8ZET7dsUGGXZ8WEDxmkDf0cN13Y=").is_some());
    let claim = |name: &str| Claim::Userhash(userhash(name.as_bytes(), b"realm"));
    assert!(
        credentials
            .verify(claim("bob"), terms(MD5), of("bob", "builder"))
            .is_some()
    );
    let check = of(name, "8ZET7dsUGGXZ8WEDxmkDf0cN13Y=");
    assert!(credentials.verify(claim(name), terms(MD5), check).is_none());
}

#[test]
fn who_comes_back_is_the_same_user_without_deriving_the_key_again() {
    let mut credentials = credentials(&[], &["north"]);
    let (name, password) = ("1800000600:alice", "8ZET7dsUGGXZ8WEDxmkDf0cN13Y=");
    let first = login(&mut credentials, name, password).unwrap();
    let again = login(&mut credentials, name, password).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
}

#[test]
fn only_so_many_users_are_remembered() {
    //= V-21
    let mut credentials = credentials(&[], &["north"]);
    let secret = RestSecret::new(b"north");
    for number in 0..3 * GENERATION_LEN {
        let name = format!("1800000600:{number}");
        let password = secret.password(name.as_bytes());
        assert!(
            login(
                &mut credentials,
                &name,
                core::str::from_utf8(&password).unwrap()
            )
            .is_some()
        );
        assert!(credentials.recent_len() <= 2 * GENERATION_LEN);
    }
    assert_eq!(credentials.recent_len(), 2 * GENERATION_LEN);
}

#[test]
fn names_and_passwords_are_prepared_with_opaque_string() {
    //= STUN-074
    //= STUN-081
    // RFC 8265 §4.2.2: normalised to NFC, spaces of other alphabets become U+0020, case stays.
    assert_eq!(prepare_name("Rene\u{301}").unwrap(), "Ren\u{e9}");
    assert_eq!(
        prepare_password("two\u{3000}words".as_bytes()).unwrap(),
        "two words"
    );
    assert_eq!(prepare_realm("Example.ORG").unwrap(), "Example.ORG");
    assert_eq!(prepare_realm("").unwrap(), "", "a realm may be empty");
    for text in ["bell\u{7}", "line\nbreak", "nul\0", "soft\u{ad}hyphen"] {
        assert_eq!(
            prepare_name(text),
            Err(CredentialError::Prohibited),
            "{text:?}"
        );
    }
    assert_eq!(prepare_name(""), Err(CredentialError::Empty));
    assert!(prepare_name(&"n".repeat(508)).is_ok());
    assert_eq!(
        prepare_name(&"n".repeat(509)),
        Err(CredentialError::TooLong)
    );
    // RFC 8489 §14.9 allows 127 characters of any length; a challenge has to fit every path.
    assert!(prepare_realm(&"r".repeat(127)).is_ok());
    assert!(prepare_realm(&"é".repeat(63)).is_ok());
    assert_eq!(
        prepare_realm(&"é".repeat(64)),
        Err(CredentialError::TooLong)
    );
}

#[test]
fn keys_are_not_printed() {
    //= V-74
    //= TURN-017
    let user = User::with_password("bob", "realm", "builder");
    let printed = format!("{user:?}");
    assert!(
        !printed.contains("builder") && !printed.contains("keys"),
        "{printed}"
    );
}

#[test]
fn who_is_remembered_in_one_realm_is_not_known_in_another_with_the_same_hash() {
    // `1800000600` of realm `x:realm` and `1800000600:x` of `realm` have one hash and, under one password, one key.
    let mut desk = credentials(&[], &["north"]);
    let secret = RestSecret::new(b"north");
    let password = secret.password(b"1800000600");
    let other = Realm::with("x:realm", UserTable::default(), vec![secret]);
    let keys = Keys::derive(b"1800000600", b"x:realm", &password);
    let check = |checked: &Keys| checked.md5 == keys.md5;
    let (short, long) = (&b"1800000600"[..], &b"1800000600:x"[..]);
    let user = desk
        .credentials
        .verify(&other, Claim::Username(short), terms(MD5), check);
    assert_eq!(&*user.unwrap().realm, "x:realm");
    assert!(
        desk.verify(Claim::Username(long), terms(MD5), check)
            .is_none()
    );
}
