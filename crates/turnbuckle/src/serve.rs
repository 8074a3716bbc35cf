//! `turnbuckle serve`: the relay in the foreground.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_control::Controller;
use turnbuckle_server::config::{self, Loaded, Machine, Origins, Problems, Request, Survive};
use turnbuckle_server::{Configuration, Sink, Survival};

pub(crate) fn run(options: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let machine = Machine::discover().context("cannot read the addresses of this machine")?;
    let loaded = match config::load(options.clone(), &machine) {
        Ok(Request::Run(loaded)) => loaded,
        Ok(Request::Help) => {
            crate::print(&config::help("turnbuckle serve", "", crate::width()))?;
            return Ok(ExitCode::SUCCESS);
        }
        Ok(Request::Version) => {
            crate::print(&crate::version())?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(problems) => {
            writeln!(
                io::stderr(),
                "{problems}\nconfiguration refused; `turnbuckle options KEY` explains a key"
            )?;
            return Ok(ExitCode::FAILURE);
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
        match relay(*loaded, options, survival) {
            Ok(()) => 0,
            Err(error) => {
                // Nothing is left to be said if standard error is gone too.
                let _ = writeln!(io::stderr(), "turnbuckle: {error:#}");
                1
            }
        }
    });
    Ok(ExitCode::from(code.context("survive")?))
}

fn relay(loaded: Loaded, options: Vec<OsString>, survival: Option<Survival>) -> anyhow::Result<()> {
    let source = move |running: &Loaded| {
        again(|machine| config::load_again(options.clone(), running, machine))
    };
    let loaded = present(loaded, survival.as_ref(), &source)?;
    let settings = &loaded.config;
    let origins = loaded.origins.clone();
    let mut out = Sink::open(&settings.log, &settings.process, settings.persona)
        .map_err(|error| placed(&origins, Sink::why_not(&settings.log, &error)))?;
    for note in &loaded.notes {
        writeln!(out, "note: {note}")?;
    }
    let configuration = Configuration::new(loaded, source);
    turnbuckle_server::serve_and_reload(configuration, survival, &mut out, Controller)
        .map_err(|error| placed(&origins, error.to_string()))?;
    Ok(())
}

/// Adds where the key was written that an error begins with.
fn placed(origins: &Origins, error: String) -> anyhow::Error {
    match config::placed(origins, &error) {
        Some(problem) => anyhow::Error::msg(problem.to_string()),
        None => anyhow::Error::msg(error),
    }
}

/// Returns the configuration of a relay: what was `loaded`, or, where a relay has been before, what is read now. What that one had read again
/// went with it, and rules that have become stricter since are to hold. A user that was made up keeps the password that its clients have.
///
/// # Errors
///
/// The configuration is refused.
pub(crate) fn present(
    loaded: Loaded,
    survival: Option<&Survival>,
    source: &impl Fn(&Loaded) -> Result<(Loaded, Machine), String>,
) -> anyhow::Result<Loaded> {
    let Some(survival) = survival else {
        return Ok(loaded);
    };
    let mut loaded = match survival.has_predecessor() {
        true => source(&loaded).map_err(anyhow::Error::msg)?.0,
        false => loaded,
    };
    if let Some(password) = survival.made_up_password() {
        let authentication = &mut loaded.config.authentication;
        authentication.keep_made_up_password(password);
    }
    Ok(loaded)
}

/// Reads a configuration again while the relay runs. An error has one problem a line.
pub(crate) fn again(
    load: impl FnOnce(&Machine) -> Result<Request, Problems>,
) -> Result<(Loaded, Machine), String> {
    let machine = Machine::discover()
        .map_err(|error| format!("cannot read the addresses of this machine: {error}"))?;
    match load(&machine) {
        Ok(Request::Run(loaded)) => Ok((*loaded, machine)),
        Ok(Request::Help | Request::Version) => {
            Err("the command line asks for no relay".to_owned())
        }
        Err(problems) => Err(problems.to_string()),
    }
}
