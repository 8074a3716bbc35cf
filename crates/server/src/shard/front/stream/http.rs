//! Answers HTTP clients: with an error, or with a redirect to the server that answers their ACME challenge.

use std::fmt::Write as _;

/// Longest head of a request that is read.
const HEAD_LEN_MAX: usize = 4096;
/// Longest token of an ACME challenge, which is base64url (RFC 8555 §8.1); coturn's limit.
const TOKEN_LEN_MAX: usize = 127;
/// The path of ACME challenges (RFC 8555 §8.3).
const CHALLENGE: &str = "/.well-known/acme-challenge/";
const UNSUPPORTED: &str = "This port serves TURN, not HTTP.\n";

/// The configured answers to HTTP clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpService {
    /// Whether HTTP requests get an error response.
    pub(crate) answers: bool,
    /// The URL that ACME challenges are redirected to, without the token.
    pub(crate) acme_redirect: Option<Box<str>>,
}

/// The result of reading a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// The head is not complete.
    Later,
    /// The connection is closed without a response.
    Silence,
    /// This is sent, and then the connection is closed.
    Text(String),
}

impl HttpService {
    /// Returns the reply to a client that has sent `bytes` so far. `is_secure` means that it uses TLS. ACME challenges do not.
    pub(crate) fn reply(&self, bytes: &[u8], is_secure: bool) -> Reply {
        if !self.answers && (self.acme_redirect.is_none() || is_secure) {
            return Reply::Silence;
        }
        if !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
            return match bytes.len() < HEAD_LEN_MAX {
                true => Reply::Later,
                false => Reply::Silence,
            };
        }
        match (&self.acme_redirect, token(bytes)) {
            (Some(url), Some(token)) if !is_secure => Reply::Text(response(
                "301 Moved Permanently",
                &format!("Location: {url}{token}\r\n"),
                "",
            )),
            _ if self.answers => Reply::Text(response("400 Bad Request", "", UNSUPPORTED)),
            _ => Reply::Silence,
        }
    }
}

/// Returns the token of the challenge that is asked for.
fn token(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let token = target.strip_prefix(CHALLENGE)?;
    let is_base64url = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_good = (1..=TOKEN_LEN_MAX).contains(&token.len()) && token.bytes().all(is_base64url);
    (method == "GET" && is_good).then_some(token)
}

fn response(status: &str, fields: &str, body: &str) -> String {
    let mut text = format!("HTTP/1.1 {status}\r\n{fields}Connection: close\r\n");
    if !body.is_empty() {
        text.push_str("Content-Type: text/plain; charset=utf-8\r\n");
    }
    // Writing to a String cannot fail.
    let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(answers: bool, redirects: bool) -> HttpService {
        HttpService {
            answers,
            acme_redirect: redirects.then(|| "https://acme.example.org/c/".into()),
        }
    }

    fn text(reply: Reply) -> String {
        match reply {
            Reply::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_request_is_answered_as_soon_as_its_head_has_come_if_at_all() {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(service(false, false).reply(request, false), Reply::Silence);
        let polite = service(true, false);
        for cut in 5..request.len() {
            assert_eq!(polite.reply(&request[..cut], false), Reply::Later);
        }
        let answer = text(polite.reply(request, true));
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
            "{answer}"
        );
        assert!(
            answer.ends_with(&format!("\r\n\r\n{UNSUPPORTED}")),
            "{answer}"
        );
        let endless = vec![b'G'; HEAD_LEN_MAX];
        assert_eq!(polite.reply(&endless, false), Reply::Silence);
    }

    #[test]
    fn a_challenge_is_sent_on_with_its_token_and_nothing_else_is() {
        let asked = |target: &str, is_secure| {
            let request = format!("GET {target} HTTP/1.1\r\n\r\n");
            service(false, true).reply(request.as_bytes(), is_secure)
        };
        let answer = text(asked("/.well-known/acme-challenge/aZ0-_", false));
        assert!(
            answer.contains("\r\nLocation: https://acme.example.org/c/aZ0-_\r\n"),
            "{answer}"
        );
        assert_eq!(
            asked("/.well-known/acme-challenge/aZ0-_", true),
            Reply::Silence
        );
        for target in [
            "/".to_owned(),
            CHALLENGE.to_owned(),
            format!("{CHALLENGE}../../etc"),
            format!("{CHALLENGE}a%0d%0aSet-Cookie:x"),
            format!("{CHALLENGE}a\nb"),
            format!("{CHALLENGE}{}", "a".repeat(TOKEN_LEN_MAX + 1)),
        ] {
            assert_eq!(asked(&target, false), Reply::Silence, "{target}");
        }
        let posted = format!("POST {CHALLENGE}a HTTP/1.1\r\n\r\n");
        assert_eq!(
            service(false, true).reply(posted.as_bytes(), false),
            Reply::Silence
        );
    }
}
