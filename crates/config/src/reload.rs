//! What a configuration that was read again changes in a relay that runs.
//!
//! Each key has a class ([`Reload`]). The configuration that holds after a reload has the new values of keys that may change while the relay runs,
//! and the values of its start for all others. It is put together from the written settings, and completed and checked as at a start. So keys that
//! contradict each other are refused, also where only a restart would make them agree.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::entry::{Entry, Group, Reload};
use crate::file::Setting;
use crate::load::{Loaded, rebuild};
use crate::machine::Machine;
use crate::problem::Problems;
use crate::table;

/// What a reload comes to.
#[derive(Debug, Clone)]
pub struct Reloaded {
    /// The configuration that holds from now on.
    pub loaded: Loaded,
    /// Keys that have another value in it than before.
    pub changed: Vec<&'static Entry>,
    /// Keys with a value that holds when the server is started anew.
    pub pending: Vec<&'static Entry>,
}

/// Says what `next` changes in a relay that runs with `running`.
///
/// # Errors
///
/// The new values of keys that may change do not go with the present ones of those that may not.
pub fn reload(running: &Loaded, next: &Loaded, machine: &Machine) -> Result<Reloaded, Problems> {
    let is_fixed = |entry: &Entry| entry.reload().is_none_or(|it| it == Reload::Restart);
    let first = merge(running, next, machine, &is_fixed)?;
    let toggled = toggled(&running.config, &first.config);
    let is_fixed = |entry: &Entry| is_fixed(entry) || toggled.contains(&entry.group);
    let merged = match toggled.is_empty() {
        false => merge(running, next, machine, &is_fixed)?,
        true => first,
    };
    let (before, after, wished) = (
        Written::of(running),
        Written::of(&merged),
        Written::of(next),
    );
    let entries = || table::entries().filter(|entry| entry.reload().is_some());
    let changed: Vec<_> = entries()
        .filter(|entry| !is_fixed(entry) && before.differs(&after, entry))
        .collect();
    let pending = entries().filter(|entry| is_fixed(entry) && before.differs(&wished, entry));
    let pending = pending.collect();
    let config = applied(&running.config, merged.config, &changed);
    Ok(Reloaded {
        loaded: Loaded {
            config,
            file: next.file.clone(),
            ..merged
        },
        changed,
        pending,
    })
}

/// Returns the groups of keys that say whether something is there at all which a start makes: sockets for TLS, DTLS and QUIC, and the thread that
/// follows a user database.
fn toggled(running: &Config, next: &Config) -> Vec<Group> {
    let spoken = |config: &Config| {
        [
            config.tls.files().is_some(),
            config.tls.dtls_files().is_some(),
            config.tls.quic_files().is_some(),
        ]
    };
    let has_database = |config: &Config| config.authentication.database.is_some();
    let groups = [
        (Group::Tls, spoken(running) != spoken(next)),
        (
            Group::Databases,
            has_database(running) != has_database(next),
        ),
    ];
    let toggled = groups.into_iter().filter(|(_, is_toggled)| *is_toggled);
    toggled.map(|(group, _)| group).collect()
}

/// Takes the settings of fixed keys from `running` and all others from `next`.
fn merge(
    running: &Loaded,
    next: &Loaded,
    machine: &Machine,
    is_fixed: &impl Fn(&Entry) -> bool,
) -> Result<Loaded, Problems> {
    let chosen = |settings: &[Setting], wants_fixed: bool| -> Vec<Setting> {
        let settings = settings.iter().filter(|setting| {
            let entry = table::find(&setting.key);
            entry.is_some_and(|entry| is_fixed(entry) == wants_fixed)
        });
        settings.cloned().collect()
    };
    let settings = [
        chosen(&running.settings, true),
        chosen(&next.settings, false),
    ];
    let merged = rebuild(running.config.persona, settings.concat(), machine);
    merged.map_err(|mut problems| {
        for problem in &mut problems.0 {
            problem
                .message
                .push_str("; so it is until the server is started anew");
        }
        problems
    })
}

/// Takes over what may change; the rest, with what follows from the machine's addresses and name, stays as it is.
fn applied(running: &Config, merged: Config, changed: &[&'static Entry]) -> Config {
    let mut config = running.clone();
    // A password that was made up for the lack of any is not made up anew.
    if changed
        .iter()
        .any(|entry| matches!(entry.group, Group::Authentication | Group::Databases))
    {
        config.authentication = merged.authentication;
        config
            .authentication
            .realm
            .clone_from(&running.authentication.realm);
        if let Some(password) = running.authentication.made_up_password() {
            config.authentication.keep_made_up_password(password);
        }
    }
    config.addresses.default_family = merged.addresses.default_family;
    config.datapath.coalesce = merged.datapath.coalesce;
    config.datapath.coalesce_policy = merged.datapath.coalesce_policy;
    config.limits = merged.limits;
    config.protocols.proxies.sources = merged.protocols.proxies.sources;
    config.protocols.proxies.datagram_sources = merged.protocols.proxies.datagram_sources;
    config.protocols.http.answers = merged.protocols.http.answers;
    config.protocols.http.acme_redirect = merged.protocols.http.acme_redirect;
    config.redirection = merged.redirection;
    config.process.console = merged.process.console;
    config.process.exporter = merged.process.exporter;
    config.process.statsdb = merged.process.statsdb;
    config.relays = merged.relays;
    config.stun = merged.stun;
    // Whether it is spoken stays as it is: files that are not found any more are those that were read.
    if running.tls.is_spoken() == merged.tls.is_spoken() {
        config.tls = merged.tls;
    }
    config.log = merged.log;
    config
}

/// The written values of each key.
struct Written<'a> {
    config: &'a Config,
    values: BTreeMap<&'static str, Vec<Option<&'a str>>>,
}

impl<'a> Written<'a> {
    fn of(loaded: &'a Loaded) -> Self {
        let mut values: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for setting in &loaded.settings {
            if let Some(entry) = table::find(&setting.key) {
                let of_key = values.entry(entry.name).or_default();
                of_key.push(setting.value.as_deref());
            }
        }
        Self {
            config: &loaded.config,
            values,
        }
    }

    /// Returns whether a key has another value in `other`. What is only written in another way has not; secrets are compared as they are written.
    fn differs(&self, other: &Self, entry: &Entry) -> bool {
        self.values.get(entry.name) != other.values.get(entry.name)
            && (entry.is_secret
                || table::show(entry, self.config) != table::show(entry, other.config))
    }
}
