//! What outlives a relay process, and the processes that keep it.
//!
//! With `survive` the process that was started becomes the *keeper*. It makes two more, which share its table of descriptors
//! ([`turnbuckle_sys::keeper`]): the *relay*, and a *spare* that does nothing but wait for the end of the keeper. When the relay is killed, its sockets
//! stay open in that table, with all that waits in them, and the keeper makes the next relay, which finds them there. When the keeper is killed, the
//! spare is the keeper, and makes itself a spare. So whichever of them is killed, two are left that can go on.
//!
//! What the next relay has to know is [`Kept`]: keys, which every process has a copy of, and memory that all share: the journals of the shards, and
//! the list of listening sockets.
//!
//! An upgrade ([`upgrading`]) hands all of that to a keeper of another program, which this one starts ([`handed`]), and has it back if that one does
//! not serve. The process that was started stays, because whoever started it watches it ([`staying`]).
//!
//! Invariant: keeper and spare read nothing that a client sent, have no thread, open no descriptor while a relay starts, and never wait for a reader
//! of their output: what they have to say, the next relay says. Whatever is not as
//! it was written is not used: then calls end, and no call gets a right that it did not have.

mod adopts;
mod crashes;
mod handed;
mod keeper;
mod kept;
mod listing;
mod staying;
pub(crate) mod takeover;
mod trial;
pub(crate) mod upgrade;
mod upgrading;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use turnbuckle_datapath::KeptSockets;
#[cfg(test)]
use turnbuckle_datapath::SocketKind;

pub use self::adopts::adopts;
use self::handed::Handed;
pub use self::keeper::survive;
use self::kept::{Kept, SEALED, SEALING, Word, await_end};
pub(crate) use self::takeover::{Record, ShardJournal, Takeover};
use self::upgrade::{Tried, Upgrade, Upgraded};
use crate::config::{Config, Secret};
use crate::control::events::Event;
use crate::control::keys::KeyRing;
use crate::journal::Segments;

/// Time between two looks at whether the keeper has answered.
const LOOK: Duration = Duration::from_millis(10);

/// How much longer than a trial may take its answer may take.
const GRACE: Duration = Duration::from_secs(5);

/// How long a relay whose keeper has ended waits for the next keeper.
const NEXT_KEEPER: Duration = Duration::from_secs(2);

/// What a relay takes over from the one before it, and leaves to the next.
pub struct Survival {
    kept: &'static Kept,
    takeover: Takeover,
    /// What another program has handed over, until it is taken.
    handed: Option<Handed>,
    /// The last upgrade.
    upgraded: Option<Upgraded>,
    /// The word for the keeper when this process became the relay.
    keeper_known: u64,
    /// What the keeper has to say, which leaves that to the relay.
    lines: Vec<String>,
}

/// What [`Word::PeerRows`] holds.
const ROWS_SAY_NOTHING: u64 = 1;
const ROWS_DENY: u64 = 2;
const ROWS_ALLOW: u64 = 3;

/// What the rows of a user database say of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerRows {
    pub(crate) allow: bool,
    pub(crate) deny: bool,
}

