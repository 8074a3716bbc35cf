//! Configurations that are accepted, and what they mean.

use std::time::Duration;

use turnbuckle_datapath::Backend;

use super::{command_line, file, machine};
use crate::*;

fn config(content: &str) -> Config {
    file(content)
        .unwrap_or_else(|problems| panic!("{content}: {problems}"))
        .config
}

#[test]
fn reads_every_way_to_write_a_line() {
    for line in [
        "realm=example.org",
        "realm example.org",
        "realm\texample.org",
        "realm = example.org",
        "  realm=example.org  \r",
        "realm=\"example.org\"",
        "realm \"example.org\"",
    ] {
        assert_eq!(
            &*config(line).authentication.realm,
            "example.org",
            "{line:?}"
        );
    }
    assert_eq!(
        &*config("realm=\"a realm # with; more \"")
            .authentication
            .realm,
        "a realm # with; more "
    );
}

#[test]
fn reads_every_way_to_write_a_flag() {
    for on in [
        "", "=true", "=TRUE", "=yes", "=on", "=1", "=t", "=y", " true",
    ] {
        assert!(
            config(&format!("fingerprint{on}")).stun.fingerprint,
            "{on:?}"
        );
    }
    for off in ["=false", "=No", "=off", "=0", "=f", "=n"] {
        assert!(
            !config(&format!("fingerprint{off}")).stun.fingerprint,
            "{off:?}"
        );
    }
}

