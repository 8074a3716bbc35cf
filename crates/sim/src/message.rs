//! Requests and indications as clients and attackers write them.

use std::net::SocketAddr;

use turnbuckle_wire::{
    AttributeType, Class, HEADER_LEN, IntegrityKey, MessageWriter, Method, TransactionId,
    long_term_key_md5, long_term_key_sha256, userhash,
};

/// The realm of the simulated server.
pub const REALM: &str = "turnbuckle.test";

/// PASSWORD-ALGORITHM's number for MD5 and for SHA-256 (RFC 8489 §18.5).
const ALGORITHM_MD5: u16 = 1;
const ALGORITHM_SHA256: u16 = 2;

/// An attribute of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// REQUESTED-TRANSPORT.
    Transport(u8),
    /// LIFETIME.
    Lifetime(u32),
    /// EVEN-PORT with its R bit.
    EvenPort(bool),
    /// REQUESTED-ADDRESS-FAMILY.
    Family(u8),
    /// ADDITIONAL-ADDRESS-FAMILY.
    AdditionalFamily(u8),
    /// RESERVATION-TOKEN.
    Token([u8; 8]),
    /// XOR-PEER-ADDRESS.
    Peer(SocketAddr),
    /// CHANNEL-NUMBER.
    Channel(u16),
    /// DONT-FRAGMENT.
    DontFragment,
    /// MOBILITY-TICKET (RFC 8016).
    Ticket(Vec<u8>),
    /// DATA.
    Data(Vec<u8>),
    /// Anything else, or one of the above in a wrong shape.
    Raw(u16, Vec<u8>),
}

/// A request or indication before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Class.
    pub class: Class,
    /// Method.
    pub method: Method,
    /// Attributes in their order.
    pub attributes: Vec<Attribute>,
    /// Attributes written behind MESSAGE-INTEGRITY, where nobody may act on them (V-23).
    pub trailing: Vec<Attribute>,
    /// Whether FINGERPRINT ends it.
    pub fingerprint: bool,
}

/// What a client proves its identity with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub password: String,
    /// The realm as written into the request.
    pub realm: String,
    /// The nonce of the last challenge.
    pub nonce: Vec<u8>,
    /// PASSWORD-ALGORITHMS as the challenge carried it; `Some` makes a SHA-256 request.
    pub algorithms: Option<Vec<u8>>,
    /// Whether USERHASH stands in for USERNAME.
    pub anonymous: bool,
    /// The key that a token grants, in place of what the password leads to (RFC 7635 §7).
    pub mac_key: Option<[u8; 20]>,
}

impl Draft {
    /// Makes a request without attributes.
    #[must_use]
    pub fn request(method: Method) -> Self {
        Self {
            class: Class::Request,
            method,
            attributes: Vec::new(),
            trailing: Vec::new(),
            fingerprint: false,
        }
    }

    /// Makes a Send indication.
    #[must_use]
    pub fn send(peer: SocketAddr, data: &[u8]) -> Self {
        Self {
            class: Class::Indication,
            attributes: vec![Attribute::Peer(peer), Attribute::Data(data.to_vec())],
            ..Self::request(Method::SEND)
        }
    }

    /// Returns the draft with one more attribute.
    #[must_use]
    pub fn with(mut self, attribute: Attribute) -> Self {
        self.attributes.push(attribute);
        self
    }

    /// Returns the ticket that it carries.
    #[must_use]
    pub fn ticket(&self) -> Option<&[u8]> {
        self.attributes
            .iter()
            .find_map(|attribute| match attribute {
                Attribute::Ticket(ticket) => Some(ticket.as_slice()),
                _ => None,
            })
    }

    /// Writes the message, with integrity when there are credentials.
    #[must_use]
    pub fn write(&self, id: TransactionId, credentials: Option<&Credentials>) -> Vec<u8> {
        let mut buffer = vec![0; 4096];
        let mut writer = MessageWriter::new(&mut buffer, self.class, self.method, id);
        for attribute in &self.attributes {
            write_attribute(&mut writer, attribute);
        }
        if let Some(credentials) = credentials {
            credentials.write_to(&mut writer);
        }
        if self.fingerprint && self.trailing.is_empty() {
            writer.fingerprint();
        }
        let len = writer.finish().unwrap_or(0);
        buffer.truncate(len);
        if !self.trailing.is_empty() {
            self.append_trailing(&mut buffer, id);
        }
        buffer
    }

