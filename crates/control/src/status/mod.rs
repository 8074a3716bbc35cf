//! The status page: what the relay does now, drawn by the browser from one snapshot a second (`status-page`).
//!
//! Invariant: nothing here changes anything, and nothing is made for whoever does not look. However many look, a snapshot is made at most once a
//! second. The page comes from this port alone, and what clients have named is text in it and never markup: the script makes no elements of strings,
//! and the policy that comes with every answer lets a browser run no other script.

mod snapshot;

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::host;
use crate::host::Hosts;
use crate::http::{self, Wish};
use crate::shared::Shared;

/// Where the page is.
pub(crate) const PATH: &str = "/status";

/// What of it never changes: path, content, media type.
const FILES: [(&str, &str, &str); 4] = [
    (PATH, include_str!("page.html"), "text/html; charset=utf-8"),
    (
        "/status/page.css",
        include_str!("page.css"),
        "text/css; charset=utf-8",
    ),
    (
        "/status/page.js",
        include_str!("page.js"),
        "text/javascript; charset=utf-8",
    ),
    (
        "/status/icon.svg",
        include_str!("icon.svg"),
        "image/svg+xml",
    ),
];

/// Where the snapshot is.
const SNAPSHOT: &str = "/status.json";

/// Time for which a snapshot is good.
const FRESH: Duration = Duration::from_secs(1);

/// Headers of every answer: the browser loads nothing from elsewhere, runs no script that is written into the page, and shows the page in no other.
const HEADERS: [(&str, &str); 3] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
];

/// The header that keeps pages of other origins apart. Browsers take it over HTTPS alone, and over HTTP they complain.
const APART: (&str, &str) = ("cross-origin-opener-policy", "same-origin");

const ELSEWHERE: &str = "pages of other sites are not told";

/// The page of one server.
pub(crate) struct StatusPage {
    /// Whether it is served over HTTPS.
    is_secure: bool,
    /// The last snapshot, and when it was begun. Whoever comes while one is made waits for it.
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl StatusPage {
    /// Makes the page of a server that speaks HTTPS or HTTP.
    pub(crate) fn new(is_secure: bool) -> Self {
        Self {
            is_secure,
            last: Mutex::default(),
        }
    }

    /// Answers a request for the page or what belongs to it. Returns `None` for any other path.
    pub(crate) async fn answer(
        &self,
        shared: &Shared,
        hosts: &Hosts,
        wish: &Wish<'_>,
    ) -> Option<Response<Full<Bytes>>> {
        let file = FILES.iter().find(|(path, ..)| *path == wish.path);
        if file.is_none() && wish.path != SNAPSHOT {
            return None;
        }
        // Names of users are in it, so that any name is good for metrics counts for nothing here.
        let mut response = if !hosts.is_ours(wish.host) {
            http::text(StatusCode::MISDIRECTED_REQUEST, host::NOT_OURS)
        } else if let Some((_, content, media_type)) = file {
            http::response(StatusCode::OK, *content, media_type)
        } else if matches!(wish.site, "" | "same-origin" | "none") {
            let snapshot = self.snapshot(shared).await;
            http::response(StatusCode::OK, snapshot, "application/json")
        } else {
            http::text(StatusCode::FORBIDDEN, ELSEWHERE)
        };
        let apart = self.is_secure.then_some(APART);
        for (name, value) in HEADERS.into_iter().chain(apart) {
            let (name, value) = (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
            response.headers_mut().insert(name, value);
        }
        Some(response)
    }

    /// Returns a snapshot that is at most a second old.
    async fn snapshot(&self, shared: &Shared) -> Bytes {
        let mut last = self.last.lock().await;
        if let Some((made, snapshot)) = &*last
            && made.elapsed() < FRESH
        {
            return snapshot.clone();
        }
        let made = Instant::now();
        let uptime = made.duration_since(shared.begun);
        let snapshot = snapshot::take(shared, uptime).await;
        let snapshot = Bytes::from(snapshot.to_string());
        *last = Some((made, snapshot.clone()));
        snapshot
    }
}
