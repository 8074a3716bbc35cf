//! The requests that are served: metrics, health and the status page, and nothing that changes anything.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::exposition::Format;
use crate::listener::Site;
use crate::shared::Shared;
use crate::{health, host};

const PLAIN: &str = "text/plain; charset=utf-8";

/// What of a request decides about its answer.
pub(crate) struct Wish<'a> {
    pub(crate) path: &'a str,
    /// The name that this server is called by.
    pub(crate) host: &'a str,
    /// Whose page a browser asks for (`Sec-Fetch-Site`); empty if it is no browser.
    pub(crate) site: &'a str,
}

/// Answers a request. coturn's order counts: a wrong method first, then the path.
pub(crate) async fn answer<B>(
    shared: &Shared,
    site: &Site,
    request: &Request<B>,
) -> Response<Full<Bytes>> {
    let header = |name: HeaderName| {
        let value = request.headers().get(name);
        value.and_then(|value| value.to_str().ok()).unwrap_or("")
    };
    if !site.hosts.admit(header(HOST)) {
        return text(StatusCode::MISDIRECTED_REQUEST, host::NOT_OURS);
    }
    if request.method() != Method::GET {
        let mut refusal = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed");
        let headers = refusal.headers_mut();
        headers.insert(ALLOW, HeaderValue::from_static("GET"));
        return refusal;
    }
    let wish = Wish {
        path: request.uri().path(),
        host: header(HOST),
        site: header(HeaderName::from_static("sec-fetch-site")),
    };
    if let Some(page) = &site.page
        && let Some(answer) = page.answer(shared, &site.hosts, &wish).await
    {
        return answer;
    }
    match wish.path {
        path if path == &*site.path => {
            let format = Format::of_accept(header(ACCEPT));
            let metrics = shared.metrics(format);
            response(StatusCode::OK, metrics, format.content_type())
        }
        "/" => text(StatusCode::OK, "ok"),
        "/livez" => {
            let silent = health::silent_shards(&shared.commands).await;
            health_of(&health::deaths(&silent))
        }
        "/readyz" => {
            let silent = health::silent_shards(&shared.commands).await;
            health_of(&health::faults(shared, &silent))
        }
        _ => text(StatusCode::NOT_FOUND, "not found"),
    }
}

fn health_of(faults: &[String]) -> Response<Full<Bytes>> {
    match faults {
        [] => text(StatusCode::OK, "ok"),
        faults => response(StatusCode::SERVICE_UNAVAILABLE, faults.join("\n"), PLAIN),
    }
}

/// Returns an answer in plain text.
pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    response(status, body, PLAIN)
}

/// Returns an answer that no one keeps and that is taken for nothing but what it is.
pub(crate) fn response(
    status: StatusCode,
    body: impl Into<Bytes>,
    content_type: &'static str,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A browser is not to take a name in it for anything but text.
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    response
}
