//! Every option of coturn in every form in which coturn takes it, read as `turnserver` reads it.

use std::ffi::OsString;

use super::super::entry::Status;
use super::keys::companion;
use super::machine;
use crate::*;

/// Returns a file with this content, which exists as long as its directory.
fn written(content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("t.conf");
    std::fs::write(&path, content).expect("written");
    let path = path.to_str().expect("UTF-8").to_owned();
    (folder, path)
}

/// Returns the configuration of the file `content` and `arguments`, and its notes.
fn read(content: &str, arguments: &[&str]) -> Result<(String, Vec<String>), String> {
    let (_folder, path) = written(content);
    let path = path.as_str();
    let words = ["-c", path].into_iter().chain(arguments.iter().copied());
    let words = words.map(OsString::from);
    match load_turnserver(words, &machine()) {
        Ok(Request::Run(loaded)) => {
            let notes = loaded.notes.iter();
            let notes = notes.map(|note| note.to_string().replace(path, "t.conf"));
            Ok((format!("{:?}", loaded.config), notes.collect()))
        }
        Ok(other) => panic!("asked for {other:?}"),
        Err(problems) => Err(problems.to_string().replace(path, "t.conf")),
    }
}

#[test]
fn a_range_of_mapped_peers_is_kept_and_what_it_does_not_mean_is_said() {
    for key in ["allowed-peer-ip", "denied-peer-ip"] {
        let content = format!("user=a:b\n{key}=::ffff:0.0.0.0-::ffff:255.255.255.255\n");
        let (_, notes) = read(&content, &[]).expect("read");
        let is_told = notes.iter().any(|note| {
            note.starts_with("t.conf:2: ")
                && note.contains("::ffff:0.0.0.0/96 is about IPv4-mapped forms")
                && note.contains("such as 0.0.0.0/0")
        });
        assert!(is_told, "{key}: {notes:?}");
        let (_, notes) = read(&format!("user=a:b\n{key}=10.0.0.1\n"), &[]).expect("read");
        assert!(!notes.iter().any(|note| note.contains("mapped")));
    }
}

/// Returns the configuration of `content` on a machine, for tests of single values.
fn loaded(content: &str, machine: &Machine) -> Box<Loaded> {
    let (_folder, path) = written(content);
    match load_turnserver(["-c", &path].map(OsString::from), machine) {
        Ok(Request::Run(loaded)) => loaded,
        other => panic!("{content}: {other:?}"),
    }
}

fn says(loaded: &Loaded, words: &[&str]) -> bool {
    let notes = loaded.notes.iter().map(Note::to_string);
    let mut notes = notes.filter(|note| words.iter().all(|word| note.contains(word)));
    notes.next().is_some()
}

/// Returns coturn's options that work, each with a value that is not the default.
fn working() -> impl Iterator<Item = (&'static Entry, String)> {
    let coturns =
        entries().filter(|entry| !entry.coturn.row.is_empty() && !entry.is_command_line());
    let working = coturns.filter(|entry| entry.is_working());
    working.map(|entry| (entry, other_value(entry)))
}

fn other_value(entry: &Entry) -> String {
    let own = match entry.name {
        "cipher-list" => "TLS_AES_128_GCM_SHA256:ECDHE-RSA-AES128-GCM-SHA256",
        "ec-curve-name" => "prime256v1",
        "new-log-timestamp" => "false",
        "new-log-timestamp-format" => "%H:%M",
        "no-tcp-relay" => "true", // the default is another one by this name
        "prometheus-path" => "/turn/metrics",
        "relay-threads" | "cpus" => "3",
        "rest-api-separator" => "|",
        _ => "",
    };
    match (entry.kind, entry.values.default) {
        _ if !own.is_empty() => own.to_owned(),
        (Kind::Flag, "true") => "false".to_owned(),
        (Kind::Flag, _) => "true".to_owned(),
        (Kind::Integer { max, .. } | Kind::OptionalInteger { max, .. }, default) => {
            let default: u32 = default.parse().unwrap_or(7);
            let other = if default < max {
                default + 1
            } else {
                default - 1
            };
            other.to_string()
        }
        (Kind::Port, "65535") => "65534".to_owned(),
        (Kind::Port, default) => match default.parse::<u16>() {
            Ok(port) => (port + 1).to_string(),
            Err(_) => render::example(entry).to_owned(),
        },
        (Kind::Choice(words), default) => {
            let other = words.iter().find(|word| **word != default);
            other.expect("two words").to_string()
        }
        _ => render::example(entry).to_owned(),
    }
}

