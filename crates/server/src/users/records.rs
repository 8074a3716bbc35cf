//! Reads the tables of a database, and builds the engines' settings from them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use turnbuckle_engine::{
    Action, AddressRange, AuthConfig, Config as EngineConfig, CredentialError, Realm, RealmLimits,
    Rule,
};

use super::database::{Database, DatabaseError, text};
use super::token_keys::{self, TokenKeyRecord};
use crate::config::Secret;

/// Holds which tables are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// `turnusers_lt` (not beside secrets, unless `users-beside-secrets`).
    pub(crate) users: bool,
    /// `turn_secret` (`use-auth-secret`).
    pub(crate) secrets: bool,
    /// `allowed_peer_ip` and `denied_peer_ip` (unless `no-dynamic-ip-list`).
    pub(crate) peers: bool,
    /// `turn_origin_to_realm` and `turn_realm_option` (unless `no-dynamic-realms`).
    pub(crate) realms: bool,
    /// `oauth_key` (`oauth`).
    pub(crate) token_keys: bool,
}

/// The ranges that the database denies, by realm; those without a realm are for all.
pub(crate) type Denied = BTreeMap<String, Vec<Rule>>;

/// Holds the contents of the database at one moment.
pub(crate) struct Records {
    /// The realm of requests that name no other comes first.
    realms: Vec<RealmRecords>,
    /// Origins with the names of their realms.
    origins: Vec<(String, String)>,
    /// Rules for all realms.
    peers: Vec<Rule>,
    token_keys: Vec<TokenKeyRecord>,
    denied: Denied,
    /// Rows that cannot be used, in words without keys and secrets.
    complaints: Vec<String>,
}

/// Holds the contents of the database about one realm.
#[derive(Default)]
struct RealmRecords {
    name: String,
    /// Names with the MD5 keys of RFC 8489 §9.2.2.
    users: Vec<(String, [u8; 16])>,
    /// The newest first.
    secrets: Vec<Secret>,
    peers: Vec<Rule>,
    user_quota: Option<u32>,
    total_quota: Option<u32>,
    bytes_per_s: Option<u32>,
}

impl Records {
    /// Reads the tables as [`Self::read_after`] does, with no ranges denied before.
    #[cfg(test)]
    pub(crate) fn read(
        database: &Database,
        realm: &str,
        wanted: Wanted,
    ) -> Result<Self, DatabaseError> {
        Self::read_after(database, realm, wanted, &Denied::new())
    }

    /// Reads the `wanted` tables about `realm` and all other realms that requests may name. Rows that cannot be used are left out and described in
    /// the result. If one of them is a deny rule, the ranges that were `denied` before stay denied.
    pub(crate) fn read_after(
        database: &Database,
        realm: &str,
        wanted: Wanted,
        denied: &Denied,
    ) -> Result<Self, DatabaseError> {
        database.at_once(|database| {
            let mut records = Self {
                realms: Vec::new(),
                origins: Vec::new(),
                peers: Vec::new(),
                token_keys: Vec::new(),
                denied: Denied::new(),
                complaints: Vec::new(),
            };
            if wanted.realms {
                records.origins = database.rows(
                    "select origin,realm from turn_origin_to_realm order by origin",
                    [],
                    |row| Ok((text(row, 0)?, text(row, 1)?)),
                )?;
            }
            if wanted.token_keys {
                records.token_keys = token_keys::read(database, &mut records.complaints)?;
            }
            for name in records.realm_names(realm) {
                let of_realm = records.read_realm(database, name, wanted, denied)?;
                records.realms.push(of_realm);
            }
            if wanted.peers {
                records.peers = records.read_peers(database, "", denied)?;
            }
            Ok(records)
        })
    }

    /// Returns `first`, and then each other realm that an origin or a key names, once.
    fn realm_names(&self, first: &str) -> Vec<String> {
        let of_origins = self.origins.iter().map(|(_, realm)| realm);
        let of_keys = self.token_keys.iter().map(|key| &key.realm);
        let mut others: Vec<String> = of_origins
            .chain(of_keys)
            .filter(|name| !name.is_empty() && *name != first)
            .cloned()
            .collect();
        others.sort_unstable();
        others.dedup();
        others.insert(0, first.to_owned());
        others
    }

