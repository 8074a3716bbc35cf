//! V-78: configurations that must be refused. Each is one or more lines, the line that is wrong, and what the message must contain.

use super::{command_line, file};

const GOOD: &str =
    "realm=example.net\nuser=alice:a-long-password\ndenied-peer-ip=198.51.100.0/24\n";

#[rustfmt::skip]
const WRONG: &[(&str, usize, &str)] = &[
    // Ports (O-002: 65536 once became 0)
    ("listening-port=65536", 1, "1 to 65535"),
    ("listening-port=0", 1, "too small"),
    ("listening-port=-1", 1, "whole number"),
    ("listening-port=+3478", 1, "whole number"),
    ("listening-port=3478x", 1, "whole number"),
    ("listening-port=0x1000", 1, "whole number"),
    ("listening-port=3478.0", 1, "whole number"),
    ("listening-port=34 78", 1, "whole number"),
    ("listening-port=3478,3479", 1, "whole number"),
    ("listening-port=٣٤٧٨", 1, "whole number"),
    ("listening-port=18446744073709555094", 1, "too large"),
    ("listening-port=", 1, "empty"),
    ("listening-port", 1, "needs a value"),
    ("listening-port=turn", 1, "whole number"),
    ("min-port=99999", 1, "1 to 65535"),
    ("max-port=65536", 1, "1 to 65535"),
    ("min-port=60000\nmax-port=50000", 1, "above max-port"),
    ("max-port=1000", 1, "above max-port"),
    ("rfc5780\nlistening-ip=10.1.2.3\nlistening-ip=10.1.2.4\nlistening-port=65535", 1, "give `alt-listening-port`"),
    ("rfc5780\nlistening-ip=10.1.2.3\nlistening-ip=10.1.2.4\nlistening-port=5348\ncert=c\npkey=k", 1, "`5349` is the port of another"),
    ("alt-listening-port=3478\nrfc5780\nlistening-ip=10.1.2.3\nlistening-ip=10.1.2.4", 1, "a port that is free"),
    ("alt-listening-port=5349\ncert=c\npkey=k\nrfc5780\nlistening-ip=10.1.2.3\nlistening-ip=10.1.2.4", 1, "a port that is free"),
    ("alt-tls-listening-port=3479\ncert=c\npkey=k\nrfc5780\nlistening-ip=10.1.2.3\nlistening-ip=10.1.2.4", 1, "a port that is free"),
    ("tls-listening-port=0", 1, "1 to 65535"),
    ("tcp-proxy-port=8080", 1, "give `proxy-protocol-source` too"),
    ("proxy-protocol-source=192.0.2.1\ntcp-proxy-port=8080\nno-tcp", 2, "serves nobody"),
    ("tcp-proxy-port=0", 1, "1 to 65535"),
    ("proxy-protocol-source=proxy.example.net", 1, "not an address"),
    ("proxy-protocol-source=192.0.2.1/24", 1, "bits are set behind"),
    ("udp-proxy-protocol-source=", 1, "not an address"),
    ("acme-redirect=acme.example.org", 1, "http:// or https://"),
    ("acme-redirect=https://", 1, "http:// or https://"),
    ("acme-redirect=\"https://acme.example.org/a b\"", 1, "without blanks"),
    ("nat64-prefix=2001:db8:64::", 1, "prefix/length"),
    ("nat64-prefix=2001:db8:64::/97", 1, "32, 40, 48, 56, 64 or 96"),
    ("nat64-prefix=2001:db8:64::1/96", 1, "32, 40, 48, 56, 64 or 96"),
    ("nat64-prefix=192.0.2.0/24", 1, "prefix/length"),
    // Addresses
    ("listening-ip=300.0.0.1", 1, "neither an IP address nor a host name\u{0}host name `300.0.0.1`"),
    ("listening-ip=10.0.0", 1, "neither an IP address"),
    ("listening-ip=203.0.113.5:3478", 1, "without port"),
    ("listening-ip=[2001:db8::5]", 1, "neither an IP address"),
    ("listening-ip=203.0.113.0/24", 1, "neither an IP address"),
    ("listening-ip=224.0.0.1", 1, "multicast"),
    ("listening-ip=ff02::1", 1, "multicast"),
    ("listening-ip=255.255.255.255", 1, "broadcast"),
    ("listening-ip=169.254.1.1", 1, "link-local"),
    ("listening-ip=fe80::1", 1, "link-local"),
    ("listening-ip=fe80::1%eth0", 1, "neither an IP address"),
    ("listening-ip=::ffff:203.0.113.5", 1, "writes IPv4 as IPv6"),
    ("listening-ip=nowhere.example.net", 1, "not known"),
    ("listening-ip=", 1, "empty"),
    ("listening-ip", 1, "needs a value"),
    ("relay-ip=127.0.0.1.1", 1, "neither an IP address"),
    ("relay-ip=ff02::1", 1, "multicast"),
    ("relay-ip=-10.1.2.3", 1, "neither an IP address"),
    ("relay-ip=10.1.2.3;", 1, "`;`"),
    ("external-ip=10.1.2", 1, "neither an IP address"),
    ("external-ip=0.0.0.0", 1, "public unicast"),
    ("external-ip=127.0.0.1", 1, "public unicast"),
    ("external-ip=224.1.1.1", 1, "public unicast"),
    ("external-ip=198.51.100.9/", 1, "neither an IP address"),
    ("external-ip=/10.1.2.3", 1, "neither an IP address"),
    ("external-ip=198.51.100.9/10.9.9.9", 1, "not a relay address"),
    ("external-ip=198.51.100.9/2001:db8::5", 1, "IPv4 to IPv6"),
    ("external-ip=198.51.100.9/203.0.113.5/10.1.2.3", 1, "neither an IP address"),
    ("external-ip=198.51.100.9\nexternal-ip=198.51.100.8", 2, "mapped twice"),
    ("external-ip=198.51.100.9/203.0.113.5\nexternal-ip=198.51.100.8/203.0.113.5", 2, "mapped twice"),
    ("listening-ip=127.0.0.1\nexternal-ip=198.51.100.9", 2, "would map no relay address"),
    ("external-ip=both.example.net/203.0.113.5", 1, "several addresses"),
    ("listening-device=eth 0", 1, "is not the name of a network interface"),
    ("relay-device=../net", 1, "is not the name of a network interface"),
    ("aux-server=203.0.113.5", 1, "no port from 1 to 65535"),
    ("aux-server=203.0.113.5:0", 1, "no port from 1 to 65535"),
    ("aux-server=203.0.113.5:65536", 1, "no port from 1 to 65535"),
    ("aux-server=2001:db8::5:3480", 1, "[IPv6 address]:port"),
    ("aux-server=[2001:db8::5]", 1, "[IPv6 address]:port"),
    ("aux-server=203.0.113.5:3478", 1, "listened on already"),
    ("aux-server=224.0.0.1:3480", 1, "multicast"),
    ("aux-server=203.0.113.5:3480\naux-server=0.0.0.0:3480", 2, "listened on already"),
    ("aux-server=nowhere.example.net:3480", 1, "not known"),
    ("allocation-default-address-family=ipv5", 1, "ipv4, ipv6, keep"),
    ("allocation-default-address-family", 1, "needs a value"),
    ("allocation-default-address-family=ipv4\nkeep-address-family", 2, "contradicts"),
    // Numbers with ranges
    ("sock-buf-size=0", 1, "4096 to"),
    ("sock-buf-size=-5", 1, "whole number"),
    ("sock-buf-size=2M", 1, "whole number"),
    ("sock-buf-size=1e6", 1, "whole number"),
    ("sock-buf-size=4294967296", 1, "too large"),
    ("relay-threads=129", 1, "0 to 128"),
    ("relay-threads=four", 1, "whole number"),
    ("cpus=0", 1, "1 to 128"),
    ("cpus=1000", 1, "1 to 128"),
    ("udp-coalesce-us=10001", 1, "0 to 10000 microseconds"),
    ("udp-coalesce-us=200us", 1, "whole number"),
    ("stale-nonce=0", 1, "1 to 3600"),
    ("stale-nonce=86400", 1, "1 to 3600"),
    ("stale-nonce=never", 1, "whole number"),
    ("unauthorized-ratelimit\nunauthorized-ratelimit-rps=0", 2, "too small"),
    ("unauthorized-ratelimit-rps=5", 1, "no effect without `unauthorized-ratelimit`"),
    ("unauthorized-ratelimit=off\nunauthorized-ratelimit-rps=5", 2, "no effect without"),
    ("unverified-bytes-per-second=0", 1, "too small"),
    ("user-quota=-1", 1, "whole number"),
    ("user-quota=ten", 1, "whole number"),
    ("total-quota=99999999999", 1, "too large"),
    ("max-allocate-lifetime=0", 1, "1 to 86400"),
    ("max-allocate-lifetime=1h", 1, "whole number"),
    ("channel-lifetime=3601", 1, "1 to 3600"),
    ("permission-lifetime=0", 1, "1 to 3600"),
    ("max-allocations=0", 1, "too small"),
    ("max-channels=4097", 1, "1 to 4096"),
    ("statistics-interval=0", 1, "1 to 86400"),
    ("max-bps=64k", 1, "0 to 4294967295"),
    ("bps-capacity=1000000", 1, "give that too"),
    // Data path
    ("udp-backend=io_uring", 1, "auto, single, mmsg, gso"),
    ("udp-backend", 1, "needs a value"),
    ("udp-recvmmsg=false\nudp-gso=true", 2, "needs batched receive"),
    ("udp-recvmmsg=false\nudp-backend=gso", 2, "contradicts"),
    ("udp-gso=false\nudp-backend=gso", 2, "contradicts"),
    ("multiplex-peer=maybe", 1, "true or false"),
    ("multiplex-peer-port=65001", 1, "1 to 65000"),
    ("multiplex-peer-max-peers=0", 1, "1 to 65535"),
    // Flags
    ("fingerprint=maybe", 1, "true or false"),
    ("fingerprint=2", 1, "true or false"),
    ("fingerprint=true false", 1, "true or false"),
    ("verbose=yess", 1, "true or false"),
    ("stun-only=truth", 1, "true or false"),
    ("stun-only\nno-stun", 2, "nothing would be served"),
    ("allow-loopback-peers=si", 1, "true or false"),
    ("no-udp\nno-tcp", 1, "nothing would be served"),
    ("no-udp-relay", 1, "stun-only"),
    ("no-tcp=nope", 1, "true or false"),
    ("no-tls=nay", 1, "true or false"),
    ("dtls=maybe", 1, "true or false"),
    (
        "cert=a.pem\npkey=a.pem\ndtls\nno-tlsv1_2",
        3,
        "DTLS is served in version 1.2",
    ),
    (
        "cert=a.pem\npkey=a.pem\nno-dtls=false\ncipher-list=TLS_AES_128_GCM_SHA256",
        4,
        "at least one that begins with ECDHE",
    ),
    (
        "cert=a.pem\npkey=a.pem\ndtls\nec-curve-name=X25519MLKEM768",
        4,
        "no group for DTLS",
    ),
    ("no-tcp-relay=nay", 1, "true or false"),
    ("min-connect-port=0", 1, "1 to 65535"),
    ("mask-connect-errors=perhaps", 1, "true or false"),
    ("max-connects-per-second=0", 1, "1 to 1000000"),
    ("max-pending-connects=0", 1, "1 to 1000000"),
    ("max-peer-connections=70000", 1, "1 to 65535"),
    ("server-relay", 1, "without permissions"),
    ("rfc5780", 1, "give a second `listening-ip`"),
    ("rfc5780\nlistening-ip=203.0.113.5", 1, "give a second `listening-ip`"),
    ("rfc5780\nlistening-ip=203.0.113.5\nlistening-ip=2001:db8::5", 1, "of one family"),
    ("rfc5780\nlistening-ip=10.1.2.3\nlistening-ip=10.1.2.4\nexternal-ip=198.51.100.9", 1, "there are 198.51.100.9, 198.51.100.9"),
    ("rfc5780\nno-stun\nlistening-ip=10.1.2.3\nlistening-ip=10.1.2.4", 1, "`no-stun`"),
    ("rfc3489-compatibility\nsecure-stun", 1, "contradicts `secure-stun`"),
    ("rfc5766-channel-numbers\nquic", 1, "contradicts `quic`"),
    ("quic=maybe", 1, "true or false"),
    ("rfc5766-channel-numbers=5000", 1, "true or false"),
    ("mobility=always", 1, "true or false"),
    ("drop-invalid-packets=false", 1, "always dropped"),
    // Authentication
    ("no-auth", 1, "authentication is required"),
    ("no-auth=true", 1, "authentication is required"),
    ("lt-cred-mech=false\nuser=alice:pw", 1, "cannot be turned off"),
    ("user=alice", 1, "no `:`"),
    ("user=:password", 1, "no name"),
    ("user=alice:", 1, "no password"),
    ("user=alice:0x12", 1, "32 hexadecimal digits"),
    ("user=alice:0x0123456789abcdef0123456789abcdeg", 1, "32 hexadecimal digits"),
    ("user=alice:0x0123456789abcdef0123456789abcdef00", 1, "32 hexadecimal digits"),
    ("user=alice:0x0123456789abcdef0123456789abcdef", 1, "give `realm`"),
    ("user=alice:one\nuser=alice:two", 2, "each name once"),
    ("user=", 1, "empty"),
    ("user", 1, "needs a value"),
    ("user alice:pass # the first", 1, "comments stand on lines of their own"),
    ("realm=", 1, "empty"),
    ("realm=\"a\"b\"", 1, "double quote"),
    ("realm=a\\b", 1, "backslash"),
    ("realm=one\nrealm=two", 2, "given twice (first at t.conf:1)"),
    ("use-auth-secret", 1, "needs a secret"),
    ("use-auth-secret=false\nstatic-auth-secret=abc", 1, "remove one of the two"),
    ("static-auth-secret=", 1, "empty"),
    ("static-auth-secret", 1, "needs a value"),
    ("static-auth-secret==abc", 1, "begins with `=`"),
    ("static-auth-secret=a\nstatic-auth-secret=a", 2, "given twice"),
    ("rest-api-separator=::", 1, "one ASCII character"),
    ("rest-api-separator=7", 1, "one ASCII character"),
    ("rest-api-separator=é", 1, "one ASCII character"),
    ("stateless-nonce-secret=short", 1, "shorter than 16"),
    ("oauth", 1, "give `oauth-key` or `userdb` too"),
    ("server-name=x", 1, "without `oauth`"),
    ("oauth-key=north:Y2FybGVvbg==", 1, "without `oauth`"),
    ("oauth-key=north", 1, "name:key"),
    ("oauth-key=:Y2FybGVvbg==", 1, "no name"),
    ("oauth-key=north:hush!", 1, "not base64"),
    ("oauth-key=north:Y2FybGVvbg==:A256CBC", 1, "neither A256GCM nor A128GCM"),
    ("oauth\noauth-key=n:Y2FybGVvbg==\noauth-key=n:Y2FybGVvbg==", 3, "each name once"),
    ("no-dynamic-realms=perhaps", 1, "true or false"),
    // Peers: a malformed rule must not be a missing rule
    ("denied-peer-ip=10.0.0.0/33", 1, "prefix length"),
    ("denied-peer-ip=10.0.0.1/8", 1, "10.0.0.0"),
    ("denied-peer-ip=10.0.0.9-10.0.0.1", 1, "above the last"),
    ("denied-peer-ip=10.0.0.0-fe80::1", 1, "IPv6"),
    ("denied-peer-ip=10.0.0", 1, "not an address"),
    ("denied-peer-ip=10.0.0.0-", 1, "not an address"),
    ("denied-peer-ip=10.0.0.0/255.0.0.0", 1, "prefix"),
    ("denied-peer-ip=10.*", 1, "not an address"),
    ("denied-peer-ip=internal.example.net", 1, "not an address"),
    ("denied-peer-ip=10.0.0.0,10.0.0.1", 1, "not an address"),
    ("denied-peer-ip=", 1, "not an address"),
    ("denied-peer-ip", 1, "needs a value"),
    ("allowed-peer-ip=::/129", 1, "prefix"),
    ("allowed-peer-ip=any", 1, "not an address"),
    ("no-multicast-peers=false", 1, "always refused"),
    // TLS, databases, administration: named, and not done
    ("cert=/etc/turn.pem", 1, "needs `pkey` too"),
    ("realm=r\npkey=/etc/turn.key", 2, "needs `cert` too"),
    ("cipher-list=DHE-RSA-AES256-SHA", 1, "allowed: TLS_AES_256_GCM_SHA384"),
    ("cipher-list=HIGH:!TLS_AES_256_GCM_SHA384", 1, "list the suites that are wanted"),
    ("ec-curve-name=brainpoolP256r1", 1, "allowed: X25519"),
    ("pkey-pwd=", 1, "empty"),
    ("dh-file=dh.pem", 1, "elliptic curves"),
    ("tlsv1", 1, "RFC 8996"),
    // Redirection: a server that sends clients to themselves, or nowhere
    ("alternate-server=127.0.0.1", 1, "no address that clients can send to"),
    ("udp-alternate-server=[::1]:3478", 1, "no address that clients can send to"),
    ("tcp-alternate-server=224.0.0.5", 1, "no unicast address"),
    ("tls-alternate-server=203.0.113.6:0", 1, "1 to 65535"),
    ("alternate-server=203.0.113.6:99999", 1, "1 to 65535"),
    ("alternate-server=[2001:db8::9:3478", 1, "no `]`"),
    ("alternate-server=203.0.113.6 203.0.113.7", 1, "neither an IP address nor a host name"),
    ("userdb=", 1, "empty"),
    ("userdb=a\ndb=b", 2, "given twice"),
    ("mongo-userdb=\"mongo://turn:hush@127.0.0.1\"", 1, "begins with neither `mongodb://`"),
    ("mongo-userdb=\"mongodb://turn:hush@127.0.0.1/d?tlss=true\"", 1, "`tlss` is not known"),
    ("redis-userdb=\"ip=127.0.0.1 passwort=hush\"", 1, "key `passwort` is unknown"),
    ("redis-userdb=\"ip=127.0.0.1 hush\"", 1, "word 2 has no `=`"),
    ("redis-userdb=\"dbname=hush\"", 1, "dbname takes a number"),
    ("redis-statsdb=\"ip=127.0.0.1 passwort=hush\"", 1, "key `passwort` is unknown"),
    ("redis-userdb=\"ca=/hush\"", 1, "ca needs tls=true"),
    ("psql-userdb=\"host=h service=hush\"", 1, "`service` is not known"),
    ("mysql-userdb=\"host=h password=my hush\"", 1, "word 3 has no `=`"),
    ("mysql-userdb=\"host=h password=hush\"\nsecret-key-file=/nonexistent", 2, "a key has 16 bytes"),
    ("prometheus-tls", 1, "needs `prometheus-cert` and `prometheus-key`"),
    ("prometheus-tls\nprometheus-key=/etc/hush", 2, "give both or neither"),
    ("prometheus-port=0", 1, "1 to 65535"),
    ("prometheus-address=nowhere.invalid", 1, "is not known"),
    ("prometheus-path=metrics", 1, "no path for metrics"),
    ("prometheus-path=/livez", 1, "no path for metrics"),
    ("prometheus-path=/status.json", 1, "no path for metrics"),
    ("cli", 1, "needs `cli-password`"),
    ("cli-password=$5$hush", 1, "no hash as turnadmin -P makes it"),
    ("cli\ncli-password=hush\ncli-ip=0.0.0.0", 3, "no address of the loopback interface"),
    ("cli-ip=localhost", 1, "no IP address"),
    ("no-cli=false", 1, "switched on by `cli`"),
    ("web-admin", 1, "not implemented yet"),
    ("daemon=perhaps", 1, "true or false"),
    ("pidfile=", 1, "empty"),
    ("no-stdout-log", 1, "nowhere to go"),
    ("userdb=turndb\nno-stdout-log", 2, "nowhere to go"),
    ("syslog-facility=LOG_MINE", 1, "not the name of a facility"),
    ("log-min-level=loud", 1, "debug, info, warning, error"),
    ("config=/etc/other.conf", 1, "command line"),
    ("help", 1, "command line"),
    // Keys of old versions
    ("no-sslv3", 1, "SSL 3 is never offered"),
    ("no-loopback-peers", 1, "allow-loopback-peers"),
    ("prod", 1, "software-attribute"),
    ("udp-sendmmsg", 1, "udp-backend"),
    // Keys that nobody knows
    ("listning-port=3478", 1, "did you mean `listening-port`?"),
    ("denied-peer-ips=10.0.0.0/8", 1, "did you mean `denied-peer-ip`?"),
    ("Realm=example.org", 1, "did you mean `realm`?"),
    ("listening_port=3478", 1, "did you mean `listening-port`?"),
    ("--realm=example.org", 1, "without dashes"),
    ("p 3478", 1, "the key is `listening-port`"),
    ("-p 3478", 1, "the key is `listening-port`"),
    ("frobnicate=1", 1, "turnbuckle options"),
    ("alice:hush", 1, "turnbuckle options"),
    ("realm:example.org", 1, "not a known key"),
    ("[server]", 1, "not a known key"),
    ("{", 1, "not a known key"),
    ("; a comment", 1, "not a known key"),
    ("// a comment", 1, "not a known key"),
    // Lines
    ("=value", 1, "no key before `=`"),
    ("realm=\"example.org", 1, "does not end with one"),
    ("realm=example.org\"", 1, "does not begin with one"),
    ("realm=example.org;", 1, "do not end with `;`"),
    ("realm=exam\u{1b}ple", 1, "control characters"),
    ("realm=exam\u{0}ple", 1, "control characters"),
    ("\u{feff}realm=example.org", 1, "byte order mark"),
    ("# fine\n\n  \nrealm=", 4, "empty"),
    ("realm=example.org\r\nuser=alice\r\n", 2, "no `:`"),
];

