//! Every option of coturn in every form in which coturn takes it, read as `turnserver` reads it.

use std::ffi::OsString;

use super::super::entry::Status;
use super::super::*;
use super::keys::companion;
use super::machine;

/// A file with this content, which is there as long as its directory.
fn written(content: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("t.conf");
    std::fs::write(&path, content).expect("written");
    let path = path.to_str().expect("UTF-8").to_owned();
    (folder, path)
}

/// What the file `content` and `arguments` amount to, and what is said about them.
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
            note.contains("::ffff:0.0.0.0/96 is about IPv4-mapped forms")
                && note.contains("such as 0.0.0.0/0")
        });
        assert!(is_told, "{key}: {notes:?}");
        let (_, notes) = read(&format!("user=a:b\n{key}=10.0.0.1\n"), &[]).expect("read");
        assert!(!notes.iter().any(|note| note.contains("mapped")));
    }
}

/// coturn's options that work, each with a value that is not the default.
fn working() -> impl Iterator<Item = (&'static Entry, String)> {
    let coturns = entries().filter(|entry| !entry.row.is_empty() && !entry.is_command_line());
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
        "relay-threads" | "cpus" => "3",
        "rest-api-separator" => "|",
        _ => "",
    };
    match (entry.kind, entry.default) {
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
const UNCHANGED: [&str; 7] = [
    "alt-listening-port",
    "alt-tls-listening-port",
    "lt-cred-mech",
    "use-auth-secret",
    "cert",
    "pkey",
    "syslog-facility",
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
    // Their files are not on this machine, they say what holds anyway, or count only beside another option.
    assert_eq!(unchanged, UNCHANGED);
}

#[test]
fn what_is_not_served_is_named_with_the_reason_and_passed_over_or_refused() {
    for entry in entries().filter(|entry| !entry.row.is_empty() && !entry.is_working()) {
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
