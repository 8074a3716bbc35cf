//! Texts drawn at random in the place of names, realms, secrets and origins: what is written is read, and nothing else changes, because a text is a
//! value and never a statement, a pattern or the end of another value.

use std::collections::{BTreeMap, BTreeSet};

use turnbuckle_users::{
    Change, Connection, Listed, Listing, Records, Secret, Source, Wanted, user_key,
};

/// What means something to one of the databases or to their protocols, and letters that are easily mistaken for others.
const PIECES: [&str; 44] = [
    "'",
    "\"",
    "`",
    "\\",
    "\\'",
    "%",
    "_",
    "*",
    "?",
    "[a-z]",
    "^",
    ";",
    "--",
    "/*",
    "*/",
    "#",
    "$1",
    ":a",
    "' or '1'='1",
    "');drop table turnusers_lt;--",
    "' union select hmackey from turnusers_lt--",
    "$where",
    "{$ne:null}",
    "this.name",
    "\r\n",
    "\r\n$8\r\nFLUSHALL\r\n",
    "/",
    "/user/",
    "/key",
    "turn/realm/",
    "null",
    "%s%n",
    " ",
    "\t",
    "\u{1}",
    "a",
    "Z",
    "é",
    "ß",
    "日本",
    "\u{301}",
    "\u{202e}",
    "\u{feff}",
    "😀",
];

/// A realm that is followed, besides those that are drawn.
const REALM: &str = "r";

/// Secrets in [`REALM`]: each question about a user of it is answered with all of them.
const SECRETS_MAX: usize = 20;

/// Draws texts. No two are the same, nor would a database take them for the same.
struct Texts {
    state: u64,
    drawn: usize,
}

impl Texts {
    fn new() -> Self {
        let seed = std::env::var("TURNBUCKLE_SEED");
        let state = seed.ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        Self { state, drawn: 0 }
    }

    /// splitmix64.
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bound = u64::try_from(end).expect("small");
        usize::try_from((mixed ^ (mixed >> 31)) % bound).expect("small")
    }

    /// Returns a text of at most so many characters, one in twenty of just as many. Its number stands somewhere in it between `<` and `>`.
    fn text(&mut self, chars_max: usize) -> String {
        self.drawn += 1;
        let number = format!("<{}>", self.drawn);
        let room = chars_max - number.len();
        let len = match self.below(20) {
            0 => room,
            _ => self.below(24).min(room),
        };
        let mut letters = Vec::new();
        while letters.len() < len {
            letters.extend(PIECES[self.below(PIECES.len())].chars());
        }
        letters.truncate(len);
        let at = self.below(len + 1);
        letters.splice(at..at, number.chars());
        letters.into_iter().collect()
    }

    /// Returns a realm. In Redis a realm ends where its users begin, so that none can hold that.
    fn realm(&mut self) -> String {
        self.text(127).replace("/user", "/used")
    }

    /// Returns a text that is not drawn, but which would be the given one for whoever took it for a pattern, or did not look at it closely.
    fn other_than(&mut self, text: &str) -> String {
        let (before, rest) = text.split_once('<').expect("a number");
        let (_, after) = rest.split_once('>').expect("a number");
        let swapped = |letter: char| match letter.is_ascii_lowercase() {
            true => letter.to_ascii_uppercase(),
            false => letter.to_ascii_lowercase(),
        };
        match self.below(6) {
            0 => format!("{before}%{after}"),
            1 => format!("{before}*{after}"),
            2 => format!("{text} "),
            3 => format!("{text}' or '1'='1"),
            4 => text.replace('<', "[<]"),
            _ => {
                let swapped: String = text.chars().map(swapped).collect();
                match swapped == text {
                    true => format!("{text}\\"),
                    false => swapped,
                }
            }
        }
    }

    fn key(&mut self) -> String {
        format!("{:032x}", self.below(usize::MAX))
    }
}