#[test]
fn refuses_each_wrong_configuration_with_its_line_and_what_is_allowed() {
    //= V-78
    assert!(WRONG.len() >= 120, "{}", WRONG.len());
    for (content, line, expected) in WRONG {
        let Err(problems) = file(content) else {
            panic!("accepted: {content:?}")
        };
        let text = problems.to_string();
        let place = format!("t.conf:{line}: ");
        assert!(
            problems
                .0
                .iter()
                .all(|problem| problem.to_string().starts_with(&place)),
            "{content:?}: {text}"
        );
        assert!(
            expected
                .split('\u{0}')
                .any(|expected| text.contains(expected)),
            "{content:?}: {text}"
        );
        assert!(!text.contains("hush"), "{text}");
        assert!(
            text.lines().count() == problems.0.len() && !text.contains(['\u{1b}', '\u{0}', '\r']),
            "{text:?}"
        );
    }
}

#[test]
fn says_what_to_do_about_each_wrong_configuration() {
    //= V-78
    const ADVICE: &[&str] = &[
        "allowed",
        "did you mean",
        "give ",
        "put ",
        "remove ",
        "save ",
        "the key is",
        "turnbuckle options",
        "without dashes",
        "write ",
        "use `",
        "`udp-backend`",
        "one file may hold both",
        "openssl pkey",
        "list the suites",
    ];
    for (content, _, _) in WRONG {
        let text = file(content).expect_err(content).to_string();
        assert!(
            ADVICE.iter().any(|advice| text.contains(advice)),
            "{content:?}: {text}"
        );
    }
}

