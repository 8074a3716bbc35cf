//! The choice of a request's realm by its ORIGIN (draft-ietf-tram-stun-origin), for a server of several providers.
//!
//! An origin is looked up in one form: small letters, and with the port even where it is the scheme's own. Looking one up takes no
//! memory, because requests carry ORIGIN before they prove anything.

use std::sync::Arc;

use turnbuckle_wire::{AttributeType, Message};

/// So many origins of one request are looked up.
const LOOKED_UP_MAX: usize = 4;

/// An origin in the form in which it is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CanonicalOrigin {
    /// Room for the port that may have to be added.
    bytes: [u8; Self::LEN_MAX + 4],
    len: usize,
}

impl CanonicalOrigin {
    /// The longest origin that is looked up; a longer one belongs to nobody (coturn's bound).
    pub const LEN_MAX: usize = 127;

    /// Returns `scheme://host:port` of `origin`, without what may stand before the host or behind the port; what has no scheme stays as it is. Returns `None`
    /// for what cannot be an origin: nothing, too much, or anything but printable ASCII.
    pub fn of(origin: &[u8]) -> Option<Self> {
        let is_text = origin.iter().all(u8::is_ascii_graphic);
        // mutant: origin-of-any-length
        if origin.is_empty() || origin.len() > Self::LEN_MAX || !is_text {
            return None;
        }
        let mut canonical = Self {
            bytes: [0; Self::LEN_MAX + 4],
            len: 0,
        };
        let Some((scheme, authority)) = split(origin) else {
            canonical.push(origin);
            return Some(canonical);
        };
        canonical.push(scheme);
        canonical.bytes.make_ascii_lowercase();
        let is_scheme = |name: &[u8]| canonical.as_bytes() == name;
        // the colons of an IPv6 address stand in brackets
        let port = authority.rsplit(|&byte| byte == b':').next();
        let has_port = port.is_some_and(|port| {
            let is_number = !port.is_empty() && port.iter().all(u8::is_ascii_digit);
            is_number && port.len() < authority.len()
        });
        let port: &[u8] = match () {
            () if has_port => b"",
            () if is_scheme(b"http") => b":80",
            // mutant: origin-without-its-port
            () if is_scheme(b"https") => b":443",
            () => b"",
        };
        for part in [b"://", authority, port] {
            canonical.push(part);
        }
        // mutant: origin-in-capitals
        canonical.bytes.make_ascii_lowercase();
        Some(canonical)
    }

    /// Returns the origin whose [`Self::as_bytes`] are these; `None` for what cannot be an origin.
    pub fn from_canonical(canonical: &[u8]) -> Option<Self> {
        let is_text = canonical.iter().all(u8::is_ascii_graphic);
        if canonical.is_empty() || canonical.len() > Self::LEN_MAX + 4 || !is_text {
            return None;
        }
        let mut origin = Self {
            bytes: [0; Self::LEN_MAX + 4],
            len: 0,
        };
        origin.push(canonical);
        Some(origin)
    }

    /// Returns the first origin of a request.
    pub(crate) fn first_of(message: &Message<'_>) -> Option<Self> {
        all_of(message).next()
    }

    /// Returns whether this is one of the origins of a request.
    pub(crate) fn is_among(&self, message: &Message<'_>) -> bool {
        // mutant: origin-of-a-session-not-checked
        all_of(message).any(|origin| origin == *self)
    }

    /// Returns the text.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// Appends what there is room for: parts of a text that fits, and a port.
    fn push(&mut self, part: &[u8]) {
        let room = self.bytes.get_mut(self.len..).unwrap_or_default();
        for (to, from) in room.iter_mut().zip(part) {
            *to = *from;
            self.len += 1;
        }
    }
}

/// Returns the first origins of a request, up to a limit. Clients may send several, each in its own attribute or all in one.
fn all_of<'m>(message: &Message<'m>) -> impl Iterator<Item = CanonicalOrigin> + use<'m> {
    message
        .attributes()
        .filter(|attribute| attribute.kind == AttributeType::ORIGIN)
        .flat_map(|attribute| attribute.value.split(|&byte| byte == b' '))
        .take(LOOKED_UP_MAX)
        .filter_map(CanonicalOrigin::of)
}

/// Splits a URL into its scheme and its authority, the latter without a user.
fn split(origin: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = origin.windows(3).position(|window| window == b"://")?;
    let (scheme, rest) = (origin.get(..colon)?, origin.get(colon + 3..)?);
    let authority = rest.split(|byte| b"/?#".contains(byte)).next()?;
    // mutant: origin-with-its-user
    let authority = authority.rsplit(|&byte| byte == b'@').next()?;
    (!scheme.is_empty() && !authority.is_empty()).then_some((scheme, authority))
}

