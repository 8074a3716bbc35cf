//! `turnserver`: the relay by coturn's command line.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_control::Controller;
use turnbuckle_server::config::{self, Loaded, Log, Machine, Persona, Process, Request, Survive};
use turnbuckle_server::{Configuration, Sink, Survival};

use crate::serve;

/// Exit code of coturn for a command line that it refuses.
const REFUSED: u8 = 255;

pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    // By this name `killall` and init scripts look for the process; started again to be a daemon it would have the binary's own.
    let _ = rustix::thread::set_name(c"turnserver");
    let machine = Machine::discover().context("cannot read the addresses of this machine")?;
    let arguments: Vec<_> = arguments.collect();
    let loaded = match config::load_turnserver(arguments.clone(), &machine) {
        Ok(Request::Run(loaded)) => loaded,
        Ok(Request::Help) => {
            crate::print(&config::help("turnserver", "", crate::width()))?;
            return Ok(ExitCode::SUCCESS);
        }
        Ok(Request::Version) => {
            crate::print(&version())?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(problems) => {
            writeln!(
                io::stderr(),
                "{problems}\nturnserver: refused; `turnserver -h` lists the options"
            )?;
            return Ok(ExitCode::from(REFUSED));
        }
    };
    if let Some(code) = turnbuckle_server::detach(&loaded.config.process)? {
        return Ok(ExitCode::from(code));
    }
    let config = loaded.config.clone();
    if config.process.survive != Survive::Off {
        // A keeper has one thread alone.
        machine.names.settle();
    }
    turnbuckle_server::say_panics_at_once();
    let code = turnbuckle_server::survive(&config, move |survival| {
        relay(*loaded, arguments, survival).unwrap_or_else(|error| {
            // Nothing is left to be said if standard error is gone too.
            let _ = writeln!(io::stderr(), "turnserver: {error:#}");
            1
        })
    });
    Ok(ExitCode::from(code.context("survive")?))
}

fn relay(
    loaded: Loaded,
    arguments: Vec<OsString>,
    survival: Option<Survival>,
) -> anyhow::Result<u8> {
    let source = move |running: &Loaded| {
        serve::again(|machine| config::load_again(arguments.clone(), running, machine))
    };
    let loaded = serve::present(loaded, survival.as_ref(), &source)?;
    let (mut out, complaint) = open_log(&loaded.config.log, &loaded.config.process)?;
    if let Some(complaint) = complaint {
        writeln!(out, "error: {complaint}")?;
    }
    if let Some(path) = out.path() {
        writeln!(out, "log file opened: {}", path.display())?;
    }
    for note in &loaded.notes {
        let level = match note.is_error {
            true => "error",
            false => "warning",
        };
        writeln!(out, "{level}: {note}")?;
    }
    let configuration = Configuration::new(loaded, source);
    match turnbuckle_server::serve_and_reload(configuration, survival, &mut out, Controller) {
        Ok(_) => Ok(0),
        Err(error) => {
            writeln!(io::stderr(), "turnserver: {error}")?;
            // Of a daemon this is all that remains.
            writeln!(out, "error: {error}")?;
            Ok(REFUSED)
        }
    }
}

/// Opens the log, and says what is wrong with its file: like coturn it goes to standard output alone then.
fn open_log(settings: &Log, process: &Process) -> anyhow::Result<(Sink, Option<String>)> {
    let error = match Sink::open(settings, process, Persona::Turnserver) {
        Ok(sink) => return Ok((sink, None)),
        Err(error) => error,
    };
    let file = settings
        .file
        .as_deref()
        .unwrap_or_else(|| Path::new(""))
        .display();
    let complaint = format!("Cannot open log file for writing: {file}: {error}");
    let settings = Log {
        file: None,
        usual_file: false,
        to_stdout: true,
        ..settings.clone()
    };
    let sink = Sink::open(&settings, process, Persona::Turnserver).context("log-file")?;
    Ok((sink, Some(complaint)))
}

/// Returns the version of coturn whose options these are, which scripts compare, and our own.
fn version() -> String {
    format!(
        "{} ({})\n",
        config::COTURN_VERSION,
        crate::version().trim_end()
    )
}
