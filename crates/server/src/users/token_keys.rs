//! Keys of authorization servers (`oauth_key`).

use turnbuckle_engine::{CredentialError, Realm, ThirdParties, TokenCipher};

use super::database::{Database, DatabaseError, text};
use crate::config::{Secret, decoded_key};

/// A row of the table that can be used.
pub(super) struct TokenKeyRecord {
    /// The `kid`.
    name: String,
    cipher: TokenCipher,
    key: Secret,
    /// When the key ends, in seconds since 1970.
    until_unix_s: Option<u64>,
    /// The realm of who shows a token under it; empty for the one of the request.
    pub(super) realm: String,
}

/// Reads the table. Rows that cannot be used are left out and complained of.
pub(super) fn read(
    database: &Database,
    complaints: &mut Vec<String>,
) -> Result<Vec<TokenKeyRecord>, DatabaseError> {
    let rows = database.rows(
        "select kid,ikm_key,timestamp,lifetime,as_rs_alg,realm from oauth_key order by kid",
        [],
        |row| {
            let number = |column| text(row, column).map(|text| text.trim().parse::<u64>().ok());
            Ok(Row {
                name: text(row, 0)?,
                key: text(row, 1)?,
                timestamp: number(2)?,
                lifetime: number(3)?,
                cipher: text(row, 4)?,
                realm: text(row, 5)?,
            })
        },
    )?;
    let mut keys = Vec::with_capacity(rows.len());
    for row in rows {
        let name = row.name.clone();
        match row.read() {
            Ok(key) => keys.push(key),
            Err(why) => complaints.push(complaint(&name, &why)),
        }
    }
    Ok(keys)
}

/// A row as it stands in the table. What is no number is `None`.
struct Row {
    name: String,
    key: String,
    timestamp: Option<u64>,
    lifetime: Option<u64>,
    cipher: String,
    realm: String,
}

impl Row {
    fn read(self) -> Result<TokenKeyRecord, String> {
        let cipher = match self.cipher.trim() {
            "" | "A256GCM" => TokenCipher::Aes256Gcm,
            "A128GCM" => TokenCipher::Aes128Gcm,
            _ => return Err("as_rs_alg is neither A256GCM nor A128GCM".to_owned()),
        };
        let key = decoded_key(self.key.trim()).ok_or("ikm_key is not base64")?;
        // What cannot be read must not make a key good for ever.
        let lifetime = self.lifetime.ok_or("lifetime is not a number of seconds")?;
        let timestamp = self
            .timestamp
            .ok_or("timestamp is not a number of seconds")?;
        Ok(TokenKeyRecord {
            name: self.name,
            cipher,
            key,
            // Without a lifetime it does not end, as in coturn.
            until_unix_s: (lifetime > 0).then_some(timestamp.saturating_add(lifetime)),
            realm: self.realm,
        })
    }
}

impl TokenKeyRecord {
    /// Adds the key, unless the configuration has one of that name.
    pub(super) fn add_to(&self, third_parties: &mut ThirdParties, complaints: &mut Vec<String>) {
        let realm = match self.realm.as_str() {
            "" => None,
            name => match Realm::new(name) {
                Ok(realm) => Some(realm),
                Err(error) => {
                    complaints.push(complaint(&self.name, &format!("realm: {error}")));
                    return;
                }
            },
        };
        let added = third_parties.add_key(
            &self.name,
            self.cipher,
            self.key.expose(),
            self.until_unix_s,
            realm.as_ref().map(Realm::name),
        );
        match added {
            Ok(()) => {}
            Err(CredentialError::Duplicate) => complaints.push(complaint(
                &self.name,
                "the configuration has a key of that name",
            )),
            Err(error) => complaints.push(complaint(&self.name, &error.to_string())),
        }
    }
}

fn complaint(name: &str, why: &str) -> String {
    format!("oauth_key: {}: {why}; it is left out", name.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_ends_when_its_row_says_and_never_because_a_number_cannot_be_read() {
        let until = |timestamp: Option<u64>, lifetime: Option<u64>| {
            let row = Row {
                name: "north".to_owned(),
                key: "Y2FybGVvbg".to_owned(),
                timestamp,
                lifetime,
                cipher: String::new(),
                realm: String::new(),
            };
            row.read().map(|key| key.until_unix_s)
        };
        assert_eq!(
            until(Some(1_800_000_000), Some(60)),
            Ok(Some(1_800_000_060))
        );
        assert_eq!(until(Some(1_800_000_000), Some(0)), Ok(None));
        assert_eq!(until(Some(5), Some(u64::MAX)), Ok(Some(u64::MAX)));
        assert!(until(None, Some(60)).is_err());
        assert!(until(Some(1_800_000_000), None).is_err());
    }
}
