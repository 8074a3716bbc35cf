//! The option table against coturn's list of options, and against itself.

use std::collections::BTreeSet;

use super::{command_line, file};
use crate::entry::Support;
use crate::table::{by_letter, find};
use crate::*;

/// Long options and letters of turnserver 4.17.1, section by section of its inventory.
const COTURN: &[(&str, &str)] = &[
    ("O-001", "listening-device d"),
    ("O-002", "listening-port p"),
    ("O-003", "tls-listening-port"),
    ("O-004", "alt-listening-port"),
    ("O-005", "alt-tls-listening-port"),
    ("O-006", "tcp-proxy-port"),
    ("O-007", "listening-ip L"),
    ("O-008", "aux-server"),
    ("O-009", "udp-self-balance"),
    ("O-010", "relay-device i"),
    ("O-011", "relay-ip E"),
    ("O-012", "external-ip X"),
    ("O-013", "min-port"),
    ("O-014", "max-port"),
    ("O-015", "sock-buf-size"),
    ("O-016", "no-udp"),
    ("O-017", "no-tcp"),
    ("O-018", "no-tls"),
    ("O-019", "dtls"),
    ("O-020", "no-dtls"),
    ("O-021", "no-udp-relay"),
    ("O-022", "no-tcp-relay"),
    ("O-023", "keep-address-family K"),
    ("O-024", "allocation-default-address-family A"),
    ("O-025", "server-relay"),
    ("O-030", "relay-threads m"),
    ("O-031", "cpus"),
    ("O-032", "udp-recvmmsg"),
    ("O-033", "udp-recvmmsg-log"),
    ("O-034", "udp-sendmmsg-log"),
    ("O-035", "udp-gso"),
    ("O-036", "multiplex-peer"),
    ("O-037", "multiplex-peer-port"),
    ("O-038", "multiplex-peer-max-peers"),
    ("O-040", "lt-cred-mech a"),
    ("O-041", "no-auth z"),
    ("O-042", "user u"),
    ("O-043", "realm r"),
    ("O-044", "use-auth-secret"),
    ("O-045", "static-auth-secret"),
    ("O-046", "rest-api-separator C"),
    ("O-047", "no-auth-pings"),
    ("O-048", "no-dynamic-ip-list"),
    ("O-049", "no-dynamic-realms"),
    ("O-050", "oauth"),
    ("O-051", "server-name"),
    ("O-052", "check-origin-consistency"),
    ("O-053", "stale-nonce"),
    ("O-054", "stateless-nonce"),
    ("O-055", "stateless-nonce-secret"),
    ("O-056", "secure-stun"),
    ("O-057", "unauthorized-ratelimit"),
    ("O-058", "unauthorized-ratelimit-rps"),
    ("O-070", "cert"),
    ("O-071", "pkey"),
    ("O-072", "pkey-pwd"),
    ("O-073", "CA-file"),
    ("O-074", "cipher-list"),
    ("O-075", "ec-curve-name"),
    ("O-076", "dh566"),
    ("O-076", "dh1066"),
    ("O-076", "dh-file"),
    ("O-077", "tlsv1"),
    ("O-077", "tlsv1_1"),
    ("O-078", "no-tlsv1_2"),
    ("O-079", "raw-public-keys"),
    ("O-083", "acme-redirect"),
    ("O-084", "respond-http-unsupported"),
    ("O-090", "user-quota q"),
    ("O-091", "total-quota Q"),
    ("O-092", "max-bps s"),
    ("O-093", "bps-capacity B"),
    ("O-095", "max-allocate-lifetime"),
    ("O-096", "channel-lifetime"),
    ("O-097", "permission-lifetime"),
    ("O-098", "max-allocate-timeout"),
    ("O-110", "allowed-peer-ip"),
    ("O-111", "denied-peer-ip"),
    ("O-112", "allow-loopback-peers"),
    ("O-113", "no-multicast-peers"),
    ("O-120", "stun-only S"),
    ("O-121", "no-stun"),
    ("O-122", "fingerprint f"),
    ("O-123", "software-attribute"),
    ("O-124", "no-software-attribute"),
    ("O-125", "rfc5780"),
    ("O-126", "no-rfc5780"),
    ("O-126", "response-origin-only-with-rfc5780"),
    ("O-127", "stun-backward-compatibility"),
    ("O-128", "rfc3489-compatibility"),
    ("O-129", "rfc5766-channel-numbers"),
    ("O-130", "include-reason-string"),
    ("O-131", "drop-invalid-packets"),
    ("O-132", "drop-invalid-packets-log"),
    ("O-133", "mobility"),
    ("O-140", "alternate-server"),
    ("O-141", "tls-alternate-server"),
    ("O-142", "udp-alternate-server"),
    ("O-143", "tcp-alternate-server"),
    ("O-150", "userdb b"),
    ("O-150", "db"),
    ("O-151", "psql-userdb e"),
    ("O-151", "sql-userdb"),
    ("O-152", "mysql-userdb M"),
    ("O-153", "secret-key-file"),
    ("O-154", "mongo-userdb J"),
    ("O-155", "redis-userdb N"),
    ("O-156", "redis-statsdb O"),
    ("O-160", "daemon o"),
    ("O-161", "pidfile"),
    ("O-162", "proc-user"),
    ("O-162", "proc-group"),
    ("O-163", "verbose v"),
    ("O-164", "Verbose V"),
    ("O-165", "log-file l"),
    ("O-166", "no-stdout-log"),
    ("O-167", "syslog"),
    ("O-168", "syslog-facility"),
    ("O-169", "simple-log"),
    ("O-170", "log-min-level"),
    ("O-171", "new-log-timestamp"),
    ("O-172", "new-log-timestamp-format"),
    ("O-173", "log-binding"),
    ("O-178", "drain-min-allocations"),
    ("O-182", "version"),
    ("O-182", "help h"),
    ("O-182", "config c"),
    ("O-182", "no-config n"),
    ("O-190", "prometheus"),
    ("O-191", "prometheus-port"),
    ("O-192", "prometheus-address"),
    ("O-193", "prometheus-path"),
    ("O-194", "prometheus-username-labels"),
    ("O-195", "prometheus-tls"),
    ("O-196", "prometheus-cert"),
    ("O-196", "prometheus-key"),
    ("O-200", "cli"),
    ("O-200", "no-cli"),
    ("O-201", "cli-ip"),
    ("O-202", "cli-port"),
    ("O-203", "cli-password"),
    ("O-204", "cli-max-output-sessions"),
    ("O-210", "web-admin"),
    ("O-211", "web-admin-ip"),
    ("O-212", "web-admin-port"),
    ("O-213", "web-admin-listen-on-workers"),
];