    fn read_realm(
        &mut self,
        database: &Database,
        name: String,
        wanted: Wanted,
        denied: &Denied,
    ) -> Result<RealmRecords, DatabaseError> {
        let mut realm = RealmRecords {
            name,
            ..RealmRecords::default()
        };
        if wanted.users {
            self.read_users(database, &mut realm)?;
        }
        if wanted.secrets {
            // The newest secrets come first, because a rotation has just added them.
            let rows = database.rows(
                "select value from turn_secret where realm=?1 order by rowid desc",
                [&realm.name],
                |row| text(row, 0),
            )?;
            realm.secrets = rows
                .into_iter()
                .filter(|secret| !secret.is_empty())
                .map(|secret| Secret::new(secret.into_bytes()))
                .collect();
        }
        // Rows without a realm apply to all realms. They are not read a second time for a realm with an empty name.
        if wanted.peers && !realm.name.is_empty() {
            realm.peers = self.read_peers(database, &realm.name, denied)?;
        }
        if wanted.realms {
            self.read_options(database, &mut realm)?;
        }
        Ok(realm)
    }

    fn read_users(
        &mut self,
        database: &Database,
        realm: &mut RealmRecords,
    ) -> Result<(), DatabaseError> {
        let rows = database.rows(
            "select name,hmackey from turnusers_lt where realm=?1",
            [&realm.name],
            |row| Ok((text(row, 0)?, text(row, 1)?)),
        )?;
        for (name, key) in rows {
            match md5_key(&key) {
                Some(key) => realm.users.push((name, key)),
                None => self.complaints.push(format!(
                    "turnusers_lt: the key of user {} is not 32 hexadecimal digits; the user is left out",
                    name.escape_debug()
                )),
            }
        }
        Ok(())
    }

