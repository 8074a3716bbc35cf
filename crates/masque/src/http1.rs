//! Requests for tunnels by HTTP/1.1 Upgrade, and their answers (RFC 9298 §3.2, §3.3).
//!
//! A request for anything else is not judged here: it is whoever else serves HTTP on the port that answers it.

use core::fmt::Write as _;

use crate::asked::Asked;
use crate::bind;
use crate::credentials::BasicCredentials;
use crate::granted::{Granted, PROXY_NAME};
use crate::refusal::Refusal;
use crate::target::{Host, Target, TargetError};

/// The longest head of a request, in bytes.
pub const HEAD_LEN_MAX: usize = 8 * 1024;
/// How many fields a head may have.
const FIELDS_MAX: usize = 64;
/// The upgrade token of UDP proxying (RFC 9298 §8.1).
const CONNECT_UDP: &str = "connect-udp";
/// Fields that a message with capsules must not have (RFC 9297 §3.2).
const CONTENT_FIELDS: [&str; 3] = ["Content-Length", "Content-Type", "Transfer-Encoding"];

/// What a client has sent so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The beginning of a head.
    Later,
    /// A request for something else than a tunnel, or no request.
    Other,
    /// A request that cannot be granted. What follows it is not read.
    Refused(Refusal),
    /// A request for a tunnel.
    Asked {
        /// What it asks for.
        asked: Asked,
        /// The length of its head, in bytes.
        len: usize,
    },
}

/// Reads the head that `bytes` begin with.
#[must_use]
pub fn read(bytes: &[u8]) -> Read {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let parsed = request.parse(bytes);
    let parts = request.path.map(|target| parts_of(target.as_bytes()));
    let (authority, path) = (parts.and_then(|it| it.0), parts.map(|it| it.1));
    // A part of the request's first line is no path yet.
    let is_ours = path.is_some_and(|path| Target::of_path(path) != Err(TargetError::OtherPath));
    match parsed {
        _ if path.is_some() && !is_ours => Read::Other,
        // guard: V-87-head
        Ok(httparse::Status::Partial) if bytes.len() >= HEAD_LEN_MAX => match is_ours {
            true => Read::Refused(Refusal::HeadTooLarge),
            false => Read::Other,
        },
        Ok(httparse::Status::Partial) => Read::Later,
        Ok(httparse::Status::Complete(len)) if len > HEAD_LEN_MAX => {
            Read::Refused(Refusal::HeadTooLarge)
        }
        Ok(httparse::Status::Complete(len)) => {
            match asked(&request, authority, path.unwrap_or_default()) {
                Some(asked) => Read::Asked { asked, len },
                None => Read::Refused(Refusal::BadRequest),
            }
        }
        Err(httparse::Error::TooManyHeaders) => Read::Refused(Refusal::HeadTooLarge),
        Err(_) if is_ours => Read::Refused(Refusal::BadRequest),
        Err(_) => Read::Other,
    }
}

/// Divides a request target: one in absolute form has an authority before its path (RFC 9112 §3.2).
fn parts_of(target: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let scheme_len = [&b"https://"[..], b"http://"]
        .into_iter()
        .find_map(|scheme| {
            let begin = target.get(..scheme.len())?;
            begin.eq_ignore_ascii_case(scheme).then_some(scheme.len())
        });
    let Some(after_scheme) = scheme_len.and_then(|len| target.get(len..)) else {
        return (None, target);
    };
    match after_scheme.iter().position(|&byte| byte == b'/') {
        // An authority there has to be.
        Some(at) if at > 0 => {
            let (authority, path) = after_scheme.split_at(at);
            (Some(authority), path)
        }
        _ => (None, target),
    }
}

