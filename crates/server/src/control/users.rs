//! Follows the user database for the shards.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SendError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use turnbuckle_engine::{Action, Commons, Config as EngineConfig};
use turnbuckle_users::{Follower, Notice, Target, Then, Wanted};

use super::error::ServeError;
use super::events::Event;
use super::pending::Pending;
use super::shards::Shards;
use crate::asking::{self, Answered, AskResult, Asker, SharedBounds};
use crate::clock;
use crate::config::{Config, Persona, UserDatabase};
use crate::handle::DatabaseState;
use crate::survive::PeerRows;
use crate::users::{Base, Followed, Outcome};

/// How long the start waits for a database of a network. One that takes longer, or hangs, is read while the relay runs.
const FIRST_READ_MAX: Duration = Duration::from_secs(1);

/// The user database as it was read at start, if there is one.
pub(super) struct OpenedUsers {
    follower: Option<(Follower, Sender<Base>)>,
    /// The settings from the configuration alone.
    configured: Arc<EngineConfig>,
    /// The settings that the engines start with.
    pub(super) engine: Arc<EngineConfig>,
    /// Whether the database has been read.
    pub(super) is_read: bool,
    /// Asks the database, if there is one. The engines' settings say whether it is to be asked.
    pub(super) asker: Option<Asker>,
    /// How it stands with the database, if there is one.
    pub(super) state: Option<Arc<DatabaseState>>,
}

/// What is known of the relay before, and of its user database.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    /// There are calls that are to go on now.
    pub(super) has_calls: bool,
    /// Whether rows said which peers may be reached. `None` if that is not known.
    pub(super) had_peer_rules: Option<bool>,
}

impl Before {
    /// Returns whether no peer is to be new before the rows are known.
    fn is_wary(self, persona: Persona) -> bool {
        self.had_peer_rules
            .unwrap_or(persona == Persona::Turnbuckle)
    }
}

/// What the thread that follows a database says at first.
struct First {
    engine: Arc<EngineConfig>,
    lines: Vec<String>,
    is_read: bool,
    /// Set where the database cannot be read before somebody has mended something.
    refused: Option<String>,
}

impl OpenedUsers {
    /// Follows the database that `config` names, and takes over what it says at first. `engine` holds the settings from the configuration alone.
    /// Later changes become `events`. If there are calls that are to go on now, nobody waits for what it says at first: who is not known yet is not
    /// refused. Until its rules for peers are known no peer is new, unless it had none `before`; as `turnserver` only if it had some, since coturn
    /// serves without its database.
    ///
    /// # Errors
    ///
    /// The database cannot be opened or read, and that will not pass by itself. As `turnserver` the server waits for it also in that case.
    pub(super) fn open(
        config: &Config,
        mut engine: Arc<EngineConfig>,
        before: Before,
        events: &SyncSender<Event>,
        out: &mut impl Write,
    ) -> Result<Self, ServeError> {
        let Some(database) = &config.authentication.database else {
            return Ok(Self {
                follower: None,
                configured: Arc::clone(&engine),
                engine,
                is_read: false,
                asker: None,
                state: None,
            });
        };
        let configured = Arc::clone(&engine);
        let calls = before.has_calls;
        // guard: V-63-peer-rules-due
        let are_peer_rules_due = database.has_peer_rules && before.is_wary(config.persona);
        if calls || are_peer_rules_due {
            let answers = &mut Arc::make_mut(&mut engine).answers;
            answers.are_users_due = calls;
            answers.are_peer_rules_due = are_peer_rules_due;
        }
        let (tell_first, first) = sync_channel(0);
        let (tell_first, state) = ((tell_first, events.clone()), Arc::default());
        let (bases, next_bases) = channel();
        let channels = (tell_first, next_bases);
        let (follower, asker) = follow(config, database, &engine, channels, Arc::clone(&state))
            .map_err(|error| ServeError::from_io(&error))?;
        let said = match (calls, database.source.is_file()) {
            (true, _) => None,
            (false, true) => first.recv().ok(),
            (false, false) => first.recv_timeout(FIRST_READ_MAX).ok(),
        };
        drop(first);
        let and_peers = match are_peer_rules_due {
            true => ", and whatever names a new peer waits",
            false => "",
        };
        let line = match calls {
            true => format!(
                "user database {}: requests of its users wait until it is read{and_peers}",
                database.source
            ),
            false => format!(
                "warning: user database {}: no answer within {} s; it serves nobody until it is read{and_peers}",
                database.source,
                FIRST_READ_MAX.as_secs()
            ),
        };
        let first = said.unwrap_or_else(|| First {
            engine,
            lines: vec![line],
            is_read: false,
            refused: None,
        });
        // coturn starts without the database, and tries it again with every request.
        if let Some(refused) = first.refused
            && config.persona == Persona::Turnbuckle
        {
            return Err(ServeError::new(refused));
        }
        for line in first.lines {
            let _ = writeln!(out, "{line}");
        }
        Ok(Self {
            follower: Some((follower, bases)),
            configured,
            engine: first.engine,
            is_read: first.is_read,
            asker: Some(asker),
            state: Some(state),
        })
    }