#[test]
fn good_lines_do_not_make_up_for_a_wrong_one() {
    //= V-78
    file(GOOD).expect("accepted without the wrong line");
    for (content, line, _) in WRONG {
        let problems = file(&format!("{GOOD}{content}\n")).expect_err(content);
        let after = format!("t.conf:{}: ", GOOD.lines().count() + line);
        assert!(
            problems.to_string().contains(&after) || problems.to_string().contains("first at"),
            "{content:?}: {problems}"
        );
    }
}

#[test]
fn the_command_line_refuses_what_the_file_refuses() {
    //= V-78
    for (content, _, _) in WRONG {
        let Some((key, value)) = content.split_once('=') else {
            continue;
        };
        let is_one_plain_line = !content.contains(['\n', '"', '\u{feff}', '#', ';'])
            && !key.contains([' ', ':', '-', '_'])
            && !value.starts_with('=');
        if !is_one_plain_line || key.is_empty() {
            continue;
        }
        let typed = format!("--{key}={value}");
        if ["config", "help"].contains(&key) {
            continue;
        }
        let Err(problems) = command_line(&[&typed]) else {
            panic!("accepted: {typed:?}")
        };
        assert!(
            problems.to_string().contains("command line: "),
            "{typed:?}: {problems}"
        );
    }
}

