//! The page to look at: who gets it, and what it costs.

use std::time::Instant;

use crate::harness::{Client, Site};
use crate::metrics::Watched;

#[test]
fn the_status_page_is_there_if_asked_for_and_lets_a_browser_load_nothing_from_elsewhere() {
    let site = Site::new();
    let plain = Watched::start(site, &[]);
    for path in ["/status", "/status.json", "/status/page.js"] {
        let (head, _) = plain.get(path, "");
        assert!(head.starts_with("HTTP/1.1 404 "), "{path}: {head}");
    }
    drop(plain);
    let site = Site::new();
    let watched = Watched::start(site, &["--status-page"]);
    let mut client = Client::new(site.ip(2), &watched.server);
    client.allocate();
    for (path, media_type) in [
        ("/status", "text/html"),
        ("/status/page.css", "text/css"),
        ("/status/page.js", "text/javascript"),
        ("/status/icon.svg", "image/svg+xml"),
        ("/status.json", "application/json"),
    ] {
        let (head, body) = watched.get(path, "");
        let head = head.to_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{path}: {head}");
        assert!(head.contains(media_type), "{path}: {head}");
        let policy = "content-security-policy: default-src 'none'; script-src 'self'; ";
        assert!(head.contains(policy), "{path}: {head}");
        assert!(head.contains("frame-ancestors 'none'"), "{path}: {head}");
        assert!(!head.contains("access-control"), "{path}: {head}");
        // Over HTTP browsers pass it over, and say so in their consoles.
        assert!(!head.contains("opener-policy"), "{path}: {head}");
        // Namespaces of XML are names and loaded by nobody.
        let body = body.replace("http://www.w3.org/2000/svg", "");
        assert!(!body.contains("http://") && !body.contains("https://"));
        assert!(!body.contains("innerHTML"), "{path}");
    }
    let snapshot: serde_json::Value =
        serde_json::from_str(&watched.get("/status.json", "").1).unwrap();
    assert_eq!(snapshot["sessions"]["count"], 1);
    assert_eq!(snapshot["sessions"]["by_transport"]["UDP"], 1);
    let listed = &snapshot["sessions"]["listed"];
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert!(listed[0]["expires_in_s"].as_u64().unwrap() > 500);
    // Kept before anybody looked, and on top of what the counters say now.
    let history = &snapshot["history"];
    assert!(!history["at_ms"].as_array().unwrap().is_empty());
    assert!(history["at_ms"][0].as_u64() < snapshot["at_ms"].as_u64());
    for (more, status) in [
        ("Sec-Fetch-Site: cross-site\r\n", "403"),
        ("Sec-Fetch-Site: same-site\r\n", "403"),
        ("Sec-Fetch-Site: same-origin\r\n", "200"),
    ] {
        let (head, _) = watched.get("/status.json", more);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{more}");
    }
    let (head, _) = watched.raw("GET /status.json HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 421 "), "{head}");
    let (head, _) = watched.raw("POST /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
}

#[test]
fn however_many_look_at_the_status_page_a_snapshot_is_made_once_a_second() {
    let site = Site::new();
    let watched = Watched::start(site, &["--status-page"]);
    let begin = Instant::now();
    let mut moments = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let snapshot: serde_json::Value =
            serde_json::from_str(&watched.get("/status.json", "").1).unwrap();
        moments.insert(snapshot["at_ms"].as_u64().unwrap());
    }
    let seconds = begin.elapsed().as_secs() + 1;
    assert!(moments.len() as u64 <= seconds + 1, "{moments:?}");
    let gaps = moments.iter().zip(moments.iter().skip(1));
    for (before, after) in gaps {
        assert!(after - before >= 1000, "{moments:?}");
    }
}