    /// Goes on following the database while the relay runs.
    pub(super) fn follow(self, commons: Arc<Commons>) -> FollowedUsers {
        FollowedUsers {
            commons,
            pending: None,
            answers: Vec::new(),
            assembled: Assembled::default(),
            configured: self.configured,
            state: self.state,
            follower: self.follower,
        }
    }
}

/// Holds changes of users while the relay runs.
pub(super) struct FollowedUsers {
    commons: Arc<Commons>,
    /// New settings that not all shards have taken yet.
    pending: Option<Pending<Arc<EngineConfig>>>,
    /// Answers that their shards have not taken yet: each comes behind the settings that it has changed. There are no more than may be asked.
    answers: Vec<(usize, Answered)>,
    assembled: Assembled,
    /// The settings from the configuration alone.
    configured: Arc<EngineConfig>,
    /// How it stands with the database, if there is one.
    state: Option<Arc<DatabaseState>>,
    /// Ends the thread that follows the database when it is dropped. Who has it gives it settings of a configuration that was read again.
    follower: Option<(Follower, Sender<Base>)>,
}

/// Settings of configurations that were read again, as far as the thread that follows the database has to add its rows to them.
#[derive(Default)]
struct Assembled {
    given: u64,
    taken: u64,
    /// Who waits until so many have been taken.
    waiting: Vec<(u64, Box<dyn FnOnce() + Send>)>,
}

impl FollowedUsers {
    /// Takes over what `config` says now, of which `engine` has the engines' settings. With a database its rows are added first.
    pub(super) fn reconfigure(
        &mut self,
        config: &Config,
        engine: Arc<EngineConfig>,
        has_same_users: bool,
        shards: &mut Shards,
    ) {
        self.configured = Arc::clone(&engine);
        let Some(((follower, bases), database)) =
            (self.follower.as_ref()).zip(config.authentication.database.as_ref())
        else {
            self.changed(engine, shards);
            return;
        };
        let target = target(config, database);
        let base = Base {
            engine,
            wanted: target.wanted.clone(),
            has_same_users,
        };
        // It cannot fail: the thread lives as long as the follower.
        let _ = bases.send(base);
        self.assembled.given += 1;
        follower.follow(target);
    }

    /// Has `then` called when the shards are being sent all that [`Self::reconfigure`] was told. If that never comes it is dropped.
    pub(super) fn when_taken(&mut self, then: impl FnOnce() + Send + 'static) {
        let Assembled {
            given,
            taken,
            waiting,
        } = &mut self.assembled;
        match taken < given {
            true => waiting.push((*given, Box::new(then))),
            false => then(),
        }
    }

    /// Notes that one more of them has been taken, and sends it out.
    pub(super) fn taken(&mut self, shards: &Shards) {
        self.publish(shards);
        self.assembled.taken += 1;
        let taken = self.assembled.taken;
        let due = |(given, _): &mut (u64, _)| *given <= taken;
        for (_, then) in self.assembled.waiting.extract_if(.., due) {
            then();
        }
    }

    /// Returns what rows say of peers by these settings. `None` if the rows are not known yet.
    pub(super) fn peer_rows(&self, engine: &EngineConfig) -> Option<PeerRows> {
        let configured = &self.configured.policy.rules;
        let policies = engine.realms.policies.values().chain([&engine.policy]);
        let mut rules = policies.flat_map(|policy| &policy.rules);
        let allow = rules.any(|rule| rule.action == Action::Allow && !configured.contains(rule));
        let deny = match &self.state {
            // What the settings deny beyond the configuration may be the database's own hosts.
            Some(state) => state.denies()?,
            None => false,
        };
        let answers = &engine.answers;
        let are_known = !answers.are_users_due && !answers.are_peer_rules_due;
        are_known.then_some(PeerRows { allow, deny })
    }

    /// Notes new users, peer rules and quotas for the shards.
    pub(super) fn changed(&mut self, engine: Arc<EngineConfig>, shards: &mut Shards) {
        self.commons.reconfigure(&engine);
        shards.begin_with_engine(&engine);
        self.pending = Some(Pending::new(engine, shards.all().len()));
    }

    /// Notes an answer of the database for a shard.
    pub(super) fn answered(&mut self, shard: usize, answer: Answered) {
        self.answers.push((shard, answer));
    }

    /// Returns whether a shard has not taken the new settings or an answer yet.
    pub(super) fn has_news(&self) -> bool {
        self.pending.is_some() || !self.answers.is_empty()
    }

    /// Sends the new settings, and then answers, to the shards that have not taken them yet and have room in their queue.
    pub(super) fn publish(&mut self, shards: &Shards) {
        self.pending
            .take_if(|users| users.deliver(|shard, engine| shards.reconfigure(shard, engine)));
        let Self {
            pending, answers, ..
        } = self;
        answers.retain(|&(shard, answer)| {
            let is_behind = (pending.as_ref()).is_some_and(|users| users.waits_for(shard));
            is_behind || !shards.answered(shard, answer)
        });
    }
}

