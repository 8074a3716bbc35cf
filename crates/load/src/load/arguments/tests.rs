use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    arguments: Arguments,
}

fn parse(line: &str) -> Result<Arguments, String> {
    let words = std::iter::once("load").chain(line.split_whitespace());
    let arguments = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    arguments.arguments.check()?;
    Ok(arguments.arguments)
}

#[test]
fn a_server_has_a_default_port() {
    for (text, expected) in [
        ("192.0.2.1", "192.0.2.1:3478"),
        ("192.0.2.1:5", "192.0.2.1:5"),
        ("2001:db8::1", "[2001:db8::1]:3478"),
        ("[2001:db8::1]:5", "[2001:db8::1]:5"),
    ] {
        assert_eq!(server_address(text), Ok(expected.parse().unwrap()));
    }
    assert!(server_address("192.0.2.1:port").is_err());
}

#[test]
fn a_line_that_makes_no_sense_is_refused_with_the_reason() {
    for (line, expected) in [
        (
            "packet --peer 192.0.2.2:1 --user a:b",
            "--server is missing",
        ),
        ("packet --server 192.0.2.1 --user a:b", "needs a --peer"),
        (
            "packet --server 192.0.2.1 --peer 192.0.2.2:1",
            "--user NAME:PASSWORD",
        ),
        (
            "packet --server 192.0.2.1 --peer 192.0.2.2:1 --user a",
            "NAME:PASSWORD",
        ),
        (
            "mix --direct --peer [2001:db8::1]:1 --local 192.0.2.1",
            "does not lead to",
        ),
        (
            "mix --direct --peer [2001:db8::1]:1 --peer 192.0.2.1:1",
            "of one family",
        ),
        ("rate --direct --peer 192.0.2.2:1", "needs a --rate"),
        (
            "packet --direct --peer 192.0.2.2:1 --rate 5",
            "as fast as it can",
        ),
        ("alloc --direct", "has none"),
        (
            "packet --direct --peer 192.0.2.2:1 --transport tcp",
            "--direct is by UDP",
        ),
        (
            "invalid --server 192.0.2.1 --transport tls",
            "no use for tls",
        ),
        (
            "alloc --server 192.0.2.1 --user a:b --transport tcp --sender-threads 2",
            "--listener-threads",
        ),
        (
            "alloc --server 192.0.2.1 --user a:b --transport tls --backend gso",
            "about datagrams",
        ),
        (
            "alloc --server 192.0.2.1 --user a:b --transport tcp --ca-file a.pem",
            "about certificates",
        ),
        (
            "alloc --server 192.0.2.1 --user a:b --tls-name a",
            "about certificates",
        ),
        (
            "alloc --server 192.0.2.1 --user a:b --transport sctp",
            "possible values: udp, tcp, tls, dtls",
        ),
        (
            "mix --server 192.0.2.1 --user a:b --pairs --clients 3",
            "even",
        ),
        (
            "mix --server 192.0.2.1 --user a:b --pairs --peer 192.0.2.2:1",
            "cannot be used",
        ),
        ("alloc --server 192.0.2.1 --user a:b --pairs", "has no use"),
        ("mix --direct --peer 192.0.2.2:1 --packets 0", "1 to"),
        ("mix --direct --peer 192.0.2.2:1 --size 23", "24"),
        ("mix --direct --peer 192.0.2.2:1 --clients 0", "1 to 200000"),
        ("mix --direct --peer 192.0.2.2:1 --max-loss 101", "0 to 100"),
        ("mix --direct --peer 192.0.2.2:1 --family 5", "4 or 6"),
        (
            "mix --direct --peer 192.0.2.2:1 --duration 0",
            "more than 0",
        ),
        (
            "mix --direct --server 192.0.2.1 --peer 192.0.2.2:1",
            "cannot be used",
        ),
    ] {
        let error = parse(line).err().unwrap_or_default();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn a_rate_is_of_all_clients_or_of_each() {
    for (line, expected) in [
        ("packet --direct --peer 192.0.2.2:1 --clients 10", None),
        (
            "rate --direct --peer 192.0.2.2:1 --clients 10 --rate 7",
            Some(7.0),
        ),
        ("mix --direct --peer 192.0.2.2:1 --clients 10", Some(500.0)),
        (
            "mix --direct --peer 192.0.2.2:1 --clients 10 --rate 7",
            Some(70.0),
        ),
        ("hold --direct --peer 192.0.2.2:1 --clients 10", Some(10.0)),
    ] {
        assert_eq!(parse(line).unwrap().total_rate(), expected);
    }
}