/// Holds what there must be.
#[derive(Default)]
struct Rows {
    key_by_user: BTreeMap<(String, String), String>,
    secrets: BTreeSet<(String, String)>,
    realm_by_origin: BTreeMap<String, String>,
    quota_by_realm: BTreeMap<String, u64>,
    realm_by_admin: BTreeMap<String, String>,
}

impl Rows {
    fn listed(&self, listing: Listing) -> Vec<Listed> {
        let row = |realm: &String, name: &str, value: String| Listed {
            realm: realm.clone(),
            name: name.to_owned(),
            value,
        };
        let none = String::new;
        let mut rows: Vec<_> = match listing {
            Listing::Users => {
                let users = self.key_by_user.keys();
                users
                    .map(|(realm, name)| row(realm, name, none()))
                    .collect()
            }
            Listing::Secrets => {
                let secrets = self.secrets.iter();
                secrets
                    .map(|(realm, secret)| row(realm, secret, none()))
                    .collect()
            }
            Listing::Origins => {
                let origins = self.realm_by_origin.iter();
                origins
                    .map(|(origin, realm)| row(realm, origin, none()))
                    .collect()
            }
            Listing::RealmOptions => {
                let quotas = self.quota_by_realm.iter();
                let row = |(realm, quota): (_, &u64)| row(realm, QUOTA, quota.to_string());
                quotas.map(row).collect()
            }
            Listing::Admins => {
                let admins = self.realm_by_admin.iter();
                admins
                    .map(|(name, realm)| row(realm, name, none()))
                    .collect()
            }
        };
        rows.sort_unstable();
        rows
    }
}

const LISTINGS: [Listing; 5] = [
    Listing::Users,
    Listing::Secrets,
    Listing::Origins,
    Listing::RealmOptions,
    Listing::Admins,
];

const QUOTA: &str = "user-quota";

/// A database, and what it must hold.
struct Tried {
    connection: Connection,
    texts: Texts,
    rows: Rows,
}

/// Rows of the tables that nothing here writes to.
pub(crate) const OTHER_ROWS: [&str; 3] = [
    "insert into allowed_peer_ip values('','10.0.0.0-10.0.0.9')",
    "insert into denied_peer_ip values('r','192.0.2.7')",
    "insert into oauth_key values('north','Y2FybGVvbg==',1800000000,3600,'A128GCM',null)",
];

/// Draws `usual` texts, or as many as `TURNBUCKLE_TEXTS` says. The database holds nothing before but such rows as [`OTHER_ROWS`].
pub(crate) fn are_values(source: &Source, usual: usize) {
    let count = std::env::var("TURNBUCKLE_TEXTS").ok();
    let count = count.map_or(usual, |count| count.parse().expect("a number"));
    let before = followed(source, &wanted(false));
    let mut tried = Tried {
        connection: Connection::open(source).expect("the database answers"),
        texts: Texts::new(),
        rows: Rows::default(),
    };
    for part in 1..=5 {
        while tried.texts.drawn < count * part / 5 {
            tried.user();
            tried.secret();
            tried.origin();
            tried.quota();
            tried.admin();
        }
        tried.is_listed();
    }
    tried.is_followed(source, &before);
}

impl Tried {
    fn change(&mut self, change: Change<'_>) {
        let changed = self.connection.change(change);
        changed.unwrap_or_else(|error| panic!("{error}: {change:?}"));
    }

