//! `turnbuckle check`: what a configuration amounts to, without running it.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_server::config::{self, Machine, Request};

const ABOUT: &str = "Reads FILE and options as `serve` would, says what they amount to and what differs from coturn, and runs nothing.\n\
                     Exit code 0: accepted, 1: refused. --json prints the report for programs.\n\n";

pub(crate) fn run(mut options: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let count = options.len();
    options.retain(|option| option != "--json");
    let as_json = options.len() < count;
    let machine = Machine::discover().context("cannot read the addresses of this machine")?;
    let result = match config::load_named(options, &machine) {
        Ok(Request::Run(loaded)) => Ok(loaded),
        Ok(Request::Help) => {
            crate::print(&format!(
                "{ABOUT}{}",
                config::help("turnbuckle check [FILE]", " [--json]", crate::width())
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        Ok(Request::Version) => {
            crate::print(&crate::version())?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(problems) => Err(problems),
    };
    let text = if as_json {
        format!("{:#}\n", config::report_json(&result))
    } else {
        config::report(&result)
    };
    crate::print(&text)?;
    Ok(if result.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
