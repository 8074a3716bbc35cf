//! A listener thread from its beginning to its end, whatever the transport.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::access::Access;
use super::driver::Driver;
use super::dtls::DtlsClients;
use super::listener::{self, Task};
use super::masque::MasqueClients;
use super::phase::DRAINED;
use super::roaming::Roaming;
use super::sender;
use super::streams::Streams;
use super::udp::Udp;

/// Time for the release of all allocations at the end.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// What a listener thread leaves.
pub(super) type Outcome = (listener::Outcome, Option<sender::Outcome>);

pub(super) fn run(mut task: Task) -> anyhow::Result<Outcome> {
    if let Some(moves) = task.moves
        && matches!(task.route.access, Access::Udp)
    {
        let roaming = Roaming::open(&mut task, moves);
        return drive(task, roaming);
    }
    match &task.route.access {
        Access::Udp => {
            let udp = Udp::open(&mut task);
            drive(task, udp)
        }
        Access::Tcp | Access::Tls(_) => {
            let streams = Streams::open(&mut task);
            drive(task, streams)
        }
        Access::Dtls(_) => {
            let clients = DtlsClients::open(&mut task);
            drive(task, clients)
        }
        Access::Masque(_) => {
            let clients = MasqueClients::open(&mut task);
            drive(task, clients)
        }
    }
}

fn drive(task: Task, driver: anyhow::Result<impl Driver>) -> anyhow::Result<Outcome> {
    let Task {
        clock,
        phase,
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
    while !driver.is_open() && !is_drained() {
        driver.turn()?;
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
