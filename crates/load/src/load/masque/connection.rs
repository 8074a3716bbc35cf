//! One connection of HTTP/3, with the tunnels that it carries.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

use turnbuckle_client::Failure;
use turnbuckle_masque::h3::{Client, Happened, Violation};
use turnbuckle_quic::{
    Application, Bytes, Closed, Connection, Statistics, StreamError, StreamId, StreamState,
};

use crate::load::access::Asking;

/// What has come of the connections of a thread, in the order in which it came. Clients are named by their place in the thread.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    /// What targets have sent.
    pub(super) payloads: Vec<(usize, Bytes)>,
    /// Tunnels that are open, by their stream, and such that are not, or no more.
    pub(super) news: Vec<(usize, Result<u64, Failure>)>,
}

/// A connection's application.
#[derive(Default)]
pub(super) struct Tunnels {
    http: Client<usize>,
    asking: Rc<Asking>,
    inbox: Rc<RefCell<Inbox>>,
    /// The tunnels to ask for, the next one last.
    wanted: Vec<(usize, SocketAddr)>,
    /// Those that were asked for and have not ended, each with its stream.
    asked: Vec<(usize, u64)>,
    is_over: bool,
}

impl Tunnels {
    /// Makes the application of a connection that asks for these tunnels as soon as it is there.
    pub(super) fn new(
        asking: &Rc<Asking>,
        inbox: &Rc<RefCell<Inbox>>,
        tunnels: &[(usize, SocketAddr)],
    ) -> Self {
        Self {
            http: Client::default(),
            asking: Rc::clone(asking),
            inbox: Rc::clone(inbox),
            wanted: tunnels.iter().rev().copied().collect(),
            asked: Vec::new(),
            is_over: false,
        }
    }

    /// Returns whether there are tunnels that could not be asked for yet.
    pub(super) fn wants_more(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Asks for as many tunnels as the server lets it.
    pub(super) fn ask(&mut self, connection: &mut Connection<'_>) {
        match self.http.serves() {
            None => return,
            Some(true) => {}
            Some(false) => return self.lose_all(Failure::BadAnswer),
        }
        while !self.wanted.is_empty()
            && let Some(stream) = connection.open()
            && let Some((place, target)) = self.wanted.pop()
        {
            let Asking { authority, user } = &*self.asking;
            let user = (&*user.0, &*user.1);
            let number = stream.to_u64();
            let request = self.http.ask(number, place, authority, target, user);
            self.asked.push((place, number));
            write(connection, stream, request);
        }
    }

    fn lose(&mut self, place: usize, failure: Failure) {
        self.asked.retain(|&(asked, _)| asked != place);
        self.inbox.borrow_mut().news.push((place, Err(failure)));
    }

    fn lose_all(&mut self, failure: Failure) {
        let wanted = self.wanted.drain(..).map(|(place, _)| place);
        let asked = self.asked.drain(..).map(|(place, _)| place);
        let lost = wanted.chain(asked).map(|place| (place, Err(failure)));
        self.inbox.borrow_mut().news.extend(lost);
    }

    /// Takes over what has become of requests.
    fn take_news(&mut self) {
        while let Some(happened) = self.http.poll() {
            match happened {
                Happened::Opened(place) => {
                    let asked = self.asked.iter().find(|&&(asked, _)| asked == place);
                    let news = asked.map(|&(place, stream)| (place, Ok(stream)));
                    self.inbox.borrow_mut().news.extend(news);
                }
                Happened::Refused(place, status) => self.lose(place, Failure::Refused(status)),
                Happened::Ended(place) => self.lose(place, Failure::Disconnected),
            }
        }
    }

    fn break_off(&mut self, connection: &mut Connection<'_>, violation: Violation) {
        self.is_over = true;
        connection.close(violation.code.0, violation.why);
        self.lose_all(Failure::BadAnswer);
    }
}

impl Application for Tunnels {
    fn connected(&mut self, connection: &mut Connection<'_>) {
        if let Some(control) = connection.open_uni() {
            write(connection, control, self.http.control());
        }
    }

    fn readable(&mut self, connection: &mut Connection<'_>, stream: StreamId) {
        if self.is_over {
            return;
        }
        let mut bytes = Vec::new();
        let state = connection.read(stream, |part| bytes.extend_from_slice(part));
        let number = stream.to_u64();
        let read = self.http.received(number, &bytes);
        let read = read.and_then(|()| match state {
            Ok(StreamState::Open) | Err(StreamError::Unknown) => Ok(()),
            Ok(StreamState::Finished) | Err(_) => self.http.ended(number),
        });
        self.take_news();
        match read {
            Ok(()) => self.ask(connection),
            Err(violation) => self.break_off(connection, violation),
        }
    }

    fn datagram(&mut self, connection: &mut Connection<'_>, payload: Bytes) {
        if self.is_over {
            return;
        }
        match self.http.datagram(&payload) {
            Ok(Some(payload)) => self.inbox.borrow_mut().payloads.push(payload),
            Ok(None) => {}
            Err(violation) => self.break_off(connection, violation),
        }
    }

    fn closed(&mut self, cause: Closed, _: &Statistics) {
        self.lose_all(match cause {
            // We ended it: at the end of the run, or for a violation that all have heard of.
            Closed::Local => return,
            Closed::HandshakeLate | Closed::Failed(_) => Failure::Handshake,
            Closed::Idle => Failure::Timeout,
            _ => Failure::Disconnected,
        });
    }
}

/// Writes what a stream begins with. It is far less than any server must take of a stream at once.
fn write(connection: &mut Connection<'_>, stream: StreamId, bytes: Vec<u8>) {
    let mut bytes = Bytes::from(bytes);
    // A server that takes less never sees the request whole, and the client gives up in time.
    let _ = connection.write(stream, &mut bytes);
}
