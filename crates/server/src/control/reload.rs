//! Reads the configuration again and applies what may change while the relay runs.
//!
//! Invariant: everything that can be wrong is found before anything changes. The keys of the [`KeyRing`](super::keys::KeyRing) stay, so no
//! nonce, ticket or cookie ends by a reload.

use std::sync::Arc;

use super::start::Started;
use crate::config::{self, Config, Edit, Effective, Entry, Group, Loaded, Machine, Note, Reloaded};
use crate::handle::{Attached, Events, ReloadReport, Reloading};
use crate::log::Output;
use crate::translate;

/// Reads a configuration again, given the one that holds, with the addresses that the machine has then. An error says what is wrong, one problem a
/// line.
type Source = Box<dyn Fn(&Loaded) -> Result<(Loaded, Machine), String> + Send>;

/// The configuration of a relay, and where it is read again from.
pub struct Configuration {
    loaded: Loaded,
    source: Option<Source>,
}

impl Configuration {
    /// Takes a configuration that `source` reads again.
    pub fn new(
        loaded: Loaded,
        source: impl Fn(&Loaded) -> Result<(Loaded, Machine), String> + Send + 'static,
    ) -> Self {
        Self {
            loaded,
            source: Some(Box::new(source)),
        }
    }

    /// Takes a configuration that cannot be read again.
    pub(super) fn fixed(config: Config) -> Self {
        Self {
            loaded: Loaded::of(config),
            source: None,
        }
    }

    /// Returns what holds.
    pub(super) fn running(&self) -> &Config {
        &self.loaded.config
    }

    /// Returns what holds, for what a relay has to go on with that it takes calls over from.
    pub(super) fn running_mut(&mut self) -> &mut Config {
        &mut self.loaded.config
    }

    /// Returns what holds key by key, secrets masked.
    pub(super) fn effective(&self) -> Vec<Effective> {
        config::effective(&self.loaded)
    }

    /// Reads the configuration again.
    fn read(&self) -> Result<(Reloaded, Vec<Note>), String> {
        let source = self.source.as_ref();
        let source = source.ok_or("this configuration was not read from anywhere")?;
        let (next, machine) = source(&self.loaded)?;
        let reloaded = config::reload(&self.loaded, &next, &machine);
        let reloaded = reloaded.map_err(|problems| problems.to_string())?;
        Ok((reloaded, next.notes))
    }
}

impl Started {
    /// Changes one key of the configuration that holds. What is read from the file later has its own value for it.
    ///
    /// # Errors
    ///
    /// What is wrong with the value. Nothing has changed then.
    pub(super) fn change(
        &mut self,
        edit: &Edit,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) -> Reloading {
        let machine = Machine::discover()
            .map_err(|error| format!("cannot read the addresses of this machine: {error}"))?;
        let reloaded = config::edit(&configuration.loaded, edit, &machine);
        let reloaded = reloaded.map_err(|problems| problems.to_string())?;
        let report = ReloadReport {
            changed: names(&reloaded.changed),
            restart_pending: self.counters.restart_pending(),
            notes: Vec::new(),
        };
        self.apply(reloaded, false, configuration, attached, out)?;
        Ok(report)
    }

    /// Reads the configuration again and, unless this is a dry run, applies it. What has come of it is said in the log.
    ///
    /// # Errors
    ///
    /// What is wrong with it, one problem a line. Nothing has changed then.
    pub(super) fn reload(
        &mut self,
        is_dry_run: bool,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) -> Reloading {
        let result = self.try_reload(is_dry_run, configuration, attached, out);
        if is_dry_run {
            return result;
        }
        // The log takes everything.
        let _ = match &result {
            Err(problems) => problems.lines().try_for_each(|problem| {
                writeln!(out, "error: configuration not changed: {problem}")
            }),
            Ok(report) => {
                for note in &report.notes {
                    let _ = writeln!(out, "warning: {note}");
                }
                writeln!(
                    out,
                    "configuration read again; changed: {}; after a restart: {}",
                    listed(&report.changed),
                    listed(&report.restart_pending)
                )
            }
        };
        result
    }

    fn try_reload(
        &mut self,
        is_dry_run: bool,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) -> Reloading {
        let (reloaded, notes) = configuration.read()?;
        let report = ReloadReport {
            changed: names(&reloaded.changed),
            restart_pending: names(&reloaded.pending),
            notes: notes.iter().map(Note::to_string).collect(),
        };
        self.apply(reloaded, is_dry_run, configuration, attached, out)?;
        if !is_dry_run {
            self.counters
                .set_restart_pending(report.restart_pending.clone());
        }
        Ok(report)
    }

    /// Looks for everything that can be wrong with a configuration, and has it hold unless this is a dry run.
    ///
    /// # Errors
    ///
    /// What is wrong with it. Nothing has changed then.
    fn apply(
        &mut self,
        reloaded: Reloaded,
        is_dry_run: bool,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) -> Result<(), String> {
        let Reloaded {
            loaded, changed, ..
        } = reloaded;
        let config = &loaded.config;
        let mut keys = self.keys.clone();
        let is_changed = |key: &str| changed.iter().any(|entry| entry.name == key);
        if is_changed("stateless-nonce-secret") {
            keys.follow(config);
        }
        let engine = translate::engine(config, &keys)?;
        let certificates = self.certificates.prepare(&config.tls)?;
        let next = attached.prepare(config)?;
        let has_same_outputs = config.log.has_same_outputs(&configuration.running().log);
        let outputs = (!has_same_outputs).then(|| out.prepare(config));
        let outputs = outputs.transpose()?;
        if is_dry_run {
            return Ok(());
        }
        if !changed.is_empty() {
            let has_same_users = changed
                .iter()
                .all(|entry| entry.group != Group::Authentication);
            let engine = Arc::new(engine);
            self.users
                .reconfigure(config, engine, has_same_users, &mut self.shards);
            // Without a database a command is answered behind them.
            self.users.publish(&self.shards);
            let serving = translate::serving(config, self.descriptors);
            self.shards.serve(&Arc::new(serving));
        }
        self.keys = keys;
        self.certificates.take(certificates, out);
        self.drain.set_allocations_left(config.limits.drained);
        if let Some(outputs) = outputs {
            out.take(outputs);
        }
        attached.take(next, self.events_for(attached, config), out);
        if is_changed("log-min-level") {
            out.set_level(config.log.level_min);
        }
        configuration.loaded = loaded;
        Ok(())
    }

    /// Has the shards make events if a configuration asks for them and they make none yet. Once begun they go on.
    fn events_for<A: Attached>(&mut self, _: &A, config: &Config) -> Option<Events> {
        if self.shards.are_told_of() || !A::wants_events(config) {
            return None;
        }
        let (outlets, events) = Events::channel(self.shards.all().len());
        self.shards.tell(outlets);
        Some(events)
    }
}

fn names(entries: &[&'static Entry]) -> Vec<&'static str> {
    entries.iter().map(|entry| entry.name).collect()
}

fn listed(keys: &[&str]) -> String {
    match keys {
        [] => "nothing".to_owned(),
        keys => keys.join(", "),
    }
}
