//! docs/rfc/compliance.md: which test shows that which requirement of the RFCs is met.
//!
//! A test names the requirements it shows in comments of the form `//= STUN-042`, one or several ids, before it or inside it. The requirements are in
//! docs/rfc/requirements.tsv, and what is not done, with the reason, in docs/rfc/exceptions.tsv. `scripts/compliance` writes the page.

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
/// Exceptions that are allowed besides those for CONNECT-UDP.
const EXCEPTIONS_MAX: usize = 5;

/// One thing that an RFC asks of a server.
struct Requirement {
    id: String,
    rfc: String,
    section: String,
    level: String,
    text: String,
}

impl Requirement {
    /// The letters before the dash.
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
    /// Whether the test talks to a server, or a socket, as a client does; otherwise it calls the engine, the codec, or a part of the server.
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
    let excused = requirements.iter().filter(|requirement| {
        requirement.kind() != "UDPX"
            && exception(requirement, &exceptions).is_some()
            && !citations.contains_key(&requirement.id)
    });
    assert!(excused.count() <= EXCEPTIONS_MAX, "too many exceptions");
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

fn kind(id: &str) -> &str {
    id.split('-').next().unwrap_or(id)
}

/// The lines of a table, without comments.
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

/// Reasons by id or kind.
fn exceptions(table: &str) -> BTreeMap<String, String> {
    lines(table)
        .map(|fields| match fields[..] {
            [id, reason] => (id.to_owned(), reason.to_owned()),
            _ => panic!("two fields: {fields:?}"),
        })
        .collect()
}

fn exception<'a>(
    requirement: &Requirement,
    exceptions: &'a BTreeMap<String, String>,
) -> Option<&'a str> {
    let found = exceptions.get(&requirement.id);
    let found = found.or_else(|| exceptions.get(requirement.kind()));
    found.map(String::as_str)
}

/// Who names what in the sources of all crates and the tests with real clients.
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

/// The ids that a file names, each with the test that shows it.
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

/// The name of the function whose definition begins in this line.
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
    exceptions: &BTreeMap<String, String>,
    citations: &BTreeMap<String, Vec<Citation>>,
) -> String {
    let mut text = String::from(
        "# What the RFCs ask of a server, and which test shows it\n\n\
         `scripts/compliance` writes this page from the comments `//= ID` of the tests and from [requirements.tsv](requirements.tsv) and \
         [exceptions.tsv](exceptions.tsv); a test fails when it is not current. *In the crates*: the engine, the codec or a part of the server is \
         called. *On the wire*: a client talks to the server by a socket. *open*: no test shows it yet.\n\n",
    );
    let mut kinds: Vec<&str> = Vec::new();
    for requirement in requirements {
        if !kinds.contains(&requirement.kind()) {
            kinds.push(requirement.kind());
        }
    }
    let none = Vec::new();
    let cited = |requirement: &Requirement| citations.get(&requirement.id).unwrap_or(&none);
    let is_open = |requirement: &Requirement| {
        cited(requirement).is_empty() && exception(requirement, exceptions).is_none()
    };
    text.push_str("| | requirements | in the crates | on the wire | exceptions | open |\n|---|---|---|---|---|---|\n");
    let mut sums = [0; 5];
    for &kind in &kinds {
        let of_kind = || requirements.iter().filter(|one| one.kind() == kind);
        let counts = [
            of_kind().count(),
            of_kind()
                .filter(|one| cited(one).iter().any(|test| !test.is_on_the_wire()))
                .count(),
            of_kind()
                .filter(|one| cited(one).iter().any(Citation::is_on_the_wire))
                .count(),
            of_kind()
                .filter(|one| cited(one).is_empty() && !is_open(one))
                .count(),
            of_kind().filter(|one| is_open(one)).count(),
        ];
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
        row(&mut text, kind, counts);
    }
    row(&mut text, "all", sums);
    for kind in kinds {
        let _ = write!(
            text,
            "\n## {kind}\n\n| id | RFC § | level | requirement | in the crates | on the wire |\n|---|---|---|---|---|---|\n"
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
            let (wire, crates): (Vec<_>, Vec<_>) = cited(requirement)
                .iter()
                .partition(|test| test.is_on_the_wire());
            let (crates, wire) = match exception(requirement, exceptions) {
                Some(reason) if crates.is_empty() && wire.is_empty() => {
                    (format!("exception: {reason}"), String::new())
                }
                None if crates.is_empty() && wire.is_empty() => ("open".to_owned(), String::new()),
                _ => (cell(&crates), cell(&wire)),
            };
            let _ = writeln!(
                text,
                "| {id} | {rfc} {section} | {level} | {what} | {crates} | {wire} |"
            );
        }
    }
    text
}

fn row(text: &mut String, kind: &str, counts: [usize; 5]) {
    let [all, crates, wire, excused, open] = counts;
    let _ = writeln!(
        text,
        "| {kind} | {all} | {crates} | {wire} | {excused} | {open} |"
    );
}

/// The first tests of a cell, and how many more there are.
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
