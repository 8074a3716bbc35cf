//! Commands on a database, with what they print and what they leave.

use super::turnadmin;

struct Turndb(tempfile::TempDir);

impl Turndb {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    /// Returns what the command prints and its exit code; complaints follow what was printed.
    fn run(&self, arguments: &str) -> (String, u8) {
        let file = self.0.path().join("turndb");
        let file = file.to_str().expect("UTF-8");
        run(&format!("-b {file} {arguments}"))
    }

    fn ok(&self, arguments: &str) -> String {
        let (text, code) = self.run(arguments);
        assert_eq!(code, 0, "{arguments}: {text}");
        text
    }
}

fn run(arguments: &str) -> (String, u8) {
    let (mut out, mut complaints) = (Vec::new(), Vec::new());
    let words = arguments.split(' ').map(Into::into);
    let code = turnadmin(words, &mut out, &mut complaints);
    out.extend(complaints);
    (String::from_utf8(out).expect("UTF-8"), code)
}

#[test]
fn users_are_added_changed_listed_and_deleted() {
    let db = Turndb::new();
    assert_eq!(
        db.ok("-a -u ninefingers -r north.gov -p youhavetoberealistic"),
        ""
    );
    db.ok("--add --user=gorst --realm=north.gov --password=wrong");
    db.ok("-p hero -r north.gov -u gorst -a");
    db.ok("-a -u whirrun -r crinna.org -p sword");
    assert_eq!(
        db.ok("-l"),
        "whirrun[crinna.org]\ngorst[north.gov]\nninefingers[north.gov]\n"
    );
    assert_eq!(
        db.ok("-l -r north.gov"),
        "gorst[north.gov]\nninefingers[north.gov]\n"
    );
    db.ok("-d -u gorst -r north.gov");
    db.ok("-d -u nobody -r north.gov");
    assert_eq!(
        db.ok("--list --realm north.gov"),
        "ninefingers[north.gov]\n"
    );
}

#[test]
fn keys_are_those_of_coturns_sample_rows() {
    for (arguments, key) in [
        (
            "-k -u ninefingers -r north.gov -p youhavetoberealistic",
            "0xbc807ee29df3c9ffa736523fb2c4e8ee",
        ),
        (
            "--key -u gorst -r north.gov -p hero",
            "0x7da2270ccfa49786e0115366d3a3d14d",
        ),
        (
            "-k -u whirrun -r crinna.org -p sword",
            "0x6972e85e51f36e53b0b61759c5a5219a",
        ),
        (
            "-k -u stranger-come-knocking -r crinna.org -p civilization",
            "0xd43cb678560259a1839bff61c19de15e",
        ),
        ("-k -u x -p y", "0xeaa8e90d10cc13439c489b205f5d0fa1"),
        (
            "-k -u xy -r r -p p\u{a0}p",
            "0x7244728d071de27c37b678a723b45104",
        ),
        (
            "-k -u x\u{ad}y -r r -p p\u{a0}p",
            "0x7244728d071de27c37b678a723b45104",
        ),
    ] {
        assert_eq!(run(arguments), (format!("{key}\n"), 0), "{arguments}");
    }
}

#[test]
fn secrets_origins_administrators_and_realm_options_have_coturns_lines() {
    let db = Turndb::new();
    db.ok("-s logen -r north.gov");
    db.ok("--set-secret bloody9 -r north.gov");
    db.ok("-s library -r crinna.org");
    assert_eq!(
        db.ok("-S"),
        "library[crinna.org]\nbloody9[north.gov]\nlogen[north.gov]\n"
    );
    db.ok("-X logen -r north.gov");
    assert_eq!(db.ok("-S -r north.gov"), "bloody9[north.gov]\n");
    db.ok("--delete-all-secrets -r north.gov");
    assert_eq!(db.ok("--show-secret"), "library[crinna.org]\n");

    db.ok("-O -o http://Crinna.ORG -r crinna.org");
    db.ok("-O -o https://north.gov/war -r north.gov");
    assert_eq!(
        db.ok("-I"),
        "http://crinna.org:80 ==>> crinna.org\nhttps://north.gov:443 ==>> north.gov\n"
    );
    assert_eq!(
        db.ok("-I -r north.gov"),
        "https://north.gov:443 ==>> north.gov\n"
    );
    for line in ["--list-origins", "--list-origins=x", "--list-origins x"] {
        assert_eq!(db.ok(line), db.ok("-I"), "{line}");
    }
    assert_eq!(
        db.ok("--list-origins -r north.gov"),
        "https://north.gov:443 ==>> north.gov\n"
    );
    db.ok("-R -o https://north.gov:443");
    assert_eq!(db.ok("-I"), "http://crinna.org:80 ==>> crinna.org\n");

    db.ok("-A -u bayaz -p magi");
    db.ok("-A -u skarling -p hoodless -r north.gov");
    assert_eq!(db.ok("-L"), "bayaz\nskarling[north.gov]\n");
    db.ok("-D -u bayaz");
    assert_eq!(db.ok("--list-admin"), "skarling[north.gov]\n");

    db.ok("-g -r north.gov --max-bps 500000 --user-quota 5");
    db.ok("--total-quota 7 -g -r crinna.org");
    let all = "total-quota[crinna.org]=7\nmax-bps[north.gov]=500000\nuser-quota[north.gov]=5\n";
    assert_eq!(db.ok("-G"), all);
    db.ok("-g -r north.gov --max-bps 0 --user-quota 6");
    assert_eq!(
        db.ok("--list-realm-options -r north.gov"),
        "user-quota[north.gov]=6\n"
    );
}

