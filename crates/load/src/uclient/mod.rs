//! `turnutils_uclient`: the generator behind the flags and the lines of coturn's, so that scripts written for that one keep working.
//!
//! [`options`] turns the flags into those of `turnbuckle load`; the run is that program's, only what is printed differs. The lines have
//! the wording that scripts look for, and the prefix of Debian's coturn: seconds since the start. As there, the exit code is 0 whatever
//! was lost, and 255 when there is no run.
//!
//! The numbers are counted, not inferred: `tot_recv_msgs` is of different packets that came back intact, and a delay is counted from when
//! a packet was due.

mod job;
mod options;

use std::cell::Cell;
use std::ffi::OsString;
use std::process::ExitCode;

use self::job::Job;
use self::options::{Options, USAGE};
use crate::load::{Mode, Totals, allow_descriptors};
use crate::negative;
use crate::output::{self, Log};
use crate::stop::Stop;

/// What the original exits with when it cannot run.
const FAILED: u8 = 255;
const SECOND: u64 = 1_000_000_000;

/// Runs the generator with the flags of turnutils_uclient, without the program's name.
///
/// # Errors
/// What [`crate::load::run`] returns once the clients are there.
pub fn run(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(problem) => {
            output::note(&format!("turnutils_uclient: {problem}\n{USAGE}"));
            return Ok(ExitCode::from(FAILED));
        }
    };
    for note in &options.notes {
        output::note(&format!("turnutils_uclient: {note}"));
    }
    allow_descriptors(options.load.volume.clients * 2);
    let stop = Stop::on_signals()?;
    let log = Log::start();
    if !options.negative.is_empty() {
        try_what_is_wrong(&options, &log)?;
    }
    let mut run = Job::open(&options.load)?;
    let opened = run.open_clients();
    let refused = run.clients_failed();
    if let Some(connections) = run.connections() {
        log.line(&if connections < options.load.volume.clients {
            format!("WARNING: {connections} connections are completed, not enough")
        } else {
            format!("{connections} connections are completed")
        });
    }
    if opened.is_err() || !refused.is_empty() {
        for (failure, count) in refused {
            log.line(&format!(
                "error {failure}{}, {count} of {} clients",
                reason(&failure),
                options.load.volume.clients
            ));
        }
        log.line("ERROR: Cannot complete Allocation");
        run.close();
        return Ok(ExitCode::from(FAILED));
    }
    let is_allocating = options.load.mode == Mode::Alloc;
    if options.is_verbose {
        log.line(&run.describe());
    }
    if !is_allocating {
        log.line(&format!("Total connect time is {}", log.seconds()));
    }
    if options.leaves_at_once {
        // The process ends with the allocations as they are: that is what was asked for.
        return Ok(ExitCode::SUCCESS);
    }
    let display = Display::new(&log, &options);
    run.measure(&stop, &|now, totals| display.show(now, totals));
    let transmitted = log.seconds();
    let end = run.finish()?;
    if is_allocating {
        log.line(&format!(
            "start_allocation_flood: total_allocations={}",
            end.allocated
        ));
        log.line(&format!("Total allocation flood time is {transmitted}"));
        return Ok(ExitCode::SUCCESS);
    }
    let size = options.load.volume.size as u64;
    log.line(&format!(
        "start_mclient: tot_send_msgs={}, tot_recv_msgs={}",
        end.sent, end.received
    ));
    log.line(&format!(
        "start_mclient: tot_send_bytes ~ {}, tot_recv_bytes ~ {}",
        end.sent * size,
        end.received * size
    ));
    if options.load.moves().is_some() {
        let [done, failed] = end.moves;
        log.line(&format!("mobility: {done} clients moved, {failed} did not"));
    }
    log.line(&format!("Total transmit time is {transmitted}"));
    let dropped = format!(
        "otal send dropped {} ({:.6}%)",
        end.failed,
        percent(end.failed, end.sent + end.failed)
    );
    if options.load.mode == Mode::Invalid {
        log.line(&format!("T{dropped}"));
        return Ok(ExitCode::SUCCESS);
    }
    let lost = end.sent.saturating_sub(end.received);
    log.line(&format!(
        "Total lost packets {lost} ({:.6}%), t{dropped}",
        percent(lost, end.sent)
    ));
    for (name, [mean, min, max]) in [
        ("round trip delay", end.latency_ms),
        ("jitter", end.jitter_ms),
    ] {
        log.line(&format!(
            "Average {name} {mean:.6} ms; min = {min:.0} ms, max = {max:.0} ms"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the checks of `-N` and `-R` and prints what became of them, as lines between the others.
fn try_what_is_wrong(options: &Options, log: &Log) -> anyhow::Result<()> {
    let arguments = &options.load;
    let (Some(server), Some(credentials)) = (arguments.ends.server, arguments.who()?) else {
        return Ok(());
    };
    let report = negative::run(&negative::Task {
        server,
        credentials,
        peer: arguments.ends.peer.first().copied(),
        seed: arguments.seed(),
        groups: options.negative.clone(),
    })?;
    for line in report.lines() {
        log.line(&format!("negative test: {line}"));
    }
    Ok(())
}

/// Returns the reason phrase of an error code, as coturn prints it behind the code.
fn reason(code: &str) -> &'static str {
    match code {
        "300" => " (Try Alternate)",
        "400" => " (Bad Request)",
        "401" => " (Unauthorized)",
        "403" => " (Forbidden)",
        "405" => " (Mobility Forbidden)",
        "420" => " (Unknown Attribute)",
        "437" => " (Allocation Mismatch)",
        "438" => " (Stale Nonce)",
        "440" => " (Address Family not Supported)",
        "441" => " (Wrong Credentials)",
        "442" => " (Unsupported Transport Protocol)",
        "443" => " (Peer Address Family Mismatch)",
        "446" => " (Connection Already Exists)",
        "447" => " (Connection Timeout or Failure)",
        "486" => " (Allocation Quota Reached)",
        "500" => " (Server Error)",
        "508" => " (Insufficient Capacity)",
        _ => "",
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// What is printed once a second while a run goes on.
struct Display<'a> {
    log: &'a Log,
    clients: usize,
    size: u64,
    is_allocating: bool,
    /// Rates are printed.
    is_generator: bool,
    /// Time, packets sent and packets received at the last line.
    last: Cell<Option<(u64, u64, u64)>>,
}

impl<'a> Display<'a> {
    fn new(log: &'a Log, options: &Options) -> Self {
        Self {
            log,
            clients: options.load.volume.clients,
            size: options.load.volume.size as u64,
            is_allocating: options.load.mode == Mode::Alloc,
            is_generator: options.is_generator,
            last: Cell::new(None),
        }
    }

    fn show(&self, now: u64, totals: &Totals) {
        let Totals { sent, received, .. } = *totals;
        let Some((then, sent_then, received_then)) = self.last.get() else {
            self.last.set(Some((now, sent, received)));
            return;
        };
        if now - then < SECOND {
            return;
        }
        self.last.set(Some((now, sent, received)));
        if self.is_allocating {
            self.log.line(&format!(
                "start_allocation_flood: total_allocations={}",
                totals.allocated
            ));
            return;
        }
        self.log.line(&format!(
            "start_mclient: msz={}, tot_send_msgs={sent}, tot_recv_msgs={received}, tot_send_bytes ~ {}, tot_recv_bytes ~ {}",
            self.clients,
            sent * self.size,
            received * self.size
        ));
        if self.is_generator {
            let per_second = |count: u64| count as f64 * SECOND as f64 / (now - then) as f64;
            self.log.line(&format!(
                "start_mclient: send_pps={:.2}, recv_pps={:.2}, total_sent={sent}, total_recv={received}",
                per_second(sent.saturating_sub(sent_then)),
                per_second(received.saturating_sub(received_then))
            ));
        }
    }
}
