//! Keys of authorization servers (`oauth_key`).

use turnbuckle_engine::{CredentialError, Realm, ThirdParties, TokenCipher};

use turnbuckle_users::TokenKeyRow;

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
    realm: String,
}

/// Judges the rows. Those that cannot be used are left out and complained of.
pub(super) fn usable(rows: &[TokenKeyRow], complaints: &mut Vec<String>) -> Vec<TokenKeyRecord> {
    let mut keys = Vec::with_capacity(rows.len());
    for row in rows {
        match read(row) {
            Ok(key) => keys.push(key),
            Err(why) => complaints.push(complaint(&row.name, &why)),
        }
    }
    keys
}

fn read(row: &TokenKeyRow) -> Result<TokenKeyRecord, String> {
    let cipher = match row.cipher.trim() {
        "" | "A256GCM" => TokenCipher::Aes256Gcm,
        "A128GCM" => TokenCipher::Aes128Gcm,
        _ => return Err("as_rs_alg is neither A256GCM nor A128GCM".to_owned()),
    };
    let key = std::str::from_utf8(row.key.expose()).ok();
    let key = key
        .and_then(|key| decoded_key(key.trim()))
        .ok_or("ikm_key is not base64")?;
    // What cannot be read must not make a key good for ever.
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let lifetime = number(&row.lifetime).ok_or("lifetime is not a number of seconds")?;
    let timestamp = number(&row.timestamp).ok_or("timestamp is not a number of seconds")?;
    Ok(TokenKeyRecord {
        name: row.name.clone(),
        cipher,
        key,
        // Without a lifetime it does not end, as in coturn.
        until_unix_s: (lifetime > 0).then_some(timestamp.saturating_add(lifetime)),
        realm: row.realm.clone(),
    })
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
        let until = |timestamp: &str, lifetime: &str| {
            let row = TokenKeyRow {
                name: "north".to_owned(),
                key: Secret::new(&b"Y2FybGVvbg"[..]),
                timestamp: timestamp.to_owned(),
                lifetime: lifetime.to_owned(),
                cipher: String::new(),
                realm: String::new(),
            };
            read(&row).map(|key| key.until_unix_s)
        };
        assert_eq!(until("1800000000", "60"), Ok(Some(1_800_000_060)));
        assert_eq!(until("1800000000", "0"), Ok(None));
        assert_eq!(until("5", &u64::MAX.to_string()), Ok(Some(u64::MAX)));
        assert!(until("soon", "60").is_err());
        assert!(until("1800000000", "").is_err());
    }
}
