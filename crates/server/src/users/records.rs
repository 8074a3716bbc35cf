//! Builds the engines' settings from the rows of a database.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use turnbuckle_engine::{
    Action, AddressRange, AuthConfig, Config as EngineConfig, CredentialError, Realm, RealmLimits,
    Rule,
};
use turnbuckle_users::Records;

use super::{learned, token_keys};

/// The ranges that the database denies, by realm; those without a realm are for all.
pub(super) type Denied = BTreeMap<String, Vec<Rule>>;

/// Settings of the engines, and what is to be said of them.
pub(super) struct Assembled {
    pub(super) engine: EngineConfig,
    /// Rows that cannot be used, in words without keys and secrets.
    pub(super) complaints: Vec<String>,
    /// Whether all names of users are written as they are prepared, so that each row is one user. Said only of rows that were looked at.
    pub(super) are_prepared: bool,
}

/// Holds settings that rows are added to.
struct Assembly<'a> {
    records: &'a Records,
    /// Where users are taken from, if not from the rows.
    users_of: Option<&'a EngineConfig>,
    engine: EngineConfig,
    denied: Denied,
    are_prepared: bool,
    /// Rows that cannot be used, in words without keys and secrets.
    complaints: Vec<String>,
}

/// Quotas and rate of a realm, where the database has them.
#[derive(Default)]
struct OwnLimits {
    user_quota: Option<u32>,
    total_quota: Option<u32>,
    bytes_per_s: Option<u32>,
}

/// Adds `records` to the configuration's settings, `base`. Requests that name no other realm are in `realm`. Rows that cannot be used are left
/// out, and returned as complaints. If one of them is a deny rule, the ranges that were `denied` before stay denied; what is denied now is put in
/// their place. Configured users come before those of the database. The realms that `users_of` has keep the users that they have there.
pub(super) fn assembled(
    records: &Records,
    realm: &str,
    base: &EngineConfig,
    denied: &mut Denied,
    users_of: Option<&EngineConfig>,
) -> Assembled {
    let mut assembly = Assembly {
        records,
        users_of,
        engine: base.clone(),
        denied: Denied::new(),
        are_prepared: true,
        complaints: Vec::new(),
    };
    let token_keys = token_keys::usable(&records.tables.token_keys, &mut assembly.complaints);
    let of_all = assembly.peers("", denied);
    let of_realms: Vec<_> = (records.tables.realm_names(realm).into_iter())
        .map(|name| {
            // Rows without a realm apply to all realms. They do not count a second time for a realm with an empty name.
            let peers = match name.as_str() {
                "" => Vec::new(),
                name => assembly.peers(name, denied),
            };
            (name, peers)
        })
        .collect();
    assembly.engine.policy.rules.extend(of_all);
    for (index, (name, peers)) in of_realms.iter().enumerate() {
        assembly.add_realm(index == 0, name, peers, base);
    }
    assembly.add_origins();
    let Assembly {
        mut engine,
        mut complaints,
        denied: now,
        are_prepared,
        ..
    } = assembly;
    if let Some(third_parties) = &mut engine.auth.third_parties {
        for key in token_keys {
            key.add_to(third_parties, &mut complaints);
        }
    }
    *denied = now;
    Assembled {
        engine,
        complaints,
        are_prepared,
    }
}

