//! The listener for metrics, and what keeps slow and many clients from costing more than they may.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use turnbuckle_server::config::Exporter;

use crate::host::Hosts;
use crate::http;
use crate::limits::{HEAD, PAUSE};
use crate::shared::Shared;
use crate::status::StatusPage;
use crate::tls::Tls;

/// The first byte of a TLS connection (RFC 8446 §5.1).
const HANDSHAKE: u8 = 22;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 32;

/// Connections of one IPv4 address or IPv6 /64 at a time.
const PER_SOURCE_MAX: usize = 4;

/// Time for a connection in all: the head, an answer within the second that shards have, and ten seconds to read it.
const CONNECTION: Duration = Duration::from_secs(16);

/// What is served at a listener, and by which names.
pub(crate) struct Site {
    /// Where metrics are.
    pub(crate) path: Box<str>,
    pub(crate) hosts: Hosts,
    pub(crate) page: Option<StatusPage>,
}

/// A bound listener.
pub(crate) struct Listener {
    socket: StdListener,
    address: SocketAddr,
    /// What connections are protected with; `None` if they are not.
    tls: Option<Tls>,
}

impl Listener {
    /// Binds the address of the exporter. Without one it is any address of both families, or of IPv4 where there is no IPv6.
    ///
    /// # Errors
    ///
    /// The address cannot be bound.
    pub(crate) fn bind(exporter: &Exporter, tls: Option<Tls>) -> Result<Self, String> {
        let bound = match exporter.address {
            Some(ip) => StdListener::bind((ip, exporter.port)),
            None => StdListener::bind((Ipv6Addr::UNSPECIFIED, exporter.port))
                .or_else(|_| StdListener::bind((Ipv4Addr::UNSPECIFIED, exporter.port))),
        };
        let socket = bound.map_err(|error| {
            let address = exporter
                .address
                .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
            let address = SocketAddr::new(address, exporter.port);
            format!("prometheus: cannot listen on TCP {address}: {error}")
        })?;
        Self::of(socket, tls)
    }

    /// Goes on with a socket that is bound.
    ///
    /// # Errors
    ///
    /// It is no socket that can be listened on.
    pub(crate) fn of(socket: StdListener, tls: Option<Tls>) -> Result<Self, String> {
        let ready = socket.set_nonblocking(true);
        let address = ready.and_then(|()| socket.local_addr());
        let address = address.map_err(|error| format!("prometheus: {error}"))?;
        Ok(Self {
            socket,
            address,
            tls,
        })
    }

    /// Returns the socket.
    pub(crate) fn socket(&self) -> &StdListener {
        &self.socket
    }

    /// Returns how it is reached.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Serves for ever.
    pub(crate) async fn serve(self, shared: Arc<Shared>, site: Arc<Site>) {
        // It fails only without a runtime.
        let Ok(listener) = TcpListener::from_std(self.socket) else {
            return;
        };
        let mut crowd = Crowd::default();
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, client)) => {
                        let tls = self.tls.as_ref().map(Tls::acceptor);
                        let to = (Arc::clone(&shared), Arc::clone(&site));
                        crowd.admit(client.ip(), serve_one(stream, tls, to));
                    }
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        let remembering = async {
            if site.page.is_some() {
                shared.keep_history().await;
            }
        };
        tokio::join!(accepting, remembering);
    }
}

/// What a connection is served from.
type Origin = (Arc<Shared>, Arc<Site>);

/// Serves one connection.
async fn serve_one(stream: TcpStream, tls: Option<TlsAcceptor>, to: Origin) {
    match tls {
        None => answer(stream, to).await,
        Some(tls) => {
            let accepted = async {
                // Not even an alert for who does not speak TLS: clients of old HTTP would take it for the page.
                let mut first = [0];
                let is_tls = stream.peek(&mut first).await? == 1 && first == [HANDSHAKE];
                match is_tls {
                    true => tls.accept(stream).await,
                    false => Err(io::ErrorKind::InvalidData.into()),
                }
            };
            // Whoever is too slow, or speaks something else, has gone without its answer.
            if let Ok(Ok(stream)) = tokio::time::timeout(HEAD, accepted).await {
                answer(stream, to).await;
            }
        }
    }
}

/// Serves one request.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, (shared, site): Origin) {
    let service = service_fn(|request| {
        let (shared, site) = (Arc::clone(&shared), Arc::clone(&site));
        async move { Ok::<_, io::Error>(http::answer(&shared, &site, &request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    // Whoever is too slow, or speaks something else, has gone without its answer.
    let _ = tokio::time::timeout(CONNECTION, connection).await;
}

/// Whose a connection is: an IPv4 address, or an IPv6 /64, because whoever has one address there has all.
fn source(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// The connections that are served, the oldest first.
#[derive(Default)]
struct Crowd(Vec<(IpAddr, JoinHandle<()>)>);

impl Crowd {
    /// Serves a connection. One beyond its source's own share is closed without a word. If all places are taken, the oldest connection of the source
    /// that has most is closed for it, so that a few sources which hold theirs open do not keep a health check out.
    fn admit(&mut self, client: IpAddr, serve: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|(_, serving)| !serving.is_finished());
        let source = source(client);
        if self.count(source) >= PER_SOURCE_MAX {
            return;
        }
        if self.0.len() >= CONNECTIONS_MAX {
            let most = self.0.iter().map(|(of, _)| self.count(*of)).max();
            let oldest = self
                .0
                .iter()
                .position(|(of, _)| Some(self.count(*of)) == most);
            if let Some(oldest) = oldest {
                self.0.remove(oldest).1.abort();
            }
        }
        self.0.push((source, tokio::spawn(serve)));
    }

    fn count(&self, source: IpAddr) -> usize {
        self.0.iter().filter(|(of, _)| *of == source).count()
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test]
    async fn a_newcomer_gets_a_place_of_the_source_that_has_most() {
        let mut crowd = Crowd::default();
        let client = |n: u8| IpAddr::from([192, 0, 2, n]);
        for n in 0..8 {
            (0..6).for_each(|_| crowd.admit(client(n), pending()));
            assert_eq!(crowd.count(client(n)), 4);
        }
        assert_eq!(crowd.0.len(), CONNECTIONS_MAX);
        crowd.admit(client(9), pending());
        assert_eq!((crowd.count(client(0)), crowd.count(client(9))), (3, 1));
        // The others have most now; nobody takes the newcomer's place.
        (0..20).for_each(|_| crowd.admit(client(0), pending()));
        assert_eq!((crowd.count(client(0)), crowd.count(client(9))), (4, 1));
        assert_eq!(crowd.0.len(), CONNECTIONS_MAX);
    }

    #[tokio::test]
    async fn what_has_been_served_takes_no_place_and_a_network_of_ipv6_is_one_source() {
        let mut crowd = Crowd::default();
        let client = |text: &str| text.parse::<IpAddr>().unwrap();
        for n in 0..9 {
            crowd.admit(client(&format!("2001:db8::{n}")), pending());
        }
        assert_eq!(crowd.0.len(), PER_SOURCE_MAX);
        crowd.admit(client("2001:db8:0:1::1"), async {});
        crowd.admit(client("::ffff:192.0.2.1"), pending());
        assert_eq!(crowd.count(client("192.0.2.1")), 1);
        tokio::task::yield_now().await;
        crowd.admit(client("192.0.2.1"), pending());
        assert_eq!(crowd.0.len(), PER_SOURCE_MAX + 2);
    }
}
