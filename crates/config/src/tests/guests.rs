//! `no-auth`: whom it opens the relay for.

use std::net::IpAddr;

use super::*;

/// Returns what `turnserver` makes of arguments: who needs no credentials, and the notes about `no-auth`, with whether each is about an error.
fn as_turnserver(arguments: &[&str]) -> (Vec<String>, Vec<(String, bool)>) {
    let words = ["-n"].into_iter().chain(arguments.iter().copied());
    let loaded = match load_turnserver(words.map(OsString::from), &machine()) {
        Ok(Request::Run(loaded)) => loaded,
        other => panic!("{arguments:?}: {other:?}"),
    };
    let sources = loaded.config.authentication.guests.sources.iter();
    let notes = loaded.notes.iter().filter(|note| note.key == "no-auth");
    (
        sources.map(ToString::to_string).collect(),
        notes
            .map(|note| (note.text.clone(), note.is_error))
            .collect(),
    )
}

#[test]
fn as_turnserver_private_networks_are_served_where_all_addresses_are_private() {
    for listening in [&["-L10.1.2.3"][..], &["-L127.0.0.1", "-L::1"]] {
        let (sources, notes) = as_turnserver(&[&["-z"], listening].concat());
        assert_eq!(
            sources,
            [
                "127.0.0.0/8",
                "10.0.0.0/8",
                "172.16.0.0/12",
                "192.168.0.0/16",
                "::1",
                "fc00::/7"
            ]
        );
        assert!(
            matches!(&notes[..], [(text, false)] if text.contains("need no credentials")),
            "{notes:?}"
        );
    }
}

#[test]
fn as_turnserver_nobody_is_served_where_strangers_reach_it_and_an_error_names_the_key() {
    let wherever = [
        &[][..],
        &["-L203.0.113.5"],
        &["-L10.1.2.3", "-L203.0.113.5"],
        // Behind a translator strangers reach it too.
        &["-L10.1.2.3", "-X198.51.100.9"],
        &["-L10.1.2.3", "--aux-server=203.0.113.5:443"],
        &["-L0.0.0.0"],
    ];
    for listening in wherever {
        let (sources, notes) = as_turnserver(&[&["-z"], listening].concat());
        assert!(sources.is_empty(), "{listening:?}: {sources:?}");
        assert!(
            matches!(&notes[..], [(text, true)] if text.contains("`guest-source`")),
            "{listening:?}: {notes:?}"
        );
    }
}

#[test]
fn named_networks_are_served_on_whatever_address_under_both_names() {
    let named = ["-L203.0.113.5", "--guest-source=192.0.2.0/24"];
    assert_eq!(
        as_turnserver(&[&["-z"], &named[..]].concat()).0,
        ["192.0.2.0/24"]
    );
    let loaded = command_line(&["--no-auth", "--guest-source=::ffff:192.0.2.7"]);
    let guests = loaded.expect("accepted").config.authentication.guests;
    let inside: IpAddr = [192, 0, 2, 7].into();
    assert!(guests.sources.iter().any(|range| range.contains(inside)));
    assert_eq!(guests.sources.len(), 1);
}

#[test]
fn networks_alone_open_nothing() {
    let loaded = file("user=a:b\nguest-source=192.0.2.0/24\n").expect("accepted");
    assert!(loaded.config.authentication.guests.sources.is_empty());
    let notes: Vec<String> = loaded.notes.iter().map(ToString::to_string).collect();
    assert!(
        notes
            .iter()
            .any(|note| note.contains("no effect without `no-auth`")),
        "{notes:?}"
    );
}

#[test]
fn who_serves_guests_alone_needs_no_user() {
    let loaded = command_line(&["--no-auth", "--guest-source=192.0.2.0/24"]).expect("accepted");
    assert!(loaded.config.authentication.users.is_empty());
}
