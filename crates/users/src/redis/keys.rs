//! Names of coturn's keys in Redis, and what they say.
//!
//! A name is read from its front: the realm ends at the first `/user/`, as for coturn's own programs. Names that are not UTF-8 belong to nobody.

/// Names of the options of a realm, as they end its keys.
pub(super) const REALM_OPTIONS: [&str; 3] = ["max-bps", "total-quota", "user-quota"];

/// What all keys of users, secrets and other facts about a realm begin with.
const REALM: &str = "turn/realm/";
const ORIGIN: &str = "turn/origin/";
const TOKEN_KEY: &str = "turn/oauth/kid/";
const ADMIN: &str = "turn/admin_user/";

/// What keys that a server reads begin with.
pub(super) const FOLLOWED: [&str; 3] = [REALM, ORIGIN, TOKEN_KEY];

/// A key that coturn's programs read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// A string: the 32 digits of a user's key.
    User { realm: String, name: String },
    /// A set of secrets.
    Secrets { realm: String },
    /// A set of address ranges.
    AllowedPeers { realm: String },
    /// A set of address ranges.
    DeniedPeers { realm: String },
    /// A string with a number.
    RealmOption { realm: String, option: &'static str },
    /// A string: the realm.
    Origin(String),
    /// A hash.
    Token(String),
    /// A hash.
    Admin(String),
}

impl Key {
    /// Returns what a name stands for; `None` for a name of something else.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        let name = std::str::from_utf8(name).ok()?;
        if let Some(origin) = name.strip_prefix(ORIGIN) {
            return Some(Self::Origin(origin.to_owned()));
        }
        if let Some(name) = name.strip_prefix(TOKEN_KEY) {
            return Some(Self::Token(name.to_owned()));
        }
        if let Some(name) = name.strip_prefix(ADMIN) {
            return Some(Self::Admin(name.to_owned()));
        }
        let rest = name.strip_prefix(REALM)?;
        if let Some((realm, rest)) = rest.split_once("/user/") {
            let realm = realm.to_owned();
            // Names of sessions in the database for session events begin in the same way and end otherwise.
            let name = rest.strip_suffix("/key")?.to_owned();
            return Some(Self::User { realm, name });
        }
        let (realm, last) = rest.rsplit_once('/')?;
        let realm = realm.to_owned();
        match last {
            "secret" => Some(Self::Secrets { realm }),
            "allowed-peer-ip" => Some(Self::AllowedPeers { realm }),
            "denied-peer-ip" => Some(Self::DeniedPeers { realm }),
            _ => {
                let option = REALM_OPTIONS.into_iter().find(|option| *option == last)?;
                Some(Self::RealmOption { realm, option })
            }
        }
    }

    /// Returns the realm that the key's name names.
    pub(super) fn realm(&self) -> Option<&str> {
        match self {
            Self::User { realm, .. }
            | Self::Secrets { realm }
            | Self::AllowedPeers { realm }
            | Self::DeniedPeers { realm }
            | Self::RealmOption { realm, .. } => Some(realm),
            Self::Origin(_) | Self::Token(_) | Self::Admin(_) => None,
        }
    }

    /// Returns whether a string is under the key.
    pub(super) fn is_text(&self) -> bool {
        matches!(
            self,
            Self::User { .. } | Self::RealmOption { .. } | Self::Origin(_)
        )
    }

    /// Returns the name in the database.
    pub(super) fn name(&self) -> String {
        match self {
            Self::User { realm, name } => format!("{REALM}{realm}/user/{name}/key"),
            Self::Secrets { realm } => format!("{REALM}{realm}/secret"),
            Self::AllowedPeers { realm } => format!("{REALM}{realm}/allowed-peer-ip"),
            Self::DeniedPeers { realm } => format!("{REALM}{realm}/denied-peer-ip"),
            Self::RealmOption { realm, option } => format!("{REALM}{realm}/{option}"),
            Self::Origin(origin) => format!("{ORIGIN}{origin}"),
            Self::Token(name) => format!("{TOKEN_KEY}{name}"),
            Self::Admin(name) => format!("{ADMIN}{name}"),
        }
    }
}

/// Returns a pattern of `SCAN` for the keys of a realm, or of all, that end so.
pub(super) fn pattern(realm: Option<&str>, end: &str) -> String {
    let realm = realm.map_or_else(|| "*".to_owned(), escaped);
    format!("{REALM}{realm}/{end}")
}

/// Returns `text` as a pattern of `SCAN` that matches it alone.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '^' | '\\') {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_coturns_schema_says_and_is_written_back_as_it_was() {
        let realm = || "north.gov".to_owned();
        for (name, expected) in [
            (
                "turn/realm/north.gov/user/gorst/key",
                Key::User {
                    realm: realm(),
                    name: "gorst".to_owned(),
                },
            ),
            (
                "turn/realm/north.gov/secret",
                Key::Secrets { realm: realm() },
            ),
            (
                "turn/realm/north.gov/allowed-peer-ip",
                Key::AllowedPeers { realm: realm() },
            ),
            (
                "turn/realm/north.gov/denied-peer-ip",
                Key::DeniedPeers { realm: realm() },
            ),
            (
                "turn/realm/north.gov/user-quota",
                Key::RealmOption {
                    realm: realm(),
                    option: "user-quota",
                },
            ),
            (
                "turn/realm//user/a/b/key",
                Key::User {
                    realm: String::new(),
                    name: "a/b".to_owned(),
                },
            ),
            (
                "turn/realm/a/user/b/user/c/key",
                Key::User {
                    realm: "a".to_owned(),
                    name: "b/user/c".to_owned(),
                },
            ),
            (
                "turn/origin/https://bligh.edu:443",
                Key::Origin("https://bligh.edu:443".to_owned()),
            ),
            (
                "turn/oauth/kid/oldempire",
                Key::Token("oldempire".to_owned()),
            ),
            ("turn/admin_user/bayaz", Key::Admin("bayaz".to_owned())),
        ] {
            assert_eq!(Key::of(name.as_bytes()).as_ref(), Some(&expected), "{name}");
            assert_eq!(expected.name(), name);
        }
    }

    #[test]
    fn other_names_mean_nothing() {
        for name in [
            "turn/realm/r/user/u/allocation/001000000000000001/status",
            "turn/user/u/allocation/001000000000000001/status",
            "turn/realm/r/user/u/password",
            "turn/realm/r",
            "turn/realm/r/other",
            "turn/realms/r/secret",
            "session:1",
            "",
        ] {
            assert_eq!(Key::of(name.as_bytes()), None, "{name}");
        }
        assert_eq!(Key::of(b"turn/realm/r/user/\xff/key"), None);
    }

    #[test]
    fn a_pattern_matches_its_own_text_alone() {
        assert_eq!(escaped("a*b?c[d]^\\e"), "a\\*b\\?c\\[d\\]\\^\\\\e");
        assert_eq!(escaped("north.gov"), "north.gov");
    }
}
