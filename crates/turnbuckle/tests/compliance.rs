//! docs/rfc/compliance.md: which test shows that which requirement of the RFCs is met.
//!
//! A test names the requirements it shows in comments of the form `//= STUN-042`, one or several ids, before it or inside it. The requirements are in
//! docs/rfc/requirements.tsv, and what is not met as written, with its status and the reason, in docs/rfc/exceptions.tsv. `scripts/compliance` writes
//! the page.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on ends, and files that cannot be read end it"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Tests of one cell; the page says how many more there are.
const SHOWN_MAX: usize = 2;
/// Marks a comment that names a requirement.
const MARK: &str = "//= ";
/// Rows of the threat model and of the failure modes, which tests name in the same way.
const OTHER_LISTS: [&str; 2] = ["V-", "F-"];
/// What may become of a requirement, in the order of the page's columns. The last three take a reason.
const STATUSES: [&str; 5] = [
    "tested on the wire",
    "tested in the engine",
    "not applicable",
    "other behaviour",
    "exception",
];
/// Where in [`STATUSES`] those begin that take a reason.
const REASONED: usize = 2;

/// One thing that an RFC asks of a server.
struct Requirement {
    id: String,
    rfc: String,
    section: String,
    level: String,
    text: String,
}

impl Requirement {
    /// Returns the letters before the dash.
    fn kind(&self) -> &str {
        kind(&self.id)
    }
}

/// A test that names a requirement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Citation {
    /// Of the file, from the top of the repository.
    path: String,
    test: String,
}

impl Citation {
    /// Returns whether the test talks to a server, or a socket, as a client does; otherwise it calls the engine, the codec, or a part of the server.
    fn is_on_the_wire(&self) -> bool {
        let is_black_box = [
            "crates/turnbuckle/tests/",
            "crates/datapath/tests/",
            "interop/",
        ];
        is_black_box
            .iter()
            .any(|folder| self.path.starts_with(folder))
    }
}

#[test]
fn the_compliance_page_is_current_and_names_requirements_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| fs::read_to_string(root.join("docs/rfc").join(name)).unwrap();
    let requirements = requirements(&read("requirements.tsv"));
    let exceptions = exceptions(&read("exceptions.tsv"));
    let citations = all_citations(&root);
    for id in citations.keys().chain(exceptions.keys()) {
        let is_known = requirements
            .iter()
            .any(|known| known.id == *id || known.kind() == id);
        let is_other = OTHER_LISTS.iter().any(|list| id.starts_with(list));
        assert!(
            is_known || is_other,
            "{id} is no requirement: {:?}",
            citations.get(id)
        );
    }
    for requirement in &requirements {
        let has_status = status(requirement, &exceptions, &citations).is_some();
        let id = &requirement.id;
        assert!(has_status, "{id} has neither a test nor a reason");
    }
    let page = page(&requirements, &exceptions, &citations);
    let path = root.join("docs/rfc/compliance.md");
    if std::env::var_os("TURNBUCKLE_WRITE").is_some() {
        fs::write(&path, page).unwrap();
        return;
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "run scripts/compliance");
}