/// Brings some users of a realm in line with their rows, and the realm's secrets. What `base` has of the configuration stays. Returns whether that
/// changed anything, or `None` if the rows have to be looked at as a whole: the realm is not known by this name, or two names may stand for one user.
pub(super) fn follow_rows(
    engine: &mut EngineConfig,
    base: &EngineConfig,
    records: &Records,
    (realm_name, names): (&str, &BTreeSet<String>),
    complaints: &mut Vec<String>,
) -> Option<bool> {
    let known = engine.auth.realm_of_name(realm_name)?;
    let mut realm = known.clone();
    let configured = base.auth.realm_of_name(realm_name);
    let is_configured = |name: &str| configured.is_some_and(|realm| realm.has_user(name));
    let mut has_changed = false;
    for name in names {
        if !Realm::is_prepared(name) {
            return None;
        }
        if is_configured(name) {
            continue;
        }
        let row = records.user(realm_name, name);
        has_changed |= match row.flatten() {
            Some(key) => realm.put_user_by_md5_key(name, key).ok()?,
            None => realm.remove_user(name),
        };
        if row == Some(None) {
            complaints.push(without_key(name));
        }
    }
    let secrets = records.tables.secrets.get(realm_name);
    let secrets = secrets.map_or(&[][..], Vec::as_slice);
    has_changed |= learned::set_secrets(secrets, &mut realm, base);
    if has_changed {
        engine.auth.add_realm(realm);
    }
    Some(has_changed)
}

fn without_key(user: &str) -> String {
    format!(
        "turnusers_lt: the key of user {} is not 32 hexadecimal digits; the user is left out",
        user.escape_debug()
    )
}

