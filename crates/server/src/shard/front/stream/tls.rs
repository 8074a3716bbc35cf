//! One TLS connection, driven by the bytes that come and go; it never touches a socket.
//!
//! rustls's unbuffered interface: records are deciphered where they were read, and what is to be sent is written where the
//! data path sends it from. A session holds no buffers but a message that is not complete yet.
//!
//! rustls wants to see bytes again that it has kept part of a handshake message in, at the same place; otherwise it panics. So
//! between readings a session either is in its handshake, and then nothing but a reading touches it, or holds nothing
//! of the kind ([`holds_part`]). Should it panic all the same, one connection ends and nothing else (V-48).

use std::io;
use std::sync::Arc;

use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{ContentType, ProtocolVersion, ServerConfig};

use super::kept::Kept;
use crate::log::Seal;
use crate::tls::suite_name;

/// Most bytes of a client's first flight that are kept until more of it comes: a hello with a share for every group takes 3 KiB.
const FIRST_FLIGHT_LEN_MAX: usize = 8 * 1024;
/// The same once the hello is answered: a chain of client certificates has room.
const HANDSHAKE_LEN_MAX: usize = 32 * 1024;
/// Most plain bytes of a record (RFC 8446 §5.1).
const RECORD_LEN_MAX: usize = 16_384;
/// What a record adds to its bytes: header, explicit nonce, content type, authentication tag.
const RECORD_OVERHEAD: usize = 64;

/// One TLS connection.
pub(crate) struct TlsSession {
    tls: UnbufferedServerConnection,
    /// Whether the client's first flight was answered.
    is_answered: bool,
    /// What a client that offers no protocol of the server's is served with all the same, without a choice of one.
    without_alpn: Option<Arc<ServerConfig>>,
    /// Plain bytes of a message that is not complete yet.
    pub(crate) kept: Kept,
}

/// How far the bytes that came have brought a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// How many bytes are used up.
    pub(crate) used: usize,
    /// The other side will send nothing more.
    pub(crate) is_closed: bool,
}

/// The other side does not keep to the protocol, or wants what is not offered. What it is to be told is among the
/// bytes to send.
#[derive(Debug)]
pub(crate) struct TlsFailure;

