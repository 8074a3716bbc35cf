//! The listener for metrics, and what keeps slow and many clients from costing more than they may.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use turnbuckle_server::config::Exporter;

use crate::host::Hosts;
use crate::http;
use crate::limits::{HEAD, PAUSE};
use crate::shared::Shared;
use crate::status::StatusPage;
use crate::tls::Tls;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 32;

/// Connections of one address at a time.
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
        let crowd = Arc::new(Crowd::default());
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, client)) => {
                        // A connection that is one too many is closed without a word.
                        if let Some(place) = Place::take(&crowd, client.ip()) {
                            let tls = self.tls.as_ref().map(Tls::acceptor);
                            let to = (Arc::clone(&shared), Arc::clone(&site));
                            tokio::spawn(serve_one(stream, tls, to, place));
                        }
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

/// Serves one connection, and then frees its place.
async fn serve_one(stream: TcpStream, tls: Option<TlsAcceptor>, to: Origin, place: Place) {
    match tls {
        None => answer(stream, to).await,
        Some(tls) => {
            // Whoever is too slow, or speaks something else, has gone without its answer.
            if let Ok(Ok(stream)) = tokio::time::timeout(HEAD, tls.accept(stream)).await {
                answer(stream, to).await;
            }
        }
    }
    drop(place);
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

/// How many connections each address has.
#[derive(Default)]
struct Crowd(Mutex<HashMap<IpAddr, usize>>);

/// A connection's place, which is free again when this is dropped.
struct Place {
    crowd: Arc<Crowd>,
    source: IpAddr,
}

impl Place {
    fn take(crowd: &Arc<Crowd>, source: IpAddr) -> Option<Self> {
        let mut taken = crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = taken.values().sum();
        let of_source = taken.get(&source).copied().unwrap_or(0);
        if total >= CONNECTIONS_MAX || of_source >= PER_SOURCE_MAX {
            return None;
        }
        taken.insert(source, of_source + 1);
        drop(taken);
        Some(Self {
            crowd: Arc::clone(crowd),
            source,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_takes_four_places_and_all_together_thirty_two() {
        let crowd = Arc::new(Crowd::default());
        let source = |n: u8| IpAddr::from([192, 0, 2, n]);
        let mut places = Vec::new();
        for n in 0..8 {
            places.extend((0..4).map(|_| Place::take(&crowd, source(n)).unwrap()));
            assert!(Place::take(&crowd, source(n)).is_none());
        }
        assert!(Place::take(&crowd, source(9)).is_none());
        places.pop();
        assert!(Place::take(&crowd, source(9)).is_some());
        drop(places);
        assert!(crowd.0.lock().unwrap().is_empty());
    }
}