#[test]
fn knows_every_key_of_coturn_by_its_row_name_and_letter() {
    for (row, names) in COTURN {
        let mut names = names.split(' ');
        let name = names.next().expect("a name");
        let entry = find(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(entry.coturn.row, *row, "{name}");
        if let Some(letter) = names.next() {
            assert_eq!(entry.short, letter.chars().next(), "{name}");
        }
    }
    let known: BTreeSet<&str> = COTURN
        .iter()
        .flat_map(|(_, names)| names.split(' ').next())
        .collect();
    for entry in entries().filter(|entry| !entry.coturn.row.is_empty()) {
        assert!(
            known.contains(entry.name),
            "{} has a row but is not in the list",
            entry.name
        );
    }
}

#[test]
fn no_name_or_letter_stands_for_two_keys() {
    let mut names = BTreeSet::new();
    let mut letters = BTreeSet::new();
    for entry in entries() {
        for name in std::iter::once(&entry.name).chain(entry.aliases) {
            assert!(names.insert(*name), "{name} stands twice");
        }
        if let Some(letter) = entry.short {
            assert!(letters.insert(letter), "{letter} stands twice");
            assert_eq!(by_letter(letter).map(|found| found.name), Some(entry.name));
        }
    }
    for (name, _) in removed_keys() {
        assert!(names.insert(name), "{name} is both known and removed");
    }
}

#[test]
fn every_entry_is_documented_in_sentences() {
    for entry in entries() {
        assert!(
            entry.doc.ends_with('.') && entry.doc.len() > 10,
            "{}: {}",
            entry.name,
            entry.doc
        );
        assert!(
            !entry.doc.contains("  ") && !entry.doc.contains('\n'),
            "{}: stray white space",
            entry.name
        );
    }
}

#[test]
fn every_default_that_can_be_written_is_a_value_of_its_key() {
    let mut count = 0;
    for entry in entries().filter(|entry| entry.is_working()) {
        let values = [
            entry.values.literal_default(),
            entry.coturn.turnserver_default,
        ];
        for default in values.into_iter().flatten() {
            count += 1;
            let value = entry.kind.parse(default);
            assert!(value.is_ok(), "{}={default}: {value:?}", entry.name);
        }
    }
    assert!(count > 70, "{count} defaults");
}

/// Returns other lines that the file needs, for a key that is valid only together with another one.
pub(super) fn companion(name: &str) -> &'static str {
    match name {
        "unauthorized-ratelimit-rps" => "unauthorized-ratelimit\n",
        "multiplex-peer-port" | "multiplex-peer-max-peers" => "multiplex-peer\n",
        "use-auth-secret" => "static-auth-secret=a-secret-of-the-test\n",
        "external-ip" => "relay-ip=10.1.2.3\n",
        "tcp-proxy-port" => "proxy-protocol-source=192.0.2.10\n",
        "no-dynamic-ip-list" | "no-dynamic-realms" => "userdb=turndb\n",
        "no-stdout-log" => "log-file=turn.log\nuser=a:b\n",
        "cli" => "cli-password=hush\n",
        "oauth" => "oauth-key=n:Y2FybGVvbg==\n",
        "oauth-key" => "oauth\n",
        "server-name" => "oauth\noauth-key=n:Y2FybGVvbg==\n",
        "secret-key-file" => "user=a:b\n",
        "cert" => "pkey=key.pem\n",
        "pkey" => "cert=chain.pem\n",
        _ => "",
    }
}

