//! Writes the lines about unauthenticated requests that get no response, and about the first response to one.

use std::net::IpAddr;
use std::time::Duration;

use turnbuckle_engine::Time;

/// The line that is printed after the first challenge that was sent without keeping state.
pub(super) const CHALLENGE: &str = "stateless-nonce: listener fast-path challenge active";

/// Time after a line about a source in which no further line about it is printed. coturn's window has the same length.
const WINDOW: Duration = Duration::from_secs(1);

/// Number of sources that are remembered at a time.
const SOURCES: usize = 16;

/// The code of the first response to a client (RFC 8489 §14.8), whose absence has a line of its own.
const UNAUTHENTICATED: u16 = 401;

/// Remembers the sources that a line was printed about within the window.
#[derive(Default)]
pub(super) struct Refusals {
    reported: [Option<(IpAddr, u16, Time)>; SOURCES],
    next: usize,
}

impl Refusals {
    /// Returns the line about an error response of this `code` that is not sent because its source has reached its limit of responses. `admit` returns
    /// whether a line may be printed.
    pub(super) fn line(
        &mut self,
        source: IpAddr,
        code: u16,
        now: Time,
        admit: impl FnOnce() -> bool,
    ) -> Option<String> {
        let is_challenge = code == UNAUTHENTICATED;
        let is_reported = |reported: &(IpAddr, u16, Time)| {
            let is_same_kind = (reported.1 == UNAUTHENTICATED) == is_challenge;
            reported.0 == source && is_same_kind && now < reported.2 + WINDOW
        };
        if self.reported.iter().flatten().any(is_reported) || !admit() {
            return None;
        }
        if let Some(place) = self.reported.get_mut(self.next) {
            *place = Some((source, code, now));
        }
        self.next = (self.next + 1) % SOURCES;
        let ends = "suppressing responses for this window";
        Some(match is_challenge {
            true => format!("401 rate-limit exceeded from {source}, {ends}"),
            false => format!(
                "unauthorized-response rate-limit exceeded from {source} (error {code}), {ends}"
            ),
        })
    }
}
