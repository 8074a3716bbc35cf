//! A listener thread from its beginning to its end, whatever the transport.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::dtls::DtlsClients;
use super::listener::{self, DRAINED, Duty, Listener, Opened, Task};
use super::roaming::Roaming;
use super::sender;
use super::streams::Streams;
use super::transport::Transport;
use super::udp::Udp;

/// Time for the release of all allocations at the end.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// What moves the messages of a thread's clients.
pub(super) trait Driver {
    fn listener(&mut self) -> &mut Listener;

    /// Whether packets may flow, as far as they ever will.
    fn is_open(&mut self) -> bool {
        self.listener().is_open()
    }

    /// Waits until something is to be done, and does it.
    ///
    /// # Errors
    /// The system does not let it wait.
    fn turn(&mut self) -> anyhow::Result<()>;

    /// The clients that may send.
    ///
    /// # Errors
    /// A socket cannot be shared.
    fn opened(&mut self) -> anyhow::Result<Opened>;

    /// Closes the sockets. What was sent comes with it where this thread sent.
    fn finish(self) -> (Listener, Option<sender::Outcome>);
}

/// What a listener thread leaves.
pub(super) type Outcome = (listener::Outcome, Option<sender::Outcome>);

pub(super) fn run(mut task: Task) -> anyhow::Result<Outcome> {
    if let Some(moves) = task.moves {
        let roaming = Roaming::open(&mut task, moves);
        return drive(task, roaming);
    }
    match &task.transport {
        Transport::Udp => {
            let udp = Udp::open(&mut task);
            drive(task, udp)
        }
        Transport::Tcp | Transport::Tls(_) => {
            let streams = Streams::open(&mut task);
            drive(task, streams)
        }
        Transport::Dtls(_) => {
            let clients = DtlsClients::open(&mut task);
            drive(task, clients)
        }
    }
}

fn drive(task: Task, driver: anyhow::Result<impl Driver>) -> anyhow::Result<Outcome> {
    let Task {
        clock,
        phase,
        duty,
        report,
        ..
    } = task;
    let mut driver = match driver {
        Ok(driver) => driver,
        Err(error) => {
            let _ = report.send(Err(error));
            anyhow::bail!("not begun");
        }
    };
    let is_drained = || phase.load(Ordering::Relaxed) == DRAINED;
    if matches!(duty, Duty::Hold | Duty::Cycle) {
        while !driver.is_open() && !is_drained() {
            driver.turn()?;
        }
    }
    let _ = report.send(driver.opened());
    while !is_drained() {
        driver.turn()?;
    }
    driver.listener().release_all();
    let end = clock.now() + u64::try_from(RELEASE_MAX.as_nanos()).unwrap_or(u64::MAX);
    while driver.listener().holds_any() && clock.now() < end {
        driver.turn()?;
    }
    let (listener, sent) = driver.finish();
    Ok((listener.finish(), sent))
}
