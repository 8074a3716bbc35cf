//! Brings origins into the form in which the database stores them.

use turnbuckle_engine::CanonicalOrigin;

/// Returns the origin as `scheme://host:port` in lower case. The port is always written, the scheme's default port too. A path is left out. Text
/// that is not such an origin is returned unchanged.
pub(crate) fn canonical(origin: &str) -> String {
    let canonical = CanonicalOrigin::of(origin.as_bytes());
    canonical.map_or_else(
        || origin.to_owned(),
        |canonical| String::from_utf8_lossy(canonical.as_bytes()).into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::canonical;

    #[test]
    fn origins_are_written_as_debians_turnadmin_writes_them() {
        for (given, expected) in [
            ("HTTP://A.b", "http://a.b:80"),
            ("https://A.b/", "https://a.b:443"),
            ("https://a.b:80", "https://a.b:80"),
            ("http://[::1]/x", "http://[::1]:80"),
            ("http://u@H:8080/p", "http://h:8080"),
            ("ws://A.B/x", "ws://a.b"),
            ("turn:EX.org", "turn:EX.org"),
            ("Foo", "Foo"),
            ("null", "null"),
            ("http://", "http://"),
        ] {
            assert_eq!(canonical(given), expected, "{given}");
        }
    }
}
