//! A client's end of a DTLS session, for tests that panic when it does not do as it should.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use openssl::pkey::PKey;
use openssl::ssl::{SslContext, SslMethod, SslOptions, SslVerifyMode};
use openssl::x509::X509;
use turnbuckle_client::blocking::Received;
use turnbuckle_client::blocking::dtls::DtlsSession;

const TIMEOUT: Duration = Duration::from_secs(20);

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

    /// Returns a client that has said nothing yet, at `ip` on a port of its own.
    pub(crate) fn begin(&self, ip: IpAddr, server: SocketAddr) -> DtlsLink {
        let socket = UdpSocket::bind((ip, 0)).expect("an address of this host");
        socket.connect(server).expect("an address");
        DtlsLink(DtlsSession::begin(&self.0, socket).expect("a client"))
    }

    /// Makes a client that has shaken hands.
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

/// A session with the relay.
pub(crate) struct DtlsLink(pub(super) DtlsSession);

impl Deref for DtlsLink {
    type Target = DtlsSession;

    fn deref(&self) -> &DtlsSession {
        &self.0
    }
}

impl DerefMut for DtlsLink {
    fn deref_mut(&mut self) -> &mut DtlsSession {
        &mut self.0
    }
}

impl DtlsLink {
    /// Shakes hands.
    ///
    /// # Errors
    ///
    /// What OpenSSL says when it is refused.
    pub(crate) fn shake_hands(&mut self) -> Result<(), String> {
        let shaken = self.0.shake_hands(TIMEOUT);
        shaken.map_err(|error| error.to_string())
    }

    /// Says both hellos, and hears the answer to the first alone.
    pub(crate) fn say_second_hello(&mut self) {
        self.0.say_second_hello(TIMEOUT).expect("a cookie");
    }
}

/// Returns the next message of a session, or `None` when the relay has ended it.
pub(crate) fn read_message_or_end(session: &mut DtlsSession) -> Option<Vec<u8>> {
    match session.receive(TIMEOUT) {
        Ok(Received::Message(message)) => Some(message),
        Ok(Received::Nothing) => panic!("the session goes on"),
        Ok(Received::End) | Err(_) => None,
    }
}
