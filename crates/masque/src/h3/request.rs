//! What a request asks for, from its field section (RFC 9114 §4.3, RFC 9220 §3, RFC 9298 §3.4), and the answers.

use super::code::{Code, Wrong};
use super::frames::{frame, kind};
use super::qpack::{DecodeError, Field, decode, encode};
use super::settings::FIELDS_SIZE_MAX;
use crate::asked::Asked;
use crate::bind;
use crate::credentials::BasicCredentials;
use crate::granted::{Granted, PROXY_NAME};
use crate::http1::quoted;
use crate::refusal::Refusal;
use crate::target::{Host, Target, TargetError};

/// Fields that are about one connection of HTTP/1.1 (RFC 9114 §4.2), and those that a request for a tunnel must not have (RFC 9297 §3.2).
const FORBIDDEN: [&[u8]; 5] = [
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
];
const OF_CONTENT: [&[u8]; 2] = [b"content-length", b"content-type"];

/// The fields that begin with a colon.
#[derive(Default)]
struct Pseudo<'a> {
    method: Option<&'a [u8]>,
    protocol: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    authority: Option<&'a [u8]>,
    path: Option<&'a [u8]>,
}

/// Reads a request. It may be well formed and be refused all the same.
pub(super) fn read(section: &[u8]) -> Result<Result<Asked, Refusal>, Wrong> {
    let fields = match decode(section, FIELDS_SIZE_MAX) {
        Ok(fields) => fields,
        Err(DecodeError::TooLarge) => return Ok(Err(Refusal::HeadTooLarge)),
        Err(DecodeError::Malformed) => {
            let code = Code::QPACK_DECOMPRESSION_FAILED;
            return Err(Wrong::Connection(code, "a field section is no such thing"));
        }
    };
    asked(&fields).ok_or(Wrong::Stream(Code::MESSAGE_ERROR))
}

/// Checks a request. `None` if it is malformed.
fn asked(fields: &[Field<'_>]) -> Option<Result<Asked, Refusal>> {
    let pseudo_count = fields
        .iter()
        .take_while(|field| field.name.starts_with(b":"))
        .count();
    let (pseudo, rest) = fields.split_at(pseudo_count);
    let pseudo = Pseudo::of(pseudo)?;
    // guard: V-92-fields
    if !rest.iter().all(is_well_formed) {
        return None;
    }
    let named = |name: &'static [u8]| {
        let named = rest
            .iter()
            .filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| &*field.value)
    };
    let only = |name| {
        let mut values = named(name);
        let first = values.next();
        values.next().is_none().then_some(first)
    };
    let host = only(b"host")?;
    if host.is_some() && pseudo.authority.is_some() && host != pseudo.authority {
        return None;
    }
    let has = |part: Option<&[u8]>| part.is_some_and(|part| !part.is_empty());
    let has_address = has(pseudo.scheme) && has(pseudo.path);
    let Some(protocol) = pseudo.protocol else {
        // One that nobody here can grant.
        let is_connect = pseudo.method == Some(b"CONNECT");
        let is_whole = match is_connect {
            true => has(pseudo.authority) && pseudo.scheme.is_none() && pseudo.path.is_none(),
            false => has_address && (has(pseudo.authority) || has(host)),
        };
        return is_whole.then_some(Err(match is_connect {
            true => Refusal::NotServed,
            false => Refusal::NotFound,
        }));
    };
    if pseudo.method != Some(b"CONNECT") || !has_address || !has(pseudo.authority) {
        return None;
    }
    if protocol != b"connect-udp" {
        return Some(Err(Refusal::NotServed));
    }
    if OF_CONTENT.iter().any(|&name| named(name).next().is_some()) {
        return None;
    }
    let authority = core::str::from_utf8(pseudo.authority?).ok()?;
    let target = match Target::of_path(pseudo.path?) {
        Ok(target) => target,
        Err(TargetError::OtherPath) => return Some(Err(Refusal::NotFound)),
        Err(_) => return Some(Err(Refusal::BadRequest)),
    };
    if target.host == Host::Any && !bind::is_true(named(bind::CONNECT_UDP_BIND.as_bytes())) {
        return Some(Err(Refusal::BadRequest));
    }
    // Whose request it is has to be plain, so each field may be there once.
    let of_proxy = only(b"proxy-authorization")?;
    let of_origin = only(b"authorization")?;
    let credentials = of_proxy.and_then(BasicCredentials::of_field);
    Some(Ok(Asked {
        authority: authority.into(),
        target,
        credentials: credentials.or_else(|| of_origin.and_then(BasicCredentials::of_field)),
    }))
}

