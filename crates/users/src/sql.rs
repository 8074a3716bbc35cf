//! coturn's tables in SQL, and the statements of `turnadmin` on them.

use crate::change::{Change, Listing};

/// How a database writes what the standard leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
    Mysql,
}

/// A statement with the values for its places.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) text: String,
    pub(crate) values: Vec<String>,
}

/// Columns with their values.
type Columns<'a> = &'a [(&'static str, &'a str)];

impl Dialect {
    fn place(self, number: usize) -> String {
        match self {
            Self::Sqlite => format!("?{number}"),
            Self::Postgres => format!("${number}"),
            Self::Mysql => "?".to_owned(),
        }
    }

    /// Inserts a row, or replaces the one with these `keys`.
    fn put(self, table: &str, keys: Columns<'_>, others: Columns<'_>) -> Statement {
        let columns: Vec<_> = keys.iter().chain(others).collect();
        let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
        let places: Vec<_> = (1..=names.len()).map(|number| self.place(number)).collect();
        let (names, places) = (names.join(","), places.join(","));
        let row = format!("into {table} ({names}) values({places})");
        let replaced = |new: fn(&str) -> String| {
            let columns = others.iter().map(|(name, _)| new(name));
            columns.collect::<Vec<_>>().join(",")
        };
        let text = match self {
            Self::Sqlite => format!("insert or replace {row}"),
            Self::Postgres => {
                let keys: Vec<_> = keys.iter().map(|(name, _)| *name).collect();
                let then = match others {
                    [] => "nothing".to_owned(),
                    _ => format!(
                        "update set {}",
                        replaced(|name| format!("{name}=excluded.{name}"))
                    ),
                };
                format!("insert {row} on conflict ({}) do {then}", keys.join(","))
            }
            Self::Mysql => {
                let then = match (others, keys) {
                    // What it is already.
                    ([], [(name, _), ..]) => format!("{name}={name}"),
                    _ => replaced(|name| format!("{name}=values({name})")),
                };
                format!("insert {row} on duplicate key update {then}")
            }
        };
        Statement {
            text,
            values: values(&columns),
        }
    }

    fn delete(self, table: &str, keys: Columns<'_>) -> Statement {
        let conditions: Vec<_> = (1..)
            .zip(keys)
            .map(|(number, (name, _))| format!("{name}={}", self.place(number)))
            .collect();
        Statement {
            text: format!("delete from {table} where {}", conditions.join(" and ")),
            values: values(&keys.iter().collect::<Vec<_>>()),
        }
    }

    /// Returns the statements of a change, which belong into one transaction.
    pub(crate) fn change(self, change: Change<'_>) -> Vec<Statement> {
        let statement = match change {
            Change::PutUser { realm, name, key } => self.put(
                "turnusers_lt",
                &[("realm", realm), ("name", name)],
                &[("hmackey", key)],
            ),
            Change::DeleteUser { realm, name } => {
                self.delete("turnusers_lt", &[("realm", realm), ("name", name)])
            }
            Change::AddSecret { realm, secret } => {
                self.put("turn_secret", &[("realm", realm), ("value", secret)], &[])
            }
            Change::DeleteSecret { realm, secret } => {
                self.delete("turn_secret", &[("realm", realm), ("value", secret)])
            }
            Change::DeleteSecrets { realm } => self.delete("turn_secret", &[("realm", realm)]),
            Change::PutOrigin { origin, realm } => self.put(
                "turn_origin_to_realm",
                &[("origin", origin)],
                &[("realm", realm)],
            ),
            Change::DeleteOrigin { origin } => {
                self.delete("turn_origin_to_realm", &[("origin", origin)])
            }
            Change::PutRealmOptions { realm, options } => {
                return options
                    .iter()
                    .map(|&(option, value)| {
                        let keys = [("realm", realm), ("opt", option)];
                        match value {
                            0 => self.delete("turn_realm_option", &keys),
                            value => {
                                let value = value.to_string();
                                self.put("turn_realm_option", &keys, &[("value", &value)])
                            }
                        }
                    })
                    .collect();
            }
            Change::PutAdmin {
                name,
                realm,
                password,
            } => self.put(
                "admin_user",
                &[("name", name)],
                &[("realm", realm), ("password", password)],
            ),
            Change::DeleteAdmin { name } => self.delete("admin_user", &[("name", name)]),
        };
        vec![statement]
    }

    /// Returns a query of realm, name and value, each text and never null.
    pub(crate) fn list(self, listing: Listing, realm: Option<&str>) -> Statement {
        let (table, name, value) = match listing {
            Listing::Users => ("turnusers_lt", "name", "''"),
            Listing::Secrets => ("turn_secret", "value", "''"),
            Listing::Origins => ("turn_origin_to_realm", "origin", "''"),
            Listing::RealmOptions => ("turn_realm_option", "opt", "coalesce(value,'')"),
            Listing::Admins => ("admin_user", "name", "''"),
        };
        let condition =
            realm.map_or_else(String::new, |_| format!(" where realm={}", self.place(1)));
        Statement {
            text: format!(
                "select coalesce(realm,''),coalesce({name},''),{value} from {table}{condition}"
            ),
            values: realm.map(str::to_owned).into_iter().collect(),
        }
    }
}

fn values(columns: &[&(&'static str, &str)]) -> Vec<String> {
    let values = columns.iter();
    values.map(|(_, value)| (*value).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_there_is_replaced_in_every_dialect() {
        let user = Change::PutUser {
            realm: "r",
            name: "alice",
            key: "00",
        };
        let secret = Change::AddSecret {
            realm: "r",
            secret: "s",
        };
        for (dialect, of_user, of_secret) in [
            (
                Dialect::Sqlite,
                "insert or replace into turnusers_lt (realm,name,hmackey) values(?1,?2,?3)",
                "insert or replace into turn_secret (realm,value) values(?1,?2)",
            ),
            (
                Dialect::Postgres,
                "insert into turnusers_lt (realm,name,hmackey) values($1,$2,$3) \
                 on conflict (realm,name) do update set hmackey=excluded.hmackey",
                "insert into turn_secret (realm,value) values($1,$2) on conflict (realm,value) do nothing",
            ),
            (
                Dialect::Mysql,
                "insert into turnusers_lt (realm,name,hmackey) values(?,?,?) \
                 on duplicate key update hmackey=values(hmackey)",
                "insert into turn_secret (realm,value) values(?,?) on duplicate key update realm=realm",
            ),
        ] {
            let [statement] = &dialect.change(user)[..] else {
                panic!("{dialect:?}");
            };
            assert_eq!(statement.text, of_user);
            assert_eq!(statement.values, ["r", "alice", "00"]);
            assert_eq!(dialect.change(secret)[0].text, of_secret);
        }
    }
}
