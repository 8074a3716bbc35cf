//! Makes settings of the engines from what the thread tells that follows a database.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use turnbuckle_engine::{Action, Config as EngineConfig, Rule};
use turnbuckle_users::{
    Answer, Changed, DatabaseError, Names, Notice, Question, Records, Silence, Wanted,
};

use super::learned::{Fact, Learned};
use super::records::{Assembled, Denied, assembled, follow_rows};
use crate::asking::AskResult;

/// What is known of a database.
pub(crate) struct Followed {
    wanted: Wanted,
    /// The engine's settings from the configuration alone, and without the hosts of the database as peers.
    base: Arc<EngineConfig>,
    /// Whether the database has ever been read.
    is_read: bool,
    /// Whether each row is one user: no name is written in another way than it is prepared.
    are_prepared: bool,
    /// Ranges that the database denies.
    denied: Denied,
    /// Addresses of the database, which no client may reach.
    hosts: Vec<IpAddr>,
    /// The error of the last read, if it has been logged.
    trouble: Option<String>,
    /// What answers have told that no reading has shown yet.
    learned: Learned,
    /// The settings that the engines have now.
    current: Arc<EngineConfig>,
    /// The settings that they had before. They are kept until the next change, when no shard uses them any more. So this thread frees the memory,
    /// and no shard has to.
    previous: Arc<EngineConfig>,
}

/// Settings from a configuration that was read again.
pub(crate) struct Base {
    /// The engine's settings from the configuration alone.
    pub(crate) engine: Arc<EngineConfig>,
    /// Which rows count.
    pub(crate) wanted: Wanted,
    /// Whether the configuration has the users that it had.
    pub(crate) has_same_users: bool,
}

/// What a notice amounts to.
#[derive(Default)]
pub(crate) struct Outcome {
    /// New settings for the engines.
    pub(crate) engine: Option<Arc<EngineConfig>>,
    /// Lines for the log.
    pub(crate) lines: Vec<String>,
    /// By what a question is known, and what it came to.
    pub(crate) answer: Option<(u64, AskResult)>,
}

impl Followed {
    /// Returns whether the database has been read.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    /// Returns whether rows deny peers, once they have been read.
    pub(crate) fn denies(&self) -> Option<bool> {
        let denies = self.denied.values().any(|rules| !rules.is_empty());
        self.is_read.then_some(denies)
    }

    /// Begins with nothing read. `base` holds the settings from the configuration alone.
    pub(crate) fn new(wanted: Wanted, base: Arc<EngineConfig>) -> Self {
        Self {
            wanted,
            is_read: false,
            are_prepared: true,
            denied: Denied::default(),
            hosts: Vec::new(),
            trouble: None,
            learned: Learned::default(),
            current: Arc::clone(&base),
            previous: Arc::clone(&base),
            base,
        }
    }

    /// Returns the settings that the engines have now.
    pub(crate) fn current(&self) -> Arc<EngineConfig> {
        Arc::clone(&self.current)
    }

    /// Takes a notice, at `now`.
    pub(crate) fn take(&mut self, notice: Notice<'_>, now: Instant) -> Outcome {
        match notice {
            Notice::Answer(question, answer) => self.answered(&question, answer, now),
            Notice::Trouble(error) => Outcome {
                lines: self.failed(&error).into_iter().collect(),
                ..Outcome::default()
            },
            Notice::Same(read) => {
                let recovered = self.recovered();
                // What was learned and is not in the rows was taken back in the meantime.
                let names = self.learned.confirm(read);
                let mut outcome = match names.is_empty() {
                    true => Outcome::default(),
                    false => self.follow(read.records, &names, false),
                };
                outcome.lines.splice(0..0, recovered);
                outcome
            }
            Notice::Records(read, changed) => {
                let recovered = self.recovered();
                self.is_read = true;
                let answers = &self.base.answers;
                if answers.are_users_due || answers.are_peer_rules_due {
                    let answers = &mut Arc::make_mut(&mut self.base).answers;
                    (answers.are_users_due, answers.are_peer_rules_due) = (false, false);
                }
                let not_shown = self.learned.confirm(read);
                let mut outcome = match changed {
                    Changed::Users { mut names, tables } => {
                        for (realm, others) in not_shown {
                            names.entry(realm).or_default().extend(others);
                        }
                        self.follow(read.records, &names, tables)
                    }
                    Changed::Nothing | Changed::Everything => self.assemble(read.records),
                };
                outcome.lines.splice(0..0, recovered);
                outcome
            }
            Notice::Addresses(addresses) => Outcome {
                engine: self.deny(addresses),
                ..Outcome::default()
            },
            // Said by whoever has the settings.
            Notice::Asked(_) => Outcome::default(),
        }
    }

    /// Puts other settings of the configuration beneath what was read of the database, which is `records`.
    pub(crate) fn rebase(&mut self, base: Base, records: &Records) -> Outcome {
        let Base {
            mut engine,
            wanted,
            has_same_users,
        } = base;
        let before = &self.base.answers;
        let are_peer_rules_due = before.are_peer_rules_due && wanted.peers;
        if before.are_users_due || are_peer_rules_due {
            let answers = &mut Arc::make_mut(&mut engine).answers;
            answers.are_users_due = before.are_users_due;
            answers.are_peer_rules_due = are_peer_rules_due;
        }
        let users = (has_same_users && wanted == self.wanted).then(|| Arc::clone(&self.current));
        (self.base, self.wanted) = (engine, wanted);
        let rules = self.rules_of_hosts();
        Arc::make_mut(&mut self.base).policy.rules.extend(rules);
        if !self.is_read {
            // Who was asked for is known already.
            return self.publish(EngineConfig::clone(&self.base), Vec::new());
        }
        // Each user is looked at where the configuration may say otherwise than before.
        let realm = &self.wanted.realm;
        let (base, denied) = (&self.base, &mut self.denied);
        let assembled = assembled(records, realm, base, denied, users.as_deref());
        self.are_prepared = assembled.are_prepared && (users.is_none() || self.are_prepared);
        self.publish(assembled.engine, assembled.complaints)
    }

