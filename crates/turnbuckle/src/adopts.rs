//! `turnbuckle adopts`: whether this program could take over from the one that runs ([`turnbuckle_server::adopts`]).

use std::ffi::OsString;
use std::process::ExitCode;

use turnbuckle_server::config::{self, Machine, Problems, Request};

use crate::serve;

pub(crate) fn run(words: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let mut words = words.into_iter();
    let descriptor = words.next().unwrap_or_default();
    let name = words.next().unwrap_or_default();
    let options: Vec<_> = words.collect();
    let load = |machine: &Machine| -> Result<Request, Problems> {
        match name.to_str() {
            Some("turnserver") => config::load_successor(options, machine),
            _ => config::load(options, machine),
        }
    };
    let loaded = serve::again(load);
    let config = loaded.as_ref().map(|(loaded, _)| &loaded.config);
    let verdict =
        turnbuckle_server::adopts(&descriptor.to_string_lossy(), config.map_err(Clone::clone));
    crate::print(&format!("{verdict}\n"))?;
    Ok(ExitCode::SUCCESS)
}
