//! `turnserver`: the relay by coturn's command line.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_server::Sink;
use turnbuckle_server::config::{self, Machine, Request};

/// Exit code of coturn for a command line that it refuses.
const REFUSED: u8 = 255;

pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    // By this name `killall` and init scripts look for the process; started again to be a daemon it would have the binary's own.
    let _ = rustix::thread::set_name(c"turnserver");
    let machine = Machine::discover().context("cannot read the addresses of this machine")?;
    let loaded = match config::load_turnserver(arguments, &machine) {
        Ok(Request::Run(loaded)) => loaded,
        Ok(Request::Help) => {
            crate::print(&config::help("turnserver", "", crate::width()))?;
            return Ok(ExitCode::SUCCESS);
        }
        Ok(Request::Version) => {
            crate::print(&crate::version())?;
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
    let mut out = Sink::open(&loaded.config.log).context("log-file")?;
    if let Some(path) = out.path() {
        writeln!(out, "log file opened: {}", path.display())?;
    }
    for note in &loaded.notes {
        writeln!(out, "warning: {note}")?;
    }
    turnbuckle_server::serve(&loaded.config, &mut out)?;
    Ok(ExitCode::SUCCESS)
}
