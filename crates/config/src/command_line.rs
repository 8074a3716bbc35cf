//! The command line, in coturn's manner: `--key value`, `--key=value`, `--flag`, `--flag=off`, and short letters.

use std::ffi::OsString;

use crate::file::{Setting, printable};
use crate::problem::{Origin, Problem};
use crate::table;
use crate::value::Kind;

/// The content of a command line.
#[derive(Debug, Default)]
pub(crate) struct CommandLine {
    pub(crate) settings: Vec<Setting>,
    pub(crate) file: Option<String>,
    pub(crate) no_file: bool,
    pub(crate) help: bool,
    pub(crate) version: bool,
}

/// The syntax that is allowed beside plain options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Manner {
    /// A bare argument names the file.
    pub(crate) names_file: bool,
    /// The beginning of a long option that no other one has stands for it, as with `getopt_long`.
    pub(crate) is_abbreviated: bool,
}

/// Reads arguments, the program's name left out.
pub(crate) fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    manner: Manner,
    problems: &mut Vec<Problem>,
) -> CommandLine {
    let mut found = CommandLine::default();
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut position = 0_usize;
    loop {
        let typed = match parser.next() {
            Ok(None) => break,
            Ok(Some(lexopt::Arg::Long(name))) => format!("--{name}"),
            Ok(Some(lexopt::Arg::Short(letter))) => format!("-{letter}"),
            Ok(Some(lexopt::Arg::Value(value))) => {
                position += 1;
                if manner.names_file && found.file.is_none() {
                    found.file = text(value, "file name", problems);
                } else {
                    let message = format!("argument {position} does not belong to an option");
                    problems.push(
                        Problem::unreadable(&Origin::CommandLine, message)
                            .hint("options begin with `--`"),
                    );
                }
                continue;
            }
            Err(error) => {
                problems.push(unexpected(&error));
                continue;
            }
        };
        option(&mut parser, typed, manner, &mut found, problems);
    }
    if found.no_file && found.file.is_some() {
        problems.push(Problem::new(
            &Origin::CommandLine,
            "-n",
            "says to read no file, and a file is named; give one of the two",
        ));
    }
    found
}

fn option(
    parser: &mut lexopt::Parser,
    typed: String,
    manner: Manner,
    found: &mut CommandLine,
    problems: &mut Vec<Problem>,
) {
    let key = match typed.strip_prefix("--") {
        Some(name) if manner.is_abbreviated => table::complete(name).to_owned(),
        Some(name) => name.to_owned(),
        None => match typed.chars().nth(1).and_then(table::by_letter) {
            Some(entry) => entry.name.to_owned(),
            None => typed.clone(),
        },
    };
    let Some(entry) = table::find(&key) else {
        // Whatever is attached belongs to the unknown option; the problem is reported where all keys are looked up.
        drop(parser.optional_value());
        found.settings.push(Setting {
            origin: Origin::CommandLine,
            typed,
            key,
            value: None,
        });
        return;
    };
    let is_long = typed.starts_with("--");
    let value = if entry.kind.takes_no_value() {
        // A letter without value may be followed by further letters: `-fa`.
        if is_long {
            parser.optional_value()
        } else {
            None
        }
    } else if manner.is_abbreviated && typed == "-A" {
        // Before it had values it was a flag.
        word(parser, entry.kind)
    } else {
        match following(parser, &typed, entry.kind, problems) {
            Some(value) => Some(value),
            None => return,
        }
    };
    let value = match value.map(|value| text(value, &typed, problems)) {
        Some(None) => return,
        Some(Some(value)) => Some(value),
        None => None,
    };
    match (entry.name, value) {
        ("help", _) => found.help = true,
        ("version", _) => found.version = true,
        ("no-config", _) => found.no_file = true,
        ("config", file @ Some(_)) if found.file.is_some() && manner.is_abbreviated => {
            problems.push(Problem::unreadable(
                &Origin::CommandLine,
                "a second file is named, and the last one counts",
            ));
            found.file = file;
        }
        ("config", Some(_)) if found.file.is_some() => {
            problems.push(Problem::new(
                &Origin::CommandLine,
                &typed,
                "a second file is named; allowed is one",
            ));
        }
        ("config", file) => found.file = file,
        (_, value) => found.settings.push(Setting {
            origin: Origin::CommandLine,
            typed,
            key,
            value,
        }),
    }
}

/// Returns the value of an option that needs one. The next argument is not taken if it is an option itself.
fn following(
    parser: &mut lexopt::Parser,
    typed: &str,
    kind: Kind,
    problems: &mut Vec<Problem>,
) -> Option<OsString> {
    if let Some(attached) = parser.optional_value() {
        return Some(attached);
    }
    let looks_like_option = |value: &OsString| {
        let name = value
            .to_str()
            .and_then(|value| value.strip_prefix("--"))
            .unwrap_or_default();
        table::find(name.split('=').next().unwrap_or_default()).is_some()
    };
    let next = parser
        .raw_args()
        .ok()
        .and_then(|mut rest| rest.next_if(|value| !looks_like_option(&value.to_owned())));
    if next.is_none() {
        let message = format!("needs a value; allowed: {}", kind.allowed());
        problems.push(Problem::new(&Origin::CommandLine, typed, message));
    }
    next
}

/// Returns the value of an option if it is one of the option's words.
fn word(parser: &mut lexopt::Parser, kind: Kind) -> Option<OsString> {
    if let Some(attached) = parser.optional_value() {
        return Some(attached);
    }
    let is_word =
        |value: &std::ffi::OsStr| value.to_str().is_some_and(|text| kind.parse(text).is_ok());
    let mut rest = parser.raw_args().ok()?;
    rest.next_if(is_word)
}

fn text(value: OsString, typed: &str, problems: &mut Vec<Problem>) -> Option<String> {
    match value.into_string() {
        Ok(value) => Some(value),
        Err(_) => {
            problems.push(Problem::new(
                &Origin::CommandLine,
                typed,
                "the value is not UTF-8",
            ));
            None
        }
    }
}

fn unexpected(error: &lexopt::Error) -> Problem {
    let origin = &Origin::CommandLine;
    match error {
        lexopt::Error::UnexpectedValue { option, .. } => {
            Problem::new(origin, &printable(option), "takes no value")
        }
        _ => Problem::unreadable(origin, "an option is not UTF-8"),
    }
}
