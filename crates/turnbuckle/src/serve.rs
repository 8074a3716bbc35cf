//! `turnbuckle serve`: the relay in the foreground.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_control::Controller;
use turnbuckle_server::config::{self, Loaded, Machine, Problems, Request};
use turnbuckle_server::{Configuration, Sink};

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
    for note in &loaded.notes {
        writeln!(io::stderr(), "note: {note}")?;
    }
    if let Some(code) = turnbuckle_server::detach(&loaded.config.process)? {
        return Ok(ExitCode::from(code));
    }
    let settings = &loaded.config;
    let mut out =
        Sink::open(&settings.log, &settings.process, settings.persona).context("log-file")?;
    let configuration = Configuration::new(*loaded, move || {
        again(|machine| config::load(options.clone(), machine))
    });
    turnbuckle_server::serve_and_reload(configuration, &mut out, Controller)?;
    Ok(ExitCode::SUCCESS)
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
