//! What a database has answered, until reading it shows the same.
//!
//! A reading that began before the answer does not have it, and one that began shortly after may lack it too
//! ([`turnbuckle_users::CONFIRMED_AFTER`]). Until then it is added to what is read; afterwards the rows alone count, so that who was asked for
//! and is removed is removed.

use std::collections::BTreeMap;
use std::time::Instant;

use turnbuckle_engine::{Config as EngineConfig, Realm};
use turnbuckle_users::{Answer, CONFIRMED_AFTER, Names, Question, Read, Secret, Wanted};

/// An answer, as far as it counts.
pub(super) struct Fact {
    realm: String,
    name: String,
    key: Option<[u8; 16]>,
    /// The secrets of the realm; `None` where secrets of the database do not count.
    secrets: Option<Vec<Secret>>,
}

/// The answers that no reading has shown yet.
#[derive(Default)]
pub(super) struct Learned {
    by_question: BTreeMap<(String, String), (Fact, Instant)>,
}

impl Fact {
    /// Takes of an answer what is `wanted`.
    pub(super) fn of(question: &Question, answer: Answer, wanted: &Wanted) -> Self {
        Self {
            realm: question.realm.clone(),
            name: question.name.clone(),
            key: answer.key.filter(|_| wanted.users),
            secrets: wanted.secrets.then_some(answer.secrets),
        }
    }

    /// Adds the user and the secrets. Returns whether that changed anything. What `base` has of the configuration stays.
    pub(super) fn add_to(&self, engine: &mut EngineConfig, base: &EngineConfig) -> bool {
        let Some(known) = engine.auth.realm_of_name(&self.realm) else {
            return false;
        };
        let mut realm = known.clone();
        let configured = base.auth.realm_of_name(&self.realm);
        let is_configured = configured.is_some_and(|realm| realm.has_user(&self.name));
        let mut has_changed = match self.key {
            Some(key) if !is_configured => realm.put_user_by_md5_key(&self.name, key) == Ok(true),
            _ => false,
        };
        if let Some(secrets) = &self.secrets {
            has_changed |= set_secrets(secrets, &mut realm, base);
        }
        if has_changed {
            engine.auth.add_realm(realm);
        }
        has_changed
    }
}

impl Learned {
    /// Notes an answer that has changed something.
    pub(super) fn note(&mut self, question: &Question, fact: Fact, now: Instant) {
        let about = (question.realm.clone(), question.name.clone());
        self.by_question.insert(about, (fact, now));
    }

    /// Forgets the answers that a reading is late enough for. Returns of whom these were, but for those that it has shown.
    pub(super) fn confirm(&mut self, read: Read<'_>) -> Names {
        let mut not_shown = Names::new();
        self.by_question.retain(|(realm, name), (fact, since)| {
            // guard: ask-confirmed
            let is_due = read.began.saturating_duration_since(*since) >= CONFIRMED_AFTER;
            if is_due && !fact.is_in(read) {
                let of_realm = not_shown.entry(realm.clone()).or_default();
                of_realm.insert(name.clone());
            }
            !is_due
        });
        not_shown
    }

    /// Adds what no reading has shown yet.
    pub(super) fn add_to(&self, engine: &mut EngineConfig, base: &EngineConfig) {
        for (fact, _) in self.by_question.values() {
            fact.add_to(engine, base);
        }
    }
}

impl Fact {
    fn is_in(&self, read: Read<'_>) -> bool {
        let key = read.records.user(&self.realm, &self.name);
        let has_key = self.key.is_none() || key == Some(self.key);
        let secrets = read.records.tables.secrets.get(&self.realm);
        let secrets = secrets.map_or(&[][..], Vec::as_slice);
        let has_secrets = self
            .secrets
            .as_ref()
            .is_none_or(|learned| learned == secrets);
        has_key && has_secrets
    }
}

/// Gives a realm these secrets of a database and those of the configuration. Returns whether that changed anything.
pub(super) fn set_secrets(secrets: &[Secret], realm: &mut Realm, base: &EngineConfig) -> bool {
    let before = realm.clone();
    realm.clear_rest_secrets();
    if let Some(configured) = base.auth.realms().next() {
        realm.share_rest_secrets(configured);
    }
    add_secrets(secrets, realm);
    !realm.has_secrets_of(&before)
}

/// Adds secrets of a database, as far as they fit. Returns how many do not.
pub(super) fn add_secrets(secrets: &[Secret], realm: &mut Realm) -> usize {
    secrets
        .iter()
        .filter(|secret| !secret.expose().is_empty())
        .filter(|secret| realm.add_rest_secret(secret.expose()).is_err())
        .count()
}
