//! Sockets and handlers for the tests of this crate.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::time::Duration;

use turnbuckle_sys::address::RawAddress;
use turnbuckle_sys::send::Scratch;

use crate::{
    Backend, Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Handler, IcmpError,
    Received, Run, SendFailure, SendQueue, Settings, SocketPurpose, StreamHandler, TurnHandler,
    Warning,
};

pub(crate) const LOOPBACK: ([u8; 4], u16) = ([127, 0, 0, 1], 0);
/// How long anything may take that has to come about; how long it does take is not judged.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What a handler was called with.
#[derive(Default)]
pub(crate) struct Reported {
    /// Tokens of endpoints where something arrived cut off.
    pub(crate) truncated: Vec<u64>,
    pub(crate) messages: usize,
    pub(crate) failures: Vec<(u32, SendFailure)>,
    pub(crate) warnings: Vec<Warning>,
    pub(crate) icmp: Vec<IcmpError>,
    pub(crate) undelivered: Vec<(SocketPurpose, u64)>,
}

/// Records its calls, and answers each message by the function.
pub(crate) struct Recorder<F> {
    pub(crate) reported: Reported,
    answer: F,
}

impl<F: FnMut(&Received<'_>, &mut SendQueue)> Recorder<F> {
    pub(crate) fn new(answer: F) -> Self {
        Self {
            reported: Reported::default(),
            answer,
        }
    }
}

impl<F: FnMut(&Received<'_>, &mut SendQueue)> TurnHandler for Recorder<F> {
    fn warning(&mut self, warning: Warning) {
        self.reported.warnings.push(warning);
    }
}

impl<F: FnMut(&Received<'_>, &mut SendQueue)> DatagramHandler for Recorder<F> {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        self.reported.messages += 1;
        (self.answer)(message, tx);
    }

    fn truncated(&mut self, token: u64) {
        self.reported.truncated.push(token);
    }

    fn icmp(&mut self, _: EndpointId, _: u64, error: IcmpError, _: &mut SendQueue) {
        self.reported.icmp.push(error);
    }

    fn undelivered(&mut self, at: SocketPurpose, messages: u64) {
        self.reported.undelivered.push((at, messages));
    }

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, cause: SendFailure) {
        self.reported.failures.push((datagrams, cause));
    }
}

impl<F: FnMut(&Received<'_>, &mut SendQueue)> StreamHandler for Recorder<F> {}

/// Returns all datagrams of a message as one run.
pub(crate) fn whole(message: &Received<'_>) -> Run {
    let count = message.segment_count();
    let last_len = message.bytes.len() - (count - 1) * message.segment;
    Run {
        start: 0,
        stride: message.segment,
        len: message.segment,
        last_len,
        count,
    }
}

/// Sends everything back.
pub(crate) fn echo(message: &Received<'_>, tx: &mut SendQueue) {
    tx.forward(
        message.endpoint,
        message.remote,
        message,
        whole(message),
        &[],
        0,
    );
}

/// A data path with one endpoint, and a client's socket.
pub(crate) struct Setup {
    pub(crate) datapath: Datapath,
    pub(crate) endpoint: EndpointId,
    pub(crate) server: SocketAddr,
    pub(crate) client: UdpSocket,
}

impl Setup {
    pub(crate) fn new(backend: Backend, kind: EndpointKind) -> Self {
        Self::with(
            Settings {
                backend,
                ..Settings::default()
            },
            kind,
        )
    }

    pub(crate) fn with(settings: Settings, kind: EndpointKind) -> Self {
        let mut datapath = Datapath::new(settings).unwrap();
        let endpoint = datapath
            .bind(Bind {
                address: LOOPBACK.into(),
                kind,
                token: 7,
            })
            .unwrap();
        let server = datapath.local_addr(endpoint).unwrap();
        Self {
            datapath,
            endpoint,
            server,
            client: client(),
        }
    }

    /// Makes one turn, which has to find something.
    pub(crate) fn turn(&mut self, handler: &mut impl Handler) {
        self.datapath.turn(Some(TEST_TIMEOUT), handler).unwrap();
    }

    /// Makes turns until `datagrams` were received since the start; each has to bring some.
    pub(crate) fn receive(&mut self, datagrams: u64, handler: &mut impl Handler) {
        let received = |datapath: &Datapath| datapath.counters().receive.datagrams.get();
        while received(&self.datapath) < datagrams {
            let before = received(&self.datapath);
            self.turn(handler);
            assert!(
                received(&self.datapath) > before,
                "{before} of {datagrams} datagrams arrived"
            );
        }
    }
}

pub(crate) fn client() -> UdpSocket {
    let client = UdpSocket::bind(SocketAddr::from(LOOPBACK)).unwrap();
    client.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    client
}

/// Returns datagrams `0 .. count` of `len` bytes, each filled with its number; the last one has `last_len`.
pub(crate) fn numbered(count: u8, len: usize, last_len: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| vec![number; if number + 1 == count { last_len } else { len }])
        .collect()
}

/// Sends equal datagrams as one train, which loopback hands over as one GRO buffer.
pub(crate) fn send_train(from: &UdpSocket, to: SocketAddr, datagrams: &[Vec<u8>]) {
    let address = RawAddress::from(to);
    let mut scratch = Scratch::default();
    let mut batch = scratch.batch();
    batch.message(&address, Some(u16::try_from(datagrams[0].len()).unwrap()));
    for datagram in datagrams {
        batch.piece(datagram);
    }
    batch.seal();
    batch.send_one(from.as_fd(), 0).unwrap();
}

/// Returns the next `count` datagrams of a socket.
pub(crate) fn take(from: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    (0..count)
        .map(|_| {
            let len = from.recv(&mut buffer).unwrap();
            buffer[..len].to_vec()
        })
        .collect()
}

/// Returns whether nothing more has arrived.
pub(crate) fn is_drained(socket: &UdpSocket) -> bool {
    socket.set_nonblocking(true).unwrap();
    let result = socket.recv(&mut [0; 1]);
    socket.set_nonblocking(false).unwrap();
    result.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}
