//! `turnadmin` beside Debian's: what one writes the other reads, in both directions, and both print the same.

use std::path::{Path, PathBuf};
use std::process::Command;

mod not_run;

use not_run::not_run;

const DEBIANS: &str = "/usr/bin/turnadmin";

/// Commands that change the database, in their order.
const CHANGES: [&str; 14] = [
    "-a -u ninefingers -r north.gov -p youhavetoberealistic",
    "-a -u gorst -r north.gov -p hero",
    "-a -u gorst -r north.gov -p another",
    "--add --user=whirrun --realm=crinna.org --password=sword",
    "-a -u o.k-1_2:3@x -r north.gov -p p",
    "-s logen -r north.gov",
    "--set-secret=bloody9 --realm north.gov",
    "-s library -r crinna.org",
    "-O -o HTTP://Crinna.ORG -r crinna.org",
    "--add-origin --origin https://north.gov/war --realm north.gov",
    "-A -u admin -p secret",
    "--add-admin -u local -p secret -r north.gov",
    "-g -r north.gov --max-bps 500000 --total-quota 20 --user-quota=7",
    "--set-realm-option -r crinna.org --max-bps=1000",
];

/// Commands that take some of it away again.
const REMOVALS: [&str; 8] = [
    "-d -u gorst -r north.gov",
    "--delete -u nobody -r north.gov",
    "-X logen -r north.gov",
    "--delete-all-secrets -r crinna.org",
    "-R -o https://north.gov:443",
    "-D -u local",
    "-g -r crinna.org --max-bps 0",
    "-g -r north.gov --user-quota 0",
];

/// Commands that print what is there.
const LISTS: [&str; 12] = [
    "-l",
    "-l -r north.gov",
    "--list --realm=nowhere",
    "-S",
    "-S -r north.gov",
    "--show-secret",
    "-I",
    "-I -r crinna.org",
    "-L",
    "--list-admin",
    "-G",
    "-G -r north.gov",
];

/// Commands without a database.
const OTHERS: [&str; 3] = [
    "-k -u gorst -r north.gov -p hero",
    "--key --user=gorst --realm=north.gov --password=hero",
    "-k -r north.gov -p hero -u stranger-come-knocking",
];

struct Tool<'a> {
    program: PathBuf,
    folder: &'a Path,
}

impl Tool<'_> {
    /// Returns the lines of the result, without those of the log, and the exit code.
    fn run(&self, arguments: &str) -> (Vec<String>, Option<i32>) {
        let output = Command::new(&self.program)
            .args(arguments.split(' '))
            .current_dir(self.folder)
            .output()
            .expect("it runs");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let is_log = |line: &&str| {
            let after = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
            line.is_empty() || (after.len() < line.len() && after.starts_with(": "))
        };
        let lines = text.lines().filter(|line| !is_log(line));
        (lines.map(str::to_owned).collect(), output.status.code())
    }

    fn on(&self, file: &str, arguments: &str) -> (Vec<String>, Option<i32>) {
        self.run(&format!("-b {file} {arguments}"))
    }
}

#[test]
fn what_one_writes_the_other_reads_and_both_print_the_same() {
    if !Path::new(DEBIANS).exists() {
        not_run(&format!("{DEBIANS} is not installed"));
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let link = folder.path().join("turnadmin");
    let binary = env!("CARGO_BIN_EXE_turnbuckle");
    std::os::unix::fs::symlink(binary, &link).expect("linked");
    let tool = |program: PathBuf| Tool {
        program,
        folder: folder.path(),
    };
    let (ours, debians) = (tool(link), tool(DEBIANS.into()));
    for (file, writer, remover) in [
        ("by-ours", &ours, &debians),
        ("by-debians", &debians, &ours),
    ] {
        let agree = |when: &str| -> Vec<Vec<String>> {
            LISTS
                .iter()
                .map(|list| {
                    let (mut our_lines, our_code) = ours.on(file, list);
                    let (mut their_lines, their_code) = debians.on(file, list);
                    // Debian's has no order where it asks for all realms.
                    our_lines.sort();
                    their_lines.sort();
                    assert_eq!(our_lines, their_lines, "{file}, {when}: {list}");
                    assert_eq!(our_code, their_code, "{file}, {when}: {list}");
                    our_lines
                })
                .collect()
        };
        for change in CHANGES {
            assert_eq!(writer.on(file, change).1, Some(0), "{file}: {change}");
        }
        let lists = agree("written");
        assert_eq!(lists[0].len(), 4, "{lists:?}");
        assert_eq!(lists[3].len(), 3, "{lists:?}");
        assert_eq!(lists[6].len(), 2, "{lists:?}");
        assert_eq!(lists[8].len(), 2, "{lists:?}");
        assert_eq!(lists[10].len(), 4, "{lists:?}");
        for removal in REMOVALS {
            assert_eq!(remover.on(file, removal).1, Some(0), "{file}: {removal}");
        }
        let lists = agree("taken away");
        assert_eq!(lists[0].len(), 3, "{lists:?}");
        assert_eq!(lists[3].len(), 1, "{lists:?}");
        assert_eq!(lists[6].len(), 1, "{lists:?}");
        assert_eq!(lists[8].len(), 1, "{lists:?}");
    }
    for command in OTHERS {
        assert_eq!(ours.run(command), debians.run(command), "{command}");
    }
}

/// RFC 8656 §6: the server stores the key and not the password. What is written to the database is all that a server ever has of a user there.
//= TURN-017
#[test]
fn a_database_has_a_users_key_and_not_its_password() {
    let folder = tempfile::tempdir().expect("a directory");
    let link = folder.path().join("turnadmin");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_turnbuckle"), &link).expect("linked");
    let ours = Tool {
        program: link,
        folder: folder.path(),
    };
    let (_, code) = ours.on("users", "-a -u gorst -r north.gov -p youhavetoberealistic");
    assert_eq!(code, Some(0));
    let (key, _) = ours.run("-k -u gorst -r north.gov -p youhavetoberealistic");
    let key = key.concat();
    let key = key.trim_start_matches("0x");
    assert_eq!(key.len(), 32, "an MD5 sum: {key}");
    let mut files = 0;
    for file in std::fs::read_dir(folder.path()).expect("a directory") {
        let path = file.expect("an entry").path();
        if path.is_symlink() {
            continue;
        }
        let bytes = std::fs::read(&path).expect("a file");
        let has = |text: &str| bytes.windows(text.len()).any(|it| it == text.as_bytes());
        assert!(!has("youhavetoberealistic"), "{}", path.display());
        files += usize::from(has(key));
    }
    assert_eq!(files, 1, "the key is in the database");
}
