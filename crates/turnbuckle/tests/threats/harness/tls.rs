//! Certificates for the relay, and clients that check them.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_RSA_SHA256, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use super::dtls::Dtls;
use super::stream::{StreamLink, connect};

pub(super) const NAME: &str = "relay.example.org";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Algorithms of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    P256,
    P384,
    Rsa,
}

impl Key {
    fn pair(self) -> KeyPair {
        KeyPair::generate_for(match self {
            Self::P256 => &PKCS_ECDSA_P256_SHA256,
            Self::P384 => &PKCS_ECDSA_P384_SHA384,
            Self::Rsa => &PKCS_RSA_SHA256,
        })
        .expect("a key")
    }
}

/// An authority, with one between it and what it signs, and a folder for its files.
pub(crate) struct Authority {
    root: String,
    between: Issuer<'static, KeyPair>,
    between_pem: String,
    folder: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("turnbuckle-tls-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let authority = |name: &str| {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
                .distinguished_name
                .push(rcgen::DnType::CommonName, name);
            params
        };
        let root_key = Key::P256.pair();
        let root_params = authority("root");
        let root = root_params.self_signed(&root_key).expect("a certificate");
        let root_issuer = Issuer::new(root_params, root_key);
        let between_key = Key::P256.pair();
        let between_params = authority("between");
        let between = between_params
            .signed_by(&between_key, &root_issuer)
            .expect("a certificate");
        Self {
            root: root.pem(),
            between: Issuer::new(between_params, between_key),
            between_pem: between.pem(),
            folder,
        }
    }

    /// Issues a chain and its key, in PEM form.
    pub(crate) fn issue(&self, key: Key) -> (String, String) {
        self.issue_for(key, 1975..4096)
    }

    /// Issues a chain and its key as [`Self::issue`] does, good from the beginning of a year to that of another.
    pub(crate) fn issue_for(&self, key: Key, years: Range<i32>) -> (String, String) {
        let pair = key.pair();
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).expect("a name");
        params.not_before = date_time_ymd(years.start, 1, 1);
        params.not_after = date_time_ymd(years.end, 1, 1);
        let certificate = params.signed_by(&pair, &self.between).expect("signed");
        (certificate.pem() + &self.between_pem, pair.serialize_pem())
    }

    /// Writes a file of the folder in one step, as tools that renew certificates do.
    pub(crate) fn write(&self, name: &str, content: &str) -> PathBuf {
        let (path, new) = (self.folder.join(name), self.folder.join("new"));
        fs::write(&new, content).expect("written");
        fs::rename(&new, &path).expect("renamed");
        path
    }

    /// Writes the root to a file, and returns its path.
    pub(crate) fn root_file(&self) -> PathBuf {
        self.write("root.pem", &self.root)
    }

    /// Returns the relay's options for a new certificate and key.
    pub(crate) fn options(&self, key: Key) -> [String; 2] {
        let (chain, key) = self.issue(key);
        let option = |name, path: &Path| format!("--{name}={}", path.display());
        [
            option("cert", &self.write("chain.pem", &chain)),
            option("pkey", &self.write("key.pem", &key)),
        ]
    }

    /// Returns a DTLS client that trusts this authority alone.
    pub(crate) fn dtls_client(&self) -> Dtls {
        Dtls::new(&self.root, None)
    }

    /// Returns a DTLS client as [`Self::dtls_client`] does, with a certificate of its own, issued by `by`.
    pub(crate) fn dtls_client_of(&self, by: &Self) -> Dtls {
        let (chain, key) = by.issue(Key::P256);
        Dtls::new(&self.root, Some((&chain, &key)))
    }

    /// Returns a client that trusts this authority alone.
    pub(crate) fn client(&self) -> Tls {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(self.root.as_bytes()).expect("PEM");
        roots.add(root).expect("a root");
        Tls {
            roots,
            alpn: Vec::new(),
            versions: rustls::DEFAULT_VERSIONS.to_vec(),
            identity: None,
        }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A connection that keys are agreed on for.
pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// What a TLS client wants.
#[derive(Clone)]
pub(crate) struct Tls {
    roots: RootCertStore,
    pub(crate) alpn: Vec<&'static [u8]>,
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    /// Chain and key of a client certificate.
    pub(crate) identity: Option<(String, String)>,
}

impl Tls {
    /// Connects and shakes hands.
    pub(crate) fn connect(&self, server: SocketAddr) -> Result<TlsStream, std::io::Error> {
        self.on(connect(server))
    }

    /// Returns the configuration of rustls for the client.
    pub(super) fn config(&self) -> ClientConfig {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.versions)
            .expect("versions")
            .with_root_certificates(self.roots.clone());
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain.as_bytes());
                let chain = chain.collect::<Result<_, _>>().expect("PEM");
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain, key).expect("a pair")
            }
        };
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        config.resumption = rustls::client::Resumption::disabled();
        config
    }

    /// Shakes hands on a connection.
    pub(crate) fn on(&self, mut socket: TcpStream) -> Result<TlsStream, std::io::Error> {
        let config = self.config();
        let name = ServerName::try_from(NAME).expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
        let mut stream = StreamOwned::new(connection, socket.try_clone()?);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut socket)?;
        }
        Ok(stream)
    }

    /// Returns a stream of messages over TLS.
    pub(crate) fn link(&self, server: SocketAddr) -> StreamLink {
        StreamLink::new(self.connect(server).expect("a handshake"))
    }
}
