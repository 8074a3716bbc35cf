//! What sends and what receives: processes beside the program under measurement.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::thread::{CpuSet, sched_setaffinity};
use turnbuckle_datapath::{
    Bind, BufferSettings, DatagramHandler, Datapath, EndpointId, EndpointKind, Received, SendQueue,
    Settings, Sockets, StreamHandler, TurnHandler,
};

/// Datagrams per train of the source, the most that every kernel takes.
const FLOOD_TRAIN: usize = 64;
/// Datagrams per burst of the paced source.
const PACED_TRAIN: usize = 32;

/// Ends with the bench, stays on one CPU, and leaves the scheduling group of the session that started the bench: otherwise
/// every other program of the machine counts against it.
pub(crate) fn settle_down(cpu: usize) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only)?;
    let _ = setsid();
    // A kernel without autogroups does not have the file.
    let _ = std::fs::write("/proc/self/autogroup", "-10");
    Ok(())
}

/// Tells the bench that the sockets are open.
pub(crate) fn ready() -> io::Result<()> {
    println!("ready");
    io::stdout().flush()
}

/// Holds a socket that nobody reads: the kernel counts what arrives and drops GRO buffers whole.
pub(crate) fn sink(address: SocketAddr) -> io::Result<()> {
    let mut datapath = Datapath::new(Settings {
        buffers: BufferSettings {
            listener: 4096,
            ..BufferSettings::default()
        },
        ..Settings::default()
    })?;
    datapath.bind(Bind {
        address,
        kind: EndpointKind::Listener { reuseport: false },
        token: 0,
    })?;
    ready()?;
    loop {
        std::thread::park();
    }
}

/// Sends trains, as fast as it can or at a pace.
struct Source {
    endpoints: Vec<EndpointId>,
    to: SocketAddr,
    train: Vec<u8>,
    size: usize,
    trains: usize,
    next: usize,
}

impl TurnHandler for Source {
    fn turn_ended(&mut self, tx: &mut SendQueue, _: &mut impl Sockets) {
        for _ in 0..self.trains {
            let endpoint = self.endpoints[self.next % self.endpoints.len()];
            self.next += 1;
            tx.send(endpoint, self.to, &self.train, self.size);
        }
    }
}

impl DatagramHandler for Source {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {}
}

impl StreamHandler for Source {}

/// Sends copies of `datagram` from each of `addresses` in turn, a train from each, `rate` datagrams a second in all; 0 floods.
pub(crate) fn source(
    addresses: &[SocketAddr],
    to: SocketAddr,
    datagram: &[u8],
    rate: u64,
) -> io::Result<()> {
    let size = datagram.len();
    // What a reflector sends back is of no interest: with a small buffer the kernel drops most of it early, whole.
    let small = Settings {
        coalesce: Duration::ZERO,
        batch: 1,
        buffers: BufferSettings {
            relay_start: 4096,
            relay_max: 4096,
            ..BufferSettings::default()
        },
        ..Settings::default()
    };
    let mut datapath = Datapath::new(small)?;
    let mut endpoints = Vec::new();
    for &address in addresses {
        endpoints.push(datapath.bind(Bind {
            address,
            kind: EndpointKind::Relay,
            token: 0,
        })?);
    }
    let count = (if rate == 0 { FLOOD_TRAIN } else { PACED_TRAIN }).min(65_507 / size);
    let trains = if rate == 0 { 8 } else { 1 };
    let mut source = Source {
        endpoints,
        to,
        train: datagram.repeat(count),
        size,
        trains,
        next: 0,
    };
    ready()?;
    let interval = Duration::from_nanos(
        (count as u64 * 1_000_000_000)
            .checked_div(rate)
            .unwrap_or(0),
    );
    let mut due = Instant::now();
    loop {
        datapath.turn(Some(Duration::ZERO), &mut source)?;
        due += interval;
        // Sleeping is too coarse here; the source has a CPU for itself. After a long interruption it does not catch up.
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        due = due.max(Instant::now() - 10 * interval);
    }
}
