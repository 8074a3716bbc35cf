//! From typed settings to the validated configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use crate::command_line::{self, CommandLine, Manner};
use crate::config::Config;
use crate::draft::Draft;
use crate::entry::{Entry, Support};
use crate::file::{self, Setting, printable};
use crate::findings::Findings;
use crate::finish::finish;
use crate::lenient;
use crate::machine::Machine;
use crate::persona::Persona;
use crate::problem::{Note, Origin, Problem, Problems};
use crate::search::find;
use crate::source::SourceFile;
use crate::table;
use crate::topics::{database, exporter};
use crate::value::{Kind, Value};

/// A configuration, and the notes made while it was read.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Notes for the operator.
    pub notes: Vec<Note>,
    /// Where keys were written, by key. Keys that were not written are absent.
    pub origins: Origins,
    /// What was written, in the order in which it was taken over.
    pub(crate) settings: Vec<Setting>,
    /// The file that was read, if there was one.
    pub(crate) file: Option<SourceFile>,
}

impl Loaded {
    /// Takes a configuration that was not read from anywhere.
    #[must_use]
    pub fn of(config: Config) -> Self {
        Self {
            config,
            notes: Vec::new(),
            origins: BTreeMap::new(),
            settings: Vec::new(),
            file: None,
        }
    }
}

/// Places of keys in files and on the command line, by key.
pub type Origins = BTreeMap<&'static str, Vec<Origin>>;

/// Returns the problem that a text tells which begins with a key, at the place where that key was written last. None if it was not written.
#[must_use]
pub fn placed(origins: &Origins, text: &str) -> Option<Problem> {
    let end = text.find([':', ' '])?;
    let (key, rest) = text.split_at(end);
    let origin = origins.get(key)?.last()?;
    Some(Problem::new(
        origin,
        key,
        rest.trim_start_matches([':', ' ']),
    ))
}

/// The action that a command line requests.
#[derive(Debug, Clone)]
pub enum Request {
    /// To go on with this configuration.
    Run(Box<Loaded>),
    /// To print the options.
    Help,
    /// To print the version.
    Version,
}

/// Reads the command line and the file it names, strictly. The program's and subcommand's names are not part of `arguments`.
///
/// # Errors
/// Everything that is wrong, not only the first thing.
pub fn load(
    arguments: impl IntoIterator<Item = OsString>,
    machine: &Machine,
) -> Result<Request, Problems> {
    load_from(arguments, Occasion::Start, machine)
}

/// Reads the command line as the server of this name does ([`load`], [`load_turnserver`]); a bare argument names the file, which has to be there.
///
/// # Errors
/// As there.
pub fn load_named(
    arguments: impl IntoIterator<Item = OsString>,
    persona: Persona,
    machine: &Machine,
) -> Result<Request, Problems> {
    match persona {
        Persona::Turnbuckle => load_from(arguments, Occasion::Check, machine),
        Persona::Turnserver => load_leniently(arguments, Occasion::Check, machine),
    }
}

/// Reads the command line and the file again, for a server that runs with `running`. What was read from a file then has to be readable now.
///
/// # Errors
/// As for the server of that name, and that the file cannot be read whole.
pub fn load_again(
    arguments: impl IntoIterator<Item = OsString>,
    running: &Loaded,
    machine: &Machine,
) -> Result<Request, Problems> {
    match running.config.persona {
        Persona::Turnbuckle => load_from(arguments, Occasion::Reload(running), machine),
        Persona::Turnserver => load_leniently(arguments, Occasion::Reload(running), machine),
    }
}

/// Reads the command line and the file as [`load_turnserver`] does, for a program that is to take calls over: a file that is named has to be there.
///
/// # Errors
/// As there.
pub fn load_successor(
    arguments: impl IntoIterator<Item = OsString>,
    machine: &Machine,
) -> Result<Request, Problems> {
    load_leniently(arguments, Occasion::Takeover, machine)
}

/// What a configuration is read for.
#[derive(Clone, Copy)]
enum Occasion<'a> {
    Start,
    /// To say what it amounts to. A bare argument names the file.
    Check,
    /// To go on with another program.
    Takeover,
    /// For the server that runs with this one.
    Reload(&'a Loaded),
}

impl<'a> Occasion<'a> {
    fn names_file(self) -> bool {
        matches!(self, Self::Check)
    }

    fn running(self) -> Option<&'a Loaded> {
        match self {
            Self::Reload(running) => Some(running),
            _ => None,
        }
    }

    /// Returns the file that is to be read again.
    fn before(self) -> Option<&'a SourceFile> {
        self.running().and_then(|running| running.file.as_ref())
    }
}

