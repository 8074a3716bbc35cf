//! `turnbuckle serve`: the relay in the foreground.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_control::Controller;
use turnbuckle_server::Sink;
use turnbuckle_server::config::{self, Machine, Request};

pub(crate) fn run(options: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let machine = Machine::discover().context("cannot read the addresses of this machine")?;
    let loaded = match config::load(options, &machine) {
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
    let config = &loaded.config;
    let mut out = Sink::open(&config.log, &config.process, config.persona).context("log-file")?;
    turnbuckle_server::serve(&loaded.config, &mut out, Controller)?;
    Ok(ExitCode::SUCCESS)
}