/// Options that change nothing here.
const UNCHANGED: [&str; 10] = [
    "alt-listening-port",
    "alt-tls-listening-port",
    "lt-cred-mech",
    "no-auth",
    "use-auth-secret",
    "cert",
    "pkey",
    "secret-key-file",
    "syslog-facility",
    "cli-ip",
];

#[test]
fn each_option_means_the_same_in_every_form_that_coturn_takes() {
    let mut count = 0;
    let mut unchanged = Vec::new();
    for (entry, value) in working() {
        let name = entry.name;
        let rest = companion(name);
        let (expected, notes) = read(&format!("{rest}{name}={value}\n"), &[])
            .unwrap_or_else(|problems| panic!("{name}={value}: {problems}"));
        let about = format!("`{name}`: ");
        let is_passed_over = |note: &String| note.contains(&about) && note.contains("passed over");
        assert!(!notes.iter().any(is_passed_over), "{name}: {notes:?}");
        let (without, _) = read(rest, &[]).expect("accepted");
        if expected == without {
            unchanged.push(name);
        }
        let mut lines = vec![
            format!("{name} {value}"),
            format!("{name}\t{value}"),
            format!(" \t{name} = {value} \t"),
            format!("{name}=\"{value}\""),
            format!("{name}==\"{value}\r"),
        ];
        let mut words: Vec<Vec<String>> = vec![vec![format!("--{name}={value}")]];
        let letter = entry.short;
        if entry.kind == Kind::Flag {
            if value == "true" {
                let yes = ["", "=1", "=9", " yes", "=Y", "=on", "=ON", "=t", "=TRUE"];
                lines.extend(yes.map(|yes| format!("{name}{yes}")));
                words.push(vec![format!("--{name}")]);
                words.extend(letter.map(|letter| vec![format!("-{letter}")]));
            } else {
                let no = ["=0", "=no", " N", "=off", "=Off", "=f", "=False"];
                lines.extend(no.map(|no| format!("{name}{no}")));
            }
        } else if !entry.kind.takes_no_value() {
            // With getopt_long an optional value has to be attached.
            words.push(vec![format!("--{name}"), value.clone()]);
            if let Some(letter) = letter {
                words.push(vec![format!("-{letter}"), value.clone()]);
                words.push(vec![format!("-{letter}{value}")]);
            }
        }
        for line in &lines {
            let (found, _) = read(&format!("{rest}{line}\n"), &[])
                .unwrap_or_else(|problems| panic!("{line:?}: {problems}"));
            assert_eq!(found, expected, "{line:?}");
            count += 1;
        }
        for words in &words {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (found, _) =
                read(rest, &words).unwrap_or_else(|problems| panic!("{words:?}: {problems}"));
            assert_eq!(found, expected, "{words:?}");
            count += 1;
        }
    }
    assert!(count > 900, "{count}");
    // Their files are not on this machine, they say what holds anyway, count only beside another option, or not on a machine with a public address.
    assert_eq!(unchanged, UNCHANGED);
}

#[test]
fn what_is_not_served_is_named_with_the_reason_and_passed_over_or_refused() {
    for entry in entries().filter(|entry| !entry.coturn.row.is_empty() && !entry.is_working()) {
        let (value, why) = match entry.status() {
            // coturn takes no notice of the values of these two, and switches on.
            Status::Limited { otherwise, .. } if entry.name.starts_with("prometheus") => {
                ("true", otherwise)
            }
            Status::Limited { values, otherwise } => {
                let other = if values == ["true"] { "false" } else { "true" };
                let (_, notes) = read(&format!("{}={}\n", entry.name, values[0]), &[])
                    .unwrap_or_else(|problems| panic!("{}: {problems}", entry.name));
                let is_named = |note: &String| note.contains(&format!("`{}`", entry.name));
                assert!(!notes.iter().any(is_named), "{}: {notes:?}", entry.name);
                (other, otherwise)
            }
            Status::WithoutEffect(_) => {
                read(&format!("{}\n", entry.name), &[])
                    .unwrap_or_else(|problems| panic!("{}: {problems}", entry.name));
                continue;
            }
            Status::NotYet(what) => ("1", what),
            Status::Refused(why) => ("1", why),
            Status::Same | Status::Stricter(_) | Status::New => unreachable!("it works"),
        };
        let line = format!("{}={value}\n", entry.name);
        match read(&line, &[]) {
            Err(problems) => {
                assert_eq!(entry.group, Group::Databases, "{line}: {problems}");
                assert!(problems.contains(why), "{line}: {problems}");
            }
            Ok((_, notes)) => {
                let is_told = notes
                    .iter()
                    .any(|note| note.contains(entry.name) && note.contains(why));
                assert!(is_told, "{line}: {notes:?}");
            }
        }
    }
}

