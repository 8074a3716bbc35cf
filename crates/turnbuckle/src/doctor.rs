//! `turnbuckle doctor`: what this machine offers a configuration.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_server::config::{self, Machine, Persona, Request};

const ABOUT: &str = "Reads FILE and options as `serve` would, and says what this machine offers for them: kernel, BPF compiler, capabilities, network\n\
                     devices, ports and descriptors. Changes nothing. Run it as root, in the network namespace of the relay.\n\
                     Exit code 0: all that the configuration insists on works, 1: not all of it, 2: the configuration is refused. --json prints the\n\
                     findings, and the facts behind them, for programs.\n\n";
/// Exit code for a configuration that is refused.
const REFUSED: u8 = 2;

pub(crate) fn run(mut options: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let count = options.len();
    options.retain(|option| option != "--json");
    let as_json = options.len() < count;
    let machine = Machine::discover().context("cannot read the addresses of this machine")?;
    let loaded = match config::load_named(options, Persona::Turnbuckle, &machine) {
        Ok(Request::Run(loaded)) => loaded,
        Ok(Request::Help) => {
            crate::print(&format!(
                "{ABOUT}{}",
                config::help("turnbuckle doctor [FILE]", " [--json]", crate::width())
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        Ok(Request::Version) => {
            crate::print(&crate::version())?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(problems) => {
            writeln!(io::stderr(), "{problems}")?;
            return Ok(ExitCode::from(REFUSED));
        }
    };
    let examination = turnbuckle_server::examine(&loaded.config);
    let text = match as_json {
        true => format!("{:#}\n", examination.json()),
        false => examination.text(),
    };
    crate::print(&text)?;
    Ok(match examination.is_good() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
