//! The programs that the bench starts inside the namespaces: itself, under another role.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use turnbuckle_datapath::{
    Backend, Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Received, Run, SendQueue,
    Settings, StreamHandler, TurnHandler,
};

use crate::measure::Program;
use crate::traffic::{ready, settle_down, sink, source};

/// Bytes of the header that is stripped or added, as long as ChannelData's.
pub(crate) const HEADER_LEN: usize = 4;
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
            &[argument(2)?.parse().map_err(|_| bad())?],
            argument(3)?.parse().map_err(|_| bad())?,
            &vec![0x5A; argument(4)?.parse().map_err(|_| bad())?],
            argument(5)?.parse().map_err(|_| bad())?,
        ),
        _ => Err(bad()),
    }
}

fn listener(datapath: &mut Datapath, address: SocketAddr) -> io::Result<EndpointId> {
    datapath.bind(Bind {
        address,
        kind: EndpointKind::Listener { reuseport: false },
        token: 0,
    })
}

/// The program under measurement.
struct Relay {
    program: Program,
    to: SocketAddr,
}

impl TurnHandler for Relay {}

impl DatagramHandler for Relay {
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

impl StreamHandler for Relay {}

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