/// Reads the command line and the file as coturn does: it searches several places for the file, and ignores what it does not understand.
///
/// # Errors
/// Everything that even coturn refuses, and everything that would open access or lock everybody out if it were ignored.
pub fn load_turnserver(
    arguments: impl IntoIterator<Item = OsString>,
    machine: &Machine,
) -> Result<Request, Problems> {
    load_leniently(arguments, Occasion::Start, machine)
}

fn load_leniently(
    arguments: impl IntoIterator<Item = OsString>,
    occasion: Occasion<'_>,
    machine: &Machine,
) -> Result<Request, Problems> {
    let mut problems = Vec::new();
    let manner = Manner {
        names_file: occasion.names_file(),
        is_abbreviated: true,
    };
    let command_line = command_line::parse(arguments, manner, &mut problems);
    if command_line.help {
        return Ok(Request::Help);
    }
    if command_line.version {
        return Ok(Request::Version);
    }
    let mut draft = table::draft(Persona::Turnserver);
    let mut findings = Findings::new(Persona::Turnserver);
    findings.is_reload = occasion.running().is_some();
    // Arguments that belong to no option, and a file beside -n: coturn complains and goes on.
    let (passed_over, problems) = problems
        .into_iter()
        .partition::<Vec<_>, _>(|problem| problem.key.as_deref().is_none_or(|key| key == "-n"));
    findings.notes.extend(passed_over.into_iter().map(Note::of));
    findings.problems = problems;
    let CommandLine {
        settings,
        file,
        no_file,
        ..
    } = command_line;
    // coturn goes on without it, but whoever wants to know about a file has mistyped its name, and calls had its rules.
    if let Some(name) = file.as_deref()
        && matches!(occasion, Occasion::Check | Occasion::Takeover)
        && find(name).is_none()
    {
        let origin = Origin::File {
            path: name.into(),
            line: 0,
        };
        let problem = Problem::unreadable(&origin, "cannot be found");
        findings.problems.push(problem);
    }
    let mut from_file = Vec::new();
    let mut source = None;
    if !no_file {
        let name = file.as_deref().unwrap_or(lenient::DEFAULT_FILE);
        let before = occasion.before();
        // Another file that is found in the place of one that has gone has other rules.
        let path = before.map_or_else(|| find(name), |before| Some(before.path.clone()));
        match path {
            Some(path) => {
                if let Some((read, content)) = read(&path, before, &mut findings.problems) {
                    let path = path.display().to_string();
                    from_file = lenient::parse(&path, &content, &mut findings.notes);
                    source = Some(read);
                }
            }
            None => findings.notes.push(Note {
                is_error: false,
                origin: None,
                key: "config".to_owned(),
                text: format!(
                    "cannot find configuration file {name}; defaults and the command line hold"
                ),
            }),
        }
    }
    let mut settings: Vec<_> = from_file.into_iter().chain(settings).collect();
    let names_database = |setting: &Setting| {
        table::find(&setting.key).is_some_and(|entry| database::SOURCES.contains(&entry.name))
    };
    if let Some(path) = &machine.usual_database
        && !settings.iter().any(names_database)
    {
        settings.push(database::usual(path, &mut findings));
    }
    for setting in &settings {
        take_leniently(setting.clone(), &mut draft, &mut findings);
    }
    let loaded = complete(draft, findings, settings, machine)?;
    Ok(Request::Run(Box::new(Loaded {
        file: source,
        ..loaded
    })))
}

/// Builds the configuration of a server that runs from settings that were taken over before, each for itself.
///
/// # Errors
///
/// What is wrong with them together.
pub(crate) fn rebuild(
    persona: Persona,
    settings: Vec<Setting>,
    machine: &Machine,
) -> Result<Loaded, Problems> {
    let mut draft = table::draft(persona);
    let mut findings = Findings::new(persona);
    findings.is_reload = true;
    for setting in settings.iter().cloned() {
        if findings.is_lenient() {
            take_leniently(setting, &mut draft, &mut findings);
        } else if let Some(entry) = known(&setting, &mut findings.problems)
            && let Err(problem) = take(entry, setting, &mut draft, &mut findings)
        {
            findings.problems.push(problem);
        }
    }
    complete(draft, findings, settings, machine)
}

