//! The programs that the bench starts inside the namespaces: itself, under another role.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::thread::{CpuSet, sched_setaffinity};
use turnbuckle_datapath::{
    Backend, Bind, Datapath, EndpointId, EndpointKind, Handler, Received, Run, SendQueue, Settings,
    Sockets,
};

use crate::lab::Program;

/// Bytes of the header that is stripped or added, as long as ChannelData's.
pub(crate) const HEADER_LEN: usize = 4;
/// Datagrams per train of the source, the most that every kernel takes.
const FLOOD_TRAIN: usize = 64;
/// Datagrams per burst of the paced source.
const PACED_TRAIN: usize = 32;

/// Runs `role cpu arguments...` until killed.
pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    let bad = || io::Error::new(io::ErrorKind::InvalidInput, format!("role {arguments:?}"));
    let argument = |index: usize| arguments.get(index).map(String::as_str).ok_or_else(bad);
    settle_down(argument(1)?.parse().map_err(|_| bad())?)?;
    match argument(0)? {
        "sink" => sink(argument(2)?.parse().map_err(|_| bad())?),
        "relay" => relay(
            argument(2)?.parse().map_err(|_| bad())?,
            argument(3)?.parse().map_err(|_| bad())?,
            Duration::from_micros(argument(4)?.parse().map_err(|_| bad())?),
            argument(5)?.parse().map_err(|_| bad())?,
            argument(6)?.parse().map_err(|_| bad())?,
        ),
        "source" => source(
            argument(2)?.parse().map_err(|_| bad())?,
            argument(3)?.parse().map_err(|_| bad())?,
            argument(4)?.parse().map_err(|_| bad())?,
            argument(5)?.parse().map_err(|_| bad())?,
        ),
        _ => Err(bad()),
    }
}

/// Ends with the bench, stays on one CPU, and leaves the scheduling group of the session that started the bench: otherwise
/// every other program of the machine counts against it.
fn settle_down(cpu: usize) -> io::Result<()> {
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
fn ready() -> io::Result<()> {
    println!("ready");
    io::stdout().flush()
}

fn listener(datapath: &mut Datapath, address: SocketAddr) -> io::Result<EndpointId> {
    datapath.bind(Bind {
        address,
        kind: EndpointKind::Listener { reuseport: false },
        token: 0,
    })
}

/// Holds a socket that nobody reads: the kernel counts what arrives and drops GRO buffers whole.
fn sink(address: SocketAddr) -> io::Result<()> {
    let mut datapath = Datapath::new(Settings {
        socket_buffer: 4096,
        ..Settings::default()
    })?;
    listener(&mut datapath, address)?;
    ready()?;
    loop {
        std::thread::park();
    }
}

/// The program under measurement.
struct Relay {
    program: Program,
    to: SocketAddr,
}

impl Handler for Relay {
    #[inline]
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let count = message.segment_count();
        let last_len = message.bytes.len() - (count - 1) * message.segment;
        let all = Run {
            start: 0,
            stride: message.segment,
            len: message.segment,
            last_len,
            count,
        };
        match self.program {
            Program::Reflect => tx.forward(message.endpoint, message.remote, message, all, &[], 0),
            Program::Strip => {
                let run = Run {
                    start: HEADER_LEN,
                    len: all.len.saturating_sub(HEADER_LEN),
                    last_len: all.last_len.saturating_sub(HEADER_LEN),
                    ..all
                };
                tx.forward(message.endpoint, self.to, message, run, &[], 0);
            }
            Program::Add => tx.forward(
                message.endpoint,
                self.to,
                message,
                all,
                &[0x40, 0, 0, 120],
                0,
            ),
        }
    }
}

fn relay(
    program: Program,
    backend: Backend,
    coalesce: Duration,
    address: SocketAddr,
    to: SocketAddr,
) -> io::Result<()> {
    let mut datapath = Datapath::new(Settings {
        backend,
        coalesce,
        ..Settings::default()
    })?;
    listener(&mut datapath, address)?;
    let mut relay = Relay { program, to };
    ready()?;
    loop {
        datapath.turn(None, &mut relay)?;
    }
}

/// Sends trains, as fast as it can or at a pace.
struct Source {
    endpoint: EndpointId,
    to: SocketAddr,
    train: Vec<u8>,
    size: usize,
    trains: usize,
}

impl Handler for Source {
    fn received(&mut self, _: &Received<'_>, _: &mut SendQueue) {}

    fn turn_ended(&mut self, tx: &mut SendQueue, _: &mut Sockets<'_>) {
        for _ in 0..self.trains {
            tx.send(self.endpoint, self.to, &self.train, self.size);
        }
    }
}

/// `rate` 0 floods.
fn source(address: SocketAddr, to: SocketAddr, size: usize, rate: u64) -> io::Result<()> {
    // What a reflector sends back is of no interest: with a small buffer the kernel drops most of it early, whole.
    let small = Settings {
        coalesce: Duration::ZERO,
        batch: 1,
        relay_buffer_start: 4096,
        relay_buffer_max: 4096,
        ..Settings::default()
    };
    let mut datapath = Datapath::new(small)?;
    let endpoint = datapath.bind(Bind {
        address,
        kind: EndpointKind::Relay,
        token: 0,
    })?;
    let count = (if rate == 0 { FLOOD_TRAIN } else { PACED_TRAIN }).min(65_507 / size);
    let trains = if rate == 0 { 8 } else { 1 };
    let mut source = Source {
        endpoint,
        to,
        train: vec![0x5A; count * size],
        size,
        trains,
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