    /// Takes over a user and the secrets of a realm, as far as they are new. An answer takes nothing away: what is gone is gone with the next
    /// reading.
    fn answered(
        &mut self,
        question: &Question,
        answer: Result<Answer, Silence>,
        now: Instant,
    ) -> Outcome {
        let result = match answer {
            Err(Silence::Away) => AskResult::Away,
            Err(Silence::Behind) => AskResult::Late,
            Err(Silence::Refused) => AskResult::Vain,
            Ok(answer) => {
                let mut engine = EngineConfig::clone(&self.current);
                let fact = Fact::of(question, answer, &self.wanted);
                match fact.add_to(&mut engine, &self.base) {
                    false => AskResult::Vain,
                    true => {
                        self.learned.note(question, fact, now);
                        self.replace(Arc::new(engine));
                        AskResult::Found
                    }
                }
            }
        };
        Outcome {
            engine: (result == AskResult::Found).then(|| self.current()),
            answer: Some((question.tag, result)),
            ..Outcome::default()
        }
    }

    /// Keeps clients from reaching the database through a relay. The rule about one address decides over all others.
    fn deny(&mut self, addresses: Vec<IpAddr>) -> Option<Arc<EngineConfig>> {
        // What a name stood for before stays denied until the server starts anew.
        let unknown = addresses.into_iter().filter(|ip| !self.hosts.contains(ip));
        let unknown: Vec<_> = unknown.collect();
        self.hosts.extend(unknown);
        let rules = self.rules_of_hosts();
        let is_new = |rule: &&Rule| !self.base.policy.rules.contains(rule);
        let new: Vec<_> = rules.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return None;
        }
        for engine in [&mut self.base, &mut self.current] {
            let engine = Arc::make_mut(engine);
            let of_realms = engine.realms.policies.values_mut();
            for policy in of_realms.chain([&mut engine.policy]) {
                policy.rules.extend(&new);
            }
        }
        Some(Arc::clone(&self.current))
    }

    /// Returns the rules that deny the hosts of the database.
    fn rules_of_hosts(&self) -> Vec<Rule> {
        // On an address of relays all ports but relayed ones are denied already.
        let relays = &self.base.relays;
        let is_of_relays =
            |ip| (relays.all()).any(|relay| relay.local == ip || relay.external == Some(ip));
        let hosts = self.hosts.iter().filter(|&&ip| !is_of_relays(ip));
        let deny = |&ip: &IpAddr| Rule {
            action: Action::Deny,
            range: ip.into(),
        };
        hosts.map(deny).collect()
    }

    fn failed(&mut self, error: &DatabaseError) -> Option<String> {
        let text = error.to_string();
        if self.trouble.as_ref() == Some(&text) {
            return None;
        }
        let then = if self.is_read {
            "users stay as they were read last"
        } else {
            "it is tried again, and serves nobody until then"
        };
        let line = format!("warning: {text}; {then}");
        self.trouble = Some(text);
        Some(line)
    }

    fn recovered(&mut self) -> Option<String> {
        let trouble = self.trouble.take();
        trouble.map(|_| "user database: read again".to_owned())
    }

    /// Makes settings of all rows.
    fn assemble(&mut self, records: &Records) -> Outcome {
        let realm = &self.wanted.realm;
        let assembled = assembled(records, realm, &self.base, &mut self.denied, None);
        self.are_prepared = assembled.are_prepared;
        self.publish(assembled.engine, assembled.complaints)
    }

    /// Makes settings of the present ones by the rows of some users, and by the other tables if they have changed. That costs the same however many
    /// users there are.
    fn follow(&mut self, records: &Records, names: &Names, tables: bool) -> Outcome {
        let (mut engine, mut complaints) = match tables {
            false => (EngineConfig::clone(&self.current), Vec::new()),
            true => {
                let (realm, users_of) = (&self.wanted.realm, Some(&*self.current));
                let assembled = assembled(records, realm, &self.base, &mut self.denied, users_of);
                let Assembled {
                    engine,
                    complaints,
                    are_prepared,
                } = assembled;
                self.are_prepared &= are_prepared;
                (engine, complaints)
            }
        };
        let mut has_changed = tables;
        for (realm, names) in names {
            let about = (realm.as_str(), names);
            let followed = follow_rows(&mut engine, &self.base, records, about, &mut complaints);
            match followed {
                Some(changes) if self.are_prepared => has_changed |= changes,
                _ => return self.assemble(records),
            }
        }
        match has_changed {
            true => self.publish(engine, complaints),
            false => Outcome {
                lines: warnings(complaints),
                ..Outcome::default()
            },
        }
    }

    /// Hands over settings, with what no reading has shown yet.
    fn publish(&mut self, mut engine: EngineConfig, complaints: Vec<String>) -> Outcome {
        self.learned.add_to(&mut engine, &self.base);
        self.replace(Arc::new(engine));
        Outcome {
            engine: Some(self.current()),
            lines: warnings(complaints),
            answer: None,
        }
    }

    fn replace(&mut self, engine: Arc<EngineConfig>) {
        self.previous = std::mem::replace(&mut self.current, engine);
    }
}

fn warnings(complaints: Vec<String>) -> Vec<String> {
    let lines = complaints.into_iter();
    lines
        .map(|text| format!("warning: user database: {text}"))
        .collect()
}

#[cfg(test)]
mod tests;
