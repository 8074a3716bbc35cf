//! `turnbuckle accept-server` and `turnbuckle connect-client`: TCP connections per second.
//!
//! The pair after DragonFly's `accept_connect`: the server accepts and closes a connection when its peer does; the client connects and closes
//! at once, and no byte is exchanged. Their workers were processes; ours are threads, each with a table of descriptors of its own.

mod client;
mod errors;
mod exchange;
mod preflight;
mod server;
mod worker;

pub use client::Arguments as ConnectClient;
pub use server::Arguments as AcceptServer;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most workers of one program.
const WORKERS_MAX: u16 = 1024;

fn workers(text: &str) -> Result<usize, String> {
    match text.parse::<u16>() {
        Ok(number @ 1..=WORKERS_MAX) => Ok(number.into()),
        _ => Err(format!("allowed: 1 to {WORKERS_MAX}")),
    }
}

/// CPU time of a connection, microseconds, for a sentence; nothing if there was no connection.
fn cpu_each(us: Option<f64>) -> String {
    us.map_or_else(String::new, |us| format!(", {us:.2} us of CPU each"))
}

/// Lets this process open as many descriptors as it may.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Failure leaves the old limit, and reaching it is counted as EMFILE.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    );
}