/// Checks a request by RFC 9298 §3.2. `None` if it is malformed.
fn asked(
    request: &httparse::Request<'_, '_>,
    authority: Option<&[u8]>,
    path: &[u8],
) -> Option<Asked> {
    let values = |name: &'static str| {
        let fields = request.headers.iter();
        let named = fields.filter(move |field| field.name.eq_ignore_ascii_case(name));
        named.map(|field| field.value.trim_ascii())
    };
    let only = |name: &'static str| {
        let mut values = values(name);
        let first = values.next();
        first.filter(|_| values.next().is_none())
    };
    let is_get = request.method == Some("GET") && request.version == Some(1);
    let host = only("Host").filter(|host| !host.is_empty())?;
    let mut options = values("Connection").flat_map(|value| value.split(|&byte| byte == b','));
    let wants_upgrade = options.any(|option| option.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
    let protocol = only("Upgrade");
    let is_udp = protocol.is_some_and(|it| it.eq_ignore_ascii_case(CONNECT_UDP.as_bytes()));
    let has_content = CONTENT_FIELDS
        .iter()
        .any(|&name| values(name).next().is_some());
    // guard: V-92-request
    if !(is_get && wants_upgrade && is_udp) || has_content {
        return None;
    }
    let mut credentials = None;
    for name in ["Proxy-Authorization", "Authorization"] {
        let mut of_name = values(name);
        let first = of_name.next();
        if of_name.next().is_some() {
            return None; // Whose request it is has to be plain.
        }
        credentials = credentials.or_else(|| BasicCredentials::of_field(first?));
    }
    let wants_bound = bind::is_true(values(bind::CONNECT_UDP_BIND));
    let may_be = |target: &Target| target.host != Host::Any || wants_bound;
    // The one of an absolute target counts, whatever Host says (RFC 9112 §3.2.2).
    let authority = core::str::from_utf8(authority.unwrap_or(host)).ok()?;
    Some(Asked {
        authority: authority.into(),
        target: Target::of_path(path).ok().filter(may_be)?,
        credentials,
    })
}

/// Returns the answer that opens a tunnel. Capsules follow it.
#[must_use]
pub fn opened(granted: &Granted) -> String {
    let mut text = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {CONNECT_UDP}\r\n\
         Capsule-Protocol: ?1\r\n"
    );
    for (name, value) in granted.fields() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{name}: {value}\r\n");
    }
    text.push_str("\r\n");
    text
}

/// Returns the answer that opens no tunnel. A challenge names `realm`. `is_last` says that the connection is closed after it.
#[must_use]
pub fn refused(refusal: Refusal, realm: &str, is_last: bool) -> String {
    let mut text = format!("HTTP/1.1 {} {}\r\n", refusal.status(), refusal.phrase());
    // Writing to a String cannot fail.
    if refusal == Refusal::Unauthorized {
        let _ = write!(
            text,
            "Proxy-Authenticate: Basic realm={}, charset=\"UTF-8\"\r\n",
            quoted(realm)
        );
    }
    if let Some(error) = refusal.proxy_error() {
        let _ = write!(text, "Proxy-Status: {PROXY_NAME}; error={error}\r\n");
    }
    if is_last {
        text.push_str("Connection: close\r\n");
    }
    text.push_str("Content-Length: 0\r\n\r\n");
    text
}

