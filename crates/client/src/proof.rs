//! The long-term credential mechanism from a client's side (RFC 8489 §9.2), and tokens in place of passwords (RFC 7635).

use std::time::{SystemTime, UNIX_EPOCH};

use rand::Rng;
use turnbuckle_wire::{AttributeType, IntegrityKey, Message, MessageWriter, PasswordAlgorithm};

use crate::credentials::Credentials;
use crate::token::Token;

/// A client's identity, and the server's last challenge, with which its requests are signed.
#[derive(Clone, Debug)]
pub struct Proof {
    credentials: Credentials,
    realm: Vec<u8>,
    nonce: Vec<u8>,
    /// PASSWORD-ALGORITHMS of the challenge, to be sent back as they came (RFC 8489 §9.2.5), and the choice among them.
    algorithms: Vec<u8>,
    algorithm: Option<PasswordAlgorithm>,
    key: Option<IntegrityKey>,
    /// The replacement of a password, known once the server has named the authorization server that it trusts.
    token: Option<Token>,
}

impl Proof {
    /// Returns the state of a client that was not challenged yet: it has nothing to sign with.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            realm: Vec::new(),
            nonce: Vec::new(),
            algorithms: Vec::new(),
            algorithm: None,
            key: None,
            token: None,
        }
    }

    /// Returns the state of a client after a challenge with these values, whatever the server sent. `choice` is an algorithm and the value of
    /// PASSWORD-ALGORITHMS to send back; without it the key is made as by clients of RFC 5389.
    pub fn claimed(
        credentials: Credentials,
        realm: &[u8],
        nonce: &[u8],
        choice: Option<(PasswordAlgorithm, &[u8])>,
    ) -> Self {
        let algorithm = choice.map(|(algorithm, _)| algorithm);
        Self {
            key: Some(credentials.key(realm, algorithm)),
            credentials,
            realm: realm.to_vec(),
            nonce: nonce.to_vec(),
            algorithms: choice.map_or_else(Vec::new, |(_, offered)| offered.to_vec()),
            algorithm,
            token: None,
        }
    }

    /// Takes over realm, nonce and algorithms of a challenge. Returns whether requests can be signed with them.
    pub fn take(&mut self, challenge: &Message<'_>, random: &mut impl Rng) -> bool {
        let Ok(Some(nonce)) = challenge.nonce() else {
            return false;
        };
        self.nonce = nonce.to_vec();
        if let Ok(Some(realm)) = challenge.realm() {
            self.realm = realm.to_vec();
        }
        self.algorithms.clear();
        self.algorithm = None;
        if let Some(shared_key) = self.credentials.shared_key() {
            if let Some(server_name) = challenge.third_party_authorization() {
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                self.token = Token::new(
                    shared_key,
                    server_name,
                    now.map_or(0, |now| now.as_secs()),
                    random.random(),
                    random.random(),
                );
            }
            let token = self.token.as_ref();
            self.key = token.map(|token| IntegrityKey::sha1(&token.mac_key));
            return self.key.is_some();
        }
        if let (Ok(Some(offered)), Some(raw)) = (
            challenge.password_algorithms(),
            challenge.raw(AttributeType::PASSWORD_ALGORITHMS),
        ) {
            self.algorithm = [PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5]
                .into_iter()
                .find(|&algorithm| offered.contains(algorithm));
            self.algorithms = raw.to_vec();
        }
        self.key = Some(self.credentials.key(&self.realm, self.algorithm));
        true
    }

    /// Appends USERNAME, REALM, NONCE, what the mechanism needs, and the integrity attribute. Appends nothing before there is a key.
    pub fn sign(&self, writer: &mut MessageWriter<'_>) {
        let Some(key) = &self.key else {
            return;
        };
        writer
            .username(self.credentials.username().as_bytes())
            .realm(&self.realm)
            .nonce(&self.nonce);
        if let Some(token) = &self.token {
            writer.access_token(token.attribute());
        }
        if let Some(algorithm) = self.algorithm {
            writer
                .bytes(AttributeType::PASSWORD_ALGORITHMS, &self.algorithms)
                .password_algorithm(algorithm);
        }
        writer.integrity(key);
    }

    /// Returns whether `message` is signed by a server that has the password; true before there is a key. The key depends on the algorithm, not on
    /// the integrity attribute of the request.
    pub fn is_of_server(&self, message: &Message<'_>) -> bool {
        let mut keys = self.key.iter();
        keys.all(|key| message.check_integrity(key).is_ok())
    }

    /// Returns whether there is a key to sign with.
    pub fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Returns the client's identity.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Changes the client's identity from the next challenge on.
    pub fn set_credentials(&mut self, credentials: Credentials) {
        self.credentials = credentials;
    }

    /// Returns the realm of the last challenge; empty before the first.
    pub fn realm(&self) -> &[u8] {
        &self.realm
    }

    /// Returns the nonce of the last challenge; empty before the first.
    pub fn nonce(&self) -> &[u8] {
        &self.nonce
    }

    /// Returns the value of PASSWORD-ALGORITHMS of the last challenge; empty without it.
    pub fn algorithms(&self) -> &[u8] {
        &self.algorithms
    }
}
