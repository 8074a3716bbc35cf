//! The server under test, and the observations in its answers.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use turnbuckle_wire::{Message, padding_len};

use super::link::Link;
use super::tls::Contexts;
use crate::credentials::Credentials;
use crate::transport::Transport;

/// The server under test, and the identity of the client.
pub struct Target {
    /// Where UDP and TCP are spoken.
    pub server: SocketAddr,
    /// Where TLS and DTLS are spoken.
    pub tls_port: u16,
    /// The identity of clients unless they choose another one.
    pub credentials: Credentials,
    /// By what keys are agreed on.
    pub contexts: Contexts,
    observed: Mutex<Observed>,
}

impl Target {
    /// Returns the target.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn new(server: SocketAddr, tls_port: u16, credentials: Credentials) -> io::Result<Self> {
        Ok(Self {
            server,
            tls_port,
            credentials,
            contexts: Contexts::new()?,
            observed: Mutex::default(),
        })
    }

    /// Returns the server's address for a transport.
    pub fn address(&self, transport: Transport) -> SocketAddr {
        match transport.is_secure() {
            true => SocketAddr::new(self.server.ip(), self.tls_port),
            false => self.server,
        }
    }

    /// Opens the way there.
    ///
    /// # Errors
    /// Those of [`Link::open`].
    pub(super) fn open(&self, transport: Transport) -> io::Result<Link> {
        Link::open(&self.contexts, transport, self.address(transport))
    }

    /// Returns the observations so far.
    pub fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Observations in the answers to all messages.
#[derive(Default)]
pub struct Observed {
    /// Answers seen.
    pub answers: u64,
    /// Attributes padded with something else than zero.
    pub dirty_padding: Vec<u16>,
    /// SOFTWARE in an answer to an unauthenticated client.
    pub software: Option<String>,
    /// Redirections of an unauthenticated client.
    pub redirections: u64,
}

impl Observed {
    pub(super) fn note(&mut self, bytes: &[u8], is_stranger: bool) {
        let Ok(message) = Message::parse(bytes) else {
            return;
        };
        self.answers += 1;
        if is_stranger {
            if let Ok(Some(software)) = message.software() {
                self.software = Some(String::from_utf8_lossy(software).into_owned());
            }
            let is_redirection =
                matches!(message.error_code(), Ok(Some(error)) if error.code == 300);
            self.redirections += u64::from(is_redirection);
        }
        let mut rest = bytes.get(20..).unwrap_or_default();
        while let [k0, k1, l0, l1, tail @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*l0, *l1]));
            let padded = len + padding_len(len);
            if tail
                .get(len..padded)
                .is_some_and(|padding| padding.iter().any(|byte| *byte != 0))
            {
                self.dirty_padding.push(u16::from_be_bytes([*k0, *k1]));
            }
            rest = tail.get(padded..).unwrap_or_default();
        }
    }
}
