//! The values of the fields (§6, §7 of the draft), which are structured ones (RFC 9651).

use std::fmt::Write as _;
use std::net::SocketAddr;

/// Returns whether the values of a field are the Boolean true: one value, perhaps with parameters, which mean nothing here. Any other type counts
/// as no field, and so do several values, which make a List.
pub(crate) fn is_true<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> bool {
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    match value.strip_prefix(b"?1") {
        Some(b"") => true,
        // A comma would make it a List, unless it stands in a String. No parameter is known, so none with such a value is either.
        Some([b';', rest @ ..]) => !rest.is_empty() && !rest.contains(&b','),
        Some(_) | None => false,
    }
}

/// Returns a List of Strings, each an address and a port.
pub(crate) fn public_addresses(addresses: &[SocketAddr]) -> String {
    let mut text = String::new();
    for address in addresses {
        let separator = if text.is_empty() { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}\"{address}\"");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_boolean_that_is_true_asks_and_nothing_else_does() {
        let asks = |values: &[&'static str]| is_true(values.iter().map(|value| value.as_bytes()));
        assert!(asks(&["?1"]) && asks(&["?1;a=b"]) && asks(&["?1; a"]));
        for values in [
            &[][..],
            &["?0"],
            &["1"],
            &["?1, ?1"],
            &["?1;a, ?1"],
            &["?1", "?1"],
            &["?1;"],
            &["?10"],
            &["\"?1\""],
            &[""],
        ] {
            assert!(!asks(values), "{values:?}");
        }
    }

    #[test]
    fn addresses_are_strings_with_brackets_around_ipv6() {
        let addresses = ["192.0.2.1:4000", "[2001:db8::1]:4001"].map(|it| it.parse().unwrap());
        assert_eq!(public_addresses(&addresses[..1]), "\"192.0.2.1:4000\"");
        let both = "\"192.0.2.1:4000\", \"[2001:db8::1]:4001\"";
        assert_eq!(public_addresses(&addresses), both);
    }
}