#[test]
fn every_working_key_takes_its_example() {
    for entry in entries() {
        let Support::Works = entry.support else {
            continue;
        };
        let line = format!(
            "{}{}={}\n",
            companion(entry.name),
            entry.name,
            render::example(entry)
        );
        let loaded = file(&line).unwrap_or_else(|problems| panic!("{line}: {problems}"));
        assert!(loaded.origins.contains_key(entry.name), "{}", entry.name);
    }
}

/// A value for each of many keys that is not the default; all go together.
pub(super) const ANOTHER: &[(&str, &str)] = &[
    ("listening-port", "4000"),
    ("listening-ip", "203.0.113.5"),
    ("relay-ip", "10.1.2.3"),
    ("external-ip", "198.51.100.9/10.1.2.3"),
    ("min-port", "50000"),
    ("max-port", "50099"),
    ("sock-buf-size", "65536"),
    ("allocation-default-address-family", "ipv6"),
    ("relay-threads", "3"),
    ("udp-recvmmsg-log", "true"),
    ("udp-sendmmsg-log", "true"),
    ("udp-backend", "mmsg"),
    ("udp-coalesce", "cpu"),
    ("udp-coalesce-us", "50"),
    ("pin-threads", "false"),
    ("realm", "example.org"),
    ("rest-api-separator", "|"),
    ("stale-nonce", "120"),
    ("secure-stun", "true"),
    ("check-origin-consistency", "true"),
    ("unauthorized-ratelimit", "true"),
    ("unauthorized-ratelimit-rps", "7"),
    ("unverified-excess-bytes-per-second", "4096"),
    ("unverified-bytes-per-second", "10000"),
    ("userdb", "/var/lib/turn/turndb"),
    ("no-dynamic-ip-list", "true"),
    ("no-dynamic-realms", "true"),
    ("user-quota", "12"),
    ("total-quota", "34"),
    ("max-allocate-lifetime", "1800"),
    ("channel-lifetime", "660"),
    ("permission-lifetime", "360"),
    ("max-allocations", "1000"),
    ("max-permissions", "50"),
    ("max-channels", "60"),
    ("max-allocate-timeout", "90"),
    ("stream-deadline", "20"),
    ("max-time-without-allocation", "500"),
    ("max-connections-without-allocation", "100"),
    ("max-connections-without-allocation-per-address", "50"),
    ("accept", "exclusive"),
    ("max-dtls-sessions-without-allocation", "100"),
    ("max-dtls-sessions-without-allocation-per-address", "20"),
    ("max-dtls-sessions", "1000"),
    ("min-connect-port", "2000"),
    ("mask-connect-errors", "true"),
    ("max-connects-per-second", "3"),
    ("max-pending-connects", "7"),
    ("max-peer-connections", "9"),
    ("no-udp", "true"),
    ("tls-listening-port", "443"),
    ("cert", "/etc/tls/chain.pem"),
    ("pkey", "/etc/tls/key.pem"),
    ("CA-file", "/etc/tls/authorities.pem"),
    (
        "cipher-list",
        "TLS_AES_128_GCM_SHA256:ECDHE-RSA-AES128-GCM-SHA256",
    ),
    ("ec-curve-name", "prime256v1"),
    ("tcp-proxy-port", "8443"),
    ("proxy-protocol-source", "192.0.2.10"),
    ("udp-proxy-protocol-source", "192.0.2.0/24"),
    ("acme-redirect", "https://acme.example.org/"),
    ("respond-http-unsupported", "true"),
    ("no-tlsv1_2", "true"),
    ("allowed-peer-ip", "10.0.0.0/8"),
    ("denied-peer-ip", "198.51.100.1-198.51.100.9"),
    ("nat64-prefix", "2001:db8:64::/96"),
    ("allow-loopback-peers", "true"),
    ("no-stun", "true"),
    ("fingerprint", "true"),
    ("software-attribute", "true"),
    ("stun-backward-compatibility", "true"),
    ("rfc3489-compatibility", "false"),
    ("rfc5766-channel-numbers", "true"),
    ("include-reason-string", "true"),
    ("listening-device", "lo"),
    ("relay-device", "eth0"),
    ("no-software-attribute", "false"),
    ("Verbose", "true"),
    ("log-binding", "true"),
    ("daemon", "true"),
    ("pidfile", "/run/turn.pid"),
    ("proc-user", "turn"),
    ("proc-group", "turn"),
    ("log-file", "/var/log/turn.log"),
    ("no-stdout-log", "true"),
    ("syslog-facility", "LOG_LOCAL3"),
    ("simple-log", "true"),
    ("log-min-level", "warning"),
    ("new-log-timestamp", "true"),
    ("new-log-timestamp-format", "%T"),
    ("verbose", "true"),
    ("mobility", "true"),
    ("drain-min-allocations", "2"),
    ("max-bps", "64000"),
    ("bps-capacity", "1000000"),
    ("alternate-server", "203.0.113.6:3478"),
    ("tls-alternate-server", "203.0.113.7:5349"),
    ("udp-alternate-server", "203.0.113.8:3478"),
    ("tcp-alternate-server", "203.0.113.9:3479"),
    ("statistics-interval", "30"),
    ("statistics-file", "counters.json"),
];

