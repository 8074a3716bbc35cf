//! Commands of an operator by HTTP over a Unix socket, for `turnbuckle ctl` and for programs (`docs/operating/control.md`).
//!
//! Who may connect may do everything: the rights are those of the socket's file. Invariant: what changes anything has a line in the log before it
//! happens, with the caller's user and process as the kernel names them; what cannot be logged is not done.

mod answer;
mod body;
mod filter;
mod session;
pub(crate) mod socket;
mod top;
mod trace;

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use turnbuckle_server::handle::Upgraded;

use self::answer::After;
pub(crate) use self::answer::NDJSON;
use self::socket::Socket;
use crate::limits::{HEAD, PAUSE};
use crate::shared::Shared;

/// Connections that are served at a time. Others wait to be accepted.
const CONNECTIONS_MAX: usize = 32;

/// Time for a connection in all, so that a reader that stalls in a list does not keep its place.
const CONNECTION: Duration = Duration::from_secs(60);

/// What the answers are made from.
pub(crate) struct Api {
    shared: Arc<Shared>,
    started: Instant,
    /// What the last upgrade has come to.
    upgraded: Option<Upgraded>,
    /// Places of those who have a user traced.
    traces: Arc<Semaphore>,
}

/// Who is connected, as the kernel says (unix(7), `SO_PEERCRED`).
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    user: u32,
    process: Option<i32>,
}

impl Caller {
    /// Returns whether the relay, which runs as user `own`, may be made to run any program. The socket's file lets a group in, whose members would get the
    /// rights of that user.
    fn may_name_programs(self, own: u32) -> bool {
        self.user == 0 || self.user == own
    }
}

impl Api {
    pub(crate) fn new(shared: Arc<Shared>, upgraded: Option<Upgraded>) -> Self {
        Self {
            upgraded,
            shared,
            started: Instant::now(),
            traces: Arc::new(Semaphore::new(trace::TRACES_MAX)),
        }
    }

    /// Serves for ever.
    pub(crate) async fn serve(self, socket: Socket) {
        // It fails only without a runtime, or without a descriptor.
        let listener = socket.listener.try_clone().and_then(UnixListener::from_std);
        let Ok(listener) = listener else {
            return;
        };
        let api = Arc::new(self);
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            // It fails only when it is closed, which nobody does.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let api = Arc::clone(&api);
                    tokio::spawn(async move {
                        api.converse(stream).await;
                        drop(place);
                    });
                }
                Err(_) => sleep(PAUSE).await,
            }
        }
    }

    /// Serves one request, and ends the relay after the answer if that was the request.
    async fn converse(self: Arc<Self>, stream: UnixStream) {
        let Ok(credentials) = stream.peer_cred() else {
            return;
        };
        let caller = Caller {
            user: credentials.uid(),
            process: credentials.pid(),
        };
        let (after, is_long) = (OnceLock::new(), AtomicBool::new(false));
        let service = service_fn(|request| {
            let api = Arc::clone(&self);
            let (after, is_long) = (&after, &is_long);
            async move {
                let answer = answer::answer(&api, caller, &request).await;
                // There is one request.
                let _ = after.set(answer.after);
                is_long.store(answer.is_long, Relaxed);
                Ok::<_, Infallible>(answer.response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .keep_alive(false)
            .max_buf_size(16 * 1024)
            .serve_connection(TokioIo::new(stream), service);
        // Whoever is too slow, or speaks something else, has gone without its answer.
        let mut connection = std::pin::pin!(connection);
        let is_over = timeout(CONNECTION, &mut connection).await.is_ok();
        if !is_over && is_long.load(Relaxed) {
            let _ = timeout(trace::LASTS, connection).await;
        }
        let command = || match after.get() {
            None | Some(After::GoesOn) => Ok(()),
            Some(After::Ends) => self.shared.commands.stop(),
            Some(After::HandsOver) => self.shared.commands.hand_over(),
        };
        while command().is_err() {
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Caller;

    #[test]
    fn members_of_the_sockets_group_name_no_program() {
        let of = |user| Caller {
            user,
            process: None,
        };
        assert!(of(0).may_name_programs(998) && of(998).may_name_programs(998));
        assert!(!of(1000).may_name_programs(998) && !of(1000).may_name_programs(0));
    }
}