#[test]
fn the_command_line_names_its_own_mistakes() {
    let rows: &[(&[&str], &str)] = &[
        (&["--realm"], "`--realm`: needs a value"),
        (&["--realm", "--user", "a:b"], "`--realm`: needs a value"),
        (&["-r"], "`-r`: needs a value"),
        (&["stray"], "argument 1 does not belong to an option"),
        (&["--relm=hush"], "did you mean `realm`?"),
        (&["-y"], "`-y`: is not a known key"),
        (&["-c", "one", "-c", "two"], "a second file"),
        (&["-n", "-c", "one"], "says to read no file"),
        (
            &["-c", "/nonexistent/turnserver.conf"],
            "/nonexistent/turnserver.conf: cannot be read",
        ),
        (&["-c", "/"], "/: cannot be read"),
        (&["--min-port", "1000", "--min-port", "2000"], "given twice"),
        (&["--dtls=perhaps"], "true or false"),
        (&["-z"], "authentication is required"),
        (&["-fz"], "authentication is required"),
        (&["-uhush"], "no `:` between name and password"),
        (&["--user=hush"], "no `:` between name and password"),
    ];
    for (arguments, expected) in rows {
        let text = command_line(arguments).expect_err(expected).to_string();
        assert!(text.contains(expected), "{arguments:?}: {text}");
        assert!(!text.contains("hush"), "{text}");
    }
}
