//! A client to send requests with, and a server to send them to.

use turnbuckle_wire::long_term_key_md5;

use super::*;
pub(super) use crate::random::seeded::Seeded;
pub(super) use turnbuckle_wire::long_term_key_sha256;

pub(super) const REALM: &str = "example.org";
pub(super) const START: u64 = 1_800_000_000;

/// Returns a configuration with Alice and Bob, who have passwords.
pub(super) fn users() -> AuthConfig {
    let mut config = AuthConfig::new(REALM).unwrap();
    config.add_user("alice", "wonderland").unwrap();
    config.add_user("bob", "builder").unwrap();
    config
}

pub(super) struct Server {
    pub(super) authenticator: Authenticator,
    pub(super) random: Seeded,
    pub(super) now: Now,
    pub(super) client: SocketAddr,
    pub(super) listener: SocketAddr,
}

impl Server {
    pub(super) fn new(config: &AuthConfig) -> Self {
        let mut random = Seeded(1);
        Self {
            authenticator: Authenticator::new(config, &mut random),
            random,
            now: Now {
                time: Time::from_secs(1000),
                unix_s: START,
            },
            client: "198.51.100.7:40000".parse().unwrap(),
            listener: "203.0.113.1:3478".parse().unwrap(),
        }
    }

    pub(super) fn with_users() -> Self {
        Self::new(&users())
    }

    pub(super) fn advance(&mut self, seconds: u64) {
        self.now.time = self.now.time + Duration::from_secs(seconds);
        self.now.unix_s += seconds;
    }

    pub(super) fn nonce(&mut self) -> Vec<u8> {
        let rejection = self.send(&Request::first()).unwrap_err();
        rejection.challenge.unwrap().nonce.as_bytes().to_vec()
    }

    /// Returns Alice's request with the MD5 key and MESSAGE-INTEGRITY, as browsers send it.
    pub(super) fn md5_request(&mut self) -> Request {
        self.request(None, Integrity::Sha1)
    }

    pub(super) fn request(
        &mut self,
        algorithm: Option<PasswordAlgorithm>,
        integrity: Integrity,
    ) -> Request {
        let list = vec![PasswordAlgorithm::Sha256, PasswordAlgorithm::Md5];
        Request {
            username: Some(b"alice".to_vec()),
            realm: Some(REALM.into()),
            nonce: Some(self.nonce()),
            password: "wonderland".into(),
            key_name: "alice".into(),
            list: algorithm.map(|_| list),
            algorithm,
            integrity: Some(integrity),
            ..Request::first()
        }
    }

    pub(super) fn send(&mut self, request: &Request) -> Result<Proof, Rejection> {
        self.send_raw(&request.bytes())
    }

    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> Result<Proof, Rejection> {
        let Ok(message) = Message::parse(bytes) else {
            panic!("a request that cannot be parsed");
        };
        self.authenticator.authenticate(
            self.now,
            &mut self.random,
            self.client,
            self.listener,
            &message,
        )
    }
}

/// A request in the making.
#[derive(Clone)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) username: Option<Vec<u8>>,
    pub(super) userhash: Option<Vec<u8>>,
    pub(super) realm: Option<Vec<u8>>,
    pub(super) nonce: Option<Vec<u8>>,
    pub(super) list: Option<Vec<PasswordAlgorithm>>,
    pub(super) algorithm: Option<PasswordAlgorithm>,
    pub(super) password: String,
    /// The name the key is made with.
    pub(super) key_name: String,
    pub(super) integrity: Option<Integrity>,
}

impl Request {
    /// Returns the first request of a client.
    pub(super) fn first() -> Self {
        Self {
            method: Method::ALLOCATE,
            username: None,
            userhash: None,
            realm: None,
            nonce: None,
            list: None,
            algorithm: None,
            password: String::new(),
            key_name: String::new(),
            integrity: None,
        }
    }

    pub(super) fn without_integrity(self) -> Self {
        Self {
            integrity: None,
            ..self
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let name = self.key_name.as_bytes();
        let password = self.password.as_bytes();
        let key = match self.algorithm {
            Some(PasswordAlgorithm::Sha256) => {
                long_term_key_sha256(name, REALM.as_bytes(), password).to_vec()
            }
            _ => long_term_key_md5(name, REALM.as_bytes(), password).to_vec(),
        };
        self.write(|writer| {
            match self.integrity {
                None => {}
                Some(Integrity::Sha1) => {
                    writer.integrity(&IntegrityKey::sha1(&key));
                }
                Some(Integrity::Sha256) => {
                    writer.integrity(&IntegrityKey::sha256(&key));
                }
            };
        })
    }

    pub(super) fn write(&self, integrity: impl FnOnce(&mut MessageWriter<'_>)) -> Vec<u8> {
        let mut buffer = vec![0; 4096];
        let id = TransactionId::new([7; 12]);
        let mut writer = MessageWriter::new(&mut buffer, Class::Request, self.method, id);
        if let Some(username) = &self.username {
            writer.bytes(AttributeType::USERNAME, username);
        }
        if let Some(userhash) = &self.userhash {
            writer.bytes(AttributeType::USERHASH, userhash);
        }
        if let Some(realm) = &self.realm {
            writer.bytes(AttributeType::REALM, realm);
        }
        if let Some(nonce) = &self.nonce {
            writer.bytes(AttributeType::NONCE, nonce);
        }
        if let Some(list) = &self.list {
            writer.password_algorithms(list);
        }
        if let Some(algorithm) = self.algorithm {
            writer.password_algorithm(algorithm);
        }
        integrity(&mut writer);
        let len = writer.finish().unwrap();
        buffer.truncate(len);
        buffer
    }
}

pub(super) fn md5_of(name: &str, password: &str) -> [u8; 16] {
    long_term_key_md5(name.as_bytes(), REALM.as_bytes(), password.as_bytes())
}

pub(super) fn wrong_sha1() -> IntegrityKey {
    IntegrityKey::sha1(b"wrong")
}

/// Returns whether an answer protected with the proof's key verifies under `key`.
pub(super) fn answer_verifies(proof: &Proof, key: &IntegrityKey) -> bool {
    let mut buffer = [0; 256];
    let id = TransactionId::new([7; 12]);
    let mut writer = MessageWriter::new(&mut buffer, Class::Success, Method::REFRESH, id);
    let response_key = proof.response_key.as_ref().expect("no guest");
    writer.lifetime(600).integrity(response_key);
    let len = writer.finish().unwrap();
    let message = Message::parse(&buffer[..len]).unwrap();
    message.check_integrity(key).is_ok()
}