/// Takes one setting over; the last one of a key counts.
fn take_leniently(mut setting: Setting, draft: &mut Draft, findings: &mut Findings) {
    let Some(entry) = table::find(&setting.key) else {
        let mut found = Vec::new();
        known(&setting, &mut found);
        // coturn prints its usage for an option that it does not know, and passes over a line of the file. Units and images that give an option
        // which it had once still start.
        match setting.origin {
            Origin::CommandLine if table::removed(&setting.key).is_none() => {
                findings.problems.extend(found);
            }
            Origin::Command => findings.problems.extend(found),
            _ => findings.notes.extend(found.into_iter().map(|problem| Note {
                is_error: false,
                text: format!("Bad configuration format: {}", problem.said()),
                ..Note::of(problem)
            })),
        }
        return;
    };
    // Of a command coturn's leniency would make something else than was said.
    let is_command = setting.origin == Origin::Command;
    if !is_command {
        lenient::adapt(entry, &mut setting, &mut findings.notes);
    }
    // So says the unit of Debian's package.
    if entry.name == "pidfile" && setting.value.as_deref().is_some_and(str::is_empty) {
        draft.process.settings.pid_file = None;
        return;
    }
    // To have none of its own, as some write.
    if entry.name == "tls-listening-port" && setting.value.as_deref() == Some("0") {
        draft.tls.port = 0;
        findings.notes.push(Note {
            is_error: false,
            origin: Some(setting.origin),
            key: setting.typed,
            text:
                "0 is no port: there is none for TLS alone, and TLS is served on `listening-port`"
                    .to_owned(),
        });
        return;
    }
    if let Err(problem) = take(entry, setting, draft, findings) {
        if lenient::is_fatal(entry) || is_command {
            findings.problems.push(problem);
        } else if entry.name == exporter::ADDRESS {
            // Passed over, it would be the default: every address of the machine.
            draft.process.metrics_address = exporter::GivenAddress::unusable(problem);
        } else {
            findings.notes.push(Note {
                is_error: false,
                text: format!("passed over: {}", problem.message),
                ..Note::of(problem)
            });
        }
    }
}

fn load_from(
    arguments: impl IntoIterator<Item = OsString>,
    occasion: Occasion<'_>,
    machine: &Machine,
) -> Result<Request, Problems> {
    let mut problems = Vec::new();
    let manner = Manner {
        names_file: occasion.names_file(),
        is_abbreviated: false,
    };
    let command_line = command_line::parse(arguments, manner, &mut problems);
    if command_line.help {
        return Ok(Request::Help);
    }
    if command_line.version {
        return Ok(Request::Version);
    }
    let CommandLine { settings, file, .. } = command_line;
    let mut from_file = Vec::new();
    let mut source = None;
    if let Some(path) = file {
        let before = occasion.before();
        if let Some((read, content)) = read(Path::new(&path), before, &mut problems) {
            from_file = file::parse(&path, &content, &mut problems);
            source = Some(read);
        }
    }
    let loaded = assemble(from_file, settings, problems, machine)?;
    Ok(Request::Run(Box::new(Loaded {
        file: source,
        ..loaded
    })))
}

/// Builds a configuration from the content of a file alone. Messages call the file `path`.
///
/// # Errors
/// Everything that is wrong, not only the first thing.
pub fn from_text(path: &str, content: &[u8], machine: &Machine) -> Result<Loaded, Problems> {
    let mut problems = Vec::new();
    let settings = file::parse(path, content, &mut problems);
    assemble(settings, Vec::new(), problems, machine)
}

/// Reads a file: for the first time, or again if it was read `before`.
fn read(
    path: &Path,
    before: Option<&SourceFile>,
    problems: &mut Vec<Problem>,
) -> Option<(SourceFile, Vec<u8>)> {
    let result = match before {
        Some(before) => before.read_again(),
        None => SourceFile::read(path),
    };
    let origin = Origin::File {
        path: path.display().to_string().into(),
        line: 0,
    };
    result
        .map_err(|message| problems.push(Problem::unreadable(&origin, message)))
        .ok()
}

/// Takes the settings of the file first, then those of the command line, which override them (repeatable keys add up).
fn assemble(
    file: Vec<Setting>,
    command_line: Vec<Setting>,
    problems: Vec<Problem>,
    machine: &Machine,
) -> Result<Loaded, Problems> {
    let mut draft = table::draft(Persona::Turnbuckle);
    let mut findings = Findings::new(Persona::Turnbuckle);
    findings.problems = problems;
    let mut settings = Vec::with_capacity(file.len() + command_line.len());
    for source in [file, command_line] {
        let mut seen: BTreeMap<&'static str, Origin> = BTreeMap::new();
        for setting in source {
            let Some(entry) = known(&setting, &mut findings.problems) else {
                continue;
            };
            if !entry.is_repeatable
                && let Some(first) = seen.insert(entry.name, setting.origin.clone())
            {
                let place = if first == Origin::CommandLine {
                    String::new()
                } else {
                    format!(" (first at {first})")
                };
                let message = format!("is given twice{place}; allowed once");
                findings
                    .problems
                    .push(Problem::new(&setting.origin, &setting.typed, message));
                continue;
            }
            settings.push(setting.clone());
            if let Err(problem) = take(entry, setting, &mut draft, &mut findings) {
                findings.problems.push(problem);
            }
        }
    }
    complete(draft, findings, settings, machine)
}

