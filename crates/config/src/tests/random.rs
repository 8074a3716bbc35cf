//! Properties that hold for any text.

use proptest::prelude::*;

use super::{command_line, file, machine};
use crate::*;

/// Returns lines that are likely to get past the first checks.
fn lines() -> impl Strategy<Value = String> {
    let keys: Vec<&'static str> = entries().map(|entry| entry.name).collect();
    let values = prop_oneof![
        Just(String::new()),
        "[a-z0-9.:/-]{0,20}",
        "[0-9]{1,12}",
        any::<std::net::IpAddr>().prop_map(|address| address.to_string()),
        (any::<std::net::IpAddr>(), 0..140_u8)
            .prop_map(|(address, length)| format!("{address}/{length}")),
        "[ -~]{0,30}",
        any::<String>(),
    ];
    let separators = prop_oneof![Just("="), Just(" "), Just(" = "), Just("\t"), Just("==")];
    let line = (proptest::sample::select(keys), separators, values)
        .prop_map(|(key, separator, value)| format!("{key}{separator}{value}"));
    proptest::collection::vec(line, 0..6).prop_map(|lines| lines.join("\n"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_the_reader_panic(content in proptest::collection::vec(any::<u8>(), 0..2000)) {
        if let Err(problems) = from_text("t.conf", &content, &machine()) {
            prop_assert!(!problems.0.is_empty());
        }
    }

    #[test]
    fn no_lines_make_the_reader_panic_and_each_problem_is_one_line_of_print(content in lines()) {
        if let Err(problems) = file(&content) {
            prop_assert!(!problems.0.is_empty());
            for problem in &problems.0 {
                let text = problem.to_string();
                prop_assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }

    #[test]
    fn no_arguments_make_the_reader_panic(arguments in proptest::collection::vec("-{0,3}[a-zA-Z0-9=:. -]{0,20}", 0..5)) {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).filter(|argument| !argument.starts_with("-c")).collect();
        let is_help = |argument: &&str| ["help", "version"].iter().any(|name| argument.contains(name)) || (argument.starts_with('-') && argument.contains('h'));
        if !arguments.iter().any(is_help) {
            let _ = command_line(&arguments);
        }
    }

    /// An accepted line is what the configuration then says: no value is bent into another one.
    #[test]
    fn numbers_are_taken_exactly_or_refused(number in any::<u64>()) {
        for key in ["min-port", "stale-nonce", "user-quota", "sock-buf-size", "udp-coalesce-us"] {
            if let Ok(loaded) = file(&format!("{key}={number}")) {
                let found = effective(&loaded).into_iter().find(|one| one.entry.name == key).expect("effective");
                prop_assert_eq!(found.values, vec![number.to_string()]);
            }
        }
    }

    /// A peer rule either stands in the configuration as written or stops the start.
    #[test]
    fn a_deny_rule_is_never_lost(first in any::<std::net::Ipv4Addr>(), last in any::<std::net::Ipv4Addr>()) {
        match file(&format!("denied-peer-ip={first}-{last}")) {
            Ok(loaded) => {
                prop_assert!(first <= last);
                let [range] = loaded.config.relays.peers.denied.as_slice() else { return Err(TestCaseError::fail("one rule")) };
                prop_assert_eq!((range.first(), range.last()), (first.into(), last.into()));
            }
            Err(_) => prop_assert!(first > last),
        }
    }
}