/// Whether the relay drains, as the next one finds it.
pub(crate) struct DrainingMark(&'static Kept);

impl DrainingMark {
    pub(crate) fn is_set(&self) -> bool {
        self.0.get(Word::Draining) == 1
    }

    pub(crate) fn set(&self, is_draining: bool) {
        self.0.set(Word::Draining, u64::from(is_draining));
    }
}

impl Survival {
    /// Returns that of a relay without a keeper, after which there is none.
    #[cfg(test)]
    pub(crate) fn alone(config: &Config) -> Self {
        let shards = usize::from(config.datapath.shards.get());
        let signals = nix::sys::signal::SigSet::empty();
        let page = staying::Main::new().expect("memory");
        let kept = Kept::new(shards, &signals, page, (KeyRing::new(config), None)).expect("memory");
        let takeover = Takeover::none(kept.journals.len());
        Self {
            kept,
            takeover,
            handed: None,
            upgraded: None,
            keeper_known: kept.get(Word::Keeper),
            lines: Vec::new(),
        }
    }

    /// Returns the addresses for datagrams that are left to the next relay, and whether another process listens there too.
    #[cfg(test)]
    pub(crate) fn left(&self) -> Vec<(SocketAddr, bool)> {
        let listed = self.kept.listed().expect("a list").into_iter();
        let mut left: Vec<_> = listed
            .filter(|listed| listed.kind == SocketKind::Datagrams)
            .map(|listed| (listed.address, listed.is_shared))
            .collect();
        left.sort_unstable();
        left.dedup();
        left
    }

    /// Leaves a takeover to that relay.
    #[cfg(test)]
    pub(crate) fn with(mut self, takeover: Takeover) -> Self {
        self.takeover = takeover;
        self
    }

    /// Returns whether there was a relay before.
    pub fn has_predecessor(&self) -> bool {
        self.kept.get(Word::Relays) > 1
    }

    /// Returns the password of the user that the first relay made up, for the lack of any credentials.
    pub fn made_up_password(&self) -> Option<&Secret> {
        self.kept.made_up_password.as_ref()
    }

    /// Returns the keys of all relays. That of nonces is derived from the secret that is configured now, if there is one.
    pub(crate) fn keys(&self, config: &Config) -> KeyRing {
        let mut keys = self.kept.keys.clone();
        keys.follow(config);
        keys
    }

    /// Returns the number of the process that was started, and that signals are sent to.
    pub(crate) fn main(&self) -> u32 {
        self.kept.main.process()
    }

    /// Takes out what so many shards take over, and where they write their journals. If the relays before had another number of shards, there is
    /// nothing of either, and no later relay takes those journals over. `out` is told what there is.
    pub(crate) fn take(
        &mut self,
        shards: usize,
        out: &mut impl Write,
    ) -> (Takeover, Vec<Segments>) {
        for line in &self.lines {
            let _ = writeln!(out, "survive: {line}");
        }
        let _ = writeln!(
            out,
            "survive: process {} is the keeper of process {}",
            self.keeper_known,
            std::process::id()
        );
        let takeover = std::mem::take(&mut self.takeover);
        for complaint in &takeover.complaints {
            let _ = writeln!(out, "warning: survive: {complaint}");
        }
        let journals = &self.kept.journals;
        if journals.len() == shards {
            return (takeover, journals.clone());
        }
        for journal in journals {
            journal.give_up();
        }
        let _ = writeln!(
            out,
            "warning: survive: the number of threads has changed, so calls of the process before are \
             lost, and those of this one end with it"
        );
        (Takeover::none(shards), Vec::new())
    }

    /// Returns whether permissions that are taken over may depend on rows of the user database.
    pub(crate) fn needs_rows(&self) -> bool {
        // What another program knew of it is not handed over.
        self.handed.is_some() || self.kept.get(Word::PeerRows) == ROWS_ALLOW
    }

    /// Returns whether rows of the user database said which peers may be reached. `None` if no relay has known that.
    pub(crate) fn had_peer_rules(&self) -> Option<bool> {
        match self.kept.get(Word::PeerRows) {
            0 => None,
            known => Some(known > ROWS_SAY_NOTHING),
        }
    }

    /// Notes for the next relay what rows of the user database say of peers.
    pub(crate) fn note_rows(&self, rows: PeerRows) {
        let known = match (rows.allow, rows.deny) {
            (true, _) => ROWS_ALLOW,
            (false, true) => ROWS_DENY,
            (false, false) => ROWS_SAY_NOTHING,
        };
        self.kept.set(Word::PeerRows, known);
    }

    /// Returns what tells the next relay to drain.
    pub(crate) fn draining(&self) -> DrainingMark {
        DrainingMark(self.kept)
    }

    /// Leaves the listening sockets of the shards to the next relay, in place of those that were listed before. At the addresses in `shared` another process
    /// listens for datagrams too.
    ///
    /// # Errors
    ///
    /// The list cannot be written.
    pub(crate) fn list(&self, shards: &[KeptSockets], shared: &[SocketAddr]) -> io::Result<()> {
        self.kept.list(shards, shared)
    }

    /// Notes that the relay serves.
    pub(crate) fn serves(&self) {
        self.kept.set(Word::Served, 1);
    }

    /// Starts the thread that says when another process has become the keeper, or that there is none any more.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(crate) fn watch_keeper(&self, events: SyncSender<Event>) -> io::Result<()> {
        let kept = self.kept;
        let mut known = self.keeper_known;
        let thread = thread::Builder::new().name("keeper".into());
        thread.spawn(move || {
            loop {
                await_end_of(known);
                let begun = Instant::now();
                while kept.get(Word::Keeper) == known && begun.elapsed() < NEXT_KEEPER {
                    thread::sleep(Duration::from_millis(10));
                }
                let now = kept.get(Word::Keeper);
                let is_kept = now != known;
                known = now;
                let line = match is_kept {
                    true => {
                        format!("survive: the keeper has ended; process {now} is the keeper now")
                    }
                    false => "error: survive: the keeper has ended, and there is none any more: \
                              calls end with this process"
                        .to_owned(),
                };
                // If nobody takes it, the relay ends.
                if events.send(Event::Line(line)).is_err() || !is_kept {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

/// Waits until the process of a number has ended, if it has not.
///
/// Not by the descriptor that all processes have for the keeper: the next keeper makes that its own, and `poll(2)` looks at what a number means each time
/// that it wakes.
fn await_end_of(number: u64) {
    let number = i32::try_from(number).ok().and_then(Pid::from_raw);
    // One that is not there any more has ended.
    if let Some(Ok(process)) = number.map(|number| pidfd_open(number, PidfdFlags::empty())) {
        await_end(&process);
    }
}

impl Survival {
    /// Asks the keeper for an upgrade, and has [`Event::Tried`] say what it answers.
    ///
    /// # Errors
    ///
    /// It cannot be asked.
    pub(crate) fn wish(&self, upgrade: &Upgrade, events: SyncSender<Event>) -> io::Result<()> {
        let kept = self.kept;
        let before = kept.get(Word::Answered);
        kept.write_note(Word::Wished, &upgrade.to_json())?;
        rustix::io::write(&kept.bell, &1_u64.to_ne_bytes())?;
        let deadline = Instant::now() + upgrade.within + GRACE;
        let thread = thread::Builder::new().name("upgrade".into());
        thread.spawn(move || {
            let answer = loop {
                let value = kept.get(Word::Answered);
                if value != before {
                    let answer = kept.note(Word::Answered, value).unwrap_or_default();
                    break Tried::of_json(&answer);
                }
                if Instant::now() > deadline {
                    break Err("the keeper does not answer".to_owned());
                }
                thread::sleep(LOOK);
            };
            // If nobody takes it, the relay ends.
            let _ = events.send(Event::Tried(answer));
        })?;
        Ok(())
    }

    /// Takes over for good what another program has handed to this one, before the first client is heard.
    ///
    /// # Errors
    ///
    /// That one goes on itself.
    pub(crate) fn take_over(&mut self) -> Result<(), String> {
        match self.handed.take() {
            Some(handed) if !handed.offer.take() => {
                Err("survive: the program before has not waited, and goes on itself".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Returns what the last upgrade has come to.
    pub(crate) fn upgraded(&self) -> Option<&Upgraded> {
        self.upgraded.as_ref()
    }

    /// Says that the shards are about to make their last turn. The keeper waits for the end of that, not for ever.
    pub(crate) fn begin_hand_over(&self) {
        self.kept.set(Word::Sealed, SEALING);
        // The keeper looks at the end of the process too.
        let _ = rustix::io::write(&self.kept.bell, &1_u64.to_ne_bytes());
    }

    /// Ends the process, whose shards have made their last turn, and leaves all sockets to the keeper.
    pub(crate) fn hand_over(&self) -> ! {
        self.kept.set(Word::Sealed, SEALED);
        // The end of the process rings too.
        let _ = rustix::io::write(&self.kept.bell, &1_u64.to_ne_bytes());
        std::process::exit(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configured::configured;

    #[test]
    fn the_next_relay_waits_for_rows_that_allowed_peers_and_knows_whether_there_were_rules() {
        let config = configured(&[]);
        let survival = Survival::alone(&config);
        let known = || (survival.needs_rows(), survival.had_peer_rules());
        assert_eq!(known(), (false, None));
        for (allow, deny, expected) in [
            (true, false, (true, Some(true))),
            (true, true, (true, Some(true))),
            (false, true, (false, Some(true))),
            (false, false, (false, Some(false))),
        ] {
            survival.note_rows(PeerRows { allow, deny });
            assert_eq!(known(), expected, "{allow} {deny}");
        }
    }
}
