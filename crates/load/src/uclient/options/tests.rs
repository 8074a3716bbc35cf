use super::*;

fn parse(line: &str) -> Result<Options, String> {
    Options::parse(line.split_whitespace().map(OsString::from))
}

#[test]
fn the_usual_line_becomes_paced_calls_with_five_packets_each() {
    let Options {
        load, is_generator, ..
    } = parse("-u alice -w secret -e 192.0.2.2 192.0.2.1").unwrap();
    assert_eq!(load.mode, Mode::Mix);
    assert_eq!(load.ends.server, Some("192.0.2.1:3478".parse().unwrap()));
    assert_eq!((load.volume.clients, load.volume.packets), (2, Some(5)));
    assert_eq!((load.volume.size, load.pace.rate), (100, Some(50.0)));
    let peers = ["192.0.2.2:3480", "192.0.2.2:3481"].map(|peer| peer.parse().unwrap());
    assert_eq!(load.ends.peer, peers);
    let companions = peers.map(|peer| load.companion_of(peer));
    assert_eq!(companions, [Some(peers[1]), None]);
    assert_eq!(
        load.who.credentials,
        Some(Credentials::user("alice", "secret"))
    );
    assert!(!is_generator);
}

#[test]
fn the_line_of_the_load_tests_becomes_a_flood_without_end() {
    let Options { load, .. } = parse(
        "-Y packet -m 1 -l 120 -c --no-even-port --listener-threads 1 --sender-threads 1 -X -g \
         -e 192.0.2.2 -r 3501 -u user -W secret 192.0.2.1",
    )
    .unwrap();
    assert_eq!(load.mode, Mode::Packet);
    assert_eq!(
        (load.volume.clients, load.volume.packets, load.volume.size),
        (1, None, 120)
    );
    assert_eq!(load.pace.duration, FOR_EVER);
    assert!(load.flows.dont_fragment);
    assert_eq!(load.ends.peer, ["192.0.2.2:3501".parse().unwrap()]);
    let name = load.who.credentials.unwrap().username().to_owned();
    assert!(name.ends_with(":user") && name.len() > 10, "{name}");
}

#[test]
fn clients_are_rounded_up_as_in_the_original() {
    for (flags, expected) in [
        ("-m 3 -e 192.0.2.2", 4),
        ("-m 3 -c -e 192.0.2.2", 3),
        ("-m 3 -c -y", 4),
        ("-m 5 -y", 8),
        ("-m 3 -Y alloc", 3),
    ] {
        let options = parse(&format!("{flags} 192.0.2.1")).unwrap();
        assert_eq!(options.load.volume.clients, expected, "{flags}");
    }
}

#[test]
fn flags_of_connections_choose_the_transport_and_its_port() {
    for (flags, transport, port) in [
        ("", Transport::Udp, 3478),
        ("-t", Transport::Tcp, 3478),
        ("-S", Transport::Dtls, 5349),
        ("-t -S", Transport::Tls, 5349),
        ("-t -S -p 443", Transport::Tls, 443),
    ] {
        let Options { load, .. } = parse(&format!("{flags} -y 192.0.2.1")).unwrap();
        assert_eq!(load.ends.transport, transport.into(), "{flags}");
        assert_eq!(load.ends.server.unwrap().port(), port, "{flags}");
    }
}

#[test]
fn a_tcp_relay_is_between_clients_or_leads_back_to_this_program() {
    let Options { load, .. } = parse("-T -s -g -e 192.0.2.2 -m 3 192.0.2.1").unwrap();
    assert_eq!(load.mode, Mode::TcpRelay);
    assert!(load.flows.pairs && !load.flows.passive && load.ends.peer.is_empty());
    assert_eq!(
        (load.volume.clients, load.volume.packets, load.pace.rate),
        (4, Some(5), Some(50.0))
    );
    let Options { load, .. } = parse("-P -z 0 192.0.2.1").unwrap();
    assert!(load.flows.passive && !load.flows.pairs);
    assert_eq!((load.volume.clients, load.pace.rate), (2, None));
}

#[test]
fn the_other_flags_become_habits_and_checks() {
    let options = parse("-N -R -O -D -M -I -G -B -h -o https://a -Z -y 192.0.2.1").unwrap();
    assert_eq!(options.negative, [Group::Requests, Group::Protocol]);
    assert!(options.leaves_at_once && options.load.flows.dual);
    let habits = options.load.habits;
    assert!(habits.pads && habits.moves_once && habits.asks_for_no_permission);
    assert!(habits.asks_often && habits.leaves_early && habits.stays);
    assert!(habits.uses_one_of_two && habits.waits_long);
    assert_eq!(habits.origin.as_deref(), Some("https://a"));
    // No RTCP connections, but partners.
    assert_eq!(options.load.volume.clients, 2);
}

#[test]
fn a_flag_that_cannot_be_honoured_is_refused_with_what_it_asks_for() {
    for (flag, what) in REFUSED {
        let error = parse(&format!("-{flag} -e 192.0.2.2 192.0.2.1")).unwrap_err();
        assert!(error.starts_with(&format!("-{flag}: {what}")), "{error}");
    }
}

#[test]
fn what_the_original_makes_larger_is_made_larger() {
    let options = parse("-c -l 10 -m 0 -e 192.0.2.2 192.0.2.1").unwrap();
    assert_eq!(
        (options.load.volume.size, options.load.volume.clients),
        (HEADER_LEN, 1)
    );
    assert!(
        options.notes.iter().any(|note| note.contains("24 bytes")),
        "{:?}",
        options.notes
    );
}

#[test]
fn wrong_values_are_refused_with_what_is_allowed() {
    for (line, expected) in [
        ("-e 192.0.2.2", "server is missing"),
        ("192.0.2.1", "either -e"),
        ("-Y packet 192.0.2.1", "either -e"),
        ("-Y both 192.0.2.1", "packet, alloc, invalid"),
        ("-l 65401 -e 192.0.2.2 192.0.2.1", "0 to 65400"),
        ("-m 200001 -e 192.0.2.2 192.0.2.1", "0 to 200000"),
        ("-m x -e 192.0.2.2 192.0.2.1", "-m x"),
        ("-e 192.0.2.2 192.0.2.1 --sender-threads 5", "0 to 4"),
        ("-e 192.0.2.2 192.0.2.1 -K", "needs a value"),
        ("-e 192.0.2.2 192.0.2.1 192.0.2.3", "one server"),
        ("-C ab -e 192.0.2.2 192.0.2.1", "one character"),
        ("-r 65535 -e 192.0.2.2 192.0.2.1", "65534"),
        ("-q 192.0.2.1", "no such flag"),
        ("-T -M 192.0.2.1", "-M is about UDP relays"),
        ("-P -Z 192.0.2.1", "-Z is about UDP relays"),
        ("-T -Y alloc 192.0.2.1", "-Y is about UDP relays"),
        ("-M -t -y 192.0.2.1", "by UDP"),
        ("-E ca.pem -y 192.0.2.1", "without -S"),
        ("-N -S -y 192.0.2.1", "not with -S"),
        ("--help 192.0.2.1", "no such option"),
    ] {
        let error = parse(line).unwrap_err();
        assert!(error.contains(expected), "{line}: {error}");
    }
}