/// The realm of each origin, sorted by origin.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins(Vec<(Box<[u8]>, Arc<str>)>);

impl Origins {
    /// Maps an origin to a realm, in place of the one it may have had.
    pub(super) fn insert(&mut self, origin: &CanonicalOrigin, realm: &Arc<str>) {
        let origin = origin.as_bytes();
        match self.find(origin) {
            Ok(at) => self.0[at].1 = Arc::clone(realm),
            Err(at) => self.0.insert(at, (origin.into(), Arc::clone(realm))),
        }
    }

    /// Returns the realm of an origin, if it has one.
    pub(super) fn realm_at(&self, origin: &CanonicalOrigin) -> Option<&str> {
        let at = self.find(origin.as_bytes()).ok()?;
        Some(&*self.0[at].1)
    }

    /// Returns the realm of the first origin of a request that has one.
    pub(super) fn realm_of(&self, message: &Message<'_>) -> Option<&str> {
        if self.0.is_empty() || !message.contains(AttributeType::ORIGIN) {
            return None;
        }
        // mutant: origin-by-the-first-alone
        all_of(message).find_map(|origin| {
            let at = self.find(origin.as_bytes()).ok()?;
            Some(&*self.0[at].1)
        })
    }

    fn find(&self, origin: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| (**other).cmp(origin))
    }
}

#[cfg(test)]
mod tests {
    use turnbuckle_wire::{Class, MessageWriter, Method, TransactionId};

    use super::*;

    fn realm_of(origins: &Origins, values: &[&str]) -> Option<String> {
        let mut buffer = [0; 1024];
        let id = TransactionId::new([7; 12]);
        let mut writer = MessageWriter::new(&mut buffer, Class::Request, Method::ALLOCATE, id);
        for value in values {
            writer.origin(value.as_bytes());
        }
        let len = writer.finish().unwrap();
        let message = Message::parse(&buffer[..len]).unwrap();
        origins.realm_of(&message).map(Into::into)
    }

    fn origins(pairs: &[(&str, &str)]) -> Origins {
        let mut origins = Origins::default();
        for (origin, realm) in pairs {
            let origin = CanonicalOrigin::of(origin.as_bytes()).unwrap();
            origins.insert(&origin, &Arc::from(*realm));
        }
        origins
    }

    #[test]
    fn an_origin_is_found_in_every_way_to_write_it() {
        let origins = origins(&[
            ("https://Blackdow.carleon.gov", "north"),
            ("http://crinna.org:80", "crinna"),
            ("https://[2001:db8::1]", "six"),
            ("turn:example.org", "plain"),
        ]);
        for (value, realm) in [
            ("https://blackdow.carleon.gov:443", Some("north")),
            ("HTTPS://BLACKDOW.CARLEON.GOV", Some("north")),
            ("https://blackdow.carleon.gov/", Some("north")),
            ("https://user@blackdow.carleon.gov/?a=b", Some("north")),
            ("https://blackdow.carleon.gov:444", None),
            ("http://crinna.org", Some("crinna")),
            ("https://crinna.org", None),
            ("https://[2001:DB8::1]:443", Some("six")),
            ("turn:example.org", Some("plain")),
            ("turn:EXAMPLE.org", None),
            ("", None),
            ("://", None),
            ("https://", None),
            ("crinna.org", None),
            ("http://crinna.org\0", None),
        ] {
            assert_eq!(realm_of(&origins, &[value]).as_deref(), realm, "{value}");
        }
        assert_eq!(realm_of(&origins, &[]), None);
    }

    #[test]
    fn of_several_origins_the_first_with_a_realm_counts() {
        let origins = origins(&[("http://a", "a"), ("http://b", "b")]);
        assert_eq!(
            realm_of(&origins, &["http://x", "http://b", "http://a"]),
            Some("b".into())
        );
        assert_eq!(
            realm_of(&origins, &["http://x http://a http://b"]),
            Some("a".into())
        );
        let many = ["http://x"; LOOKED_UP_MAX];
        assert_eq!(
            realm_of(&origins, &[&many[..], &["http://a"]].concat()),
            None
        );
    }

    #[test]
    fn an_origin_that_is_too_long_belongs_to_nobody() {
        let longest = format!("http://{}", "x".repeat(CanonicalOrigin::LEN_MAX - 7));
        let canonical = CanonicalOrigin::of(longest.as_bytes()).unwrap();
        assert_eq!(canonical.as_bytes(), format!("{longest}:80").as_bytes());
        assert!(CanonicalOrigin::of(format!("{longest}x").as_bytes()).is_none());
    }

    #[test]
    fn an_origin_that_is_given_twice_has_the_later_realm() {
        let origins = origins(&[("http://a", "a"), ("HTTP://A:80", "b")]);
        assert_eq!(realm_of(&origins, &["http://a"]), Some("b".into()));
    }
}