#[test]
fn wildcards_stand_for_the_addresses_of_their_family() {
    let listeners = |content: &str| -> Vec<String> {
        config(content)
            .addresses
            .listeners
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(
        listeners("listening-ip=0.0.0.0"),
        ["127.0.0.1:3478", "203.0.113.5:3478", "10.1.2.3:3478"]
    );
    assert_eq!(
        listeners("listening-ip=::"),
        ["[::1]:3478", "[2001:db8::5]:3478"]
    );
    assert_eq!(
        listeners("listening-ip=::\nlistening-ip=2001:db8::5").len(),
        2,
        "no duplicates"
    );
    assert_eq!(
        listeners("listening-ip=relay.example.net\nlistening-port=4000"),
        ["203.0.113.5:4000"]
    );
}

#[test]
fn relays_from_listening_addresses_if_they_are_given() {
    let relays = |content: &str| -> Vec<String> {
        config(content)
            .addresses
            .relays
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    assert_eq!(relays("listening-ip=10.1.2.3"), ["10.1.2.3"]);
    assert_eq!(relays("listening-ip=127.0.0.1"), ["127.0.0.1"]);
    assert_eq!(
        relays("listening-ip=10.1.2.3\nrelay-ip=203.0.113.5"),
        ["203.0.113.5"]
    );
    assert_eq!(
        relays("listening-ip=0.0.0.0"),
        ["203.0.113.5", "2001:db8::5"]
    );
}

#[test]
fn relays_from_private_addresses_where_there_are_no_public_ones() {
    let mut machine = machine();
    machine.addresses = ["127.0.0.1", "10.1.2.3", "172.17.0.1"]
        .iter()
        .map(|text| text.parse().expect("an address"))
        .collect();
    let loaded = from_text("t.conf", b"", &machine).expect("accepted");
    let relays: Vec<String> = loaded
        .config
        .addresses
        .relays
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(relays, ["10.1.2.3", "172.17.0.1"]);
    assert!(
        loaded.notes.iter().any(|note| note.key == "relay-ip"),
        "says that there are two"
    );
    machine.addresses.truncate(1);
    let loaded = from_text("t.conf", b"", &machine).expect("accepted");
    assert_eq!(
        loaded.config.addresses.relays.len(),
        1,
        "loopback if there is nothing else"
    );
    machine.addresses.clear();
    assert!(
        from_text("t.conf", b"", &machine)
            .expect_err("refused")
            .to_string()
            .contains("no address to listen on")
    );
}

#[test]
fn no_listening_ip_means_both_wildcards() {
    let ip = |text: &str| text.parse().expect("an address");
    let (v4, v6) = (ip("192.0.2.7"), ip("2001:db8::7"));
    let follows = |content: &str| {
        let addresses = config(content).addresses;
        let later = &addresses.later;
        let covered = [v4, v6].map(|address| addresses.stands_for(address));
        (covered, later.follows_relays)
    };
    for (content, covered, follows_relays) in [
        ("", [true, true], true),
        ("listening-ip=0.0.0.0\nlistening-ip=::", [true, true], true),
        ("listening-ip=0.0.0.0", [true, false], true),
        ("relay-ip=203.0.113.5", [true, true], false),
        ("listening-ip=10.1.2.3", [false, false], false),
    ] {
        assert_eq!(follows(content), (covered, follows_relays), "{content}");
    }
}

#[test]
fn a_machine_with_loopback_alone_starts_and_says_what_it_waits_for() {
    let mut machine = machine();
    machine.addresses.truncate(1);
    let read = |content: &[u8]| from_text("t.conf", content, &machine).expect("accepted");
    let loaded = read(b"external-ip=198.51.100.9");
    let is_said = |loaded: &Loaded| {
        let mut notes = loaded.notes.iter();
        notes.any(|note| note.text.contains("only loopback addresses now"))
    };
    assert!(is_said(&loaded), "{:?}", loaded.notes);
    let addresses = &loaded.config.addresses;
    let later = "10.9.9.9".parse().expect("an address");
    assert_eq!(addresses.public(later).to_string(), "198.51.100.9");
    assert!(!is_said(&read(b"listening-ip=127.0.0.1")), "it was meant");
}

#[test]
fn a_device_limits_the_default_addresses_to_its_own() {
    let listening = |content: &str| {
        let listeners = config(content).addresses.listeners.into_iter();
        let texts: Vec<String> = listeners.map(|it| it.ip().to_string()).collect();
        texts.join(" ")
    };
    let relays = |content: &str| {
        let relays = config(content).addresses.relays.into_iter();
        let texts: Vec<String> = relays.map(|it| it.to_string()).collect();
        texts.join(" ")
    };
    assert_eq!(
        listening("listening-device=eth0"),
        "203.0.113.5 2001:db8::5"
    );
    assert_eq!(
        listening("listening-device=eth0\nlistening-ip=::"),
        "2001:db8::5"
    );
    assert_eq!(listening("listening-device=later0"), "127.0.0.1");
    assert_eq!(relays("relay-device=eth1"), "10.1.2.3");
}

#[test]
fn external_addresses_map_one_or_all_of_a_family() {
    let all = config(
        "relay-ip=10.1.2.3\nrelay-ip=2001:db8::5\nexternal-ip=198.51.100.9\nexternal-ip=2001:db8:1::9",
    );
    let public = |config: &Config, local: &str| {
        config
            .addresses
            .public(local.parse().expect("an address"))
            .to_string()
    };
    assert_eq!(public(&all, "10.1.2.3"), "198.51.100.9");
    assert_eq!(
        public(&all, "2001:db8::5"),
        "2001:db8:1::9",
        "each family by itself"
    );
    let one = config("relay-ip=10.1.2.3\nrelay-ip=203.0.113.5\nexternal-ip=198.51.100.9/10.1.2.3");
    assert_eq!(public(&one, "10.1.2.3"), "198.51.100.9");
    assert_eq!(public(&one, "203.0.113.5"), "203.0.113.5");
    let both = config("relay-ip=10.1.2.3\nrelay-ip=2001:db8::5\nexternal-ip=both.example.net");
    assert_eq!(both.addresses.external.len(), 2);
}

#[test]
fn peer_rules_take_addresses_ranges_and_prefixes() {
    let peers = config("allowed-peer-ip=10.0.0.0/8\nallowed-peer-ip=10.9.9.9\ndenied-peer-ip=2001:db8::1-2001:db8::ff").relays.peers;
    let shown: Vec<String> = peers
        .allowed
        .iter()
        .chain(&peers.denied)
        .map(|range| format!("{}-{}", range.first(), range.last()))
        .collect();
    assert_eq!(
        shown,
        [
            "10.0.0.0-10.255.255.255",
            "10.9.9.9-10.9.9.9",
            "2001:db8::1-2001:db8::ff"
        ]
    );
    assert!(!peers.allow_loopback);
}

#[test]
fn users_and_secrets_work_together() {
    let authentication = config("realm=example.org\nuser=alice:pa:ss\nuser=bob:0x0123456789abcdef0123456789ABCDEF\nstatic-auth-secret=one\nstatic-auth-secret=two").authentication;
    assert_eq!(authentication.rest_secrets.len(), 2);
    let [alice, bob] = authentication.users.as_slice() else {
        panic!("two users")
    };
    assert!(
        matches!(&alice.credential, Credential::Password(secret) if secret.expose() == b"pa:ss"),
        "only the first colon counts"
    );
    assert!(
        matches!(&bob.credential, Credential::Md5Key(key) if key.expose()[..3] == [0x01, 0x23, 0x45] && key.expose().len() == 16)
    );
    assert!(!alice.is_generated);
}

#[test]
fn makes_up_a_user_only_if_somebody_has_to_authenticate() {
    assert_eq!(config("stun-only").authentication.users.len(), 0);
    assert_eq!(
        config("stun-only\nsecure-stun").authentication.users.len(),
        1
    );
    assert_eq!(
        config("static-auth-secret=one").authentication.users.len(),
        0
    );
    assert_eq!(config("lt-cred-mech").authentication.users.len(), 1);
}

#[test]
fn no_randomness_means_no_made_up_user() {
    let mut machine = machine();
    machine.fill_random = |_| Err(std::io::Error::other("none left"));
    assert!(
        from_text("t.conf", b"", &machine)
            .expect_err("refused")
            .to_string()
            .contains("none left")
    );
    assert!(from_text("t.conf", b"user=alice:pw", &machine).is_ok());
}

#[test]
fn coturn_flags_choose_the_backend() {
    let backend = |content: &str| config(content).datapath.backend;
    assert_eq!(backend(""), None);
    assert_eq!(backend("udp-recvmmsg"), None);
    assert_eq!(backend("udp-recvmmsg=off"), Some(Backend::Single));
    assert_eq!(backend("udp-gso"), Some(Backend::Gso));
    assert_eq!(backend("udp-gso=off"), Some(Backend::Mmsg));
    assert_eq!(backend("udp-backend=single"), Some(Backend::Single));
    assert_eq!(backend("udp-backend=gso\nudp-gso"), Some(Backend::Gso));
}

#[test]
fn optional_numbers_without_a_value_mean_the_default() {
    assert_eq!(
        config("stale-nonce").authentication.requests.nonce_lifetime,
        Duration::from_secs(600)
    );
    assert_eq!(
        config("max-allocate-lifetime")
            .limits
            .allocation_lifetime_max,
        Duration::from_secs(3600)
    );
}

#[test]
fn threads_follow_the_machine_unless_told() {
    assert_eq!(config("").datapath.shards.get(), 4);
    assert_eq!(config("cpus=2").datapath.shards.get(), 2);
    assert_eq!(config("cpus=2\nrelay-threads=7").datapath.shards.get(), 7);
    assert_eq!(config("relay-threads=0").datapath.shards.get(), 1);
}

#[test]
fn a_made_up_user_is_shown_how_to_connect_and_a_configured_password_is_not_printed() {
    let made_up = config("listening-ip=2001:db8::5\nlistening-port=4000").usage(None);
    assert!(
        made_up.contains(
            "\"turn:[2001:db8::5]:4000?transport=udp\", \"turn:[2001:db8::5]:4000?transport=tcp\""
        ),
        "{made_up}"
    );
    assert!(made_up.contains("username: \"guest\""), "{made_up}");
    assert_eq!(
        made_up.matches("paWlpaWlpaWlpaWlpaWl").count(),
        1,
        "{made_up}"
    );
    let content = "user=alice:hush\nlistening-ip=10.1.2.3\nexternal-ip=198.51.100.9\nno-tcp";
    let expected = "for clients, with a user's own password:\n  iceServers: [{\n    \
                    urls: [\"turn:198.51.100.9?transport=udp\"],\n    username: \"alice\",\n    \
                    credential: \"…\",\n  }]\n";
    assert_eq!(config(content).usage(None), expected);
    let expected = "for clients:\n  iceServers: [{\n    urls: [\"stun:203.0.113.5\"],\n  }]\n";
    assert_eq!(config("stun-only").usage(None), expected);
}

#[test]
fn the_urls_are_those_of_all_transports_that_are_served() {
    let urls = |content: &str| {
        let usage = config(&format!("user=a:b\n{content}")).usage(Some("relay.test"));
        let urls = usage.split_once("urls: [").map(|(_, rest)| rest);
        let urls = urls.and_then(|rest| Some(rest.split_once(']')?.0));
        urls.unwrap_or_default().replace('"', "")
    };
    let files = "cert=c\npkey=k\n";
    for (content, expected) in [
        (
            files.to_owned(),
            "turn:203.0.113.5?transport=udp, turn:203.0.113.5?transport=tcp, turns:relay.test?transport=tcp",
        ),
        (
            format!("{files}no-udp\nno-tcp\ntls-listening-port=443"),
            "turns:relay.test:443?transport=tcp",
        ),
        (
            format!("{files}no-udp\nno-tcp\nno-tls\ndtls"),
            "turns:relay.test?transport=udp",
        ),
        (
            format!("{files}stun-only"),
            "stun:203.0.113.5, stuns:relay.test",
        ),
        (
            format!("{files}no-udp\ntcp-proxy-port=8443\nproxy-protocol-source=192.0.2.1"),
            "",
        ),
    ] {
        assert_eq!(urls(&content), expected, "{content}");
    }
}

#[test]
fn secrets_appear_in_no_dump() {
    //= V-74
    let content = "user=alice:hush-1\nuser=bob:0x68757368687573686875736868757368\nrealm=example.org\nstatic-auth-secret=hush-2\nstateless-nonce-secret=hush-3-of-16-bytes\n";
    let loaded = Box::new(file(content).expect("accepted"));
    let mut dumps = format!("{loaded:?}");
    dumps.push_str(&loaded.config.usage(None));
    let result = Ok(loaded);
    dumps.push_str(&report(&result, true));
    dumps.push_str(&report_json(&result).to_string());
    assert!(dumps.contains("alice"), "the dumps are not empty");
    assert!(
        !dumps.contains("hush")
            && !dumps.contains("104, 117, 115, 104")
            && !dumps.contains("68757368"),
        "{dumps}"
    );
}

#[test]
fn the_report_says_where_values_come_from_and_what_coturn_would_do() {
    let loaded =
        command_line(&["--min-port", "50000", "--no-cli", "--no-auth-pings"]).expect("accepted");
    let result = Ok(loaded.clone());
    let (short, text) = (report(&result, false), report(&result, true));
    assert!(text.starts_with("notes\n") && short.starts_with("notes\n"));
    assert!(short.contains("min-port=50000") && !short.contains("max-port"));
    assert!(
        !short.contains("coturn (private networks are open)"),
        "{short}"
    );
    assert!(
        text.contains("min-port=50000") && text.contains("command line"),
        "{text}"
    );
    assert!(
        text.contains("`--no-auth-pings`: accepted without effect"),
        "{text}"
    );
    assert!(
        text.contains("allowed-peer-ip: here (none), coturn (private networks are open)"),
        "{text}"
    );
    let json = report_json(&Ok(loaded));
    assert_eq!(json["accepted"], true);
    let min = json["effective"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|one| one["key"] == "min-port")
        .expect("there");
    assert_eq!(min["from"][0], "command line");
    let refused = report_json(&file("realm=\n").map(Box::new));
    assert_eq!(refused["problems"][0]["line"], 1);
    assert_eq!(refused["problems"][0]["file"], "t.conf");
}

#[test]
fn alternate_servers_have_the_ports_of_their_transport_and_the_name_they_were_given_by() {
    let found = config(
        "alternate-server=198.51.100.1\nalternate-server=198.51.100.1\nudp-alternate-server=2001:db8::77\n\
         tcp-alternate-server=[2001:db8::78]:443\ntls-alternate-server=turn2.example.org",
    )
    .redirection;
    let text = |servers: &[turnbuckle_engine::Alternate]| -> Vec<String> {
        servers
            .iter()
            .map(|server| server.address.to_string())
            .collect()
    };
    assert_eq!(text(&found.any), ["198.51.100.1:3478", "198.51.100.1:3478"]);
    assert_eq!(text(&found.udp), ["[2001:db8::77]:3478"]);
    assert_eq!(text(&found.tcp), ["[2001:db8::78]:443"]);
    assert_eq!(text(&found.tls), ["203.0.113.6:5349"]);
    assert_eq!(found.tls[0].domain.as_deref(), Some("turn2.example.org"));
    assert_eq!(found.any[0].domain, None);
}

#[test]
fn who_gives_a_key_without_what_it_needs_is_told_that_it_has_no_effect() {
    let notes = |content: &str, key: &str| {
        let loaded = file(content).unwrap_or_else(|problems| panic!("{content}: {problems}"));
        let notes = loaded.notes.into_iter().filter(|note| note.key == key);
        notes.map(|note| note.text).collect::<Vec<_>>()
    };
    for (line, need) in [
        ("no-tlsv1_2", ""),
        ("tls-listening-port=5350", ""),
        ("tls-alternate-server=203.0.113.9", ""),
        ("max-dtls-sessions=5", ""),
        ("mask-connect-errors", "no-tcp-relay=false"),
        ("min-connect-port=80", "no-tcp-relay=false"),
        ("no-dynamic-realms", "userdb=users"),
        ("rest-api-separator=!", "static-auth-secret=north"),
        ("log-binding", "Verbose"),
        ("simple-log", "log-file=relay.log"),
        ("syslog-facility=LOG_LOCAL1", "syslog"),
        ("statistics-interval=5", "udp-recvmmsg-log"),
    ] {
        let key = line.split('=').next().expect("a key");
        let told = notes(&format!("user=a:b\n{line}\n"), key);
        assert!(
            told.len() == 1 && told[0].starts_with("has no effect without "),
            "{line}: {told:?}"
        );
        if !need.is_empty() {
            let told = notes(&format!("user=a:b\n{need}\n{line}\n"), key);
            assert!(told.is_empty(), "{line}: {told:?}");
        }
    }
}

#[test]
fn a_server_that_names_itself_as_alternate_is_told_what_that_means() {
    //= V-14
    let loaded = file("listening-ip=203.0.113.5\nalternate-server=203.0.113.5").expect("accepted");
    let note = loaded
        .notes
        .iter()
        .find(|note| note.key == "alternate-server")
        .expect("a note");
    assert!(
        note.text.contains("served and not redirected"),
        "{}",
        note.text
    );
}

#[test]
fn a_database_is_credentials_enough_and_says_which_of_its_tables_count() {
    let database = |content: &str| {
        let config = file(content).expect("accepted").config;
        assert!(config.authentication.users.is_empty());
        let database = config.authentication.database.expect("a database");
        assert_eq!(
            database.source,
            turnbuckle_users::Source::Sqlite("turndb".into())
        );
        (
            database.has_secrets,
            database.has_peer_rules,
            database.has_realms,
        )
    };
    assert_eq!(database("userdb=turndb\n"), (false, true, true));
    assert_eq!(
        database("db=turndb\nuse-auth-secret\nno-dynamic-ip-list\n"),
        (true, false, true)
    );
    assert_eq!(
        database("userdb=turndb\nstatic-auth-secret=north\nno-dynamic-realms\n"),
        (true, true, false)
    );
}

#[test]
fn a_password_that_is_made_up_does_not_go_to_a_log() {
    for log in ["log-file=turn.log\n", "syslog\n"] {
        let problems = file(log).expect_err("refused").to_string();
        assert!(problems.contains("would stand in the log"), "{problems}");
        assert!(file(&format!("{log}user=a:b\n")).is_ok());
    }
}

#[test]
fn an_allowed_peer_that_no_rule_opens_is_told_of() {
    let notes = |text: &str| -> Vec<String> {
        let notes = file(text).expect("accepted").notes.into_iter();
        notes
            .filter(|note| note.key == "allowed-peer-ip")
            .map(|note| note.text)
            .collect()
    };
    let loopback = notes("allowed-peer-ip=127.0.0.1\nallowed-peer-ip=10.0.0.0/8");
    assert_eq!(loopback.len(), 1, "{loopback:?}");
    assert!(
        loopback[0].contains("`allow-loopback-peers`"),
        "{loopback:?}"
    );
    assert!(notes("allowed-peer-ip=169.254.169.254")[0].contains("link-local"));
    for fine in [
        "allowed-peer-ip=127.0.0.1\nallow-loopback-peers",
        "allowed-peer-ip=0.0.0.0-255.255.255.255",
        "allowed-peer-ip=::/0",
        "allowed-peer-ip=192.168.0.0/16",
    ] {
        assert_eq!(notes(fine), [""; 0], "{fine}");
    }
}

#[test]
fn users_and_secrets_count_together_and_that_is_said_unless_it_was_asked_for() {
    let noted = |more: &str| {
        let loaded =
            file(&format!("user=alice:one\nstatic-auth-secret=north\n{more}")).expect("accepted");
        let users = loaded.config.authentication.users.len();
        let mut notes = loaded.notes.iter().map(Note::to_string);
        (
            users,
            notes.any(|note| note.contains("users-beside-secrets")),
        )
    };
    assert_eq!(noted(""), (1, true));
    assert_eq!(noted("users-beside-secrets\n"), (1, false));
    assert_eq!(noted("users-beside-secrets=false\n"), (0, true));
}