impl TlsSession {
    /// Returns the server's side of a new connection. With `serves_any_alpn` a client that offers no protocol of the server's is
    /// served all the same.
    ///
    /// # Errors
    ///
    /// What rustls finds wrong with the configuration.
    pub(crate) fn new(
        config: Arc<ServerConfig>,
        serves_any_alpn: bool,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            without_alpn: serves_any_alpn.then(|| Arc::clone(&config)),
            tls: UnbufferedServerConnection::new(config)?,
            is_answered: false,
            kept: Kept::default(),
        })
    }

    /// Returns whether keys are still being agreed on.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Returns the cipher suite and version of the connection after the handshake, by OpenSSL's names.
    pub(crate) fn protection(&self) -> Option<Seal> {
        let suite = suite_name(self.tls.negotiated_cipher_suite()?.suite())?;
        let version = match self.tls.protocol_version()? {
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => "TLSv1.2",
        };
        Some(Seal {
            suite: suite.into(),
            version,
        })
    }

    /// Deciphers whole records in place. Appends what they hold to `plain`, and what TLS itself has to say to `raw`.
    ///
    /// # Errors
    ///
    /// The connection is to be closed after `raw` is sent.
    pub(crate) fn read(
        &mut self,
        records: &mut [u8],
        plain: &mut Vec<u8>,
        raw: &mut Vec<u8>,
    ) -> Result<Progress, TlsFailure> {
        contained(|| self.process(records, plain, raw)).unwrap_or(Err(TlsFailure))
    }

    fn process(
        &mut self,
        records: &mut [u8],
        plain: &mut Vec<u8>,
        raw: &mut Vec<u8>,
    ) -> Result<Progress, TlsFailure> {
        let mut progress = Progress {
            used: 0,
            is_closed: false,
        };
        loop {
            let UnbufferedStatus { discard, state } =
                self.tls.process_tls_records(&mut records[progress.used..]);
            let is_idle = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        plain.extend_from_slice(record.map_err(|_| TlsFailure)?.payload);
                    }
                    false
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(|target| data.encode(target), raw)?;
                    self.is_answered = true;
                    self.without_alpn = None;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    progress.is_closed = true;
                    false
                }
                Ok(ConnectionState::Closed) => {
                    progress.is_closed = true;
                    true
                }
                // Early data is not offered, so there is none; anything new in rustls waits until it is known here.
                Ok(_) => true,
                Err(rustls::Error::NoApplicationProtocol) if self.without_alpn.is_some() => {
                    // The hello is read again, by a connection that passes over what it offers.
                    let config = self.without_alpn.take().ok_or(TlsFailure)?;
                    let mut config = ServerConfig::clone(&config);
                    config.alpn_protocols.clear();
                    let tls = UnbufferedServerConnection::new(Arc::new(config));
                    self.tls = tls.map_err(|_| TlsFailure)?;
                    continue;
                }
                Err(_) => {
                    self.encode_alert(&mut records[progress.used + discard..], raw);
                    return Err(TlsFailure);
                }
            };
            progress.used += discard;
            if is_idle {
                break;
            }
        }
        let rest = &records[progress.used..];
        let is_sound = match (self.is_handshaking(), self.is_answered) {
            // guard: V-48-flight
            (true, false) => rest.len() <= FIRST_FLIGHT_LEN_MAX,
            (true, true) => rest.len() <= HANDSHAKE_LEN_MAX,
            (false, _) => !holds_part(rest),
        };
        if is_sound {
            Ok(progress)
        } else {
            Err(TlsFailure)
        }
    }

    /// Appends the records that hold `plain` to `sealed`.
    ///
    /// # Errors
    ///
    /// The handshake is not over, or the keys are worn out.
    pub(crate) fn seal(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        if self.is_handshaking() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        contained(|| self.encrypt(plain, sealed))
            .unwrap_or_else(|| Err(io::ErrorKind::Other.into()))
    }

    fn encrypt(&mut self, plain: &[u8], sealed: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut []);
            match state.map_err(io::Error::other)? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let start = sealed.len();
                    let records = plain.len().div_ceil(RECORD_LEN_MAX).max(1);
                    let mut room = plain.len() + records * RECORD_OVERHEAD;
                    loop {
                        sealed.resize(start + room, 0);
                        match traffic.encrypt(plain, &mut sealed[start..]) {
                            Ok(len) => {
                                sealed.truncate(start + len);
                                return Ok(());
                            }
                            // A key update goes first now and then.
                            Err(EncryptError::InsufficientSize(needed))
                                if needed.required_size > room =>
                            {
                                room = needed.required_size;
                            }
                            Err(error) => return Err(io::Error::other(error)),
                        }
                    }
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    encode(|target| data.encode(target), sealed)
                        .map_err(|_| io::ErrorKind::Other)?;
                }
                ConnectionState::TransmitTlsData(data) => data.done(),
                _ => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }

    /// Appends the notice that nothing more will be sent, if keys are agreed on.
    pub(crate) fn close_notify(&mut self, raw: &mut Vec<u8>) {
        if self.is_handshaking() {
            return;
        }
        let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut []);
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state {
            let start = raw.len();
            raw.resize(start + RECORD_OVERHEAD, 0);
            let len = traffic.queue_close_notify(&mut raw[start..]).unwrap_or(0);
            raw.truncate(start + len);
        }
    }

    /// Appends what the other side is told after an error: the alert, behind what the same message was answered with before it
    /// failed (in TLS 1.3 a ServerHello). Nothing more is asked for behind it: rustls would look at what came again, and fail again.
    fn encode_alert(&mut self, records: &mut [u8], raw: &mut Vec<u8>) {
        loop {
            let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut *records);
            let Ok(ConnectionState::EncodeTlsData(mut data)) = state else {
                return;
            };
            let start = raw.len();
            // Without the alert the connection is closed all the same.
            let is_encoded = encode(|target| data.encode(target), raw).is_ok();
            let may_follow = matches!(
                raw.get(start).map(|&first| ContentType::from(first)),
                Some(ContentType::Handshake | ContentType::ChangeCipherSpec)
            );
            if !is_encoded || !may_follow {
                return;
            }
        }
    }
}

/// Returns whether what is left of some records begins with a whole one: it has been processed, so it is kept for a handshake message of
/// which more is to come. After the handshake no honest client cuts one in two.
fn holds_part(rest: &[u8]) -> bool {
    match rest {
        [_, _, _, high, low, content @ ..] => {
            content.len() >= usize::from(u16::from_be_bytes([*high, *low]))
        }
        _ => false,
    }
}

/// Runs what may panic on bytes from the network; `None` if it did.
fn contained<T>(run: impl FnOnce() -> T) -> Option<T> {
    // What it leaves behind half done is not used again: the connection is closed.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).ok()
}

