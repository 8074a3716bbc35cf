//! Clients by DTLS: a socket each, as by UDP, and a session that one thread has, which therefore sends as well.

mod session;

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use turnbuckle_datapath::{
    Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Received, SendFailure, SendQueue,
    Sockets, StreamHandler, TurnHandler,
};

use self::session::{DtlsSession, Progress, Wire};
use super::access::{Access, Dtls};
use super::driver::Driver;
use super::listener::{Listener, Opened, Signalling, Task};
use super::sender::{self, Media};
use super::sending::Sending;
use super::session::Via;
use crate::threads;
use turnbuckle_client::Failure;

/// Room for what a record holds (RFC 6347 §4.1).
const RECORD_LEN_MAX: usize = 16_384;
/// How often handshakes are asked whether they have something to say again.
const REPEAT_EVERY: u64 = 50_000_000;

/// A thread's clients, their sockets and sessions.
pub(super) struct DtlsClients {
    datapath: Datapath,
    clients: Clients,
}

struct Clients {
    listener: Listener,
    sending: Sending,
    sessions: Sessions,
    room: Vec<u8>,
    repeat_at: u64,
}

/// In the order of the listener's clients.
struct Sessions {
    dtls: Dtls,
    places: Vec<Place>,
    /// Clients in a handshake, and perhaps some that were.
    handshaking: Vec<usize>,
    /// Clients whose sessions are gone.
    lost: Vec<(usize, Failure)>,
    wire: Wire,
    local: IpAddr,
    to: SocketAddr,
}

struct Place {
    endpoint: EndpointId,
    session: Option<DtlsSession>,
    /// A request that waits for keys. A repetition of it takes its place.
    early: Vec<u8>,
}

impl DtlsClients {
    /// Opens a socket for each client; sessions begin later.
    ///
    /// # Errors
    /// A socket cannot be opened.
    pub(super) fn open(task: &mut Task) -> anyhow::Result<Self> {
        let _ = threads::fine_sleep();
        let Access::Dtls(dtls) = task.route.access.clone() else {
            anyhow::bail!("not DTLS");
        };
        let mut datapath = Datapath::new(task.settings.clone())?;
        let mut places = Vec::new();
        for index in 0..task.clients.len() {
            let endpoint = datapath
                .bind(bind(task.route.local, index))
                .with_context(|| {
                    let local = task.route.local;
                    format!("cannot open a socket for a client on {local}")
                })?;
            places.push(Place {
                endpoint,
                session: None,
                early: Vec::new(),
            });
        }
        Ok(Self {
            datapath,
            clients: Clients {
                sessions: Sessions {
                    dtls,
                    places,
                    handshaking: Vec::new(),
                    lost: Vec::new(),
                    wire: Wire::default(),
                    local: task.route.local,
                    to: task.route.to,
                },
                listener: Listener::new(task)?,
                sending: Sending::new(task.sending.take()),
                room: vec![0; RECORD_LEN_MAX],
                repeat_at: 0,
            },
        })
    }
}

fn bind(local: IpAddr, index: usize) -> Bind {
    Bind {
        address: (local, 0).into(),
        kind: EndpointKind::Listener { reuseport: false },
        token: index as u64,
    }
}

impl Driver for DtlsClients {
    fn listener(&mut self) -> &mut Listener {
        &mut self.clients.listener
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        self.clients.sending.learn()?;
        let wait = self.clients.sending.wait(&self.clients.listener);
        Ok(self.datapath.turn(Some(wait), &mut self.clients)?)
    }

    fn opened(&mut self) -> anyhow::Result<Opened> {
        let clients = &self.clients;
        let mut opened = clients.listener.opened(|index| Ok(Via::Listener(index)))?;
        for place in &clients.sessions.places {
            let local = self.datapath.local_addr(place.endpoint);
            opened.ports.extend(local.map(|local| local.port()));
        }
        Ok(opened)
    }

    fn finish(self) -> (Listener, Option<sender::Outcome>) {
        let sent = &self.datapath.counters().send;
        let (calls, gso_sends) = (sent.calls.get(), sent.gso_sends.get());
        let sending = self.clients.sending.finish(calls, gso_sends);
        (self.clients.listener, sending)
    }
}

impl TurnHandler for Clients {
    fn turn_started(&mut self) {
        self.listener.turn_started();
        self.sending.turn_started();
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        let now = self.listener.clock.now();
        let sessions = &mut self.sessions;
        if now >= self.repeat_at {
            self.repeat_at = now + REPEAT_EVERY;
            sessions.repeat(tx);
        }
        self.listener.turn_ended(&mut Requests {
            sessions,
            tx,
            sockets,
        });
        self.sending.send(|places| Records {
            sessions,
            tx,
            places,
        });
        for (index, failure) in std::mem::take(&mut sessions.lost) {
            self.listener.lost(index, failure, now);
        }
    }
}

impl DatagramHandler for Clients {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let now = self.listener.clock.now();
        let Ok(index) = usize::try_from(message.token) else {
            return;
        };
        let Self {
            listener,
            sessions,
            room,
            ..
        } = self;
        // A port that was another program's a moment ago still gets what was meant for that one.
        let to = sessions.to;
        if (message.remote.ip(), message.remote.port()) != (to.ip(), to.port()) {
            return;
        }
        for segment in message.segments() {
            sessions.receive(index, segment, room, tx, |plain| {
                listener.message(index, plain, now);
            });
        }
    }

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, _: SendFailure) {
        // Reported by the flush of the turn that queued them.
        self.sending.failed(datagrams);
    }
}

