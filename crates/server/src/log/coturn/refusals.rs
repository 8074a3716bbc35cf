//! Lines about answers that strangers do not get, and about the first that one does.

use std::net::IpAddr;
use std::time::Duration;

use turnbuckle_engine::Time;
use turnbuckle_wire::Message;

/// Said when the first challenge has left that cost no memory.
pub(super) const CHALLENGE: &str = "stateless-nonce: listener fast-path challenge active";

/// How long nothing more is said about a source, as long as coturn's window.
const WINDOW: Duration = Duration::from_secs(1);

/// Sources that are remembered at a time.
const SOURCES: usize = 16;

/// The type of a Binding request: what it is refused has nothing to do with credentials.
const BINDING_REQUEST: [u8; 2] = [0, 1];

/// Remembers for a moment which sources were told of, by either line.
#[derive(Default)]
pub(super) struct Refusals {
    told: [Option<(IpAddr, bool, Time)>; SOURCES],
    next: usize,
}

impl Refusals {
    /// The line about a request that gets no answer because its source has had as many as it may; `admit` says whether there may be a line.
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
        let is_told = |told: &(IpAddr, bool, Time)| {
            told.0 == source && told.1 == proves && now < told.2 + WINDOW
        };
        if self.told.iter().flatten().any(is_told) || !admit() {
            return None;
        }
        if let Some(place) = self.told.get_mut(self.next) {
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