#[test]
fn the_last_of_several_lines_counts_except_where_all_do() {
    let (once, _) = read("max-port=60000\nrealm=b\n", &[]).expect("accepted");
    let (again, _) =
        read("max-port=50000\nrealm=a\nmax-port=60000\nrealm=b\n", &[]).expect("accepted");
    assert_eq!(once, again);
    let (both, _) = read("listening-ip=10.1.2.3\nlistening-ip=127.0.0.1\n", &[]).expect("accepted");
    assert!(both.contains("10.1.2.3:3478") && both.contains("127.0.0.1:3478"));
}

#[test]
fn a_long_option_may_be_cut_short_where_no_other_begins_so() {
    let full = read("", &["--listening-port=4000", "--fingerprint"]).expect("accepted");
    assert_eq!(
        read("", &["--listening-p=4000", "--finger"]).expect("accepted"),
        full
    );
    for ambiguous in ["--listening=4000", "--no-"] {
        assert!(read("", &[ambiguous]).is_err(), "{ambiguous}");
    }
    // Under our own name nothing is guessed, and in a file nothing is cut short.
    assert!(super::command_line(&["--listening-p=4000"]).is_err());
    let (_, notes) =
        read("listening-p=4000\nlistening_port=4000\n-p 4000\n", &[]).expect("accepted");
    let bad = notes
        .iter()
        .filter(|note| note.contains("Bad configuration format"));
    assert_eq!(bad.count(), 3, "{notes:?}");
}

#[test]
fn an_empty_name_of_a_pid_file_is_none() {
    let (none, _) = read("", &["--pidfile="]).expect("accepted");
    assert!(none.contains("pid_file: None"), "{none}");
    let (usual, _) = read("", &[]).expect("accepted");
    assert!(usual.contains("/var/run/turnserver.pid"), "{usual}");
}

#[test]
fn beside_a_secret_users_do_not_count_unless_somebody_says_that_both_do() {
    let names = |content: &str| -> (usize, bool) {
        let loaded = loaded(content, &machine());
        let from = &loaded.config.authentication;
        let database = from.database.as_ref();
        assert_eq!(
            says(&loaded, &["left out", "users-beside-secrets"]),
            content.contains("ghost") && from.users.is_empty(),
            "{content}: {:?}",
            loaded.notes
        );
        (
            from.users.len(),
            database.is_some_and(|database| database.has_users),
        )
    };
    let ghost = "user=ghost:somepassword\nuserdb=/tmp/turndb\n";
    assert_eq!(names(ghost), (1, true));
    assert_eq!(
        names(&format!("{ghost}static-auth-secret=north\n")),
        (0, false)
    );
    // coturn turns it on whatever the value, and without any secret nobody can log in.
    assert_eq!(
        names(&format!("{ghost}use-auth-secret=false\n")),
        (0, false)
    );
    let both = "static-auth-secret=north\nusers-beside-secrets\n";
    assert_eq!(names(&format!("{ghost}{both}")), (1, true));
    assert_eq!(names("static-auth-secret=north\n"), (0, false));
}

