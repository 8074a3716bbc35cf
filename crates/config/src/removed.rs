//! Keys of old coturn versions, which are refused with a reference to their replacement.

pub(crate) const KEYS: &[(&str, &str)] = &[
    ("dh2066", "this was the default; remove the line"),
    (
        "ne",
        "network engines were removed; `udp-backend` chooses how datagrams are moved",
    ),
    (
        "no-http",
        "there is no HTTP on relay ports unless asked for; remove the line",
    ),
    (
        "no-loopback-peers",
        "loopback peers are refused unless `allow-loopback-peers` is set; remove the line",
    ),
    ("no-sslv2", "SSL 2 is never offered; remove the line"),
    ("no-sslv3", "SSL 3 is never offered; remove the line"),
    (
        "no-stun-backward-compatibility",
        "it is off unless `stun-backward-compatibility` is set; remove the line",
    ),
    (
        "no-tlsv1",
        "TLS 1.0 is never offered unless asked for; remove the line",
    ),
    (
        "no-tlsv1_1",
        "TLS 1.1 is never offered unless asked for; remove the line",
    ),
    (
        "prod",
        "SOFTWARE is left out unless `software-attribute` is set; remove the line",
    ),
    (
        "secret-ts-exp-time",
        "time-limited credentials carry their expiry time themselves; remove the line",
    ),
    (
        "sha256",
        "SHA-256 is used with clients that offer it (RFC 8489 §9.2); remove the line",
    ),
    (
        "sha384",
        "no client uses it: RFC 8489 knows SHA-1 and SHA-256; remove the line",
    ),
    (
        "sha512",
        "no client uses it: RFC 8489 knows SHA-1 and SHA-256; remove the line",
    ),
    (
        "st-cred-mech",
        "short-term credentials are not for TURN (RFC 8656 §5); use `lt-cred-mech`",
    ),
    (
        "udp-sendmmsg",
        "replaced by `udp-backend`, which covers both directions",
    ),
];
