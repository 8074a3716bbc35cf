//! The client's side of one TLS connection; it never touches a socket.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use super::access::Tls;
use turnbuckle_client::Failure;

/// What a record adds to its bytes: header, explicit nonce, content type, authentication tag.
const RECORD_OVERHEAD: usize = 64;

/// One TLS connection.
pub(super) struct TlsSession(UnbufferedClientConnection);

impl TlsSession {
    /// Makes a session that has sent nothing yet.
    ///
    /// # Errors
    /// What rustls finds wrong with the configuration.
    pub(super) fn new(tls: &Tls) -> Result<Self, rustls::Error> {
        let connection =
            UnbufferedClientConnection::new(Arc::clone(&tls.config), tls.name.clone())?;
        Ok(Self(connection))
    }

    /// Returns whether keys are still being agreed on.
    pub(super) fn is_handshaking(&self) -> bool {
        self.0.is_handshaking()
    }

    /// Deciphers whole records in place, none for the first words of a session. Hands what each holds to `plain`, and appends what TLS
    /// itself has to say to `raw`. Returns how many bytes are used up.
    ///
    /// # Errors
    /// The connection has ended, or cannot go on.
    pub(super) fn read(
        &mut self,
        records: &mut [u8],
        raw: &mut Vec<u8>,
        mut plain: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<usize, Failure> {
        let mut used = 0;
        let failure = if self.is_handshaking() {
            Failure::Handshake
        } else {
            Failure::Disconnected
        };
        loop {
            let UnbufferedStatus { discard, state } =
                self.0.process_tls_records(&mut records[used..]);
            let is_idle = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        plain(record.map_err(|_| Failure::Disconnected)?.payload)?;
                    }
                    false
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(|target| data.encode(target), raw)?;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    false
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    return Err(Failure::Disconnected);
                }
                Ok(_) => true,
                Err(_) => return Err(failure),
            };
            used += discard;
            if is_idle {
                return Ok(used);
            }
        }
    }

    /// Appends a record for each message of `len` bytes, as clients send them that know one packet at a time.
    ///
    /// # Errors
    /// The handshake is not over, or the keys are worn out.
    pub(super) fn seal(
        &mut self,
        train: &[u8],
        len: usize,
        sealed: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let mut messages = train.chunks(len.max(1));
        let mut end = sealed.len();
        loop {
            let UnbufferedStatus { state, .. } = self.0.process_tls_records(&mut []);
            match state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    sealed.resize(end + train.len() + messages.len() * RECORD_OVERHEAD, 0);
                    for message in &mut messages {
                        // A key update goes first now and then, and needs room of its own.
                        let mut written = traffic.encrypt(message, &mut sealed[end..]);
                        if let Err(EncryptError::InsufficientSize(needed)) = &written {
                            let more = end + needed.required_size;
                            sealed.resize(sealed.len().max(more) + train.len(), 0);
                            written = traffic.encrypt(message, &mut sealed[end..]);
                        }
                        end += written.map_err(|_| Failure::Disconnected)?;
                    }
                    sealed.truncate(end);
                    return Ok(());
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(|target| data.encode(target), sealed)?;
                    end = sealed.len();
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                _ => return Err(Failure::Disconnected),
            }
        }
    }
}

/// Appends a record of TLS itself.
fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    raw: &mut Vec<u8>,
) -> Result<(), Failure> {
    let start = raw.len();
    let len = match encode(&mut []) {
        Err(EncodeError::InsufficientSize(needed)) => {
            raw.resize(start + needed.required_size, 0);
            encode(&mut raw[start..]).map_err(|_| Failure::Handshake)?
        }
        Ok(len) => len,
        Err(EncodeError::AlreadyEncoded) => return Err(Failure::Handshake),
    };
    raw.truncate(start + len);
    Ok(())
}