/// Appends a record of TLS itself to `raw`.
fn encode(
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    raw: &mut Vec<u8>,
) -> Result<(), TlsFailure> {
    let start = raw.len();
    match encode(&mut []) {
        Err(EncodeError::InsufficientSize(needed)) => {
            raw.resize(start + needed.required_size, 0);
            let len = encode(&mut raw[start..]).map_err(|_| TlsFailure)?;
            raw.truncate(start + len);
            Ok(())
        }
        Ok(_) => Ok(()),
        Err(EncodeError::AlreadyEncoded) => Err(TlsFailure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use std::io::{Read as _, Write as _};
    use std::sync::LazyLock;

    static CONFIGS: LazyLock<(Arc<ServerConfig>, Arc<ClientConfig>)> = LazyLock::new(|| {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["relay.example.org".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = params.self_signed(&key).unwrap().into();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    });

    /// A session and its client, with what is on its way to the session.
    struct Pair {
        session: TlsSession,
        client: ClientConnection,
        records: Vec<u8>,
        plain: Vec<u8>,
    }

    impl Pair {
        fn new() -> Self {
            let (server, client) = &*CONFIGS;
            let name = ServerName::try_from("relay.example.org").unwrap();
            Self {
                session: TlsSession::new(Arc::clone(server), false).unwrap(),
                client: ClientConnection::new(Arc::clone(client), name).unwrap(),
                records: Vec::new(),
                plain: Vec::new(),
            }
        }

        /// Hands over what the client has to say, in pieces of `piece` bytes, and takes back what the session has.
        fn exchange(&mut self, piece: usize) -> Result<(), TlsFailure> {
            for bytes in self.said().chunks(piece) {
                self.records.extend_from_slice(bytes);
                let mut raw = Vec::new();
                let read = self
                    .session
                    .read(&mut self.records, &mut self.plain, &mut raw);
                self.hear(&raw);
                self.records.drain(..read?.used);
            }
            Ok(())
        }

        /// Returns what the client has to say.
        fn said(&mut self) -> Vec<u8> {
            let mut said = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut said).unwrap();
            }
            said
        }

        fn hear(&mut self, mut bytes: &[u8]) {
            while !bytes.is_empty() {
                self.client.read_tls(&mut bytes).unwrap();
                self.client.process_new_packets().unwrap();
            }
        }

        fn shake_hands(&mut self, piece: usize) {
            while self.client.is_handshaking() || self.client.wants_write() {
                self.exchange(piece).unwrap();
            }
            assert!(!self.session.is_handshaking());
        }
    }

    /// coturn serves a client that offers other protocols alone; RFC 7301 §3.2 has it refused.
    #[test]
    fn a_client_that_offers_other_protocols_alone_is_served_where_that_is_wanted() {
        for serves_any_alpn in [false, true] {
            let (server, client) = &*CONFIGS;
            let (mut server, mut client) =
                (ServerConfig::clone(server), ClientConfig::clone(client));
            server.alpn_protocols = vec![b"stun.turn".to_vec()];
            client.alpn_protocols = vec![b"http/1.1".to_vec()];
            let name = ServerName::try_from("relay.example.org").unwrap();
            let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
            let mut session = TlsSession::new(Arc::new(server), serves_any_alpn).unwrap();
            let (mut records, mut answer) = (Vec::new(), Vec::new());
            client.write_tls(&mut records).unwrap();
            let read = session.read(&mut records, &mut Vec::new(), &mut answer);
            assert_eq!(read.is_ok(), serves_any_alpn);
            client.read_tls(&mut &answer[..]).unwrap();
            let heard = client.process_new_packets().err();
            let told =
                rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol);
            assert_eq!(heard, (!serves_any_alpn).then_some(told));
            assert_eq!(client.is_handshaking(), !serves_any_alpn);
        }
    }

    #[test]
    fn bytes_pass_both_ways_however_they_are_cut() {
        for piece in [1, 2, 3, 100, 5000, usize::MAX] {
            let mut pair = Pair::new();
            pair.shake_hands(piece);
            let sent: Vec<u8> = (0..40_000_u32).map(|n| n.to_le_bytes()[0]).collect();
            pair.client.writer().write_all(&sent).unwrap();
            pair.exchange(piece).unwrap();
            assert_eq!(pair.plain, sent);
            // A key update of the client is answered with the next records.
            pair.client.refresh_traffic_keys().unwrap();
            pair.client.writer().write_all(b"more").unwrap();
            pair.exchange(piece).unwrap();
            assert!(pair.plain.ends_with(b"more"));
            for part in sent.chunks(10_000) {
                let mut sealed = Vec::new();
                pair.session.seal(part, &mut sealed).unwrap();
                pair.hear(&sealed);
                let mut received = vec![0; part.len()];
                pair.client.reader().read_exact(&mut received).unwrap();
                assert_eq!(received, part);
            }
        }
    }

    #[test]
    fn nothing_is_sealed_before_keys_are_agreed_on() {
        let mut pair = Pair::new();
        assert!(pair.session.seal(b"early", &mut Vec::new()).is_err());
        let mut raw = Vec::new();
        pair.session.close_notify(&mut raw);
        assert!(raw.is_empty());
        // Not in the middle of a handshake either, with part of a message held.
        let mut said = Vec::new();
        pair.client.write_tls(&mut said).unwrap();
        let half = said.len() / 2;
        let mut records = [&said[..3], &[0, 50], &said[5..55], b"\x16\x03"].concat();
        assert!(half > 55);
        let progress = pair
            .session
            .read(&mut records, &mut Vec::new(), &mut Vec::new())
            .unwrap();
        assert_eq!(progress.used, 0, "the record is held");
        assert!(pair.session.seal(b"early", &mut Vec::new()).is_err());
        pair.session.close_notify(&mut raw);
        assert!(raw.is_empty());
    }

    #[test]
    fn a_goodbye_is_understood_and_one_is_heard() {
        let mut pair = Pair::new();
        pair.shake_hands(usize::MAX);
        pair.client.send_close_notify();
        let mut said = Vec::new();
        pair.client.write_tls(&mut said).unwrap();
        let read = pair
            .session
            .read(&mut said, &mut Vec::new(), &mut Vec::new());
        assert!(read.unwrap().is_closed);
        let mut raw = Vec::new();
        pair.session.close_notify(&mut raw);
        pair.hear(&raw);
        assert_eq!(pair.client.reader().read(&mut [0]).unwrap(), 0);
    }

    /// V-48: what a client can have waiting before its hello is whole.
    #[test]
    fn a_first_flight_keeps_no_more_than_8_kib_waiting() {
        let mut pair = Pair::new();
        // A hello that claims 60,000 bytes, in records of 4,096 (RFC 8446 §4).
        let mut flight = Vec::new();
        for number in 0..8 {
            flight.extend([22, 3, 1, 0x10, 0]);
            let begins = flight.len();
            flight.resize(begins + 4096, 0);
            if number == 0 {
                flight[begins..begins + 4].copy_from_slice(&[1, 0, 0xEA, 0x60]);
            }
        }
        let kept = (1000..flight.len()).step_by(500).take_while(|len| {
            let mut records = flight[..*len].to_vec();
            let read = pair
                .session
                .read(&mut records, &mut Vec::new(), &mut Vec::new());
            read.is_ok_and(|progress| progress.used == 0)
        });
        let most = kept.last().unwrap();
        assert!((7000..=FIRST_FLIGHT_LEN_MAX).contains(&most), "{most}");
    }

    //= STUN-016
    #[test]
    fn part_of_a_handshake_message_after_the_handshake_ends_the_connection() {
        assert!(!holds_part(b""));
        assert!(!holds_part(b"\x17\x03\x03\x00\x02a"));
        assert!(holds_part(b"\x17\x03\x03\x00\x02ab"));
    }

    proptest! {
        /// Records with flipped bits, cut anywhere: an error, or the same bytes; never a panic.
        #[test]
        fn changed_records_are_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..4),
            piece in 1_usize..700,
            after_handshake in any::<bool>(),
        ) {
            let mut pair = Pair::new();
            if after_handshake {
                pair.shake_hands(usize::MAX);
                pair.client.writer().write_all(&[7; 300]).unwrap();
            }
            let mut said = pair.said();
            for (index, change) in changes {
                let index = index.index(said.len());
                said[index] ^= change;
            }
            let mut records = Vec::new();
            let mut plain = Vec::new();
            for bytes in said.chunks(piece) {
                records.extend_from_slice(bytes);
                let read = contained(|| {
                    pair.session.process(&mut records, &mut plain, &mut Vec::new())
                });
                let Ok(progress) = read.expect("no panic") else {
                    return Ok(());
                };
                records.drain(..progress.used);
            }
            prop_assert!(plain.is_empty() || plain == [7; 300]);
        }
    }
}