/// Completes the configuration, unless something is wrong with it.
fn complete(
    draft: Draft,
    mut findings: Findings,
    settings: Vec<Setting>,
    machine: &Machine,
) -> Result<Loaded, Problems> {
    let config = finish(draft, machine, &mut findings);
    let Findings {
        origins,
        mut problems,
        notes,
        ..
    } = findings;
    if !problems.is_empty() {
        // Stable: problems of one place stay in the order in which they were found.
        problems.sort_by(|one, other| one.origin.cmp(&other.origin));
        return Err(Problems(problems));
    }
    Ok(Loaded {
        config,
        notes,
        origins,
        settings,
        file: None,
    })
}

fn known(setting: &Setting, problems: &mut Vec<Problem>) -> Option<&'static Entry> {
    if let Some(entry) = table::find(&setting.key) {
        return Some(entry);
    }
    let shown = printable(&setting.typed);
    let problem = match table::removed(&setting.key) {
        Some(explanation) => {
            Problem::new(&setting.origin, &shown, "is a key of old coturn versions")
                .hint(explanation)
        }
        None => Problem::new(&setting.origin, &shown, "is not a known key")
            .hint(table::suggest(&setting.key)),
    };
    problems.push(problem);
    None
}

/// Takes one setting over into the draft.
fn take(
    entry: &'static Entry,
    setting: Setting,
    draft: &mut Draft,
    findings: &mut Findings,
) -> Result<(), Problem> {
    let refuse = |message: String| Problem::new(&setting.origin, &setting.typed, message);
    match entry.support {
        Support::Works => {
            let (text, value) = read_value(entry, &setting)?;
            table::take(entry, &value, &setting.origin, draft, &mut findings.notes)
                .map_err(|message| wrong(entry, &setting, &text, &message))?;
        }
        Support::Only { values, otherwise } => {
            let (text, value) = read_value(entry, &setting)?;
            let written = if let Value::Flag(flag) = value {
                flag.to_string()
            } else {
                text
            };
            if !values.contains(&written.as_str()) {
                let (written, allowed) = (shorten(&written), values.join(", "));
                return Err(refuse(format!(
                    "`{written}` is refused: {otherwise}; allowed: {allowed}"
                )));
            }
        }
        Support::NoEffect(why) => {
            read_value(entry, &setting)?;
            let text = format!("accepted without effect: {why}");
            findings.notes.push(Note {
                is_error: false,
                origin: Some(setting.origin.clone()),
                key: setting.typed.clone(),
                text,
            });
        }
        Support::NotYet(what) => {
            return Err(refuse(format!("{what} not implemented yet")).hint("remove the line"));
        }
        Support::Refused(why) => {
            return Err(refuse(format!("refused: {why}")).hint("remove the line"));
        }
        Support::CommandLine => {
            return Err(
                refuse("belongs on the command line, not in a file".to_owned())
                    .hint("remove the line"),
            );
        }
    }
    findings
        .origins
        .entry(entry.name)
        .or_default()
        .push(setting.origin);
    Ok(())
}

/// Returns the setting's text, or the text that its absence means, and its value.
fn read_value(entry: &Entry, setting: &Setting) -> Result<(String, Value), Problem> {
    let text = match (setting.value.as_deref(), entry.kind) {
        (None | Some(""), Kind::OptionalInteger { .. }) => entry.values.default.to_owned(),
        (None, Kind::Flag) => String::new(),
        (None, kind) => {
            let message = format!("needs a value; allowed: {}", kind.allowed());
            return Err(Problem::new(&setting.origin, &setting.typed, message));
        }
        (Some(text), _) => text.to_owned(),
    };
    match entry.kind.parse(&text) {
        Ok(value) => Ok((text, value)),
        Err(message) => Err(wrong(entry, setting, &text, &message)),
    }
}

/// Says what is wrong with a value, without repeating it if it may be a secret.
fn wrong(entry: &Entry, setting: &Setting, text: &str, message: &str) -> Problem {
    let shown = if entry.is_secret {
        "the value".to_owned()
    } else {
        format!("`{}`", shorten(text))
    };
    let message = format!("{shown} {message}; allowed: {}", entry.kind.allowed());
    Problem::new(&setting.origin, &setting.typed, message)
}

/// Returns at most 60 characters of a value, control characters escaped.
fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(60).flat_map(char::escape_debug).collect();
    if text.chars().nth(60).is_some() {
        short.push_str("...");
    }
    short
}