    /// Puts a user, perhaps once more with another key, and perhaps removes it.
    fn user(&mut self) {
        let realm = match self.texts.below(2) {
            0 => REALM.to_owned(),
            _ => self.texts.realm(),
        };
        let name = self.texts.text(512);
        let mut key = self.texts.key();
        let other = self.texts.other_than(&name);
        let what_follows = self.texts.below(6);
        for is_again in [false, true] {
            if is_again && what_follows != 0 {
                break;
            }
            key = if is_again { self.texts.key() } else { key };
            self.change(Change::PutUser {
                realm: &realm,
                name: &name,
                key: &key,
            });
            let answer = self
                .connection
                .ask(&realm, &name)
                .expect("the database answers");
            assert_eq!(answer.key, user_key(&key), "{name:?} of {realm:?}");
            let secrets: BTreeSet<_> = answer.secrets.iter().map(Secret::expose).collect();
            let of_realm = self.rows.secrets.range((realm.clone(), String::new())..);
            let of_realm = of_realm.take_while(|(its, _)| *its == realm);
            let expected = of_realm.map(|(_, secret)| secret.as_bytes()).collect();
            assert_eq!(secrets, expected, "{realm:?}");
            let answer = self
                .connection
                .ask(&realm, &other)
                .expect("the database answers");
            assert_eq!(answer.key, None, "{other:?} is not {name:?}");
        }
        match what_follows {
            1 => self.change(Change::DeleteUser {
                realm: &realm,
                name: &name,
            }),
            _ => drop(self.rows.key_by_user.insert((realm, name), key)),
        }
    }

    fn secret(&mut self) {
        let realm = match self.rows.secrets.len() < SECRETS_MAX {
            true => REALM.to_owned(),
            false => self.texts.realm(),
        };
        let secret = self.texts.text(250);
        let pattern = self.pattern(&secret);
        let (realm, secret) = (realm.as_str(), secret.as_str());
        self.change(Change::AddSecret { realm, secret });
        match self.texts.below(6) {
            0 => return self.change(Change::DeleteSecret { realm, secret }),
            1 => self.change(Change::DeleteSecret {
                realm,
                secret: &pattern,
            }),
            2 if realm != REALM => return self.change(Change::DeleteSecrets { realm }),
            3 if realm != REALM => {
                let realm = self.pattern(realm);
                self.change(Change::DeleteSecrets { realm: &realm });
            }
            _ => {}
        }
        self.rows
            .secrets
            .insert((realm.to_owned(), secret.to_owned()));
        if realm != REALM {
            let answer = self
                .connection
                .ask(realm, secret)
                .expect("the database answers");
            assert_eq!(answer.key, None, "nobody is called {secret:?}");
            assert_eq!(
                answer.secrets,
                [Secret::new(secret.as_bytes())],
                "{realm:?}"
            );
        }
    }

    fn origin(&mut self) {
        let (origin, realm) = (self.texts.text(127), self.texts.realm());
        self.change(Change::PutOrigin {
            origin: &origin,
            realm: &realm,
        });
        match self.texts.below(6) {
            0 => return self.change(Change::DeleteOrigin { origin: &origin }),
            1 => {
                let pattern = self.pattern(&origin);
                self.change(Change::DeleteOrigin { origin: &pattern });
            }
            _ => {}
        }
        self.rows.realm_by_origin.insert(origin, realm);
    }

    fn quota(&mut self) {
        let realm = self.texts.realm();
        let quota = 1 + u64::try_from(self.texts.below(1_000)).expect("small");
        let put = |realm: &str, quota, tried: &mut Self| {
            let options = &[(QUOTA, quota)];
            tried.change(Change::PutRealmOptions { realm, options });
        };
        put(&realm, quota, self);
        match self.texts.below(6) {
            0 => return put(&realm, 0, self),
            1 => put(&self.pattern(&realm), 0, self),
            _ => {}
        }
        self.rows.quota_by_realm.insert(realm, quota);
    }

    fn admin(&mut self) {
        let (name, realm) = (self.texts.text(32), self.texts.realm());
        let password = self.texts.text(127);
        self.change(Change::PutAdmin {
            name: &name,
            realm: &realm,
            password: &password,
        });
        match self.texts.below(6) {
            0 => return self.change(Change::DeleteAdmin { name: &name }),
            1 => {
                let pattern = self.pattern(&name);
                self.change(Change::DeleteAdmin { name: &pattern });
            }
            _ => {}
        }
        self.rows.realm_by_admin.insert(name, realm);
    }

