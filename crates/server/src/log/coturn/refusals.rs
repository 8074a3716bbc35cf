//! Writes the lines about unauthenticated requests that get no response, and about the first response to one.

use std::net::IpAddr;
use std::time::Duration;

use turnbuckle_engine::Time;
use turnbuckle_wire::Message;

/// The line that is printed after the first challenge that was sent without keeping state.
pub(super) const CHALLENGE: &str = "stateless-nonce: listener fast-path challenge active";

/// Time after a line about a source in which no further line about it is printed. coturn's window has the same length.
const WINDOW: Duration = Duration::from_secs(1);

/// Number of sources that are remembered at a time.
const SOURCES: usize = 16;

/// The type of a Binding request. It is never refused for its credentials.
const BINDING_REQUEST: [u8; 2] = [0, 1];

/// Remembers the sources that a line was printed about within the window.
#[derive(Default)]
pub(super) struct Refusals {
    reported: [Option<(IpAddr, bool, Time)>; SOURCES],
    next: usize,
}

impl Refusals {
    /// Returns the line about a request that gets no response because its source has reached its limit of responses. `admit` returns whether a line
    /// may be printed.
    pub(super) fn line(
        &mut self,
        source: IpAddr,
        request: &[u8],
        now: Time,
        admit: impl FnOnce() -> bool,
    ) -> Option<String> {
        if request.starts_with(&BINDING_REQUEST) {
            return None;
        }
        let message = Message::parse(request).ok()?;
        let proves = message.has_integrity_sha1() || message.has_integrity_sha256();
        self.line_about(source, proves, now, admit)
    }

    /// Returns the same line about a request that `proves`, or has no credentials.
    pub(super) fn line_about(
        &mut self,
        source: IpAddr,
        proves: bool,
        now: Time,
        admit: impl FnOnce() -> bool,
    ) -> Option<String> {
        let is_reported = |reported: &(IpAddr, bool, Time)| {
            reported.0 == source && reported.1 == proves && now < reported.2 + WINDOW
        };
        if self.reported.iter().flatten().any(is_reported) || !admit() {
            return None;
        }
        if let Some(place) = self.reported.get_mut(self.next) {
            *place = Some((source, proves, now));
        }
        self.next = (self.next + 1) % SOURCES;
        let what = match proves {
            true => "unauthorized-response",
            false => "401",
        };
        Some(format!(
            "{what} rate-limit exceeded from {source}, suppressing responses for this window"
        ))
    }
}