impl Assembly<'_> {
    fn add_realm(&mut self, is_first: bool, name: &str, peers: &[Rule], base: &EngineConfig) {
        // Only the first realm has users of the configuration; its secrets hold in all.
        let mut realm = match (is_first, base.auth.realms().next()) {
            (true, Some(first)) => first.clone(),
            (_, configured) => match Realm::new(name) {
                Ok(mut realm) => {
                    if let Some(configured) = configured {
                        realm.share_rest_secrets(configured);
                    }
                    realm
                }
                Err(error) => {
                    self.complaints.push(format!(
                        "realm {}: {error}; it is left out",
                        name.escape_debug()
                    ));
                    return;
                }
            },
        };
        self.add_users(name, &mut realm);
        self.add_secrets(name, &mut realm);
        self.add_limits(name, realm.name());
        if !peers.is_empty() {
            let mut policy = self.engine.policy.clone();
            policy.rules.extend(peers);
            let policies = &mut self.engine.realms.policies;
            policies.insert(realm.name().into(), policy);
        }
        self.engine.auth.add_realm(realm);
    }

    fn add_users(&mut self, name: &str, realm: &mut Realm) {
        let known = self.users_of.and_then(|it| it.auth.realm_of_name(name));
        if let Some(known) = known {
            realm.share_users(known);
            return;
        }
        let Some(users) = self.records.users.get(name) else {
            return;
        };
        let mut usable = Vec::with_capacity(users.len());
        for (user, key) in users {
            match key {
                Some(key) => usable.push((user, key)),
                None => self.complaints.push(without_key(user)),
            }
        }
        let added = realm.add_users_by_md5_key(usable);
        self.are_prepared &= added.are_prepared;
        for user in added.unusable {
            self.complaints.push(format!(
                "turnusers_lt: user {}: a name has 1 to 508 bytes of printable text; the user is left out",
                user.escape_debug()
            ));
        }
    }

    fn add_secrets(&mut self, name: &str, realm: &mut Realm) {
        let secrets = self.records.tables.secrets.get(name);
        let left_out = secrets.map_or(0, |secrets| learned::add_secrets(secrets, realm));
        if left_out > 0 {
            self.complaints.push(format!(
                "turn_secret: {left_out} secrets are left out; with those of the configuration {} are used, of the database the newest",
                AuthConfig::REST_SECRETS_MAX
            ));
        }
    }

    /// Adds quotas and rate, where the realm has any, under the name that the engine gives it.
    fn add_limits(&mut self, name: &str, prepared: &str) {
        let own = self.own_limits(name);
        let options = [own.user_quota, own.total_quota, own.bytes_per_s];
        if options.iter().all(Option::is_none) {
            return;
        }
        // Zero means no bound, as it does in the configuration.
        let bound = |own: Option<u32>, usual: Option<u32>| match own {
            Some(number) => (number > 0).then_some(number),
            None => usual,
        };
        let usual = &self.engine.limits;
        let limits = RealmLimits {
            user_quota: bound(own.user_quota, usual.user_quota),
            total_quota: bound(own.total_quota, usual.total_quota),
            bytes_per_s: own
                .bytes_per_s
                .map_or(usual.bandwidth.bytes_per_s, NonZeroU32::new),
        };
        self.engine.realms.limits.insert(prepared.into(), limits);
    }

    fn own_limits(&mut self, name: &str) -> OwnLimits {
        let mut own = OwnLimits::default();
        let rows = self.records.tables.options.iter();
        for row in rows.filter(|row| row.realm == name) {
            let target = match row.option.as_str() {
                "user-quota" => &mut own.user_quota,
                "total-quota" => &mut own.total_quota,
                "max-bps" => &mut own.bytes_per_s,
                option => {
                    self.complaints.push(format!(
                        "turn_realm_option: `{}` has no effect here",
                        option.escape_debug()
                    ));
                    continue;
                }
            };
            match row.value.trim().parse() {
                Ok(number) => *target = Some(number),
                Err(_) => self.complaints.push(format!(
                    "turn_realm_option: {}: `{}` is not a number from 0 to {}",
                    row.option,
                    row.value.escape_debug(),
                    u32::MAX
                )),
            }
        }
        own
    }

    /// Returns the rules of a realm, or those without a realm. While a deny rule cannot be read, all ranges that were denied `before` stay denied,
    /// because it is unknown which of them the rule replaces.
    fn peers(&mut self, realm: &str, before: &Denied) -> Vec<Rule> {
        let tables = &self.records.tables;
        let rows = |of: &BTreeMap<String, Vec<String>>| of.get(realm).cloned().unwrap_or_default();
        let (allowed, denied) = (rows(&tables.allowed), rows(&tables.denied));
        let mut rules = self.rules("allowed_peer_ip", Action::Allow, &allowed).0;
        let table = "denied_peer_ip";
        let (mut now, is_whole) = self.rules(table, Action::Deny, &denied);
        if let Some(before) = before.get(realm).filter(|_| !is_whole) {
            let kept: Vec<_> = before.iter().filter(|rule| !now.contains(rule)).collect();
            if !kept.is_empty() {
                self.complaints.push(format!(
                    "{table}: what was denied before stays denied until every row can be read"
                ));
            }
            now.extend(kept);
        }
        rules.extend(&now);
        self.denied.insert(realm.to_owned(), now);
        rules
    }

    /// Returns the rules that rows stand for, and whether all of them could be read.
    fn rules(&mut self, table: &str, action: Action, rows: &[String]) -> (Vec<Rule>, bool) {
        let mut rules = Vec::with_capacity(rows.len());
        let mut is_whole = true;
        for row in rows {
            match row.trim().parse::<AddressRange>() {
                Ok(range) => rules.push(Rule { action, range }),
                Err(error) => {
                    is_whole = false;
                    let what = format!("{table}: `{}`: {error}", row.escape_debug());
                    // A row that cannot be read must not allow a peer, and must not silently fail to deny one.
                    self.complaints.push(match action {
                        Action::Allow => format!("{what}; not allowed"),
                        Action::Deny => format!("{what}; NOT denied"),
                    });
                }
            }
        }
        (rules, is_whole)
    }

    fn add_origins(&mut self) {
        for (origin, realm) in &self.records.tables.origins {
            if let Err(error) = self.engine.auth.add_origin(origin, realm) {
                self.complaints.push(format!(
                    "turn_origin_to_realm: `{}`: {}; it is left out",
                    origin.escape_debug(),
                    match error {
                        CredentialError::Form =>
                            "an origin has 1 to 127 characters of printable ASCII".to_owned(),
                        other => other.to_string(),
                    }
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests;
