//! Runs the relay: starts it, handles events and timers, stops it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::announce;
use super::error::ServeError;
use super::events::{self, Event, Inbox, Wake};
use super::limits::raise_descriptor_limit;
use super::listening;
use super::reload::{Configuration, Wish};
use super::start::{Started, note_rows, start};
use super::statistics::leave_behind;
use super::upgrading::Upgrading;
use crate::config::{Config, Persona};
use crate::counters::Accounting;
use crate::handle::{Attached, Command, Commands, Control, Events, Handle};
use crate::log::Output;
use crate::process::Settled;
use crate::survive::Survival;

/// Descriptors that a relay leaves to its keepers: one that takes over has to name itself.
const DESCRIPTORS_OF_KEEPERS: u64 = 8;

/// Time after which a change is offered again to a shard whose queue was full.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the relay until SIGINT or SIGTERM, and returns the final accounting. Log lines go to `out`, which must not block. It is flushed only before
/// the relay serves. `control` gets the handle of the relay after the process has given up its rights.
///
/// # Errors
///
/// A socket could not be set up, `control` refused, or a shard failed.
pub fn serve(
    config: &Config,
    out: &mut impl Output,
    control: impl Control,
) -> Result<Accounting, ServeError> {
    serve_and_reload(Configuration::fixed(config.clone()), None, out, control)
}

/// Runs the relay as [`serve`] does, with a configuration that is read again on SIGHUP and on command. It takes over what is in the `survival`, and
/// leaves it to the next relay.
///
/// # Errors
///
/// A socket could not be set up, `control` refused, or a shard failed.
pub fn serve_and_reload<C: Control>(
    mut configuration: Configuration,
    mut survival: Option<Survival>,
    out: &mut impl Output,
    control: C,
) -> Result<Accounting, ServeError> {
    let config = configuration.running();
    let (events, inbox) = events::channel();
    let shards = usize::from(config.datapath.shards.get());
    let (outlets, session_events) = match C::Attached::wants_events(config) {
        true => {
            let (outlets, events) = Events::channel(shards);
            (outlets, Some(events))
        }
        false => (Vec::new(), None),
    };
    events::watch_signals(events.clone()).map_err(|error| ServeError::from_io(&error))?;
    if let Some(survival) = &survival {
        let watching = survival.watch_keeper(events.clone());
        watching.map_err(|error| ServeError::new(format!("survive: {error}")))?;
    }
    let left = survival.as_ref().map_or(0, |_| DESCRIPTORS_OF_KEEPERS);
    let descriptors = raise_descriptor_limit(left);
    let mut relay = start(
        configuration.running_mut(),
        survival.as_mut(),
        descriptors,
        &events,
        &outlets,
        out,
    )?;
    let config = &configuration.running().clone();
    // Before anybody is heard, and before a probe is told that this relay is ready.
    // guard: V-63-drain
    if relay.drain.is_left_over() {
        relay.begin_draining(out);
    }
    let mut upgrading = Upgrading::new(events.clone());
    let handle = Handle {
        counters: relay.counters.clone(),
        commands: Commands::new(events, shards),
        events: session_events,
        upgraded: survival.as_ref().and_then(Survival::upgraded).cloned(),
    };
    let main = survival
        .as_ref()
        .map_or_else(std::process::id, Survival::main);
    let settled = Settled::new(&config.process, main, config.persona, out).and_then(|settled| {
        // Neither scrapers nor clients are admitted earlier, because the process must not handle network input as the user that started it.
        let attached = control.attach(config, handle, out)?;
        if let Some(survival) = &mut survival {
            survival.take_over()?;
        }
        listening::admit_clients(relay.shards.all());
        relay.leave_listeners(survival.as_ref(), out);
        settled.announce(&config.process, out)?;
        Ok((settled, attached))
    });
    let (settled, mut attached) = match settled {
        Ok(settled) => settled,
        Err(why) => {
            drop(inbox);
            relay.shards.stop();
            return Err(ServeError::new(why));
        }
    };
    announce::receive_buffers(out);
    if config.persona == Persona::Turnserver {
        announce::ready_as_coturn(relay.shards.all().len(), out);
    }
    // The last lines before it, so that they are found.
    let _ = write!(out, "{}", config.usage(relay.certificates.name()));
    let _ = writeln!(out, "ready");
    if let Some(survival) = &survival {
        survival.serves();
    }
    let beside = (&mut attached, survival.as_ref());
    let ended = relay.wait(&mut configuration, beside, &mut upgrading, &inbox, out);
    // No event is read from here on. A shard that sends many events must not block on a full channel.
    drop(inbox);
    if let (Ok(Ending::HandsOver), Some(survival)) = (&ended, &survival) {
        survival.begin_hand_over();
        drop(attached);
        relay.hand_over(survival, configuration.running(), out);
    }
    let accounting = relay.shards.stop();
    if let Some(line) = relay.offload.passed() {
        let _ = writeln!(out, "{line}");
    }
    accounting.lost_lines(out.lost());
    drop(attached);
    drop(settled);
    if let Some(path) = &configuration.running().log.statistics_file {
        leave_behind(path, &accounting)?;
    }
    let _ = writeln!(out, "stopped; {}", accounting.line());
    ended.map(|_| accounting)
}