#[test]
fn a_database_at_a_usual_place_is_used_unless_another_is_named() {
    let path = || Some("/var/lib/turn/turndb".into());
    let there = Machine {
        usual_database: path(),
        ..machine()
    };
    let source = |loaded: &Loaded| {
        let database = loaded.config.authentication.database.clone();
        database.map(|database| database.source)
    };
    let found = loaded("", &there);
    assert_eq!(source(&found), path().map(turnbuckle_users::Source::Sqlite));
    assert!(says(&found, &["`userdb`", "/var/lib/turn/turndb is used"]));
    assert!(says(
        &found,
        &["no credentials", "in the database that was found"]
    ));
    let line = effective(&found).into_iter();
    let line = line.filter(|one| one.entry.name == "userdb");
    assert!(line.flat_map(|one| one.values).eq(["/var/lib/turn/turndb"]));
    for named in ["redis-userdb=ip=127.0.0.1\n", "db=other\n"] {
        let other = loaded(named, &there);
        assert_ne!(source(&other), source(&found), "{named}");
        assert!(!says(&other, &["is used, as by coturn"]), "{named}");
    }
    assert_eq!(source(&loaded("", &machine())), None);
    // `turnbuckle serve` uses what is written.
    let strict = from_text("t.conf", b"user=a:b\n", &there).expect("accepted");
    assert_eq!(source(&strict), None);
    // What is found at a reload waits for a restart, and what is gone then stays in use.
    for (before, after) in [(&machine(), &there), (&there, &machine())] {
        let running = loaded("user=a:b\n", before);
        let next = loaded("user=a:c\n", after);
        let reloaded = reload(&running, &next, after).expect("accepted");
        assert_eq!(source(&reloaded.loaded), source(&running));
        let names = |entries: &[&Entry]| entries.iter().map(|it| it.name).collect::<Vec<_>>();
        assert_eq!(names(&reloaded.pending), ["userdb"]);
        assert_eq!(names(&reloaded.changed), ["user"]);
    }
}

/// Certificates of the start are those of a reload that does not find them, so that who serves them says what is wrong.
#[test]
fn what_a_reload_does_not_find_stays_in_use_or_refuses_it() {
    let (folder, path) = written("");
    let place = |name: &str| folder.path().join(name).display().to_string();
    let (chain, key) = (place("chain.pem"), place("key.pem"));
    let content = format!("cert={chain}\npkey={key}\nuser=a:b\n");
    for file in [&chain, &key] {
        std::fs::write(file, "").expect("written");
    }
    std::fs::write(&path, &content).expect("written");
    let arguments = || ["-c", &path].map(OsString::from);
    let Ok(Request::Run(running)) = load_turnserver(arguments(), &machine()) else {
        panic!("refused");
    };
    let again = || match load_again(arguments(), &running, &machine()) {
        Ok(Request::Run(loaded)) => Ok(loaded),
        Ok(other) => panic!("asked for {other:?}"),
        Err(problems) => Err(problems.to_string()),
    };
    std::fs::remove_file(&key).expect("removed");
    std::fs::write(&path, content.replace("a:b", "a:c")).expect("written");
    let reloaded = reload(&running, &again().expect("accepted"), &machine()).expect("accepted");
    assert_eq!(reloaded.changed.len(), 1);
    assert_eq!(reloaded.loaded.config.tls, running.config.tls);
    // The key of the database's password is not there.
    let hidden = "mysql-userdb=host=h password=hush\nsecret-key-file=/nonexistent/key\n";
    std::fs::write(&path, format!("{content}{hidden}")).expect("written");
    assert!(load_turnserver(arguments(), &machine()).is_ok());
    assert!(again().is_err_and(|why| why.contains("secret-key-file")));
    std::fs::remove_file(&path).expect("removed");
    assert!(load_turnserver(arguments(), &machine()).is_ok());
    assert!(again().is_err_and(|why| why.contains("No such file")));
    assert!(load_successor(arguments(), &machine()).is_err());
}

#[test]
fn a_file_of_many_rules_is_read_whole() {
    let rule = "denied-peer-ip=198.18.0.1-198.18.0.2\n";
    let content = rule.repeat(40_000) + "denied-peer-ip=192.0.2.9\n";
    assert!(content.len() > 1 << 20);
    let loaded = loaded(&content, &machine());
    assert_eq!(loaded.config.relays.peers.denied.len(), 40_001);
}

#[test]
fn an_option_of_old_versions_is_passed_over_wherever_it_stands() {
    for (key, _) in removed_keys() {
        let typed = format!("--{key}");
        for arguments in [&[&*typed][..], &[&*format!("{typed}=1")]] {
            let (_, notes) = read("user=a:b\n", arguments).expect(key);
            let is_named = |note: &String| note.contains(&format!("`{typed}`"));
            assert!(notes.iter().any(is_named), "{key}: {notes:?}");
        }
        let (_, notes) = read(&format!("user=a:b\n{key}\n"), &[]).expect(key);
        let is_named = |note: &String| note.contains(&format!("`{key}`"));
        assert!(notes.iter().any(is_named), "{key}: {notes:?}");
    }
}