#[test]
fn of_several_commands_the_last_counts() {
    let db = Turndb::new();
    db.ok("-a -u a -r r -p p");
    db.ok("-s secret -r r");
    assert_eq!(db.ok("-S -l"), "a[r]\n");
}

#[test]
fn what_is_missing_or_wrong_is_said_with_exit_code_255() {
    let db = Turndb::new();
    for (arguments, expected) in [
        (
            "-a -u x -p y",
            "The operation cannot be completed: the realm must be set.\n",
        ),
        (
            "-a -p y -r r",
            "The operation cannot be completed: the user must be set.\n",
        ),
        (
            "-k -u x -r r",
            "The operation cannot be completed: the password must be set.\n",
        ),
        (
            "-O -r r",
            "The operation cannot be completed: the origin must be set.\n",
        ),
        (
            "-g -r r",
            "The operation cannot be completed: a realm option must be set.\n",
        ),
        (
            "-s sec",
            "The operation cannot be completed: the realm must be set.\n",
        ),
        (
            "-a -u a'b -r r -p x",
            "ERROR: Wrong user name structure or symbols, choose another name: a\\'b\n",
        ),
        (
            "-a -u a\u{7}b -r r -p x",
            "the user holds a control character\n",
        ),
        (
            "-g -r r --max-bps abc",
            "`abc` is not a number from 0 to 18446744073709551615\n",
        ),
        (
            "-J mongo://127.0.0.1 -l",
            "mongo-userdb: begins with neither `mongodb://` nor `mongodb+srv://`\n",
        ),
        (
            "-N hots=127.0.0.1 -l",
            "redis-userdb: key `hots` is unknown; keys are ip, port, dbname, user, password, connect_timeout, tls, ca, capath, cert, clientkey, sni, verify and their other names in coturn\n",
        ),
    ] {
        assert_eq!(db.run(arguments), (expected.to_owned(), 255), "{arguments}");
    }
    for (arguments, expected) in [
        ("-u x", "turnadmin: no command is given\n"),
        ("-Z", "turnadmin: invalid option '-Z'\n"),
        (
            "-l extra",
            "turnadmin: an argument does not belong to an option\n",
        ),
        ("-l -p", "turnadmin: option '-p' requires an argument\n"),
        ("-P", "turnadmin: -P needs a password\n"),
    ] {
        let (text, code) = db.run(arguments);
        assert_eq!(code, 255, "{arguments}");
        assert!(
            text.starts_with(expected) && text.contains("Usage: turnadmin"),
            "{arguments}: {text}"
        );
    }
    let (text, code) = run("-b /nonexistent/turndb -l");
    assert_eq!(
        (code, text.as_str()),
        (
            255,
            "user database /nonexistent/turndb: unable to open database file: /nonexistent/turndb\n"
        )
    );
}

#[test]
fn a_statement_in_a_value_is_a_value() {
    let db = Turndb::new();
    db.ok("-s a');delete/**/from/**/turn_secret;-- -r r'r");
    db.ok("-a -u u -r r'r -p p");
    assert_eq!(db.ok("-S"), "a');delete/**/from/**/turn_secret;--[r'r]\n");
    assert_eq!(db.ok("-l -r r'r"), "u[r'r]\n");
}

#[test]
fn help_names_every_option_and_the_lines_fit_a_terminal() {
    let (text, code) = run("-h");
    assert_eq!(code, 0);
    for name in [
        "--add",
        "--delete-all-secrets",
        "--list-origins",
        "--set-realm-option",
        "--verify",
        "--userdb",
        "--file-key-path",
    ] {
        assert!(text.contains(name), "{name}");
    }
    assert!(text.lines().all(|line| line.len() <= 104));
}