#[test]
fn a_comment_belongs_to_the_test_that_follows_or_the_one_it_is_in() {
    let text = "fn helper() {}\n//= STUN-001\n//= STUN-002\n/// Why.\n#[test]\nfn the_first() {\n    x();\n    \
                //= STUN-003\n    y();\n}\n//= STUN-004 STUN-005\n#[test]\nfn the_second() {}\n";
    let found = citations("a.rs", text);
    let names = |id: &str| {
        found
            .iter()
            .filter(|(cited, _)| cited == id)
            .map(|(_, citation)| citation.test.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("STUN-001"), ["the_first"]);
    assert_eq!(names("STUN-002"), ["the_first"]);
    assert_eq!(names("STUN-003"), ["the_first"]);
    assert_eq!(names("STUN-004"), ["the_second"]);
    assert_eq!(names("STUN-005"), ["the_second"]);
}

#[test]
fn a_reason_comes_before_a_test_and_without_either_there_is_no_status() {
    let requirement = |id: &str| Requirement {
        id: id.to_owned(),
        rfc: String::new(),
        section: String::new(),
        level: String::new(),
        text: String::new(),
    };
    let table = "STUN-1\tother behaviour\tSomething else is done here.\nUDPX\texception\tIt is not served at all here.\n";
    let exceptions = exceptions(table);
    let test = |path: &str| Citation {
        path: path.to_owned(),
        test: String::new(),
    };
    let (engine, wire) = (test("crates/engine/a.rs"), test("interop/a.py"));
    let citations = BTreeMap::from([
        ("STUN-1".to_owned(), vec![wire.clone()]),
        ("STUN-2".to_owned(), vec![engine.clone()]),
        ("STUN-3".to_owned(), vec![engine, wire]),
    ]);
    let status = |id: &str| {
        let (status, reason) = status(&requirement(id), &exceptions, &citations)?;
        Some((STATUSES[status], reason))
    };
    assert_eq!(
        status("STUN-1"),
        Some(("other behaviour", "Something else is done here."))
    );
    assert_eq!(status("STUN-2"), Some(("tested in the engine", "")));
    assert_eq!(status("STUN-3"), Some(("tested on the wire", "")));
    assert_eq!(status("STUN-4"), None);
    assert_eq!(
        status("UDPX-1"),
        Some(("exception", "It is not served at all here."))
    );
}

fn kind(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

/// Returns the lines of a table, without comments.
fn lines(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').collect())
}

fn requirements(table: &str) -> Vec<Requirement> {
    lines(table)
        .map(|fields| match fields[..] {
            [id, rfc, section, level, text] => Requirement {
                id: id.to_owned(),
                rfc: rfc.to_owned(),
                section: section.to_owned(),
                level: level.to_owned(),
                text: text.to_owned(),
            },
            _ => panic!("five fields: {fields:?}"),
        })
        .collect()
}

/// Why a requirement is not met as written.
struct Exception {
    /// Index in [`STATUSES`].
    status: usize,
    reason: String,
}

/// Returns the exceptions by id or kind.
fn exceptions(table: &str) -> BTreeMap<String, Exception> {
    lines(table)
        .map(|fields| match fields[..] {
            [id, status, reason] if reason.len() > 20 => {
                let known = STATUSES.iter().position(|known| *known == status);
                let status = known.filter(|&known| known >= REASONED);
                let exception = Exception {
                    status: status.unwrap_or_else(|| panic!("no status: {fields:?}")),
                    reason: reason.to_owned(),
                };
                (id.to_owned(), exception)
            }
            _ => panic!("an id, a status and a reason: {fields:?}"),
        })
        .collect()
}

/// Returns which of [`STATUSES`] a requirement has, with the reason where it takes one. A test beside a reason shows what is done instead.
fn status<'a>(
    requirement: &Requirement,
    exceptions: &'a BTreeMap<String, Exception>,
    citations: &BTreeMap<String, Vec<Citation>>,
) -> Option<(usize, &'a str)> {
    let found = exceptions.get(&requirement.id);
    let found = found.or_else(|| exceptions.get(requirement.kind()));
    if let Some(exception) = found {
        return Some((exception.status, &exception.reason));
    }
    let tests = citations.get(&requirement.id)?;
    let is_on_the_wire = tests.iter().any(Citation::is_on_the_wire);
    Some((usize::from(!is_on_the_wire), ""))
}

/// Returns who names what in the sources of all crates and the tests with real clients.
fn all_citations(root: &Path) -> BTreeMap<String, Vec<Citation>> {
    let mut files = Vec::new();
    for folder in ["crates", "interop"] {
        sources(&root.join(folder), &mut files);
    }
    let mut all: BTreeMap<String, Vec<Citation>> = BTreeMap::new();
    for file in files {
        let path = file.strip_prefix(root).unwrap().to_str().unwrap();
        // The examples of this file are none of its own.
        if path.ends_with("tests/compliance.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        for (id, citation) in citations(path, &text) {
            all.entry(id).or_default().push(citation);
        }
    }
    for citations in all.values_mut() {
        citations.sort();
        citations.dedup();
    }
    all
}

fn sources(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_source = path
            .extension()
            .is_some_and(|extension| extension == "rs" || extension == "py");
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            sources(&path, files);
        } else if is_source {
            files.push(path);
        }
    }
}