#[test]
fn the_page_lists_every_default_of_turnserver_that_coturn_does_not_have() {
    let page = compatibility();
    let mut listed = 0;
    for one in effective(&loaded("", &machine())) {
        let entry = one.entry;
        let is_off = || {
            one.values
                .iter()
                .all(|value| value == "false" || value == "off")
        };
        let is_coturns = match entry.coturn.default {
            // A described one is coturn's too, or a note of the start says what else is done.
            Some((default, _)) if default.starts_with('(') => entry.coturn.differs_as_serve_alone,
            Some((default, _)) => one.values == [default],
            None => !entry.coturn.row.is_empty() || is_off(),
        };
        if !is_coturns {
            let row = format!("\n| `{}` | `", entry.name);
            assert!(page.contains(&row), "{}: {:?}", entry.name, one.values);
            listed += 1;
        }
    }
    assert!(listed > 20, "{listed}");
}

/// RFC 6062 §5.2 knows no ports that are closed, and neither does coturn.
#[test]
fn clients_may_connect_to_every_port_as_with_coturn() {
    let config = loaded("user=a:b\n", &machine()).config;
    assert_eq!(config.relays.connect_port_min, 1);
    let strict = from_text("t.conf", b"user=a:b\n", &machine()).expect("accepted");
    assert_eq!(strict.config.relays.connect_port_min, 1024);
}

#[test]
fn without_a_realm_it_is_the_domain_of_the_host_or_empty() {
    let realm = |content: &str, domain: Option<&str>| {
        let machine = Machine {
            domain: domain.map(str::to_owned),
            ..machine()
        };
        let loaded = loaded(content, &machine);
        let realm = loaded.config.authentication.realm.to_string();
        assert_eq!(says(&loaded, &["`realm`", "empty"]), realm.is_empty());
        realm
    };
    let user = "user=alice:0x0123456789abcdef0123456789abcdef\n";
    assert_eq!(realm(user, Some("example.net")), "example.net");
    assert_eq!(realm(user, None), "");
    assert_eq!(realm("realm=example.org\n", None), "example.org");
    // An empty value is none.
    assert_eq!(realm("realm=\n", None), "");
}

