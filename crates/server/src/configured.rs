//! Configurations for tests.

use std::ffi::OsString;

use crate::config::{Config, Machine, Request, load};

/// Returns what options of the command line make on this machine, with a user beside theirs.
pub(crate) fn configured(options: &[&str]) -> Config {
    configured_on(&Machine::discover().unwrap(), options)
}

/// The same on another machine.
pub(crate) fn configured_on(machine: &Machine, options: &[&str]) -> Config {
    let options = [&["--user=a:b"], options].concat();
    match load(options.into_iter().map(OsString::from), machine) {
        Ok(Request::Run(loaded)) => loaded.config,
        _ => panic!("a whole configuration"),
    }
}