/// Returns the ids that a file names, each with the test that shows it.
fn citations(path: &str, text: &str) -> Vec<(String, Citation)> {
    let mut found = Vec::new();
    let mut waiting = Vec::new();
    let mut current = String::new();
    for line in text
        .lines()
        .map(|line| line.trim_start().replacen("#= ", MARK, 1))
    {
        if let Some(ids) = line.strip_prefix(MARK) {
            waiting.extend(ids.split_whitespace().map(str::to_owned));
            continue;
        }
        if line.starts_with("//") || line.starts_with("#[") || line.starts_with('@') {
            continue;
        }
        if let Some(name) = function(&line) {
            name.clone_into(&mut current);
        }
        for id in waiting.drain(..) {
            let citation = Citation {
                path: path.to_owned(),
                test: current.clone(),
            };
            found.push((id, citation));
        }
    }
    found
}

/// Returns the name of the function whose definition begins in this line.
fn function(line: &str) -> Option<&str> {
    let words = ["pub ", "pub(crate) ", "async ", "const "];
    let mut rest = line;
    while let Some(shorter) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = shorter;
    }
    let rest = rest
        .strip_prefix("fn ")
        .or_else(|| rest.strip_prefix("def "))?;
    rest.split(['(', '<']).next()
}

fn page(
    requirements: &[Requirement],
    exceptions: &BTreeMap<String, Exception>,
    citations: &BTreeMap<String, Vec<Citation>>,
) -> String {
    let mut text = String::from(
        "# What the RFCs ask of a server, and which test shows it\n\n\
         `scripts/compliance` writes this page from the comments `//= ID` of the tests and from [requirements.tsv](requirements.tsv) and \
         [exceptions.tsv](exceptions.tsv); a test fails when it is not current, and when a requirement has neither a test nor a reason.\n\n\
         *Tested on the wire*: a client talks to the server by a socket. *Tested in the engine*: the engine, the codec or a part of the server \
         is called. *Not applicable*: the requirement is about something that this server does not have. *Other behaviour*: it does something \
         else on purpose, or only when asked to. *Exception*: the requirement applies and is not met. Tests beside one of these three show \
         what is done instead.\n\n",
    );
    let mut kinds: Vec<&str> = Vec::new();
    for requirement in requirements {
        if !kinds.contains(&requirement.kind()) {
            kinds.push(requirement.kind());
        }
    }
    let none = Vec::new();
    let status = |requirement| status(requirement, exceptions, citations).unwrap_or((REASONED, ""));
    let _ = writeln!(
        text,
        "| | requirements | {} |\n|---|---|---|---|---|---|---|",
        STATUSES.join(" | ")
    );
    let mut sums = [0; STATUSES.len()];
    for &kind in &kinds {
        let mut counts = [0; STATUSES.len()];
        for requirement in requirements.iter().filter(|one| one.kind() == kind) {
            let (status, _) = status(requirement);
            counts[status] += 1;
            sums[status] += 1;
        }
        row(&mut text, kind, counts);
    }
    row(&mut text, "all", sums);
    for kind in kinds {
        let _ = write!(
            text,
            "\n## {kind}\n\n| id | RFC § | level | requirement | status | in the engine | on the wire |\n|---|---|---|---|---|---|---|\n"
        );
        for requirement in requirements.iter().filter(|one| one.kind() == kind) {
            let Requirement {
                id,
                rfc,
                section,
                level,
                text: what,
            } = requirement;
            let what = what.replace('|', "\\|");
            let tests = citations.get(id).unwrap_or(&none).iter();
            let (wire, engine): (Vec<_>, Vec<_>) = tests.partition(|test| test.is_on_the_wire());
            let (status, reason) = status(requirement);
            let colon = if reason.is_empty() { "" } else { ": " };
            let _ = writeln!(
                text,
                "| {id} | {rfc} {section} | {level} | {what} | {}{colon}{reason} | {} | {} |",
                STATUSES[status],
                cell(&engine),
                cell(&wire)
            );
        }
    }
    text
}

fn row(text: &mut String, kind: &str, counts: [usize; STATUSES.len()]) {
    let all: usize = counts.iter().sum();
    let counts = counts.map(|count| count.to_string()).join(" | ");
    let _ = writeln!(text, "| {kind} | {all} | {counts} |");
}

/// Returns the first tests of a cell, and how many more there are.
fn cell(tests: &[&Citation]) -> String {
    let shown = tests.iter().take(SHOWN_MAX).map(|test| {
        let words = test.test.replace('_', " ");
        format!("[{words}](../../{})", test.path)
    });
    let mut text = shown.collect::<Vec<_>>().join("<br>");
    if tests.len() > SHOWN_MAX {
        let _ = write!(text, "<br>and {} more", tests.len() - SHOWN_MAX);
    }
    text
}
