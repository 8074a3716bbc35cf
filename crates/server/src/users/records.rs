//! What the tables of a database say about one realm, and what follows from it for the engines.

use std::num::NonZeroU32;
use std::sync::Arc;

use turnbuckle_engine::{Action, AddressRange, AuthConfig, Config as EngineConfig, Rule};

use super::database::{Database, DatabaseError, text};
use crate::config::Secret;

/// Which tables count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// `turn_secret` (`use-auth-secret`).
    pub(crate) secrets: bool,
    /// `allowed_peer_ip` and `denied_peer_ip` (unless `no-dynamic-ip-list`).
    pub(crate) peers: bool,
    /// `turn_realm_option` (unless `no-dynamic-realms`).
    pub(crate) options: bool,
}

/// Everything the database says about one realm, read at one moment.
pub(crate) struct Records {
    /// Names with the MD5 keys of RFC 8489 §9.2.2.
    users: Vec<(String, [u8; 16])>,
    secrets: Vec<Secret>,
    peers: Vec<Rule>,
    user_quota: Option<u32>,
    total_quota: Option<u32>,
    bytes_per_s: Option<u32>,
    /// Rows that cannot be used, in words without keys and secrets.
    complaints: Vec<String>,
}

impl Records {
    /// Reads what is `wanted` about `realm`. Rows that cannot be used are left out and complained of.
    pub(crate) fn read(
        database: &Database,
        realm: &str,
        wanted: Wanted,
    ) -> Result<Self, DatabaseError> {
        database.at_once(|database| {
            let mut records = Self {
                users: Vec::new(),
                secrets: Vec::new(),
                peers: Vec::new(),
                user_quota: None,
                total_quota: None,
                bytes_per_s: None,
                complaints: Vec::new(),
            };
            records.read_users(database, realm)?;
            if wanted.secrets {
                records.read_secrets(database, realm)?;
            }
            if wanted.peers {
                records.read_peers(database, realm, "allowed_peer_ip", Action::Allow)?;
                records.read_peers(database, realm, "denied_peer_ip", Action::Deny)?;
            }
            if wanted.options {
                records.read_options(database, realm)?;
            }
            Ok(records)
        })
    }

    fn read_users(&mut self, database: &Database, realm: &str) -> Result<(), DatabaseError> {
        let rows = database.rows(
            "select name,hmackey from turnusers_lt where realm=?1",
            [realm],
            |row| Ok((text(row, 0)?, text(row, 1)?)),
        )?;
        for (name, key) in rows {
            match md5_key(&key) {
                Some(key) => self.users.push((name, key)),
                None => self.complaints.push(format!(
                    "turnusers_lt: the key of user {} is not 32 hexadecimal digits; the user is left out",
                    name.escape_debug()
                )),
            }
        }
        Ok(())
    }

    fn read_secrets(&mut self, database: &Database, realm: &str) -> Result<(), DatabaseError> {
        // The newest first: they are the ones a rotation has just added.
        let rows = database.rows(
            "select value from turn_secret where realm=?1 order by rowid desc",
            [realm],
            |row| text(row, 0),
        )?;
        self.secrets = rows
            .into_iter()
            .filter(|secret| !secret.is_empty())
            .map(|secret| Secret::new(secret.into_bytes()))
            .collect();
        Ok(())
    }

    fn read_peers(
        &mut self,
        database: &Database,
        realm: &str,
        table: &str,
        action: Action,
    ) -> Result<(), DatabaseError> {
        // A row without a realm holds for all.
        let rows = database.rows(
            &format!("select ip_range from {table} where realm=?1 or realm='' or realm is null order by ip_range"),
            [realm],
            |row| text(row, 0),
        )?;
        for row in rows {
            match row.trim().parse::<AddressRange>() {
                Ok(range) => self.peers.push(Rule { action, range }),
                Err(error) => {
                    let what = format!("{table}: `{}`: {error}", row.escape_debug());
                    // What cannot be read must not open anything, and must not silently fail to close something.
                    self.complaints.push(match action {
                        Action::Allow => format!("{what}; not allowed"),
                        Action::Deny => format!("{what}; NOT denied"),
                    });
                }
            }
        }
        Ok(())
    }

    fn read_options(&mut self, database: &Database, realm: &str) -> Result<(), DatabaseError> {
        let rows = database.rows(
            "select opt,value from turn_realm_option where realm=?1",
            [realm],
            |row| Ok((text(row, 0)?, text(row, 1)?)),
        )?;
        for (option, value) in rows {
            let target = match option.as_str() {
                "user-quota" => &mut self.user_quota,
                "total-quota" => &mut self.total_quota,
                "max-bps" => &mut self.bytes_per_s,
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

    /// `base`, which is what the configuration says, with these records added. Configured users come before those of the database.
    pub(crate) fn added_to(mut self, base: &EngineConfig) -> (Arc<EngineConfig>, Vec<String>) {
        let mut engine = base.clone();
        let users = self.users.iter().map(|(name, key)| (name.as_str(), *key));
        for name in engine.auth.add_users_by_md5_key(users) {
            self.complaints.push(format!(
                "turnusers_lt: user {}: a name has 1 to 508 bytes of printable text; the user is left out",
                name.escape_debug()
            ));
        }
        let left_out = self
            .secrets
            .iter()
            .filter(|secret| engine.auth.add_rest_secret(secret.expose()).is_err())
            .count();
        if left_out > 0 {
            self.complaints.push(format!(
                "turn_secret: {left_out} secrets are left out; with those of the configuration {} are used, of the database the newest",
                AuthConfig::REST_SECRETS_MAX
            ));
        }
        engine.policy.rules.append(&mut self.peers);
        let limits = &mut engine.limits;
        // Zero means no bound, as it does in the configuration.
        for (bound, option) in [
            (&mut limits.user_quota, self.user_quota),
            (&mut limits.total_quota, self.total_quota),
        ] {
            if let Some(number) = option {
                *bound = (number > 0).then_some(number);
            }
        }
        if let Some(rate) = self.bytes_per_s {
            engine.bandwidth.bytes_per_s = NonZeroU32::new(rate);
        }
        (Arc::new(engine), self.complaints)
    }
}

/// The 16 bytes of 32 hexadecimal digits; what follows them (blanks, in some databases) does not count.
fn md5_key(digits: &str) -> Option<[u8; 16]> {
    let digits = digits
        .get(..32)
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
    u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests;