/// The way in which a relay ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// With all its calls.
    Stops,
    /// Without them: another program takes them over.
    HandsOver,
}

impl Started {
    /// Handles events and timers until the relay has to end. What is attached follows its configuration.
    ///
    /// # Errors
    ///
    /// A shard has failed too often.
    fn wait(
        &mut self,
        configuration: &mut Configuration,
        (attached, survival): (&mut impl Attached, Option<&Survival>),
        upgrading: &mut Upgrading,
        inbox: &Inbox,
        out: &mut impl Output,
    ) -> Result<Ending, ServeError> {
        loop {
            match inbox.next(self.due()) {
                Wake::Event(Event::Stop) | Wake::Closed => return Ok(Ending::Stops),
                Wake::Event(Event::Tried(answer)) => upgrading.answered(answer),
                Wake::Event(Event::Command(command)) => match *command {
                    Command::Upgrade(upgrade, reply) => {
                        upgrading.begin(&upgrade, survival, reply);
                    }
                    Command::HandOver if upgrading.is_agreed() => {
                        return Ok(Ending::HandsOver);
                    }
                    command => {
                        if self.carry_out(command, configuration, out) {
                            return Ok(Ending::Stops);
                        }
                    }
                },
                Wake::Event(Event::ConfigurationRead) => {
                    self.configuration_read(configuration, attached, out);
                }
                Wake::Event(Event::HangUp) => {
                    let _ = writeln!(out, "log file reopened");
                    if configuration.running().process.reloads_on_hangup {
                        // What has come of it is in the log.
                        let (is_dry_run, reply) = (false, None);
                        configuration
                            .prepare(Wish::Reload { is_dry_run, reply }, self.shards.events());
                    }
                }
                Wake::Event(Event::Users(engine)) => {
                    note_rows(survival, &self.users, &engine);
                    self.users.changed(engine, &mut self.shards);
                }
                Wake::Event(event) => self.handle(event, configuration.running(), out)?,
                Wake::Due => {}
            }
            let config = configuration.running();
            let now = Instant::now();
            let later = self.listening.later();
            for index in self.shards.restart(now, later, out)? {
                let shard = &self.shards.all()[index];
                listening::resume(shard);
                self.statistics.restarted(index, shard);
                self.counters.restarted(index, Arc::clone(&shard.batches));
            }
            self.users.publish(&self.shards);
            self.interfaces.publish(&self.shards);
            if self.listening.attempt(config, now, self.shards.all(), out) {
                self.leave_listeners(survival, out);
            }
            // An address may have come, or another rule with a reload.
            self.offload.screen(config, self.listening.own_datagrams());
            if self.drain.is_over(now, &self.shards, out) {
                return Ok(Ending::Stops);
            }
            self.statistics.print(config, now, self.shards.all(), out);
            self.certificates.follow(now, out);
        }
    }

    /// Leaves the listening sockets to the next relay.
    fn leave_listeners(&self, survival: Option<&Survival>, out: &mut impl Output) {
        let listed =
            survival.map(|survival| survival.list(&self.shards.kept(), &self.listening.shared));
        if let Some(Err(error)) = listed {
            let _ = writeln!(
                out,
                "warning: survive: listening sockets are not listed: {error}"
            );
        }
    }

