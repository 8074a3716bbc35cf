//! Texts made from the table are the committed ones, and true.

use std::path::{Path, PathBuf};

use super::{file, machine};
use crate::*;

fn committed(name: &str) -> (PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    let content = std::fs::read_to_string(&path).unwrap_or_default();
    (path, content)
}

#[test]
fn the_reference_page_is_current() {
    let (path, content) = committed("docs/options.md");
    assert!(
        content == markdown(),
        "run `turnbuckle options --markdown > {}`",
        path.display()
    );
}

#[test]
fn the_compatibility_page_is_current_and_names_every_option_of_coturn() {
    let (path, content) = committed("docs/compatibility.md");
    assert!(
        content == compatibility(),
        "run `turnbuckle options --compatibility > {}`",
        path.display()
    );
    for entry in entries().filter(|entry| !entry.coturn.row.is_empty()) {
        assert!(
            content.contains(&format!("`{}`", entry.name)),
            "{}",
            entry.name
        );
    }
}

#[test]
fn the_sample_file_is_current() {
    let (path, content) = committed("deploy/turnserver.conf.sample");
    assert!(
        content == sample(),
        "run `turnbuckle options --sample > {}`",
        path.display()
    );
}

#[test]
fn the_sample_file_changes_nothing_as_it_is() {
    let plain = file("").expect("accepted");
    let sampled = file(&sample()).expect("accepted");
    assert_eq!(
        format!("{:?}", plain.config),
        format!("{:?}", sampled.config)
    );
    assert!(sampled.origins.is_empty());
}

#[test]
fn each_line_of_the_sample_file_is_accepted_and_names_the_default_if_there_is_one() {
    let plain = effective(&file("").expect("accepted"));
    for line in sample()
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .filter(|line| line.contains('=') && !line.starts_with([' ', '#']))
    {
        let (key, value) = line.split_once('=').expect("an assignment");
        let entry = entries().find(|entry| entry.name == key).expect("a key");
        let companion = match key {
            "unauthorized-ratelimit-rps" => "unauthorized-ratelimit\n",
            "multiplex-peer-port" | "multiplex-peer-max-peers" => "multiplex-peer\n",
            "use-auth-secret" => "static-auth-secret=a-secret-of-the-test\n",
            "external-ip" => "relay-ip=10.1.2.3\n",
            "tcp-proxy-port" => "proxy-protocol-source=192.0.2.10\n",
            "oauth" => "oauth-key=n:Y2FybGVvbg==\n",
            "oauth-key" => "oauth\n",
            "server-name" => "oauth\noauth-key=n:Y2FybGVvbg==\n",
            "cert" => "pkey=key.pem\n",
            "pkey" => "cert=chain.pem\n",
            _ => "",
        };
        let loaded = file(&format!("{companion}{line}"))
            .unwrap_or_else(|problems| panic!("{line}: {problems}"));
        assert!(loaded.origins.contains_key(key), "{line}");
        if entry.values.default == value && companion.is_empty() {
            let default = plain
                .iter()
                .find(|one| one.entry.name == key)
                .expect("effective");
            assert_eq!(
                default.values,
                [value],
                "{key}: the table's default is not what holds"
            );
        }
    }
}

#[test]
fn help_names_every_key_and_keeps_to_its_width() {
    for width in [60, 80, 100] {
        let text = help("turnbuckle serve", "", width);
        for entry in entries() {
            assert!(text.contains(entry.name), "{}", entry.name);
        }
        let too_long = text
            .lines()
            .find(|line| line.chars().count() > width && !line.starts_with("  "));
        assert_eq!(too_long, None);
    }
}

#[test]
fn every_key_can_be_explained() {
    for name in entries()
        .map(|entry| entry.name)
        .chain(removed_keys().map(|(name, _)| name))
    {
        assert!(
            help_one(name, 80).is_some_and(|text| text.contains(name)),
            "{name}"
        );
    }
    assert_eq!(help_one("frobnicate", 80), None);
}

#[test]
fn the_manual_page_is_plain_roff() {
    let text = man();
    assert!(text.starts_with(".TH TURNBUCKLE 1"));
    for entry in entries().filter(|entry| entry.is_working()) {
        assert!(
            text.contains(&entry.name.replace('-', "\\-")),
            "{}",
            entry.name
        );
    }
}

#[test]
fn this_machine_can_be_asked() {
    let machine_here = Machine::discover().expect("interfaces");
    assert!(
        machine_here
            .addresses
            .iter()
            .any(std::net::IpAddr::is_loopback)
    );
    let mut random = [[0; 16]; 2];
    for buffer in &mut random {
        (machine_here.fill_random)(buffer).expect("randomness");
    }
    assert_ne!(random[0], random[1]);
    assert!(
        machine_here
            .names
            .resolve("127.0.0.1")
            .is_ok_and(|found| found.len() == 1)
    );
    assert!(machine().names.resolve("nowhere").is_err());
}