/// Returns relay addresses with their external addresses, for tests of these alone.
fn relays(loaded: &Loaded) -> String {
    let addresses = &loaded.config.addresses;
    let shown = addresses
        .relays
        .iter()
        .map(|&relay| match addresses.public(relay) {
            public if public == relay => relay.to_string(),
            public => format!("{relay}={public}"),
        });
    shown.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_public_address_that_cannot_be_used_is_passed_over_with_a_warning() {
    let none = "10.1.2.3";
    for (lines, seen) in [
        ("external-ip=192.0.2.77", "10.1.2.3=192.0.2.77"),
        (
            "external-ip=192.0.2.77\nexternal-ip=192.0.2.78",
            "10.1.2.3=192.0.2.77",
        ),
        (
            "external-ip=192.0.2.77/10.1.2.3\nexternal-ip=192.0.2.78/10.1.2.3",
            "10.1.2.3=192.0.2.77",
        ),
        ("external-ip=", none),
        ("external-ip=0.0.0.0", none),
        ("external-ip=127.0.0.1", none),
        ("external-ip=YOUR_IP", none),
        ("external-ip=$(curl -4 ifconfig.co)", none),
        ("external-ip=${EXTERNAL_IP}", none),
        ("external-ip=turn.invalid", none),
        ("external-ip=192.0.2.77 # the public one", none),
        ("external-ip=192.0.2.77/10.0.0.9", none),
        ("external-ip=192.0.2.77/", none),
        ("external-ip=2001:db8::77", none),
        ("external-ip=192.0.2.77/2001:db8::5", none),
        ("external-ip=224.0.0.9", none),
    ] {
        let loaded = loaded(&format!("listening-ip=10.1.2.3\n{lines}\n"), &machine());
        assert_eq!(relays(&loaded), seen, "{lines}");
        let is_said = says(&loaded, &["`external-ip`"]);
        assert_eq!(
            is_said,
            lines != "external-ip=192.0.2.77",
            "{lines}: {:?}",
            loaded.notes
        );
    }
}

#[test]
fn an_address_that_cannot_be_used_is_passed_over_with_a_warning() {
    let all = "127.0.0.1:3478 203.0.113.5:3478 10.1.2.3:3478 [::1]:3478 [2001:db8::5]:3478";
    let one = "10.1.2.3:3478";
    for (lines, listeners, relayed) in [
        (
            "listening-ip=10.1.2.3\nlistening-ip=fe80::1",
            one,
            "10.1.2.3",
        ),
        (
            "listening-ip=10.1.2.3\nlistening-ip=169.254.7.7",
            one,
            "10.1.2.3",
        ),
        (
            "listening-ip=10.1.2.3\nlistening-ip=$LOCAL_IP",
            one,
            "10.1.2.3",
        ),
        (
            "listening-ip=10.1.2.3\nlistening-ip=turn.invalid",
            one,
            "10.1.2.3",
        ),
        ("listening-ip=10.1.2.3\nlistening-ip=", one, "10.1.2.3"),
        ("listening-ip=$LOCAL_IP", all, "203.0.113.5 2001:db8::5"),
        ("listening-ip=::ffff:10.1.2.3", one, "10.1.2.3"),
        (
            "listening-ip=10.1.2.3\nrelay-ip=$(hostname -i)",
            one,
            "10.1.2.3",
        ),
        ("listening-ip=10.1.2.3\nrelay-ip=fe80::1", one, "10.1.2.3"),
        (
            "listening-ip=10.1.2.3\nrelay-ip=203.0.113.5\nrelay-ip=fe80::1",
            one,
            "203.0.113.5",
        ),
    ] {
        let loaded = loaded(&format!("{lines}\n"), &machine());
        let found = loaded
            .config
            .addresses
            .listeners
            .iter()
            .map(ToString::to_string);
        assert_eq!(found.collect::<Vec<_>>().join(" "), listeners, "{lines}");
        assert_eq!(relays(&loaded), relayed, "{lines}");
        let is_said = says(&loaded, &["passed over"]);
        assert_eq!(
            is_said,
            !lines.contains("ffff"),
            "{lines}: {:?}",
            loaded.notes
        );
    }
}

#[test]
fn wildcards_listen_and_relay_as_coturns_do() {
    let v4 = "203.0.113.5";
    let both = "203.0.113.5 2001:db8::5";
    for (lines, listeners, relayed) in [
        ("listening-ip=0.0.0.0", 3, v4),
        ("listening-ip=0.0.0.0\nlistening-ip=::", 5, v4),
        (
            "listening-ip=0.0.0.0\ndenied-peer-ip=10.0.0.0-10.255.255.255",
            3,
            v4,
        ),
        (
            "listening-ip=0.0.0.0\ndenied-peer-ip=fc00::-fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            3,
            both,
        ),
        (
            "listening-ip=0.0.0.0\ndenied-peer-ip=::ffff:0.0.0.0-::ffff:255.255.255.255",
            3,
            v4,
        ),
        (
            "listening-ip=0.0.0.0\nrelay-ip=203.0.113.5\nrelay-ip=2001:db8::5",
            3,
            both,
        ),
        // A socket of coturn's for this one takes IPv4 too.
        ("listening-ip=::", 5, both),
        ("", 5, both),
    ] {
        let loaded = loaded(&format!("{lines}\n"), &machine());
        assert_eq!(
            loaded.config.addresses.listeners.len(),
            listeners,
            "{lines}"
        );
        assert_eq!(relays(&loaded), relayed, "{lines}");
        let is_said = says(
            &loaded,
            &["`relay-ip=203.0.113.5` and `relay-ip=2001:db8::5` relay IPv6 too"],
        );
        assert_eq!(is_said, relayed == v4, "{lines}: {:?}", loaded.notes);
    }
    // Under our own name a family is what it says.
    let strict = super::file("user=a:b\nlistening-ip=::\n").expect("accepted");
    assert_eq!(strict.config.addresses.listeners.len(), 2);
}

#[test]
fn values_that_coturn_starts_with_are_warnings_that_say_what_is_done() {
    for (content, arguments, words) in [
        (
            "alternate-server=127.0.0.1:3479",
            "",
            "nobody is sent there",
        ),
        ("alternate-server=turn.invalid", "", "nobody is sent there"),
        (
            "tls-alternate-server=192.0.2.90:x",
            "",
            "nobody is sent there",
        ),
        ("aux-server=10.1.2.3", "", "passed over"),
        ("aux-server=10.1.2.3:3478", "", "passed over"),
        (
            "tls-listening-port=0",
            "",
            "TLS is served on `listening-port`",
        ),
        ("min-port=60000\nmax-port=50000", "", "the other way round"),
        ("", "-A", "passed over: needs a value"),
        ("", "-A -v", "passed over: needs a value"),
        (
            "allocation-default-address-family",
            "",
            "passed over: needs a value",
        ),
    ] {
        let words_of = arguments.split_whitespace().collect::<Vec<_>>();
        let (config, notes) = read(&format!("{content}\n"), &words_of)
            .unwrap_or_else(|problems| panic!("{content}: {problems}"));
        assert!(
            notes.iter().any(|note| note.contains(words)),
            "{content}: {notes:?}"
        );
        assert!(!config.contains("127.0.0.1:3479"), "{config}");
        if content.starts_with("min-port") {
            assert!(config.contains("min: 50000, max: 60000"), "{config}");
        }
        assert_eq!(config.contains("sessions: true"), arguments.contains("-v"));
    }
    let (v6, _) = read("", &["-A", "ipv6"]).expect("accepted");
    assert!(v6.contains("default_family: V6"), "{v6}");
    let tls = read("tls-listening-port=0\nlistening-port=4000\n", &[])
        .expect("accepted")
        .0;
    assert!(tls.contains("port: 4000"), "{tls}");
}

#[test]
fn metrics_are_served_at_the_address_of_a_host_name() {
    let loaded = loaded(
        "user=a:b\nprometheus\nprometheus-address=localhost\n",
        &machine(),
    );
    let exporter = &loaded.config.process.exporter;
    assert!(exporter.is_served());
    // Of both families, which is what coturn takes too.
    assert_eq!(exporter.address, Some([127, 0, 0, 1].into()));
}

#[test]
fn metrics_whose_address_is_unusable_are_served_nowhere_and_an_error_says_so() {
    let long = "a".repeat(600);
    for address in ["127.0.0.1 # x", "nowhere.invalid", "", &long] {
        for switch in ["prometheus", "prometheus-tls\ncert=a\npkey=b"] {
            let content = format!("user=a:b\n{switch}\nprometheus-address={address}\n");
            let loaded = loaded(&content, &machine());
            let exporter = &loaded.config.process.exporter;
            assert!(!exporter.is_served(), "{content}");
            assert!(exporter.address.is_some(), "{content}: all addresses");
            let is_told = |note: &Note| {
                note.is_error
                    && note.key == "prometheus-address"
                    && note.text.contains("no metrics are served")
            };
            assert!(
                loaded.notes.iter().any(is_told),
                "{content}: {:?}",
                loaded.notes
            );
        }
    }
    // What is written last counts, and the default is still every address.
    for (content, address) in [
        ("prometheus\n", None),
        ("prometheus\nprometheus-address=any\n", None),
        (
            "prometheus\nprometheus-address=\nprometheus-address=10.1.2.3\n",
            Some([10, 1, 2, 3].into()),
        ),
    ] {
        let loaded = loaded(content, &machine());
        let exporter = &loaded.config.process.exporter;
        assert!(exporter.is_served(), "{content}");
        assert_eq!(exporter.address, address, "{content}");
    }
}

#[test]
fn of_two_users_with_one_name_the_last_counts_and_the_warning_names_the_line_that_does_not() {
    let passwords = |content: &str, arguments: &[&str]| -> (Vec<String>, Vec<String>) {
        let (_folder, path) = written(content);
        let words = ["-c", &path].into_iter().chain(arguments.iter().copied());
        let loaded = match load_turnserver(words.map(OsString::from), &machine()) {
            Ok(Request::Run(loaded)) => loaded,
            other => panic!("{content}: {other:?}"),
        };
        let users = loaded.config.authentication.users.iter();
        let users = users.map(|user| {
            let secret = match &user.credential {
                Credential::Password(secret) => secret.expose(),
                Credential::Md5Key(_) => b"a key",
            };
            format!("{}:{}", user.name, String::from_utf8_lossy(secret))
        });
        let notes = loaded.notes.iter().map(Note::to_string);
        let notes = notes.filter(|note| note.contains("two users have this name"));
        let notes = notes.map(|note| note.replace(&path, "t.conf"));
        (users.collect(), notes.collect())
    };
    let told = |line: u32, name: &str| {
        format!(
            "t.conf:{line}: `user`: user `{name}`: two users have this name; the last one counts"
        )
    };
    let file = "user=alice:first\nuser=bob:only\nuser=alice:second\n";
    assert_eq!(
        passwords(file, &[]),
        (
            vec!["bob:only".to_owned(), "alice:second".to_owned()],
            vec![told(1, "alice")]
        )
    );
    assert_eq!(
        passwords(file, &["-u", "alice:third"]),
        (
            vec!["bob:only".to_owned(), "alice:third".to_owned()],
            vec![told(1, "alice"), told(3, "alice")]
        )
    );
    // Names that are one once they are prepared (RFC 8265 §4.2), and a key in place of a password.
    let key = "0x00112233445566778899aabbccddeeff";
    let file = format!("user=a\u{a0}b:first\nuser=a b:{key}\n");
    assert_eq!(
        passwords(&file, &[]),
        (vec!["a b:a key".to_owned()], vec![told(1, "a\\u{a0}b")])
    );
}

#[test]
fn of_two_files_the_last_one_counts() {
    let (_folder, path) = written("realm=second.example\n");
    let (config, notes) = read("realm=first.example\n", &["-c", &path]).expect("accepted");
    assert!(config.contains("second.example"), "{config}");
    assert!(
        notes
            .iter()
            .any(|note| note.contains("the last one counts")),
        "{notes:?}"
    );
}

#[test]
fn what_would_open_something_stays_refused() {
    for content in [
        "denied-peer-ip=10.0.0.x",
        "denied-peer-ip=$LAN",
        "allowed-peer-ip=$LAN",
        "listening-port=x",
        "fingerprint=maybe",
        "no-udp\nno-tcp",
    ] {
        assert!(read(&format!("{content}\n"), &[]).is_err(), "{content}");
    }
}

#[test]
fn the_line_that_opens_an_own_address_is_named() {
    let named = |content: &str| {
        says(
            &loaded(content, &machine()),
            &["`allowed-peer-ip=10.1.2.3`"],
        )
    };
    assert!(named(""));
    assert!(!named("allowed-peer-ip=10.1.2.3\n"));
    assert!(
        !named("allowed-peer-ip=10.0.0.0-10.255.255.255\n"),
        "a range lets it in too"
    );
    assert!(
        !named("denied-peer-ip=10.0.0.0-10.255.255.255\n"),
        "coturn would refuse it as well"
    );
}

#[test]
fn ranges_that_stay_denied_in_an_allowed_one_are_named() {
    let notes = |content: &str| -> Vec<String> {
        let notes = loaded(content, &machine()).notes;
        let notes = notes.into_iter().map(|note| note.text);
        notes.filter(|text| text.contains("although")).collect()
    };
    let [within] = &notes(
        "denied-peer-ip=10.9.0.0/16\ndenied-peer-ip=192.168.0.0/16\ndenied-peer-ip=10.1.1.1\n\
         allowed-peer-ip=10.0.0.0/8\n",
    )[..] else {
        panic!("one note")
    };
    assert!(
        within.contains("`allowed-peer-ip=10.0.0.0/8` has it: 10.9.0.0/16, 10.1.1.1; "),
        "{within}"
    );
    assert_eq!(
        notes("denied-peer-ip=10.9.9.9\nallowed-peer-ip=10.9.9.9\n").len(),
        1,
        "as wide"
    );
    assert!(notes("denied-peer-ip=10.0.0.0/8\nallowed-peer-ip=10.9.9.9\n").is_empty());
    // What is said is what the engine does.
    let rule = |action, range: &str| turnbuckle_engine::Rule {
        action,
        range: range.parse().expect("a range"),
    };
    let policy = turnbuckle_engine::Policy::new(turnbuckle_engine::PolicyRules {
        rules: vec![
            rule(turnbuckle_engine::Action::Allow, "10.0.0.0/8"),
            rule(turnbuckle_engine::Action::Deny, "10.9.0.0/16"),
        ],
        ..turnbuckle_engine::PolicyRules::coturn()
    });
    let is_open = |ip: [u8; 4]| policy.check((ip, 0).into()).is_ok();
    assert!(is_open([10, 8, 0, 1]) && !is_open([10, 9, 0, 1]));
}
