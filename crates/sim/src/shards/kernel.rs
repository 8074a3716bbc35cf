//! What stands in for the program in the kernel: it relays what the shards have published, before a socket gets it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turnbuckle_datapath::offload::{Carried, Line, Route, Routes};

/// Lines that all shards have together: few, so that there is no room now and then.
const LINES: usize = 12;

/// A line.
#[derive(Clone, Copy, Debug)]
struct Entry {
    route: Route,
    is_live: bool,
    carried: Carried,
}

/// The kernel of the machine that all shards are on.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernel(Arc<Mutex<Vec<Option<Entry>>>>);

impl Kernel {
    /// Relays a datagram that arrives, if a route is published for it: returns what leaves, from where and to whom.
    pub(super) fn relay(
        &self,
        now: u64,
        from: SocketAddr,
        to: SocketAddr,
        bytes: &[u8],
    ) -> Option<(SocketAddr, SocketAddr, Vec<u8>)> {
        let mut lines = self.lines();
        let mut live = lines.iter_mut().flatten().filter(|it| it.is_live);
        let (entry, payload) = live.find_map(|entry| {
            let route = entry.route;
            let is_right = (route.from, route.to) == (from, to) && now < route.expires_ns;
            let payload = match route.label {
                None => Some(bytes),
                Some(label) => message(bytes).filter(|it| it.0 == label).map(|it| it.1),
            };
            payload.filter(|_| is_right).map(|payload| (entry, payload))
        })?;
        entry.carried.datagrams += 1;
        entry.carried.bytes += payload.len() as u64;
        let mut sent = Vec::new();
        if let Some(label) = entry.route.new_label {
            sent.extend(label.to_be_bytes());
            sent.extend(u16::try_from(payload.len()).unwrap_or(0).to_be_bytes());
        }
        sent.extend(payload);
        Some((entry.route.new_from, entry.route.new_to, sent))
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Option<Entry>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, line: Line, change: impl FnOnce(&mut Entry)) {
        if let Some(Some(entry)) = self.lines().get_mut(line.index as usize) {
            change(entry);
        }
    }
}

/// Returns the number and the payload of a channel message that is alone in its datagram.
fn message(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<4>()?;
    let [a, b, c, d] = *header;
    let len = usize::from(u16::from_be_bytes([c, d]));
    let payload = rest.get(..len)?;
    (rest.len() - len <= 3).then_some((u16::from_be_bytes([a, b]), payload))
}

impl Routes for Kernel {
    fn publish(&mut self, route: &Route) -> Option<Line> {
        let mut lines = self.lines();
        let free = lines.iter().position(Option::is_none);
        let index = free.unwrap_or(lines.len());
        if index >= LINES {
            return None;
        }
        if index == lines.len() {
            lines.push(None);
        }
        lines[index] = Some(Entry {
            route: *route,
            is_live: true,
            carried: Carried::default(),
        });
        Some(Line {
            is_v6: false,
            index: u32::try_from(index).ok()?,
        })
    }

    fn set_expiry(&mut self, line: Line, expires_ns: u64) {
        self.with(line, |entry| entry.route.expires_ns = expires_ns);
    }

    fn revoke(&mut self, line: Line) {
        self.with(line, |entry| entry.is_live = false);
    }

    fn carried(&self, line: Line) -> Carried {
        let mut carried = Carried::default();
        self.with(line, |entry| carried = entry.carried);
        carried
    }

    fn free(&mut self, line: Line) {
        if let Some(entry) = self.lines().get_mut(line.index as usize) {
            *entry = None;
        }
    }
}