/// Returns what is followed of a database.
fn target(config: &Config, database: &UserDatabase) -> Target {
    Target {
        source: database.source.clone(),
        wanted: Wanted {
            realm: config.authentication.realm.to_string(),
            users: database.has_users,
            secrets: database.has_secrets,
            peers: database.has_peer_rules,
            realms: database.has_realms,
            token_keys: config.authentication.third_parties.is_some(),
        },
    }
}

/// Starts the thread that follows the database. What it says at first goes to `first` if somebody waits there, and all else to `events`. Settings of a
/// configuration that was read again come by `bases`. How it stands with the database is kept in `state`.
fn follow(
    config: &Config,
    database: &UserDatabase,
    engine: &Arc<EngineConfig>,
    ((first, events), bases): ((SyncSender<First>, SyncSender<Event>), Receiver<Base>),
    state: Arc<DatabaseState>,
) -> io::Result<(Follower, Asker)> {
    let target = target(config, database);
    let mut followed = Followed::new(target.wanted.clone(), Arc::clone(engine));
    let mut first = Some(first);
    let bounds = SharedBounds::default();
    let answered = bounds.clone();
    let follower = Follower::start(target, move |notice| {
        if let Notice::Asked(records) = notice {
            // Who reads the configuration again runs already.
            first = None;
            let mut goes_on = true;
            for base in bases.try_iter() {
                let Outcome { engine, lines, .. } = followed.rebase(base, records);
                state.set_denies(followed.denies());
                goes_on = goes_on
                    && pass_on(&events, engine, lines)
                    && events.send(Event::Assembled).is_ok();
            }
            return if goes_on { Then::GoOn } else { Then::End };
        }
        let is_about_rows = match &notice {
            Notice::Records(read, _) | Notice::Same(read) => {
                state.was_read(read.began.elapsed(), clock::time());
                true
            }
            Notice::Trouble(_) => {
                state.has_failed();
                true
            }
            Notice::Addresses(_) | Notice::Answer(..) | Notice::Asked(_) => false,
        };
        let refused = match &notice {
            Notice::Trouble(error) if error.is_permanent() => Some(error.to_string()),
            _ => None,
        };
        let was_read = followed.is_read();
        let Outcome {
            engine,
            lines,
            answer,
        } = followed.take(notice, Instant::now());
        state.set_denies(followed.denies());
        let is_first_reading = followed.is_read() && !was_read;
        if is_about_rows && let Some(first) = first.take() {
            let said = First {
                engine: followed.current(),
                lines,
                is_read: followed.is_read(),
                refused,
            };
            let goes_on = match first.send(said) {
                Ok(()) => true,
                // Nobody waits any more: the relay runs already.
                Err(SendError(said)) => {
                    let lines = with_first_reading(said.lines, is_first_reading);
                    pass_on(&events, Some(said.engine), lines)
                }
            };
            return if goes_on { Then::GoOn } else { Then::End };
        }
        if let Some((tag, result)) = answer {
            // Who asks runs already.
            first = None;
            answered.ended(clock::time(), result);
            let (shard, number) = asking::of_tag(tag);
            let answer = Answered { number, result };
            let goes_on = pass_on(&events, engine, lines)
                && events.send(Event::Answered { shard, answer }).is_ok();
            return match goes_on {
                true if result == AskResult::Found => Then::Confirm,
                true => Then::GoOn,
                false => Then::End,
            };
        }
        // Before the first word about rows the settings wait for it, or for the end of that wait.
        let engine = engine.filter(|_| first.is_none());
        let lines = with_first_reading(lines, is_first_reading && first.is_none());
        match pass_on(&events, engine, lines) {
            true => Then::GoOn,
            false => Then::End,
        }
    })?;
    let questions = follower.questions();
    let asker = Asker::new(move |question| questions.ask(question), bounds);
    Ok((follower, asker))
}

/// Adds that the database is read, if it has not been before and the log has said that it serves nobody until then.
fn with_first_reading(mut lines: Vec<String>, is_first_reading: bool) -> Vec<String> {
    let is_said = |line: &String| line.starts_with("user database: read");
    if is_first_reading && !lines.iter().any(is_said) {
        lines.insert(0, "user database: read".to_owned());
    }
    lines
}

/// Makes events of settings and lines. Returns false if there is nobody who takes them.
fn pass_on(
    events: &SyncSender<Event>,
    engine: Option<Arc<EngineConfig>>,
    lines: Vec<String>,
) -> bool {
    let engine = engine.map(Event::Users).into_iter();
    let lines = lines.into_iter().map(Event::Line);
    let mut all = engine.chain(lines);
    all.all(|event| events.send(event).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_rows_that_said_nothing_of_peers_and_turnserver_only_for_those_that_did() {
        let [turnbuckle, turnserver] = [Persona::Turnbuckle, Persona::Turnserver].map(|persona| {
            [None, Some(false), Some(true)].map(|had_peer_rules| {
                let before = Before {
                    has_calls: true,
                    had_peer_rules,
                };
                before.is_wary(persona)
            })
        });
        assert_eq!(turnbuckle, [true, false, true]);
        assert_eq!(turnserver, [false, false, true]);
    }
}
