//! What the integration tests share.
#![allow(
    dead_code,
    clippy::allow_attributes,
    clippy::unwrap_used,
    reason = "helpers of tests, of which each file uses its own part"
)]

#[path = "../../../turnbuckle/tests/ports/mod.rs"]
mod ports;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use turnbuckle_datapath::{
    Backend, Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Handler, Received, Run,
    SendQueue, Settings, StreamHandler, TurnHandler,
};

use self::ports::free_ports;

pub(crate) const BACKENDS: [Backend; 3] = [Backend::Single, Backend::Mmsg, Backend::Gso];
pub(crate) const LISTENER: EndpointKind = EndpointKind::Listener { reuseport: false };
/// How long anything may take that has to come about; how long it does take is not judged.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn loopback(v6: bool) -> SocketAddr {
    if v6 {
        SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0))
    } else {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }
}

/// Returns a port that nobody has and that the kernel gives to nobody who asks for any, so that it stays free until it is asked for by number.
pub(crate) fn free_for_listening() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_ports()))
}

pub(crate) fn datapath(backend: Backend) -> Datapath {
    Datapath::new(Settings {
        backend,
        ..Settings::default()
    })
    .unwrap()
}

pub(crate) fn bind(
    datapath: &mut Datapath,
    kind: EndpointKind,
    address: SocketAddr,
) -> (EndpointId, SocketAddr) {
    let endpoint = datapath
        .bind(Bind {
            address,
            kind,
            token: 0,
        })
        .unwrap();
    (endpoint, datapath.local_addr(endpoint).unwrap())
}

/// Returns a socket that waits for what must come.
pub(crate) fn socket(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket
}

/// Takes nothing and answers nothing.
pub(crate) struct Deaf;

impl TurnHandler for Deaf {}

impl DatagramHandler for Deaf {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {}
}

impl StreamHandler for Deaf {}

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
pub(crate) struct Echo;

impl TurnHandler for Echo {}

impl DatagramHandler for Echo {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        tx.forward(
            message.endpoint,
            message.remote,
            message,
            whole(message),
            &[],
            0,
        );
    }
}

impl StreamHandler for Echo {}

/// Makes turns until `datagrams` were received since the start; fails when nothing comes any more.
pub(crate) fn receive(datapath: &mut Datapath, handler: &mut impl Handler, datagrams: u64) {
    let counters = Arc::clone(datapath.counters());
    let mut give_up = Instant::now() + TEST_TIMEOUT;
    let mut before = counters.receive.datagrams.get();
    while before < datagrams {
        datapath.turn(Some(TEST_TIMEOUT), handler).unwrap();
        let now = counters.receive.datagrams.get();
        if now > before {
            give_up = Instant::now() + TEST_TIMEOUT;
        }
        assert!(
            Instant::now() < give_up,
            "{now} of {datagrams} datagrams arrived"
        );
        before = now;
    }
}

/// Sends trains from its own data path, so that they arrive as GRO buffers where those are asked for.
pub(crate) struct Source {
    datapath: Datapath,
    endpoint: EndpointId,
    pub(crate) address: SocketAddr,
}

impl Source {
    pub(crate) fn new(v6: bool) -> Self {
        let mut datapath = datapath(Backend::Gso);
        let (endpoint, address) = bind(&mut datapath, LISTENER, loopback(v6));
        Self {
            datapath,
            endpoint,
            address,
        }
    }

    /// Sends `bytes` in datagrams of `segment` bytes.
    pub(crate) fn send(&mut self, to: SocketAddr, bytes: &[u8], segment: usize) {
        self.datapath
            .send_queue()
            .send(self.endpoint, to, bytes, segment);
        self.datapath.turn(Some(Duration::ZERO), &mut Deaf).unwrap();
    }
}