    /// Returns a text that would be the given one as a pattern. A database may hold texts for the same that differ in other ways, such as MySQL where
    /// they differ in case, and deletes them then.
    fn pattern(&mut self, text: &str) -> String {
        let (before, rest) = text.split_once('<').expect("a number");
        let (_, after) = rest.split_once('>').expect("a number");
        let pattern = ["%", "*", ".*"][self.texts.below(3)];
        format!("{before}{pattern}{after}")
    }

    fn is_listed(&mut self) {
        for listing in LISTINGS {
            let mut rows = self
                .connection
                .list(listing, None)
                .expect("the database answers");
            rows.sort_unstable();
            let expected = self.rows.listed(listing);
            // The whole would be megabytes.
            let differs = rows.iter().zip(&expected).find(|(one, other)| one != other);
            assert_eq!(differs, None, "{listing:?}: there is, there must be");
            assert_eq!(rows.len(), expected.len(), "{listing:?}");
            let Some(row) = expected.get(self.texts.below(expected.len().max(1))) else {
                continue;
            };
            let realm = row.realm.clone();
            let rows = self
                .connection
                .list(listing, Some(&realm))
                .expect("the database answers");
            let of_realm = expected.into_iter().filter(|row| row.realm == realm);
            assert_eq!(
                rows,
                of_realm.collect::<Vec<_>>(),
                "{listing:?} of {realm:?}"
            );
            if realm != REALM {
                let pattern = self.pattern(&realm);
                let rows = self.connection.list(listing, Some(&pattern));
                assert_eq!(rows.expect("the database answers"), [], "{pattern:?}");
            }
        }
    }

    /// Fails unless users and secrets of one realm and what is of realms is what was written, and the rest is what it was before.
    fn is_followed(&self, source: &Source, before: &Records) {
        let records = followed(source, &wanted(false));
        let expected = self.rows.key_by_user.iter();
        let expected = expected.filter(|((realm, _), _)| realm == REALM);
        let mut count = 0;
        for ((_, name), key) in expected {
            assert_eq!(records.user(REALM, name), Some(user_key(key)), "{name:?}");
            count += 1;
        }
        assert_eq!(records.users[REALM].len(), count);
        let secrets = records.tables.secrets[REALM].iter().map(Secret::expose);
        let expected = self.rows.secrets.iter().filter(|(realm, _)| realm == REALM);
        let expected = expected.map(|(_, secret)| secret.as_bytes());
        assert_eq!(secrets.collect::<BTreeSet<_>>(), expected.collect());
        let (tables, before) = (&records.tables, &before.tables);
        assert_eq!(tables.allowed, before.allowed);
        assert_eq!(tables.denied, before.denied);
        assert_eq!(tables.token_keys, before.token_keys);
        let records = followed(source, &wanted(true));
        let origins: BTreeMap<_, _> = records.tables.origins.into_iter().collect();
        assert_eq!(origins, self.rows.realm_by_origin);
        let options = records.tables.options.into_iter();
        let quotas = options.map(|option| (option.realm, option.value.parse().expect("a number")));
        assert_eq!(quotas.collect::<BTreeMap<_, _>>(), self.rows.quota_by_realm);
    }
}

/// Returns what a connection of its own reads: a connection reads one thing, and afterwards what has changed of it.
fn followed(source: &Source, wanted: &Wanted) -> Records {
    let mut connection = Connection::open(source).expect("the database answers");
    let mut records = Records::default();
    let followed = connection.follow(wanted, &mut records);
    followed.expect("the database answers");
    records
}

/// Returns what to ask for: what is of realms, or everything else of [`REALM`].
fn wanted(of_realms: bool) -> Wanted {
    Wanted {
        realm: REALM.to_owned(),
        users: !of_realms,
        secrets: !of_realms,
        peers: !of_realms,
        realms: of_realms,
        token_keys: !of_realms,
    }
}
