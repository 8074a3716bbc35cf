//! An endpoint on a data path: what arrives goes in, trains go out at the end of each turn, without being copied.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use turnbuckle_datapath::{
    Backend, Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Received, SendFailure,
    SendQueue, Settings as DatapathSettings, Sockets, StreamHandler, TurnHandler,
};
use turnbuckle_quic::{
    Application, Endpoint, Keys, Limits, Outlet, Path, Settings, Strangers, Via, WallClock,
};

use super::batching::Batching;
use crate::cli::{self, BackendChoice};

/// Bytes that may wait in a connection, each way: as much as the bench had whose table ours continues.
const WINDOW: u32 = 16 * 1024 * 1024;

/// How a side moves datagrams, on the command line.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(super) struct Moving {
    /// How datagrams are moved: auto, single (a system call for each), mmsg, gso
    #[arg(long, value_parser = cli::backend, default_value = "auto")]
    backend: BackendChoice,
    /// Largest packet that is sent, bytes of UDP payload; the path must carry it
    #[arg(long, value_name = "BYTES", default_value_t = 1_350, value_parser = clap::value_parser!(u16).range(1_200..=9_000))]
    pub(super) mtu: u16,
    /// Most packets of one train
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u8).range(1..=64))]
    train: u8,
}

impl Moving {
    pub(super) fn options(&self, timeout: Duration) -> Options {
        Options {
            backend: self.backend.resolve(),
            mtu: self.mtu,
            train: self.train.into(),
            timeout,
        }
    }
}

/// What a side is set to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    pub(super) backend: Backend,
    pub(super) mtu: u16,
    pub(super) train: usize,
    pub(super) timeout: Duration,
}

/// One side of the bench, in one thread.
pub(super) struct Side<A> {
    datapath: Datapath,
    host: Host<A>,
    local: SocketAddr,
}

impl<A: Application> Side<A> {
    /// Binds a socket at `address`.
    ///
    /// # Errors
    /// The address cannot be bound, or the system has no randomness.
    pub(super) fn new(
        address: SocketAddr,
        options: &Options,
        accept: impl FnMut(SocketAddr) -> A + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut datapath = Datapath::new(DatapathSettings {
            backend: options.backend,
            coalesce: Duration::ZERO,
            ..DatapathSettings::default()
        })?;
        let socket = datapath.bind(Bind {
            address,
            kind: EndpointKind::Listener { reuseport: false },
            token: 0,
        })?;
        datapath.forbid_fragments(socket)?;
        let local = datapath.local_addr(socket);
        let local = local.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let mut seed = [0; 32];
        getrandom::fill(&mut seed)?;
        let settings = Settings {
            keys: Keys::random()?,
            shard: 0,
            seed,
            wall_clock: WallClock::default(),
            path: Path {
                mtu_initial: options.mtu,
                mtu_max: None,
                train_datagrams: options.train,
                turn_datagrams: options.train,
            },
            limits: Limits {
                idle: options.timeout,
                stream_window: WINDOW,
                window: WINDOW,
                send_window: WINDOW,
                ..Limits::default()
            },
        };
        Ok(Self {
            datapath,
            host: Host {
                endpoint: Endpoint::new(settings, accept),
                socket,
                now: Instant::now(),
                unsent: 0,
            },
            local,
        })
    }

    pub(super) const fn local(&self) -> SocketAddr {
        self.local
    }

    pub(super) const fn endpoint(&mut self) -> &mut Endpoint<A> {
        &mut self.host.endpoint
    }

    /// Makes one turn: waits until something arrives or is due, for `longest` at most.
    ///
    /// # Errors
    /// What waiting returns.
    pub(super) fn turn(&mut self, longest: Duration) -> io::Result<()> {
        let now = Instant::now();
        let due = self.host.endpoint.next_deadline(now);
        let due = due.map_or(longest, |due| due.saturating_duration_since(now));
        self.datapath.turn(Some(due.min(longest)), &mut self.host)
    }

    /// Returns what the data path has done since the start.
    pub(super) fn batching(&self) -> Batching {
        Batching::of(self.datapath.counters(), self.host.unsent)
    }
}

/// The handler of a data path.
struct Host<A> {
    endpoint: Endpoint<A>,
    socket: EndpointId,
    now: Instant,
    /// Datagrams that the kernel refused.
    unsent: u64,
}

impl<A: Application> TurnHandler for Host<A> {
    fn turn_started(&mut self) {
        self.now = Instant::now();
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, _: &mut impl Sockets) {
        self.endpoint.serve_strangers(self.now, &mut Everybody);
        self.endpoint.handle_timeouts(self.now);
        let socket = self.socket;
        self.endpoint.transmit(self.now, &mut Socket { tx, socket });
        // The applications say what becomes of their connections.
        while self.endpoint.poll_event().is_some() {}
    }
}

impl<A: Application> DatagramHandler for Host<A> {
    fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
        self.endpoint.handle(
            self.now,
            message.remote,
            Via::default(),
            message.bytes,
            message.segment,
            &mut Everybody,
        );
    }

    fn send_failed(&mut self, _: EndpointId, datagrams: u32, _: SendFailure) {
        self.unsent += u64::from(datagrams);
    }
}

impl<A> StreamHandler for Host<A> {}

/// A program that does nothing else has time for everybody, within what RFC 9000 §8.1 allows.
struct Everybody;

impl Strangers for Everybody {
    fn has_time(&mut self) -> bool {
        true
    }

    fn admits(&mut self, _: IpAddr, received_len: usize, answer_len: usize) -> bool {
        answer_len <= 3 * received_len
    }
}

/// Where trains leave.
struct Socket<'a> {
    tx: &'a mut SendQueue,
    socket: EndpointId,
}

impl Outlet for Socket<'_> {
    fn buffer(&mut self) -> Vec<u8> {
        self.tx.take_buffer()
    }

    fn send(&mut self, _: Via, to: SocketAddr, bytes: Vec<u8>, segment: usize) {
        self.tx.send_owned(self.socket, to, bytes, segment);
    }
}
