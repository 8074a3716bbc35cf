//! Reads the configuration again and applies what may change while the relay runs.
//!
//! Invariant: everything that can be wrong is found before anything changes. The keys of the [`KeyRing`](super::keys::KeyRing) stay, so no
//! nonce, ticket or cookie ends by a reload.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};

use super::events::Event;
use super::start::Started;
use crate::config::{self, Config, Edit, Effective, Entry, Group, Loaded, Machine, Note, Reloaded};
use crate::handle::{Attached, Events, ReloadReport, Reloading, Reply};
use crate::log::Output;
use crate::translate;

/// Reads a configuration again, given the one that holds, with the addresses that the machine has then. An error says what is wrong, one problem a
/// line.
type Source = Arc<dyn Fn(&Loaded) -> Result<(Loaded, Machine), String> + Send + Sync>;

/// The configuration of a relay, and where it is read again from. One change is read at a time.
pub struct Configuration {
    loaded: Loaded,
    source: Option<Source>,
    is_reading: bool,
    /// What has been read, one at a time.
    read: (Sender<Prepared>, Receiver<Prepared>),
    /// Changes to be read after the present one.
    waiting: VecDeque<Wish>,
}

/// A change of the configuration that somebody wants.
pub(super) enum Wish {
    /// Read it again, on a signal without a reply.
    Reload {
        is_dry_run: bool,
        reply: Option<Reply<Reloading>>,
    },
    /// Change one key.
    Change(Edit, Reply<Reloading>),
}

/// A change that has been read, and not applied yet.
struct Prepared {
    wish: Wish,
    result: Result<(Reloaded, Vec<Note>), String>,
}

impl Configuration {
    /// Takes a configuration that `source` reads again.
    pub fn new(
        loaded: Loaded,
        source: impl Fn(&Loaded) -> Result<(Loaded, Machine), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            source: Some(Arc::new(source)),
            ..Self::of(loaded)
        }
    }

    /// Takes a configuration that cannot be read again.
    pub(super) fn fixed(config: Config) -> Self {
        Self::of(Loaded::of(config))
    }

    fn of(loaded: Loaded) -> Self {
        Self {
            loaded,
            source: None,
            is_reading: false,
            read: channel(),
            waiting: VecDeque::new(),
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

    /// Begins to read what is wished, or notes it for later. It is read on a thread of its own, because files and host names may keep it waiting;
    /// then comes an [`Event::ConfigurationRead`].
    pub(super) fn prepare(&mut self, wish: Wish, events: &SyncSender<Event>) {
        if self.is_reading {
            self.waiting.push_back(wish);
            return;
        }
        self.is_reading = true;
        let (running, source) = (self.loaded.clone(), self.source.clone());
        let (prepared, events) = (self.read.0.clone(), events.clone());
        let work = move || {
            let read = || match &wish {
                Wish::Reload { .. } => read(&running, source.as_ref()),
                Wish::Change(edit, _) => edited(&running, edit),
            };
            let result = catch_unwind(AssertUnwindSafe(read))
                .unwrap_or_else(|_| Err("reading the configuration failed".to_owned()));
            let _ = prepared.send(Prepared { wish, result });
            let _ = events.send(Event::ConfigurationRead);
        };
        let thread = std::thread::Builder::new().name("configuration".into());
        // Without a thread the wish is dropped, and whoever waits for the reply is told so.
        self.is_reading = thread.spawn(work).is_ok();
    }
}

fn read(running: &Loaded, source: Option<&Source>) -> Result<(Reloaded, Vec<Note>), String> {
    let source = source.ok_or("this configuration was not read from anywhere")?;
    let (next, machine) = source(running)?;
    let reloaded = config::reload(running, &next, &machine);
    let reloaded = reloaded.map_err(|problems| problems.to_string())?;
    Ok((reloaded, next.notes))
}

fn edited(running: &Loaded, edit: &Edit) -> Result<(Reloaded, Vec<Note>), String> {
    let machine = Machine::discover()
        .map_err(|error| format!("cannot read the addresses of this machine: {error}"))?;
    let reloaded = config::edit(running, edit, &machine);
    let reloaded = reloaded.map_err(|problems| problems.to_string())?;
    Ok((reloaded, Vec::new()))
}

impl Started {
    /// Applies a change that has been read, replies, and begins with the next one.
    pub(super) fn configuration_read(
        &mut self,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) {
        let Ok(Prepared { wish, result }) = configuration.read.1.try_recv() else {
            return;
        };
        let (result, reply) = match wish {
            Wish::Reload { is_dry_run, reply } => {
                let result = self.reload(result, is_dry_run, configuration, attached, out);
                (result, reply)
            }
            Wish::Change(_, reply) => {
                let result = self.change(result, configuration, attached, out);
                (result, Some(reply))
            }
        };
        if let Some(reply) = reply {
            self.users.when_taken(move || reply(result));
        }
        configuration.is_reading = false;
        if let Some(next) = configuration.waiting.pop_front() {
            configuration.prepare(next, self.shards.events());
        }
    }

    /// Changes one key of the configuration that holds. What is read from the file later has its own value for it.
    ///
    /// # Errors
    ///
    /// What is wrong with the value. Nothing has changed then.
    fn change(
        &mut self,
        read: Result<(Reloaded, Vec<Note>), String>,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) -> Reloading {
        let (reloaded, _) = read?;
        let report = ReloadReport {
            changed: names(&reloaded.changed),
            restart_pending: self.counters.restart_pending(),
            notes: Vec::new(),
        };
        self.apply(reloaded, false, configuration, attached, out)?;
        Ok(report)
    }

    /// Applies a configuration that was read again, unless this is a dry run. What has come of it is said in the log.
    ///
    /// # Errors
    ///
    /// What is wrong with it, one problem a line. Nothing has changed then.
    fn reload(
        &mut self,
        read: Result<(Reloaded, Vec<Note>), String>,
        is_dry_run: bool,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) -> Reloading {
        let result = self.try_reload(read, is_dry_run, configuration, attached, out);
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
        read: Result<(Reloaded, Vec<Note>), String>,
        is_dry_run: bool,
        configuration: &mut Configuration,
        attached: &mut impl Attached,
        out: &mut impl Output,
    ) -> Reloading {
        let (reloaded, notes) = read?;
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::events::{self, Wake};
    use super::*;
    use crate::configured::configured;

    #[test]
    fn reads_one_configuration_at_a_time_beside_the_main_thread() {
        let gate = Arc::new(Mutex::new(()));
        let closed = gate.lock().unwrap();
        let waiting = Arc::clone(&gate);
        let loaded = Loaded::of(configured(&["--listening-ip=127.0.0.1"]));
        let mut configuration = Configuration::new(loaded, move |_| {
            drop(waiting.lock());
            Err("name servers are silent".to_owned())
        });
        let (events, inbox) = events::channel();
        for is_dry_run in [false, true] {
            let reply = None;
            // Neither returns late: the thread that reads waits, and not this one.
            configuration.prepare(Wish::Reload { is_dry_run, reply }, &events);
        }
        assert_eq!(configuration.waiting.len(), 1);
        drop(closed);
        let later = std::time::Instant::now() + std::time::Duration::from_secs(60);
        assert!(matches!(
            inbox.next(later),
            Wake::Event(Event::ConfigurationRead)
        ));
        let prepared = configuration.read.1.try_recv().expect("it was read");
        assert_eq!(prepared.result.unwrap_err(), "name servers are silent");
    }
}
