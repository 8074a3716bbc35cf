//! Holds the fields of requests and responses that the log prints.

use std::net::{IpAddr, SocketAddr};

use turnbuckle_engine::{ClientTuple, Refusal, Transport};
use turnbuckle_wire::{Class, Message, Method, TransactionId};

use super::text::{name, name_of_bytes};
use crate::users::canonical;

/// Identifies what coturn calls a session by its addresses and transport. Successive connections from one address have the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Path {
    pub(crate) server: SocketAddr,
    pub(crate) client: SocketAddr,
    pub(crate) transport: Transport,
}

impl From<&turnbuckle_engine::Path> for Path {
    fn from(path: &turnbuckle_engine::Path) -> Self {
        Self {
            server: path.server,
            client: path.client,
            transport: path.transport,
        }
    }
}

/// Cipher suite and version of TLS or DTLS, by OpenSSL's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The cipher suite, as `TLS_AES_128_GCM_SHA256`.
    pub suite: Box<str>,
    /// The version, as `TLSv1.3`.
    pub version: &'static str,
}

/// A response that is about to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) to: ClientTuple,
    pub(crate) method: Method,
    /// The error code; `None` for success.
    pub(crate) error: Option<u16>,
    /// Whether the request was authenticated.
    pub(crate) is_proven: bool,
    /// REALM of an error response, escaped.
    pub(crate) realm: Option<String>,
    /// The reason phrase of an error about a shared relay socket, which says more than the code.
    pub(crate) detail: Option<Box<str>>,
    /// Why it refuses the request, if the engine said so.
    pub(crate) why: Option<Refusal>,
    transaction: TransactionId,
}

impl Answer {
    /// Reads a response that the engine has written to `bytes`. Returns `None` for an indication.
    pub(crate) fn of(to: ClientTuple, bytes: &[u8]) -> Option<Self> {
        let message = Message::parse(bytes).ok()?;
        let (error, detail) = match message.class() {
            Class::Success => (None, None),
            Class::Error => {
                let error = message.error_code().ok()??;
                let reason = std::str::from_utf8(error.reason).ok();
                let detail = reason.filter(|it| it.contains("multiplex-peer"));
                (Some(error.code), detail.map(Box::from))
            }
            Class::Request | Class::Indication => return None,
        };
        Some(Self {
            to,
            method: message.method(),
            error,
            is_proven: message.has_integrity_sha1() || message.has_integrity_sha256(),
            realm: message.realm().ok().flatten().map(name_of_bytes),
            detail,
            why: None,
            transaction: message.transaction_id(),
        })
    }

    /// Adds why it refuses the request.
    pub(crate) fn because(self, why: Option<Refusal>) -> Self {
        Self { why, ..self }
    }
}

/// Holds the attributes of a request that its response does not repeat. All text in it is escaped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// USERNAME, if the request has credentials.
    pub(crate) user: Option<String>,
    /// The part of it that stays when a time-limited credential is renewed.
    pub(crate) id: Option<Box<str>>,
    /// REALM of an authenticated request.
    pub(crate) realm: Option<String>,
    /// ORIGIN in the form in which the database stores origins.
    pub(crate) origin: Option<String>,
    /// Every XOR-PEER-ADDRESS.
    pub(crate) peers: Vec<SocketAddr>,
}

impl Asked {
    /// Reads the request in `datagram`. The result is empty if `answer` does not belong to it.
    pub(crate) fn of(datagram: &[u8], answer: &Answer) -> Self {
        let Ok(message) = Message::parse(datagram) else {
            return Self::default();
        };
        if message.transaction_id() != answer.transaction || message.method() != answer.method {
            return Self::default(); // the answer to a request from before
        }
        let proves = message.has_integrity_sha1() || message.has_integrity_sha256();
        let user = message.username().ok().flatten().filter(|_| proves);
        let realm = message.realm().ok().flatten();
        Self {
            user: user.map(name_of_bytes),
            id: None,
            realm: realm.filter(|_| answer.is_proven).map(name_of_bytes),
            origin: message
                .origin()
                .map(|origin| name(&canonical(&String::from_utf8_lossy(origin)))),
            peers: message
                .xor_peer_addresses()
                .filter_map(Result::ok)
                .collect(),
        }
    }
}

/// A peer that a request was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) peer: IpAddr,
    /// The verdict in words, with the rule that decided.
    pub(crate) why: String,
    /// The range of the operator's rule that denies it, if it is one.
    pub(crate) range: Option<String>,
}

/// Returns coturn's word for a method.
pub(super) fn word(method: Method) -> &'static str {
    match method {
        Method::ALLOCATE => "ALLOCATE",
        Method::BINDING => "BINDING",
        Method::CHANNEL_BIND => "CHANNEL_BIND",
        Method::CONNECT => "CONNECT",
        Method::CONNECTION_BIND => "CONNECTION_BIND",
        Method::CREATE_PERMISSION => "CREATE_PERMISSION",
        Method::REFRESH => "REFRESH",
        Method::SEND => "SEND",
        _ => "unknown",
    }
}
