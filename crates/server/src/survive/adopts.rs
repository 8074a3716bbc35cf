//! Whether this program could take over from the one that runs: what `turnbuckle adopts` says to the keeper that has started it. It reads and changes
//! nothing.

use std::collections::HashMap;
use std::fs::File;

use serde_json::json;
use turnbuckle_engine::{Change, RelayProtocol, Transport};
use turnbuckle_sys::keeper::duplicate;

use super::handed::Handed;
use crate::config::{Config, Survive};
use crate::journal::Segments;
use crate::journal::segment::Recorded;
use crate::process;
use crate::tls::Certificates;

/// How often a journal is read that is begun anew meanwhile.
const ATTEMPTS_MAX: usize = 10;

/// What becomes of allocations in an upgrade.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    all: u64,
    waiting: u64,
    ending: u64,
}

/// Says in a line of JSON whether a relay with this configuration could take over what the descriptor of this number names, and why not. An error is
/// the refusal of the configuration.
pub fn adopts(descriptor: &str, config: Result<&Config, String>) -> String {
    let verdict = config.and_then(|config| look(descriptor, config));
    match verdict {
        Ok(count) => json!({
            "adopts": true,
            "version": env!("CARGO_PKG_VERSION"),
            "allocations": count.all,
            "waiting": count.waiting,
            "ending": count.ending,
        }),
        Err(why) => json!({ "adopts": false, "why": why }),
    }
    .to_string()
}

fn look(descriptor: &str, config: &Config) -> Result<Count, String> {
    let handed = Handed::read(descriptor)?;
    fits(&handed, config)?;
    process::exists(&config.process)?;
    if config.tls.is_spoken() {
        Certificates::load(&config.tls)?;
    }
    let before = handed.before(|number| Ok(File::from(duplicate(number)?)));
    let before = before.map_err(|error| error.to_string())?;
    let mut count = Count::default();
    for (index, journal) in before.journals.iter().enumerate() {
        let recorded = read(journal)
            .map_err(|why| format!("the journal of shard {index} is not used: {why}"))?;
        count.add(&recorded.changes);
    }
    Ok(count)
}

/// Returns whether a relay with this configuration can be what was handed over is for.
///
/// # Errors
///
/// Why not.
pub(super) fn fits(handed: &Handed, config: &Config) -> Result<(), String> {
    if config.process.survive == Survive::Off {
        return Err("survive is off in the configuration as it is now".to_owned());
    }
    let (before, now) = (handed.shards(), config.datapath.shards.get());
    if before != usize::from(now) {
        return Err(format!(
            "relay-threads is {now} in the configuration as it is now, and the relay has {before}"
        ));
    }
    Ok(())
}

fn read(journal: &Segments) -> Result<Recorded, String> {
    let mut read = journal.read();
    for _ in 1..ATTEMPTS_MAX {
        if read.is_ok() {
            break;
        }
        read = journal.read();
    }
    read
}

impl Count {
    /// Adds the allocations on record.
    fn add(&mut self, changes: &[Change]) {
        let mut held_by_allocation = HashMap::new();
        for change in changes {
            match change {
                Change::Created(created) => {
                    let held = Held {
                        transport: created.path.transport,
                        is_mobile: created.brought.is_mobile,
                        has_tcp_relays: created.protocol == RelayProtocol::Tcp,
                    };
                    held_by_allocation.insert(created.allocation, held);
                }
                Change::Moved(moved) => {
                    if let Some(held) = held_by_allocation.get_mut(&moved.allocation) {
                        held.transport = moved.path.transport;
                    }
                }
                Change::Ended(ended) => {
                    held_by_allocation.remove(&ended.allocation);
                }
                _ => {}
            }
        }
        for held in held_by_allocation.into_values() {
            self.all += 1;
            match (held.transport, held.is_mobile) {
                _ if held.has_tcp_relays => self.ending += 1,
                (Transport::Udp, _) => {}
                (_, true) => self.waiting += 1,
                (_, false) => self.ending += 1,
            }
        }
    }
}

/// What decides what becomes of an allocation.
struct Held {
    transport: Transport,
    is_mobile: bool,
    has_tcp_relays: bool,
}
