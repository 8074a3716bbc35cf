//! What both programs are bounded by, and what they say of a connection.

/// Most workers of one program.
const WORKERS_MAX: u16 = 1024;

pub(super) fn workers(text: &str) -> Result<usize, String> {
    match text.parse::<u16>() {
        Ok(number @ 1..=WORKERS_MAX) => Ok(number.into()),
        _ => Err(format!("allowed: 1 to {WORKERS_MAX}")),
    }
}

/// Returns the CPU time of a connection, microseconds, for a sentence; empty if there was no connection.
pub(super) fn cpu_each(us: Option<f64>) -> String {
    us.map_or_else(String::new, |us| format!(", {us:.2} us of CPU each"))
}
