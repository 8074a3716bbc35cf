//! One request and its answer, by HTTP over the relay's Unix socket.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};

/// Bytes of an answer that is read whole.
const ANSWER_LEN_MAX: usize = 64 << 20;

/// Time after which a caller for whom the relay's socket had no room asks again.
const PAUSE: Duration = Duration::from_millis(20);

/// Bytes of a line of a list.
const LINE_LEN_MAX: usize = 1 << 20;

/// Why there is no answer to go on with.
#[derive(Debug)]
pub(super) enum Failure {
    /// The relay has refused, and says why.
    Refused(String),
    /// Nobody is there.
    Unreachable(String),
    /// No answer has come in time.
    Late(String),
}

impl Failure {
    /// Returns the exit code. Two is that of a wrong command line.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Refused(_) => 1,
            Self::Unreachable(_) => 3,
            Self::Late(_) => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(why) | Self::Unreachable(why) | Self::Late(why) => f.write_str(why),
        }
    }
}

/// Where the relay is, and how long it may take to say something.
pub(super) struct Client {
    pub(super) socket: PathBuf,
    pub(super) patience: Duration,
}

impl Client {
    /// Sends a request, and returns its answer, which is JSON.
    pub(super) async fn ask(&self, method: Method, path: &str) -> Result<Value, Failure> {
        let mut answer = self.send(method, path, "application/json").await?;
        let mut text = Vec::new();
        while let Some(piece) = self.piece(answer.body_mut()).await? {
            text.extend_from_slice(&piece);
            if text.len() > ANSWER_LEN_MAX {
                return Err(self.strange("the answer is too long"));
            }
        }
        serde_json::from_slice(&text).map_err(|_| self.strange("the answer is no JSON"))
    }

    /// Sends a request for a list, and shows each of its lines.
    pub(super) async fn list(
        &self,
        path: &str,
        mut show: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut answer = self.send(Method::GET, path, crate::api::NDJSON).await?;
        let mut rest = Vec::new();
        while let Some(piece) = self.piece(answer.body_mut()).await? {
            rest.extend_from_slice(&piece);
            let mut begin = 0;
            while let Some(len) = rest[begin..].iter().position(|&byte| byte == b'\n') {
                show(&rest[begin..begin + len])?;
                begin += len + 1;
            }
            rest.drain(..begin);
            if rest.len() > LINE_LEN_MAX {
                return Err(self.strange("a line is too long"));
            }
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(self.strange("the list is cut off")),
        }
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &'static str,
    ) -> Result<Response<Incoming>, Failure> {
        let stream = match timeout(self.patience, self.connect()).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(self.unreachable(&error)),
            Err(_) => return Err(self.late()),
        };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "localhost")
            .header(ACCEPT, accept)
            .body(Empty::<Bytes>::new())
            .map_err(|error| self.strange(&error.to_string()))?;
        let broken = |_| self.strange("it closed the connection without an answer");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(broken)?;
        // It ends with the answer; what goes wrong shows there.
        tokio::spawn(connection);
        let answer = match timeout(self.patience, sender.send_request(request)).await {
            Ok(answer) => answer.map_err(broken)?,
            Err(_) => return Err(self.late()),
        };
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let text = timeout(self.patience, answer.into_body().collect()).await;
        let text = text.ok().and_then(Result::ok).map(|all| all.to_bytes());
        let answer: Option<Value> = text.and_then(|text| serde_json::from_slice(&text).ok());
        let why = answer.as_ref().and_then(|answer| answer["error"].as_str());
        Err(Failure::Refused(why.map_or_else(
            || format!("the answer is {status}"),
            str::to_owned,
        )))
    }

    /// Connects. Where as many callers wait as the relay's socket holds, the kernel says EAGAIN at once (connect(2)), and the caller asks again until there is room.
    async fn connect(&self) -> io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(PAUSE).await,
                other => return other,
            }
        }
    }

    async fn piece(&self, body: &mut Incoming) -> Result<Option<Bytes>, Failure> {
        loop {
            match timeout(self.patience, body.frame()).await {
                Ok(None) => return Ok(None),
                Ok(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
                Ok(Some(Err(_))) => return Err(self.strange("it ended within the answer")),
                Err(_) => return Err(self.late()),
            }
        }
    }

    fn unreachable(&self, error: &io::Error) -> Failure {
        let path = self.socket.display();
        let why = match error.kind() {
            io::ErrorKind::NotFound => format!(
                "no relay at {path}: there is no such file. `control-socket` in the relay's configuration makes one, and \
                 --socket says here where it is"
            ),
            io::ErrorKind::PermissionDenied => {
                format!(
                    "{path}: permission denied. The user and the group of the relay may connect"
                )
            }
            io::ErrorKind::ConnectionRefused => {
                format!("no relay at {path}: nobody listens there any more")
            }
            _ => format!("no relay at {path}: {error}"),
        };
        Failure::Unreachable(why)
    }

    fn late(&self) -> Failure {
        let path = self.socket.display();
        let seconds = self.patience.as_secs();
        Failure::Late(format!(
            "the relay at {path} does not answer within {seconds} s"
        ))
    }

    fn strange(&self, what: &str) -> Failure {
        let path = self.socket.display();
        Failure::Unreachable(format!("the relay at {path}: {what}"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream as Caller};
    use std::time::Instant;

    use rustix::net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
    };

    use super::*;

    #[tokio::test]
    async fn a_caller_waits_for_a_place_in_front_of_a_relay_that_is_busy_as_long_as_it_may() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("control.sock");
        let flags = SocketFlags::CLOEXEC;
        let relay = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&relay, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        // One waits in front of it then, and no more.
        listen(&relay, 0).unwrap();
        let relay = UnixListener::from(relay);
        let first = Caller::connect(&socket).unwrap();
        let begin = Instant::now();
        let patience = Duration::from_millis(100);
        let caller = Client { socket, patience };
        let failure = caller.ask(Method::GET, "/v1/info").await.unwrap_err();
        assert!(matches!(failure, Failure::Late(_)), "{failure}");
        assert!(begin.elapsed() >= patience);
        let patience = Duration::from_secs(60);
        let caller = Client { patience, ..caller };
        let connecting = tokio::spawn(async move { caller.connect().await });
        // It has found no room once, when the other task has run.
        sleep(PAUSE).await;
        assert!(!connecting.is_finished());
        relay.accept().unwrap();
        connecting.await.unwrap().unwrap();
        drop(first);
    }
}
