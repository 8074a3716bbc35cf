//! What `turnbuckle check` opens: the files and devices that a start opens, as far as opening them changes nothing.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;

use super::certificates::FollowedCertificates;
use super::devices::probe_devices;
use super::keys::KeyRing;
use crate::config::{Config, Persona};
use crate::log::Sink;
use crate::{binding, process, translate};

/// Says what would end a start with this configuration, but for addresses and ports that others have. Each text begins with a key.
#[must_use]
pub fn rehearse(config: &Config) -> Vec<String> {
    let results = [
        process::exists(&config.process),
        probe_devices(config),
        relay_addresses(config),
        log_file(config),
        FollowedCertificates::load(&mut config.clone(), &mut io::sink())
            .map(drop)
            .map_err(|error| error.to_string()),
        translate::engine(config, &KeyRing::new(config)).map(drop),
    ];
    results.into_iter().filter_map(Result::err).collect()
}

/// Says at which relay address no socket can be opened. `turnserver` goes on without it.
fn relay_addresses(config: &Config) -> Result<(), String> {
    if config.persona == Persona::Turnserver {
        return Ok(());
    }
    let why = binding::unusable(config).into_iter().next();
    why.map_or(Ok(()), |why| {
        Err(format!(
            "relay-ip: {why}; allowed: addresses of this machine"
        ))
    })
}

/// Says why a log file that is named could not be written to. `turnserver` goes on without it.
fn log_file(config: &Config) -> Result<(), String> {
    let Some(file) = config.log.file.as_deref() else {
        return Ok(());
    };
    if config.persona == Persona::Turnserver {
        return Ok(());
    }
    let result = match fs::metadata(file) {
        Ok(found) if found.is_file() => OpenOptions::new().append(true).open(file).map(drop),
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // A pipe, or a terminal.
        Ok(_) => Ok(()),
        Err(_) => {
            let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
            fs::read_dir(folder.unwrap_or_else(|| Path::new("."))).map(drop)
        }
    };
    result.map_err(|error| Sink::why_not(&config.log, &error))
}