/// Returns `text` as a quoted string (RFC 9110 §5.6.4). What must not stand in a field is left out.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if matches!(letter, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PATH: &str = "/.well-known/masque/udp/192.0.2.6/443/";
    const FIELDS: [&str; 4] = [
        "Host: example.org",
        "Connection: Upgrade",
        "Upgrade: connect-udp",
        "Capsule-Protocol: ?1",
    ];

    fn head(line: &str, fields: &[&str]) -> Vec<u8> {
        let mut head = format!("{line}\r\n");
        for field in fields {
            head.push_str(field);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    fn get(path: &str, fields: &[&str]) -> Read {
        read(&head(&format!("GET {path} HTTP/1.1"), fields))
    }

    /// Returns the fields with one of them replaced, left out or followed by another one.
    fn with(changed: &[(usize, &'static str)], more: &[&'static str]) -> Vec<&'static str> {
        let mut fields = FIELDS.to_vec();
        for &(at, field) in changed {
            fields[at] = field;
        }
        fields.extend(more);
        fields.retain(|field| !field.is_empty());
        fields
    }

    //= UDPX-01
    //= UDPX-10
    #[test]
    fn the_example_of_the_rfc_asks_for_a_tunnel_in_either_form_of_its_path() {
        for path in [PATH.to_owned(), format!("HTTPS://example.org{PATH}")] {
            let bytes = head(&format!("GET {path} HTTP/1.1"), &FIELDS);
            let whole = bytes.len();
            let Read::Asked { asked, len } = read(&[&bytes[..], &[0, 3, 0, 1, 2]].concat()) else {
                panic!("{path}")
            };
            assert_eq!(len, whole);
            let host = Host::Ip([192, 0, 2, 6].into());
            let expected = Asked {
                authority: "example.org".into(),
                target: Target { host, port: 443 },
                credentials: None,
            };
            assert_eq!(asked, expected);
            for end in 0..whole {
                assert_eq!(read(&bytes[..end]), Read::Later, "{end} bytes of {path}");
            }
        }
    }

    //= UDPX-10
    #[test]
    fn a_request_that_breaks_one_rule_is_malformed() {
        let fields = [
            with(&[(0, "")], &[]),
            with(&[(0, "Host:")], &[]),
            with(&[], &["Host: example.org"]),
            with(&[(1, "")], &[]),
            with(&[(1, "Connection: keep-alive")], &[]),
            with(&[(2, "")], &[]),
            with(&[(2, "Upgrade: websocket")], &[]),
            with(&[(2, "Upgrade: connect-udp, websocket")], &[]),
            with(&[], &["Upgrade: connect-udp"]),
            with(&[], &["Content-Length: 0"]),
            with(&[], &["Content-Type: text/plain"]),
            with(&[], &["transfer-encoding: chunked"]),
            with(
                &[],
                &["Authorization: Basic YTpi", "Authorization: Basic YTpi"],
            ),
            with(&[], &["Bad Name: x"]),
            with(&[], &["X: a\u{7}b"]),
        ];
        for fields in fields {
            assert_eq!(
                get(PATH, &fields),
                Read::Refused(Refusal::BadRequest),
                "{fields:?}"
            );
        }
        for line in [
            format!("POST {PATH} HTTP/1.1"),
            format!("CONNECT {PATH} HTTP/1.1"),
            format!("get {PATH} HTTP/1.1"),
            format!("GET {PATH} HTTP/1.0"),
            "GET /.well-known/masque/udp/192.0.2.6/0/ HTTP/1.1".to_owned(),
            "GET /.well-known/masque/udp/2001:db8::1/443/ HTTP/1.1".to_owned(),
            "GET /.well-known/masque/udp/a/1/?x HTTP/1.1".to_owned(),
        ] {
            let read = read(&head(&line, &FIELDS));
            assert_eq!(read, Read::Refused(Refusal::BadRequest), "{line}");
        }
    }

    #[test]
    fn the_authority_is_that_of_the_target_or_else_the_host() {
        let of = |path: &str, host: &'static str| match get(path, &with(&[(0, host)], &[])) {
            Read::Asked { asked, .. } => asked.authority.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(of(PATH, "Host: a.example:443"), "a.example:443");
        let absolute = format!("https://b.example{PATH}");
        assert_eq!(of(&absolute, "Host: a.example"), "b.example");
    }

    #[test]
    fn what_rfc_9110_leaves_open_is_taken() {
        for fields in [
            with(&[(1, "connection: keep-alive , UPGRADE")], &[]),
            with(&[(1, "Connection: keep-alive")], &["Connection: upgrade"]),
            with(&[(2, "upgrade:   Connect-UDP  ")], &[]),
            with(&[(3, "")], &[]),
            with(&[(3, "Capsule-Protocol: ?0")], &[]),
        ] {
            assert!(
                matches!(get(PATH, &fields), Read::Asked { .. }),
                "{fields:?}"
            );
        }
    }

    #[test]
    fn credentials_for_the_proxy_come_first() {
        let of = |more: &[&'static str]| match get(PATH, &with(&[], more)) {
            Read::Asked { asked, .. } => asked.credentials.map(|it| it.name),
            other => panic!("{other:?}"),
        };
        let (a, c) = (
            "Authorization: Basic YTpi",
            "Proxy-Authorization: Basic Yzpk",
        );
        assert_eq!(of(&[a, c]).as_deref(), Some("c"));
        assert_eq!(of(&[a]).as_deref(), Some("a"));
        assert_eq!(
            of(&[a, "Proxy-Authorization: Bearer x"]).as_deref(),
            Some("a")
        );
        assert_eq!(of(&["Authorization: Digest x"]), None);
    }

    #[test]
    fn a_request_for_anything_else_is_somebody_elses_as_soon_as_its_path_is_known() {
        assert_eq!(read(b"GET / HTTP/1.1\r\n"), Read::Other);
        assert_eq!(
            read(b"GET /.well-known/acme-challenge/x HTTP/1.1\r\n"),
            Read::Other
        );
        assert_eq!(read(b"OPTIONS * HTTP/1.1\r\n\r\n"), Read::Other);
        assert_eq!(read(b"GET https:// HTTP/1.1\r\n\r\n"), Read::Other);
        assert_eq!(read(b"\x16\x03\x01"), Read::Other);
        assert_eq!(read(b"GET /.well-known/masque/u"), Read::Later);
    }

    #[test]
    fn an_endless_head_is_refused() {
        let mut bytes = format!("GET {PATH} HTTP/1.1\r\nHost: a\r\nX: ").into_bytes();
        bytes.resize(HEAD_LEN_MAX - 1, b'x');
        assert_eq!(read(&bytes), Read::Later);
        bytes.push(b'x');
        assert_eq!(read(&bytes), Read::Refused(Refusal::HeadTooLarge));
        bytes.extend_from_slice(b"\r\n\r\n");
        assert_eq!(read(&bytes), Read::Refused(Refusal::HeadTooLarge));
        let many = vec!["X: y"; FIELDS_MAX + 1];
        assert_eq!(get(PATH, &many), Read::Refused(Refusal::HeadTooLarge));
        assert_eq!(read(&vec![b'G'; HEAD_LEN_MAX]), Read::Other);
    }

    //= UDPX-11
    #[test]
    fn the_answer_that_opens_a_tunnel_is_the_one_of_the_rfc() {
        let next_hop = "[2001:db8::42]:443".parse().unwrap();
        let text = opened(&Granted::Tunnel { next_hop });
        let mut fields = [httparse::EMPTY_HEADER; 8];
        let mut response = httparse::Response::new(&mut fields);
        assert!(response.parse(text.as_bytes()).unwrap().is_complete());
        assert_eq!(response.code, Some(101));
        let fields: Vec<(&str, &[u8])> = response
            .headers
            .iter()
            .map(|field| (field.name, field.value))
            .collect();
        let expected: [(&str, &[u8]); 4] = [
            ("Connection", b"Upgrade"),
            ("Upgrade", b"connect-udp"),
            ("Capsule-Protocol", b"?1"),
            ("Proxy-Status", b"relay; next-hop=\"2001:db8::42\""),
        ];
        assert_eq!(fields, expected);
    }

    #[test]
    fn a_bound_tunnel_is_asked_for_by_its_field_and_granted_with_its_addresses() {
        let path = "/.well-known/masque/udp/%2A/%2A/";
        let Read::Asked { asked, .. } = get(path, &with(&[], &["Connect-UDP-Bind: ?1"])) else {
            panic!("a request")
        };
        assert_eq!((asked.target.host, asked.target.port), (Host::Any, 0));
        for more in [
            &[][..],
            &["Connect-UDP-Bind: ?0"],
            &["Connect-UDP-Bind: ?1", "Connect-UDP-Bind: ?1"],
        ] {
            assert_eq!(
                get(path, &with(&[], more)),
                Read::Refused(Refusal::BadRequest)
            );
        }
        // With a target it is a tunnel to that one, which the client has to bear with.
        let Read::Asked { asked, .. } = get(PATH, &with(&[], &["Connect-UDP-Bind: ?1"])) else {
            panic!("a request")
        };
        assert_eq!(asked.target.port, 443);
        let addresses = vec!["192.0.2.1:4000".parse().unwrap()];
        let text = opened(&Granted::Bound { addresses });
        assert!(text.ends_with(
            "\r\nProxy-Status: relay\r\nConnect-UDP-Bind: ?1\r\n\
             Proxy-Public-Address: \"192.0.2.1:4000\"\r\n\r\n"
        ));
    }

    //= UDPX-04
    #[test]
    fn a_refusal_has_its_status_and_says_why_to_whom_has_proven_something() {
        for refusal in Refusal::ALL {
            for is_last in [false, true] {
                let text = refused(refusal, "exa\"mple", is_last);
                let mut fields = [httparse::EMPTY_HEADER; 8];
                let mut response = httparse::Response::new(&mut fields);
                assert!(response.parse(text.as_bytes()).unwrap().is_complete());
                assert_eq!(response.code, Some(refusal.status()));
                let has = |name: &str| response.headers.iter().any(|field| field.name == name);
                assert!(has("Content-Length") && !has("Capsule-Protocol"));
                assert_eq!(has("Connection"), is_last);
                assert_eq!(has("Proxy-Authenticate"), refusal == Refusal::Unauthorized);
                assert_eq!(has("Proxy-Status"), refusal.proxy_error().is_some());
            }
        }
        let challenge = refused(Refusal::Unauthorized, "exa\"mp\r\nle", false);
        assert!(challenge.contains("Basic realm=\"exa\\\"mple\", charset=\"UTF-8\"\r\n"));
        let dns = refused(Refusal::DnsError, "", true);
        assert!(
            dns.contains("\r\nProxy-Status: relay; error=dns_error\r\n"),
            "{dns}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm_and_no_head_reaches_beyond_them(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            cut in 0_usize..120,
        ) {
            let good = head(&format!("GET {PATH} HTTP/1.1"), &FIELDS);
            let bytes = [&good[..cut.min(good.len())], &bytes].concat();
            if let Read::Asked { len, .. } = read(&bytes) {
                prop_assert!(len <= bytes.len());
            }
        }
    }
}
