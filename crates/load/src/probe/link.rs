//! What carries messages to a server: a datagram socket or a connection, with TLS around it or without.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use openssl::ssl::{
    Error as SslError, ErrorCode, Ssl, SslContext, SslMethod, SslOptions, SslStream, SslVerifyMode,
};
use socket2::{Domain, Socket, Type};

/// How long a connection, and a handshake, may take.
const CONNECT_WAIT: Duration = Duration::from_secs(2);
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);
/// How long a handshake waits before something is sent again.
const FLIGHT_WAIT: Duration = Duration::from_millis(300);
/// Bytes of a datagram of DTLS, so that none is fragmented.
const MTU: u32 = 1200;

/// How a client comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Transport {
    /// Plain datagrams
    Udp,
    /// A plain connection
    Tcp,
    /// TLS over TCP
    Tls,
    /// DTLS over UDP
    Dtls,
}

impl Transport {
    pub(super) const ALL: [Self; 4] = [Self::Udp, Self::Tcp, Self::Tls, Self::Dtls];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Tcp => "TCP",
            Self::Tls => "TLS",
            Self::Dtls => "DTLS",
        }
    }

    /// Whether messages come one behind the other, and not each in a datagram.
    pub(super) fn is_stream(self) -> bool {
        matches!(self, Self::Tcp | Self::Tls)
    }

    pub(super) fn is_secure(self) -> bool {
        matches!(self, Self::Tls | Self::Dtls)
    }
}

/// The client's side of TLS and DTLS. Whose certificate a server shows does not matter to an attacker.
pub(super) struct Contexts {
    tls: SslContext,
    dtls: SslContext,
}

impl Contexts {
    pub(super) fn new() -> io::Result<Self> {
        let context = |method| {
            let mut builder = SslContext::builder(method)?;
            builder.set_verify(SslVerifyMode::NONE);
            builder.set_options(SslOptions::NO_QUERY_MTU);
            io::Result::Ok(builder.build())
        };
        Ok(Self {
            tls: context(SslMethod::tls_client())?,
            dtls: context(SslMethod::dtls_client())?,
        })
    }
}

/// The way to a server, opened.
pub(super) enum Link {
    Dtls(Box<SslStream<Datagrams>>),
    Tcp(TcpStream),
    Tls(Box<SslStream<TcpStream>>),
    Udp(UdpSocket),
}

impl Link {
    /// Opens one, handshake included.
    pub(super) fn open(
        contexts: &Contexts,
        transport: Transport,
        server: SocketAddr,
    ) -> io::Result<Self> {
        match transport {
            Transport::Udp => udp(server).map(Self::Udp),
            Transport::Tcp => tcp(server).map(Self::Tcp),
            Transport::Tls => {
                let mut stream = SslStream::new(client(&contexts.tls)?, tcp(server)?)
                    .map_err(io::Error::other)?;
                stream.get_ref().set_read_timeout(Some(FLIGHT_WAIT))?;
                shake_hands(&mut stream)?;
                Ok(Self::Tls(Box::new(stream)))
            }
            Transport::Dtls => {
                let mut stream = dtls(contexts, server)?;
                shake_hands(&mut stream)?;
                Ok(Self::Dtls(Box::new(stream)))
            }
        }
    }

    /// Sends bytes: as one datagram, or behind those sent before.
    pub(super) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Dtls(stream) => stream.write_all(bytes),
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Tls(stream) => stream.write_all(bytes),
            Self::Udp(socket) => socket.send(bytes).map(|_| ()),
        }
    }

    /// What comes next, as far as there is room; nothing at the end of a connection.
    pub(super) fn receive(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<usize> {
        match self {
            Self::Dtls(stream) => {
                stream.get_ref().0.set_read_timeout(Some(wait))?;
                received(stream.ssl_read(buffer))
            }
            Self::Tcp(stream) => {
                stream.set_read_timeout(Some(wait))?;
                stream.read(buffer)
            }
            Self::Tls(stream) => {
                stream.get_ref().set_read_timeout(Some(wait))?;
                received(stream.ssl_read(buffer))
            }
            Self::Udp(socket) => {
                socket.set_read_timeout(Some(wait))?;
                socket.recv(buffer)
            }
        }
    }
}

