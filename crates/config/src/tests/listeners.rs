//! Where the relay listens besides the listening addresses with their port.

use super::file;
use crate::*;

fn config(content: &str) -> Config {
    file(content)
        .unwrap_or_else(|problems| panic!("{content}: {problems}"))
        .config
}

#[test]
fn second_ports_are_open_for_nat_discovery_only() {
    //= NAT-01
    //= NAT-02
    let listeners = |content: &str| {
        let config = config(content);
        let text = |addresses: Vec<std::net::SocketAddr>| {
            let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            texts.join(" ")
        };
        [
            text(config.datagram_listeners()),
            text(config.stream_listeners()),
        ]
    };
    let addresses = "listening-ip=10.1.2.3\nlistening-ip=10.1.2.4\n";
    let first = "10.1.2.3:3478 10.1.2.4:3478";
    assert_eq!(listeners(addresses), [first, first]);
    assert_eq!(
        listeners(&format!("{addresses}alt-listening-port=4000")),
        [first, first]
    );
    let both = "10.1.2.3:3478 10.1.2.4:3478 10.1.2.3:3479 10.1.2.4:3479";
    assert_eq!(listeners(&format!("{addresses}rfc5780")), [both, both]);
    let with_tls = "rfc5780\ncert=c\npkey=k\nno-tcp\nalt-listening-port=4000\n";
    assert_eq!(
        listeners(&format!("{addresses}{with_tls}")),
        [
            "10.1.2.3:3478 10.1.2.4:3478 10.1.2.3:4000 10.1.2.4:4000",
            "10.1.2.3:5349 10.1.2.4:5349 10.1.2.3:5350 10.1.2.4:5350"
        ]
    );
    let one_port = "rfc5780\ncert=c\npkey=k\ntls-listening-port=3478\n";
    assert_eq!(listeners(&format!("{addresses}{one_port}")), [both, both]);
}

#[test]
fn an_address_stands_in_for_one_that_the_same_clients_reach() {
    let pairs = |content: &str| -> Vec<String> {
        let discovery = config(content).addresses.discovery.expect("served");
        let pairs = discovery.other_by_address.iter();
        pairs.map(|(one, other)| format!("{one} {other}")).collect()
    };
    let addresses = "rfc5780\nlistening-ip=127.0.0.1\nlistening-ip=10.1.2.3\nlistening-ip=2001:db8::5\nlistening-ip=10.1.2.4\n";
    assert_eq!(pairs(addresses), ["10.1.2.3 10.1.2.4", "10.1.2.4 10.1.2.3"]);
    assert_eq!(
        pairs(&format!("{addresses}listening-ip=10.1.2.5")),
        [
            "10.1.2.3 10.1.2.4",
            "10.1.2.4 10.1.2.5",
            "10.1.2.5 10.1.2.3"
        ]
    );
    let translated =
        format!("{addresses}listening-ip=203.0.113.5\nexternal-ip=198.51.100.9/10.1.2.3");
    assert_eq!(
        pairs(&translated),
        ["10.1.2.3 203.0.113.5", "203.0.113.5 10.1.2.3"],
        "clients see two public addresses"
    );
}

#[test]
fn auxiliary_listeners_have_a_port_of_their_own_and_no_part_in_discovery() {
    let config = config(
        "listening-ip=10.1.2.3\nlistening-ip=10.1.2.4\nrfc5780\naux-server=10.1.2.3:443\naux-server=[2001:db8::5]:3478\naux-server=relay.example.net:80",
    );
    let auxiliary: Vec<_> = config.addresses.auxiliary.iter().collect();
    let texts: Vec<_> = auxiliary.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["10.1.2.3:443", "[2001:db8::5]:3478", "203.0.113.5:80"]
    );
    assert_eq!(config.datagram_listeners().len(), 7);
    assert_eq!(config.stream_listeners().len(), 7);
}

#[test]
fn nobody_can_advertise_discovery_on_one_address() {
    //= NAT-03
    let problems = file("rfc5780\nlistening-ip=10.1.2.3").expect_err("refused");
    let text = problems.to_string();
    assert!(
        text.contains("needs two listening addresses of one family"),
        "{text}"
    );
}
