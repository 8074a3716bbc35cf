//! A client's end of a DTLS session: OpenSSL over a UDP socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use openssl::pkey::PKey;
use openssl::ssl::{
    ErrorCode, Ssl, SslContext, SslMethod, SslOptions, SslStream, SslVerifyMode, SslVersion,
};
use openssl::x509::X509;

use super::client::is_no_news;

const READ_TIMEOUT: Duration = Duration::from_millis(500);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// What a DTLS client trusts, and shows.
#[derive(Clone)]
pub(crate) struct Dtls(SslContext);

impl Dtls {
    /// Trusts the authority whose certificate this is, in PEM form; shows a chain and its key if there are any.
    pub(crate) fn new(root: &str, identity: Option<(&str, &str)>) -> Self {
        let mut builder = SslContext::builder(SslMethod::dtls_client()).expect("a context");
        builder.set_verify(SslVerifyMode::PEER);
        builder.set_options(SslOptions::NO_QUERY_MTU);
        let root = X509::from_pem(root.as_bytes()).expect("PEM");
        builder.cert_store_mut().add_cert(root).expect("a root");
        if let Some((chain, key)) = identity {
            let mut chain = X509::stack_from_pem(chain.as_bytes())
                .expect("PEM")
                .into_iter();
            let leaf = chain.next().expect("a certificate");
            builder.set_certificate(&leaf).expect("a certificate");
            for certificate in chain {
                builder.add_extra_chain_cert(certificate).expect("a chain");
            }
            let key = PKey::private_key_from_pem(key.as_bytes()).expect("PEM");
            builder.set_private_key(&key).expect("a pair");
        }
        Self(builder.build())
    }

    /// A client that has said nothing yet, at `ip` on a port of its own.
    pub(crate) fn begin(&self, ip: IpAddr, server: SocketAddr) -> DtlsLink {
        let socket = UdpSocket::bind((ip, 0)).expect("an address of this host");
        socket.connect(server).expect("an address");
        socket
            .set_read_timeout(Some(READ_TIMEOUT))
            .expect("a timeout");
        let mut ssl = Ssl::new(&self.0).expect("a client");
        ssl.set_connect_state();
        ssl.set_mtu(1200).expect("an MTU");
        let datagrams = Datagrams {
            socket,
            sent: Vec::new(),
            hears: usize::MAX,
            prefix: Vec::new(),
        };
        DtlsLink(SslStream::new(ssl, datagrams).expect("a client"))
    }

    /// A client that has shaken hands.
    ///
    /// # Errors
    ///
    /// What OpenSSL says when it is refused.
    pub(crate) fn connect(&self, ip: IpAddr, server: SocketAddr) -> Result<DtlsLink, String> {
        let mut link = self.begin(ip, server);
        link.shake_hands()?;
        Ok(link)
    }
}

/// A UDP socket that remembers what it sent last.
struct Datagrams {
    socket: UdpSocket,
    sent: Vec<u8>,
    /// How many datagrams it still hears.
    hears: usize,
    /// Stands in front of each datagram.
    prefix: Vec<u8>,
}

impl Read for Datagrams {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.hears == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let received = self.socket.recv(buffer);
        self.hears -= usize::from(received.is_ok());
        received.map_err(|error| match is_no_news(&error) {
            true => ErrorKind::WouldBlock.into(),
            false => error,
        })
    }
}

impl Write for Datagrams {
    fn write(&mut self, datagram: &[u8]) -> std::io::Result<usize> {
        self.sent = datagram.to_vec();
        self.socket.send(&[&self.prefix, datagram].concat())?;
        Ok(datagram.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A session with the relay.
pub(crate) struct DtlsLink(SslStream<Datagrams>);

impl DtlsLink {
    /// Puts this in front of each datagram from now on.
    pub(crate) fn put_first(&mut self, prefix: &[u8]) {
        self.0.get_mut().prefix = prefix.to_vec();
    }

    /// Shakes hands.
    ///
    /// # Errors
    ///
    /// What OpenSSL says when it is refused.
    pub(crate) fn shake_hands(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        loop {
            match self.0.do_handshake() {
                Ok(()) => return Ok(()),
                Err(error) if error.code() == ErrorCode::WANT_READ => {
                    assert!(Instant::now() < deadline, "no handshake");
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    pub(crate) fn write(&mut self, message: &[u8]) {
        self.0.ssl_write(message).expect("the session is open");
    }

    /// The next message; `None` if it does not come in a while.
    pub(crate) fn read_message(&mut self) -> Option<Vec<u8>> {
        let mut room = vec![0; 16_384];
        match self.0.ssl_read(&mut room) {
            Ok(len) => Some(room[..len].to_vec()),
            Err(error) if error.code() == ErrorCode::WANT_READ => None,
            Err(error) => panic!("the session ended: {error}"),
        }
    }

    /// The next message, or `None` when the relay has ended the session.
    pub(crate) fn read_message_or_end(&mut self) -> Option<Vec<u8>> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut room = vec![0; 16_384];
        loop {
            match self.0.ssl_read(&mut room) {
                Ok(len) => return Some(room[..len].to_vec()),
                Err(error) if error.code() == ErrorCode::WANT_READ => {
                    assert!(Instant::now() < deadline, "the session goes on");
                }
                Err(_) => return None,
            }
        }
    }

    /// Says the first hello and hears nothing.
    pub(crate) fn say_first_hello(&mut self) -> Vec<u8> {
        self.0.get_mut().hears = 0;
        let _ = self.0.do_handshake();
        self.last_sent().to_vec()
    }

    /// Says both hellos, and hears the answer to the first alone.
    pub(crate) fn say_second_hello(&mut self) {
        let first = self.say_first_hello();
        self.0.get_mut().hears = 1;
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        while self.0.get_ref().hears == 1 {
            let _ = self.0.do_handshake();
            assert!(Instant::now() < deadline, "no cookie");
        }
        assert_ne!(self.last_sent(), first);
    }

    /// The datagram sent last.
    pub(crate) fn last_sent(&self) -> &[u8] {
        &self.0.get_ref().sent
    }

    /// Sends a datagram past the session.
    pub(crate) fn send_raw(&self, datagram: &[u8]) {
        let sent = self.0.get_ref().socket.send(datagram);
        assert_eq!(
            sent.expect("the relay's address is reachable"),
            datagram.len()
        );
    }

    /// Ends the session; the relay is told.
    pub(crate) fn say_goodbye(&mut self) {
        let _ = self.0.shutdown();
    }

    /// The certificate that the relay showed, in DER form.
    pub(crate) fn shown(&self) -> Vec<u8> {
        let certificate = self.0.ssl().peer_certificate().expect("a certificate");
        certificate.to_der().expect("DER")
    }

    pub(crate) fn version(&self) -> Option<SslVersion> {
        self.0.ssl().version2()
    }
}
