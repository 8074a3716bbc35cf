//! The form in which origins stand in the database.

/// `scheme://host:port` in small letters, with the port even where it is the scheme's own, and nothing behind it; other texts as they are.
pub(crate) fn canonical(origin: &str) -> String {
    let Some((scheme, rest)) = origin.split_once("://") else {
        return origin.to_owned();
    };
    let authority = rest
        .split(['/', '?', '#'])
        .next()
        .and_then(|authority| authority.rsplit('@').next())
        .unwrap_or_default()
        .to_lowercase();
    if scheme.is_empty() || authority.is_empty() {
        return origin.to_owned();
    }
    let scheme = scheme.to_lowercase();
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()));
    let port = match scheme.as_str() {
        "http" if !has_port => ":80",
        "https" if !has_port => ":443",
        _ => "",
    };
    format!("{scheme}://{authority}{port}")
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