    /// Returns the rules of a realm, or those without a realm. While a deny rule cannot be read, all ranges that were `denied` before stay denied,
    /// because it is unknown which of them the rule replaces.
    fn read_peers(
        &mut self,
        database: &Database,
        realm: &str,
        denied: &Denied,
    ) -> Result<Vec<Rule>, DatabaseError> {
        let mut rules = self
            .read_ranges(database, "allowed_peer_ip", Action::Allow, realm)?
            .0;
        let table = "denied_peer_ip";
        let (mut now, is_whole) = self.read_ranges(database, table, Action::Deny, realm)?;
        if let Some(before) = denied.get(realm).filter(|_| !is_whole) {
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
        Ok(rules)
    }

    /// Returns the rules of a table, and whether all of its rows could be read.
    fn read_ranges(
        &mut self,
        database: &Database,
        table: &str,
        action: Action,
        realm: &str,
    ) -> Result<(Vec<Rule>, bool), DatabaseError> {
        let rows = database.rows(
            &format!("select ip_range from {table} where coalesce(realm,'')=?1 order by ip_range"),
            [realm],
            |row| text(row, 0),
        )?;
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
        Ok((rules, is_whole))
    }

    /// Takes the ranges that are denied now, for [`Self::read_after`].
    pub(crate) fn take_denied(&mut self) -> Denied {
        std::mem::take(&mut self.denied)
    }

    fn read_options(
        &mut self,
        database: &Database,
        realm: &mut RealmRecords,
    ) -> Result<(), DatabaseError> {
        let rows = database.rows(
            "select opt,value from turn_realm_option where realm=?1",
            [&realm.name],
            |row| Ok((text(row, 0)?, text(row, 1)?)),
        )?;
        for (option, value) in rows {
            let target = match option.as_str() {
                "user-quota" => &mut realm.user_quota,
                "total-quota" => &mut realm.total_quota,
                "max-bps" => &mut realm.bytes_per_s,
                _ => {
                    self.complaints.push(format!(
                        "turn_realm_option: `{}` has no effect here",
                        option.escape_debug()
                    ));
                    continue;
                }
            };
            match value.trim().parse() {
                Ok(number) => *target = Some(number),
                Err(_) => self.complaints.push(format!(
                    "turn_realm_option: {option}: `{}` is not a number from 0 to {}",
                    value.escape_debug(),
                    u32::MAX
                )),
            }
        }
        Ok(())
    }

    /// Returns the configuration's settings, `base`, with these records added. Configured users come before those of the database.
    pub(crate) fn added_to(self, base: &EngineConfig) -> (Arc<EngineConfig>, Vec<String>) {
        let mut engine = base.clone();
        let mut complaints = self.complaints;
        engine.policy.rules.extend(self.peers);
        for (index, records) in self.realms.into_iter().enumerate() {
            // Only the first realm has users of the configuration; its secrets hold in all.
            let mut realm = match (index, base.auth.realms().next()) {
                (0, Some(first)) => first.clone(),
                (_, configured) => match Realm::new(&records.name) {
                    Ok(mut realm) => {
                        if let Some(configured) = configured {
                            realm.share_rest_secrets(configured);
                        }
                        realm
                    }
                    Err(error) => {
                        complaints.push(format!(
                            "realm {}: {error}; it is left out",
                            records.name.escape_debug()
                        ));
                        continue;
                    }
                },
            };
            records.add_credentials(&mut realm, &mut complaints);
            records.add_rules(realm.name(), &mut engine);
            engine.auth.add_realm(realm);
        }
        for (origin, realm) in self.origins {
            if let Err(error) = engine.auth.add_origin(&origin, &realm) {
                complaints.push(format!(
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
        if let Some(third_parties) = &mut engine.auth.third_parties {
            for key in self.token_keys {
                key.add_to(third_parties, &mut complaints);
            }
        }
        (Arc::new(engine), complaints)
    }
}

impl RealmRecords {
    fn add_credentials(&self, realm: &mut Realm, complaints: &mut Vec<String>) {
        let users = self.users.iter().map(|(name, key)| (name.as_str(), *key));
        for name in realm.add_users_by_md5_key(users) {
            complaints.push(format!(
                "turnusers_lt: user {}: a name has 1 to 508 bytes of printable text; the user is left out",
                name.escape_debug()
            ));
        }
        let left_out = self
            .secrets
            .iter()
            .filter(|secret| realm.add_rest_secret(secret.expose()).is_err())
            .count();
        if left_out > 0 {
            complaints.push(format!(
                "turn_secret: {left_out} secrets are left out; with those of the configuration {} are used, of the database the newest",
                AuthConfig::REST_SECRETS_MAX
            ));
        }
    }

    /// Adds quotas, rate and peer rules, where the realm called `name` has any.
    fn add_rules(&self, name: &str, engine: &mut EngineConfig) {
        let options = [self.user_quota, self.total_quota, self.bytes_per_s];
        if options.iter().any(Option::is_some) {
            // Zero means no bound, as it does in the configuration.
            let bound = |own: Option<u32>, usual: Option<u32>| match own {
                Some(number) => (number > 0).then_some(number),
                None => usual,
            };
            let limits = RealmLimits {
                user_quota: bound(self.user_quota, engine.limits.user_quota),
                total_quota: bound(self.total_quota, engine.limits.total_quota),
                bytes_per_s: self
                    .bytes_per_s
                    .map_or(engine.limits.bandwidth.bytes_per_s, NonZeroU32::new),
            };
            engine.realms.limits.insert(name.into(), limits);
        }
        if !self.peers.is_empty() {
            let mut policy = engine.policy.clone();
            policy.rules.extend(&self.peers);
            engine.realms.policies.insert(name.into(), policy);
        }
    }
}

/// Returns the 16 bytes that 32 hexadecimal digits stand for. Text behind them is ignored, because some databases have blanks there.
fn md5_key(digits: &str) -> Option<[u8; 16]> {
    let digits = digits
        .get(..32)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests;