#[test]
fn every_written_value_is_read_back_as_written() {
    let written = ANOTHER;
    let content: String = written
        .iter()
        .map(|(key, value)| format!("{key}={value}\n"))
        .collect();
    let loaded = file(&content).expect("accepted");
    let effective = effective(&loaded);
    for &(key, value) in written {
        let found = effective
            .iter()
            .find(|one| one.entry.name == key)
            .expect("effective");
        assert_eq!(found.values, [value], "{key}");
        assert_eq!(found.origins.len(), 1, "{key}");
    }
}

#[test]
fn every_key_that_does_not_work_is_refused_with_a_reason_or_accepts_only_what_holds_anyway() {
    for entry in entries() {
        // A value of the right kind that is not what the server does anyway.
        let other = match (entry.support, entry.kind) {
            (Support::Only { values, .. }, Kind::Flag) => {
                if values == ["true"] {
                    "false"
                } else {
                    "true"
                }
            }
            (Support::Only { .. }, Kind::Choice(_)) => "error",
            (_, Kind::Address | Kind::AddressPort) => "192.0.2.1",
            (_, Kind::Flag) => "true",
            _ => "1",
        };
        let result = file(&format!("{}={other}\n", entry.name));
        match entry.support {
            Support::Works => {}
            Support::NoEffect(why) => {
                let notes = result.expect("accepted").notes;
                assert!(
                    notes
                        .iter()
                        .any(|note| note.key == entry.name && note.text.contains(why)),
                    "{}",
                    entry.name
                );
            }
            Support::Only { values, otherwise } => {
                let text = result.expect_err(entry.name).to_string();
                assert!(
                    text.contains(otherwise) && text.contains("t.conf:1: "),
                    "{text}"
                );
                for value in values {
                    let line = format!("{}={value}\n", entry.name);
                    assert!(file(&line).is_ok(), "{line}");
                }
            }
            Support::NotYet(what) => {
                let text = result.expect_err(entry.name).to_string();
                assert!(
                    text.contains(&format!("{what} not implemented yet; remove the line")),
                    "{text}"
                );
            }
            Support::Refused(why) => {
                assert!(result.expect_err(entry.name).to_string().contains(why))
            }
            Support::CommandLine => assert!(
                result
                    .expect_err(entry.name)
                    .to_string()
                    .contains("command line")
            ),
        }
    }
}

#[test]
fn long_options_letters_and_attached_values_mean_the_same() {
    let forms: [&[&str]; 4] = [
        &[
            "--realm",
            "example.org",
            "--listening-port",
            "4000",
            "--fingerprint",
            "--verbose",
        ],
        &[
            "--realm=example.org",
            "--listening-port=4000",
            "--fingerprint=yes",
            "--verbose=1",
        ],
        &["-r", "example.org", "-p", "4000", "-f", "-v"],
        &["-rexample.org", "-p4000", "-fv"],
    ];
    for arguments in forms {
        let config = command_line(arguments)
            .unwrap_or_else(|problems| panic!("{arguments:?}: {problems}"))
            .config;
        assert_eq!(&*config.authentication.realm, "example.org");
        assert!(
            config
                .addresses
                .listeners
                .iter()
                .all(|address| address.port() == 4000)
        );
        assert!(
            config.stun.fingerprint && config.log.sessions,
            "{arguments:?}"
        );
    }
}