    /// Returns the time of the next timer.
    fn due(&self) -> Instant {
        let has_news = self.users.has_news() || self.interfaces.has_news();
        let sometimes = [
            self.drain.due(),
            self.listening.due(),
            self.shards.due(),
            has_news.then(|| Instant::now() + PUBLISH_INTERVAL),
        ];
        let always = self.statistics.due().min(self.certificates.due());
        sometimes.into_iter().flatten().fold(always, Instant::min)
    }

    fn begin_draining(&mut self, out: &mut impl Output) {
        self.counters.set_draining(true);
        self.drain.begin(&mut self.shards, out);
    }

    /// Carries out a command. Returns whether the relay has to end.
    fn carry_out(
        &mut self,
        command: Command,
        configuration: &mut Configuration,
        out: &mut impl Output,
    ) -> bool {
        match command {
            Command::Reload { is_dry_run, reply } => {
                let reply = Some(reply);
                configuration.prepare(Wish::Reload { is_dry_run, reply }, self.shards.events());
            }
            Command::Change(edit, reply) => {
                configuration.prepare(Wish::Change(edit, reply), self.shards.events());
            }
            Command::Configuration(reply) => reply(configuration.effective()),
            Command::Trace(trace, reply) => {
                self.shards.trace(&trace);
                reply(());
            }
            Command::SetLogLevel(level, reply) => {
                out.set_level(level);
                reply(());
            }
            Command::Page { shard, wish } => self.shards.page(shard, wish),
            Command::Ping { shard, reply } => self.shards.ping(shard, reply),
            Command::Drain(reply) => {
                self.begin_draining(out);
                reply(self.drain.allocations_left());
            }
            Command::Undrain(reply) => {
                self.drain.end(&mut self.shards, out);
                self.counters.set_draining(false);
                reply(());
            }
            Command::ReloadCertificates(reply) => reply(self.certificates.reload(out)),
            Command::Stop => return true,
            // These commands are handled where they are awaited.
            Command::Upgrade(..) | Command::HandOver => {}
        }
        false
    }

    /// Ends the last turn of every shard, and the process, and leaves all sockets to the keeper.
    fn hand_over(&self, survival: &Survival, config: &Config, out: &mut impl Output) -> ! {
        let accounting = self.shards.seal();
        if let Some(line) = self.offload.passed() {
            let _ = writeln!(out, "{line}");
        }
        accounting.lost_lines(out.lost());
        if let Some(path) = &config.log.statistics_file
            && let Err(error) = leave_behind(path, &accounting)
        {
            let _ = writeln!(out, "warning: {error}");
        }
        let _ = writeln!(out, "handed over; {}", accounting.line());
        let _ = out.flush();
        survival.hand_over()
    }

    fn handle(
        &mut self,
        event: Event,
        config: &Config,
        out: &mut impl Output,
    ) -> Result<(), ServeError> {
        match event {
            Event::Line(line) => {
                let _ = writeln!(out, "{line}");
            }
            Event::SessionEnded(summary) => out.session_ended(*summary),
            Event::ReloadCertificates => {
                // What has come of it is in the log.
                let _ = self.certificates.reload(out);
            }
            Event::Drain => self.begin_draining(out),
            Event::Answered { shard, answer } => self.users.answered(shard, answer),
            Event::Assembled => self.users.taken(&self.shards),
            Event::Interfaces(addresses) => {
                self.listening.follow(config, &addresses);
                self.relays
                    .follow(config, &addresses, &mut self.shards, out);
                self.interfaces.changed(addresses, &mut self.shards);
            }
            #[cfg(test)]
            Event::Fail(shard) => self.shards.fail(shard),
            #[cfg(test)]
            Event::FailWithNext(shard) => self.shards.fail_with_next(shard),
            // These events are handled where they are awaited.
            Event::Command(_)
            | Event::ConfigurationRead
            | Event::HangUp
            | Event::Stop
            | Event::Tried(_)
            | Event::Users(_) => {}
            Event::ShardEnded { shard, error } => {
                let why = error.unwrap_or_else(|| "it stopped by itself".into());
                self.shards.failed(shard, &why, out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
