//! `turnbuckle check`: what a configuration amounts to, without running it.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use turnbuckle_server::config::{
    self, Loaded, Machine, Origin, Persona, Problem, Problems, Request,
};

const ABOUT: &str = "Reads FILE and options as `serve` would, opens the files and devices that it would open, says what is to be noted and what is\n\
                     written, and runs nothing. --all prints the defaults too, and which of them differ from coturn's.\n\
                     --as turnserver reads them as the program of that name would, which takes coturn's files; --as turnbuckle is the default.\n\
                     Exit code 0: accepted, 1: refused. --json prints the report for programs.\n\n";

pub(crate) fn run(mut options: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let mut take = |word: &str| {
        let count = options.len();
        options.retain(|option| option != word);
        options.len() < count
    };
    let (as_json, all) = (take("--json"), take("--all"));
    let persona = take_persona(&mut options)?;
    let machine = Machine::discover().context("cannot read the addresses of this machine")?;
    let result = match config::load_named(options, persona, &machine) {
        Ok(Request::Run(loaded)) => rehearsed(loaded),
        Ok(Request::Help) => {
            crate::print(&format!(
                "{ABOUT}{}",
                config::help(
                    "turnbuckle check [FILE]",
                    " [--as NAME] [--all] [--json]",
                    crate::width()
                )
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
        config::report(&result, all)
    };
    crate::print(&text)?;
    let certificate = result
        .as_ref()
        .ok()
        .filter(|_| !as_json)
        .and_then(|loaded| turnbuckle_server::examine_certificate(&loaded.config));
    if let Some(line) = certificate {
        let line = line.unwrap_or_else(|why| format!("warning: {why}"));
        crate::print(&format!("{line}\n"))?;
    }
    Ok(if result.is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Opens what a start would open.
fn rehearsed(loaded: Box<Loaded>) -> Result<Box<Loaded>, Problems> {
    let problems: Vec<_> = turnbuckle_server::rehearse(&loaded.config)
        .into_iter()
        .map(|message| {
            config::placed(&loaded.origins, &message).unwrap_or(Problem {
                origin: Origin::CommandLine,
                key: None,
                message,
                hint: None,
            })
        })
        .collect();
    match problems.is_empty() {
        true => Ok(loaded),
        false => Err(Problems(problems)),
    }
}

/// Takes `--as NAME` out of the options. Returns under which name they are to be read.
fn take_persona(options: &mut Vec<OsString>) -> anyhow::Result<Persona> {
    let mut persona = Persona::default();
    while let Some(index) = options.iter().position(|option| {
        let option = option.as_encoded_bytes();
        option == b"--as" || option.starts_with(b"--as=")
    }) {
        let option = options.remove(index);
        let name = match option.to_str().and_then(|option| option.split_once('=')) {
            Some((_, name)) => name.into(),
            None if index < options.len() => options.remove(index),
            None => OsString::new(),
        };
        let found = Persona::NAMES.iter().find(|(known, _)| name == *known);
        persona = found
            .map(|(_, persona)| *persona)
            .context("--as: allowed are turnbuckle and turnserver")?;
    }
    Ok(persona)
}