impl<'a> Pseudo<'a> {
    /// Takes fields that begin with a colon. `None` if one is not known, is there twice, or cannot be a value.
    fn of(fields: &'a [Field<'_>]) -> Option<Self> {
        let mut pseudo = Self::default();
        for field in fields {
            let place = match &*field.name {
                b":method" => &mut pseudo.method,
                b":protocol" => &mut pseudo.protocol,
                b":scheme" => &mut pseudo.scheme,
                b":authority" => &mut pseudo.authority,
                b":path" => &mut pseudo.path,
                _ => return None,
            };
            if place.replace(&field.value).is_some() || !is_value(&field.value) {
                return None;
            }
        }
        pseudo.method.is_some().then_some(pseudo)
    }
}

/// Returns whether a field that does not begin with a colon may be there (RFC 9114 §4.2, §10.3).
fn is_well_formed(field: &Field<'_>) -> bool {
    let is_token = |byte: &u8| {
        matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*'
            | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
    };
    let name = &*field.name;
    !name.is_empty()
        && name.iter().all(is_token)
        && is_value(&field.value)
        && !FORBIDDEN.contains(&name)
        && (name != b"te" || *field.value == *b"trailers")
}

/// Returns whether a field may have this value: no control characters, and no blank at either end.
fn is_value(value: &[u8]) -> bool {
    value.trim_ascii() == value
        && !value
            .iter()
            .any(|&byte| (byte < 0x20 && byte != b'\t') || byte == 0x7F)
}

/// Returns the frame with which a client asks `authority` for the tunnel that `path` names, with the credentials of a
/// `Proxy-Authorization` field.
#[must_use]
pub fn asking(authority: &str, path: &str, credentials: &str) -> Vec<u8> {
    asking_with(authority, path, credentials, &[])
}

/// Does the same for a bound tunnel (draft-ietf-masque-connect-udp-listen).
#[must_use]
pub fn asking_bound(authority: &str, credentials: &str) -> Vec<u8> {
    let path = Target::path("%2A", "%2A");
    // The names of fields are small letters (RFC 9114 §4.2).
    let field = bind::CONNECT_UDP_BIND.to_ascii_lowercase();
    asking_with(authority, &path, credentials, &[(&field, "?1")])
}

fn asking_with(authority: &str, path: &str, credentials: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = vec![
        (":method", "CONNECT"),
        (":protocol", "connect-udp"),
        (":scheme", "https"),
        (":authority", authority),
        (":path", path),
        ("capsule-protocol", "?1"),
        ("proxy-authorization", credentials),
    ];
    fields.extend(more);
    frame(kind::HEADERS, &encode(&fields))
}

/// Reads the status code of an answer. `None` if it is malformed.
pub(super) fn status(section: &[u8]) -> Result<Option<u16>, Wrong> {
    let fields = decode(section, FIELDS_SIZE_MAX).map_err(|_| {
        let code = Code::QPACK_DECOMPRESSION_FAILED;
        Wrong::Connection(code, "a field section is no such thing, or too long")
    })?;
    let Some((first, rest)) = fields.split_first() else {
        return Ok(None);
    };
    let is_code = first.value.len() == 3 && first.value.iter().all(u8::is_ascii_digit);
    let is_status = *first.name == *b":status" && is_code && rest.iter().all(is_well_formed);
    let text = core::str::from_utf8(&first.value).ok();
    Ok(text.filter(|_| is_status).and_then(|it| it.parse().ok()))
}

/// Returns the field section that grants a request.
pub(super) fn granted(granted: &Granted) -> Vec<u8> {
    let own = granted.fields();
    let own: Vec<_> = own
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .collect();
    let mut fields = vec![(":status", "200"), ("capsule-protocol", "?1")];
    fields.extend(
        own.iter()
            .map(|(name, value)| (name.as_str(), value.as_str())),
    );
    encode(&fields)
}

/// Returns the field section that refuses a request. A challenge names `realm`.
pub(super) fn refused(refusal: Refusal, realm: &str) -> Vec<u8> {
    let status = refusal.status().to_string();
    let challenge = format!("Basic realm={}, charset=\"UTF-8\"", quoted(realm));
    let error = refusal.proxy_error();
    let why = error.map(|error| format!("{PROXY_NAME}; error={error}"));
    let mut fields = vec![(":status", &*status), ("content-length", "0")];
    if refusal == Refusal::Unauthorized {
        fields.push(("proxy-authenticate", &challenge));
    }
    if let Some(why) = &why {
        fields.push(("proxy-status", why));
    }
    encode(&fields)
}