impl StreamHandler for Clients {}

impl Sessions {
    fn lose(&mut self, index: usize, failure: Failure) {
        if let Some(place) = self.places.get_mut(index) {
            place.session = None;
        }
        self.lost.push((index, failure));
    }

    /// Takes a datagram for a client, and hands what its records hold to `each`.
    fn receive(
        &mut self,
        index: usize,
        datagram: &[u8],
        room: &mut [u8],
        tx: &mut SendQueue,
        each: impl FnMut(&[u8]),
    ) {
        let Some(place) = self.places.get_mut(index) else {
            return;
        };
        let Some(session) = &mut place.session else {
            return;
        };
        let was_handshaking = session.is_handshaking();
        self.wire.clear();
        let progress = session.receive(datagram, &mut self.wire, room, each);
        if was_handshaking && !session.is_handshaking() && !place.early.is_empty() {
            // A session that cannot seal says so with the next message.
            let _ = session.seal(&place.early, &mut self.wire);
            place.early = Vec::new();
        }
        for datagram in self.wire.datagrams() {
            tx.reply(place.endpoint, self.to, datagram);
        }
        match progress {
            Progress::Open => {}
            Progress::Ended if was_handshaking => self.lose(index, Failure::Handshake),
            Progress::Ended => self.lose(index, Failure::Disconnected),
        }
    }

    /// Has handshakes say again what was not answered in time.
    fn repeat(&mut self, tx: &mut SendQueue) {
        for index in std::mem::take(&mut self.handshaking) {
            let Some(place) = self.places.get_mut(index) else {
                continue;
            };
            let Some(session) = place.session.as_mut().filter(|it| it.is_handshaking()) else {
                continue;
            };
            self.wire.clear();
            if session.shake_hands(&mut self.wire) == Progress::Ended {
                self.lose(index, Failure::Handshake);
                continue;
            }
            for datagram in self.wire.datagrams() {
                tx.reply(place.endpoint, self.to, datagram);
            }
            self.handshaking.push(index);
        }
    }
}

/// How requests leave at the end of a turn.
struct Requests<'a, S> {
    sessions: &'a mut Sessions,
    tx: &'a mut SendQueue,
    sockets: &'a mut S,
}

impl<S: Sockets> Signalling for Requests<'_, S> {
    fn send(&mut self, index: usize, message: &[u8]) {
        let Self { sessions, tx, .. } = self;
        let Some(place) = sessions.places.get_mut(index) else {
            return;
        };
        sessions.wire.clear();
        let said = match &mut place.session {
            Some(session) if session.is_handshaking() => {
                place.early = message.to_vec();
                return;
            }
            Some(session) => session.seal(message, &mut sessions.wire).is_ok(),
            None => {
                place.early = message.to_vec();
                sessions.handshaking.push(index);
                let session = DtlsSession::new(&sessions.dtls);
                let session = session.ok().map(|session| place.session.insert(session));
                session.is_some_and(|it| it.shake_hands(&mut sessions.wire) == Progress::Open)
            }
        };
        for datagram in sessions.wire.datagrams() {
            tx.reply(place.endpoint, sessions.to, datagram);
        }
        if !said {
            sessions.lose(index, Failure::Disconnected);
        }
    }

    fn renew(&mut self, index: usize) {
        let local = self.sessions.local;
        let Some(place) = self.sessions.places.get_mut(index) else {
            return;
        };
        place.session = None;
        if let Ok(bound) = self.sockets.bind(bind(local, index)) {
            self.sockets.close(place.endpoint);
            place.endpoint = bound;
        }
    }
}

/// How packets leave.
struct Records<'a> {
    sessions: &'a mut Sessions,
    tx: &'a mut SendQueue,
    places: &'a [usize],
}

impl Records<'_> {
    fn place(&self, session: usize) -> Option<&Place> {
        self.sessions.places.get(*self.places.get(session)?)
    }
}

impl Media for Records<'_> {
    fn has_room(&mut self, session: usize) -> bool {
        let session = self.place(session).and_then(|place| place.session.as_ref());
        session.is_some_and(|session| !session.is_handshaking())
    }

    fn send(&mut self, session: usize, train: &[u8], len: usize) {
        let Some(&index) = self.places.get(session) else {
            return;
        };
        let sessions = &mut *self.sessions;
        let Some(place) = sessions.places.get_mut(index) else {
            return;
        };
        let Some(session) = &mut place.session else {
            return;
        };
        sessions.wire.clear();
        let mut messages = train.chunks(len.max(1));
        let is_sealed = messages.all(|message| session.seal(message, &mut sessions.wire).is_ok());
        // Messages of one length are records of one length.
        if let Some(record_len) = sessions.wire.datagrams().next().map(<[u8]>::len) {
            let records = sessions.wire.bytes();
            self.tx
                .send(place.endpoint, sessions.to, records, record_len);
        }
        if !is_sealed {
            sessions.lose(index, Failure::Disconnected);
        }
    }
}