/// A UDP socket on a port of its own.
pub(super) fn udp(server: SocketAddr) -> io::Result<UdpSocket> {
    udp_from(None, server)
}

/// The same, from an address of this host.
fn udp_from(source: Option<IpAddr>, server: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match server {
        SocketAddr::V4(_) => ([0; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(source.unwrap_or_else(|| any.ip()), 0))?;
    socket.connect(server)?;
    Ok(socket)
}

/// A connection.
pub(super) fn tcp(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, CONNECT_WAIT)?;
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE_WAIT))?;
    Ok(stream)
}

/// A connection from an address of this host.
pub(super) fn tcp_from(
    source: Option<IpAddr>,
    server: SocketAddr,
    wait: Duration,
) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    if let Some(source) = source {
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    socket.connect_timeout(&server.into(), wait)?;
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(wait))?;
    Ok(stream)
}

/// A DTLS session from an address of this host, handshake included.
pub(super) fn dtls_from(
    contexts: &Contexts,
    source: Option<IpAddr>,
    server: SocketAddr,
) -> io::Result<SslStream<Datagrams>> {
    let mut stream = dtls_on(contexts, udp_from(source, server)?)?;
    shake_hands(&mut stream)?;
    Ok(stream)
}

/// The client's side of a TLS connection.
pub(super) fn tls_client(contexts: &Contexts) -> io::Result<Ssl> {
    client(&contexts.tls)
}

/// A DTLS client that has said nothing yet.
pub(super) fn dtls(contexts: &Contexts, server: SocketAddr) -> io::Result<SslStream<Datagrams>> {
    dtls_on(contexts, udp(server)?)
}

fn dtls_on(contexts: &Contexts, socket: UdpSocket) -> io::Result<SslStream<Datagrams>> {
    socket.set_read_timeout(Some(FLIGHT_WAIT))?;
    let mut ssl = client(&contexts.dtls)?;
    ssl.set_mtu(MTU)?;
    SslStream::new(ssl, Datagrams(socket)).map_err(io::Error::other)
}

/// The first flight of a TLS client.
pub(super) fn client_hello(contexts: &Contexts) -> io::Result<Vec<u8>> {
    /// Takes what is written, and has nothing to read.
    #[derive(Debug)]
    struct Written(Vec<u8>);
    impl Read for Written {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }
    }
    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut stream = SslStream::new(client(&contexts.tls)?, Written(Vec::new()))?;
    let _ = stream.do_handshake();
    Ok(std::mem::take(&mut stream.get_mut().0))
}

fn client(context: &SslContext) -> io::Result<Ssl> {
    let mut ssl = Ssl::new(context)?;
    ssl.set_connect_state();
    Ok(ssl)
}

fn shake_hands<S: Read + Write>(stream: &mut SslStream<S>) -> io::Result<()> {
    let deadline = Instant::now() + HANDSHAKE_WAIT;
    loop {
        match stream.do_handshake() {
            Ok(()) => return Ok(()),
            Err(error) if is_waiting(&error) && Instant::now() < deadline => {}
            Err(error) if is_waiting(&error) => return Err(ErrorKind::TimedOut.into()),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}

/// What OpenSSL says of a reading, as a socket would say it.
fn received(read: Result<usize, SslError>) -> io::Result<usize> {
    match read {
        Ok(len) => Ok(len),
        Err(error) if is_waiting(&error) => Err(ErrorKind::WouldBlock.into()),
        Err(error) if error.code() == ErrorCode::ZERO_RETURN => Ok(0),
        Err(error) => Err(io::Error::other(error)),
    }
}

fn is_waiting(error: &SslError) -> bool {
    matches!(error.code(), ErrorCode::WANT_READ | ErrorCode::WANT_WRITE)
}

/// A UDP socket that OpenSSL reads and writes, a datagram at a time.
#[derive(Debug)]
pub(super) struct Datagrams(UdpSocket);

impl Read for Datagrams {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.recv(buffer).map_err(|error| match error.kind() {
            // Nothing came, or what was sent before did not arrive.
            ErrorKind::TimedOut | ErrorKind::ConnectionRefused => ErrorKind::WouldBlock.into(),
            _ => error,
        })
    }
}

impl Write for Datagrams {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        self.0.send(datagram)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