    /// Appends the trailing attributes by joining two messages, as the codec refuses to write behind the integrity attribute.
    fn append_trailing(&self, buffer: &mut Vec<u8>, id: TransactionId) {
        let behind = Self {
            attributes: self.trailing.clone(),
            trailing: Vec::new(),
            fingerprint: false,
            ..self.clone()
        };
        buffer.extend_from_slice(&behind.write(id, None)[HEADER_LEN..]);
        let len = u16::try_from(buffer.len() - HEADER_LEN).unwrap_or(u16::MAX);
        buffer[2..4].copy_from_slice(&len.to_be_bytes());
    }
}

impl Credentials {
    /// Returns the key that integrity is computed with.
    #[must_use]
    pub fn key(&self) -> IntegrityKey {
        if let Some(key) = &self.mac_key {
            return IntegrityKey::sha1(key);
        }
        if self.algorithms.is_some() {
            IntegrityKey::sha256(&long_term_key_sha256(
                self.user.as_bytes(),
                self.realm.as_bytes(),
                self.password.as_bytes(),
            ))
        } else {
            IntegrityKey::sha1(&long_term_key_md5(
                self.user.as_bytes(),
                self.realm.as_bytes(),
                self.password.as_bytes(),
            ))
        }
    }

    fn write_to(&self, writer: &mut MessageWriter<'_>) {
        if self.anonymous {
            let hash = userhash(self.user.as_bytes(), self.realm.as_bytes());
            writer.bytes(AttributeType::USERHASH, &hash);
        } else {
            writer.bytes(AttributeType::USERNAME, self.user.as_bytes());
        }
        writer.bytes(AttributeType::REALM, self.realm.as_bytes());
        writer.bytes(AttributeType::NONCE, &self.nonce);
        if let Some(algorithms) = &self.algorithms {
            writer.bytes(AttributeType::PASSWORD_ALGORITHMS, algorithms);
            let [high, low] = ALGORITHM_SHA256.to_be_bytes();
            writer.bytes(AttributeType::PASSWORD_ALGORITHM, &[high, low, 0, 0]);
        }
        writer.integrity(&self.key());
    }
}

/// Returns whether a PASSWORD-ALGORITHMS value lists SHA-256 before or after MD5.
#[must_use]
pub fn offers_sha256(algorithms: &[u8]) -> bool {
    let mut rest = algorithms;
    while let [high, low, len_high, len_low, tail @ ..] = rest {
        if u16::from_be_bytes([*high, *low]) == ALGORITHM_SHA256 {
            return true;
        }
        let len = usize::from(u16::from_be_bytes([*len_high, *len_low])).next_multiple_of(4);
        rest = tail.get(len..).unwrap_or(&[]);
    }
    debug_assert_ne!(ALGORITHM_MD5, ALGORITHM_SHA256);
    false
}

/// Writes a channel message (RFC 8656 §12.4).
#[must_use]
pub fn channel_data(number: u16, data: &[u8]) -> Vec<u8> {
    let len = u16::try_from(data.len()).unwrap_or(u16::MAX);
    [&number.to_be_bytes(), &len.to_be_bytes(), data].concat()
}

fn write_attribute(writer: &mut MessageWriter<'_>, attribute: &Attribute) {
    match attribute {
        Attribute::Transport(protocol) => {
            writer.bytes(AttributeType::REQUESTED_TRANSPORT, &[*protocol, 0, 0, 0]);
        }
        Attribute::Lifetime(seconds) => {
            writer.bytes(AttributeType::LIFETIME, &seconds.to_be_bytes());
        }
        Attribute::EvenPort(reserve) => {
            writer.bytes(AttributeType::EVEN_PORT, &[u8::from(*reserve) << 7]);
        }
        Attribute::Family(family) => {
            writer.bytes(AttributeType::REQUESTED_ADDRESS_FAMILY, &[*family, 0, 0, 0]);
        }
        Attribute::AdditionalFamily(family) => {
            writer.bytes(
                AttributeType::ADDITIONAL_ADDRESS_FAMILY,
                &[*family, 0, 0, 0],
            );
        }
        Attribute::Token(token) => {
            writer.bytes(AttributeType::RESERVATION_TOKEN, token);
        }
        Attribute::Peer(peer) => {
            writer.xor_address(AttributeType::XOR_PEER_ADDRESS, *peer);
        }
        Attribute::Channel(number) => {
            let [high, low] = number.to_be_bytes();
            writer.bytes(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0]);
        }
        Attribute::DontFragment => {
            writer.bytes(AttributeType::DONT_FRAGMENT, &[]);
        }
        Attribute::Ticket(ticket) => {
            writer.bytes(AttributeType::MOBILITY_TICKET, ticket);
        }
        Attribute::Data(data) => {
            writer.bytes(AttributeType::DATA, data);
        }
        Attribute::Raw(kind, value) => {
            writer.bytes(AttributeType::new(*kind), value);
        }
    }
}
