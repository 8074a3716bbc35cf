//! Holds the session numbers of clients that have no allocation yet. The log uses one number for a client's refused requests and for the allocation
//! that it gets later, as coturn does.
//!
//! Invariant: the table has a fixed size. An unauthenticated client can only overwrite the cell of another one (V-21).

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use turnbuckle_engine::Time;

use super::super::request::{Path, Seal};

/// Cells of the table.
const CELLS: usize = 1024;

/// Time for which a client without an allocation is remembered. It is coturn's `max-allocate-timeout`.
const REMEMBERED: Duration = Duration::from_secs(60);

/// A client without an allocation.
#[derive(Clone, Debug)]
pub(super) struct Stranger {
    pub(super) path: Path,
    pub(super) number: u64,
    /// The last USERNAME that the client sent, escaped.
    pub(super) user: String,
    /// The REALM of the last error response to the client, escaped.
    pub(super) realm: Option<String>,
    /// ORIGIN of the client's first Allocate request, escaped.
    pub(super) origin: Option<String>,
    pub(super) seal: Option<Seal>,
}

pub(super) struct Strangers {
    cells: Vec<Option<Stranger>>,
    /// Expiry time, cell and session number of each client, the earliest first. Every client is remembered for the same time, so new ones go to the
    /// end.
    ends: VecDeque<(Time, usize, u64)>,
    keys: RandomState,
}

impl Default for Strangers {
    fn default() -> Self {
        Self {
            cells: vec![None; CELLS],
            ends: VecDeque::new(),
            keys: RandomState::new(),
        }
    }
}

impl Strangers {
    /// Returns whether the client is in the table.
    pub(super) fn knows(&self, path: &Path) -> bool {
        let cell = self.cells[self.cell(path)].as_ref();
        cell.is_some_and(|stranger| stranger.path == *path)
    }

    /// Returns the number of a client that is in the table.
    pub(super) fn number(&self, path: &Path) -> Option<u64> {
        let stranger = self.cells[self.cell(path)].as_ref()?;
        (stranger.path == *path).then_some(stranger.number)
    }

    /// Returns the client's entry, and adds it if there is none. A new client gets the session number that `number` returns.
    pub(super) fn at(
        &mut self,
        path: &Path,
        now: Time,
        number: impl FnOnce() -> u64,
    ) -> &mut Stranger {
        let index = self.cell(path);
        let cell = &mut self.cells[index];
        if cell.as_ref().is_none_or(|known| known.path != *path) {
            *cell = None;
        }
        cell.get_or_insert_with(|| {
            let number = number();
            if self.ends.len() >= 2 * CELLS {
                self.ends.pop_front();
            }
            self.ends.push_back((now + REMEMBERED, index, number));
            Stranger {
                path: *path,
                number,
                user: String::new(),
                realm: None,
                origin: None,
                seal: None,
            }
        })
    }

    /// Removes the client and returns its entry.
    pub(super) fn take(&mut self, path: &Path) -> Option<Stranger> {
        let index = self.cell(path);
        self.cells[index].take_if(|stranger| stranger.path == *path)
    }

    /// Removes a client that has expired, and returns its entry.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<Stranger> {
        while self.ends.front().is_some_and(|(end, ..)| *end <= now) {
            let (_, index, number) = self.ends.pop_front()?;
            let due = self.cells[index].take_if(|stranger| stranger.number == number);
            if due.is_some() {
                return due;
            }
        }
        None
    }

    /// Returns the earliest time at which [`Self::pop_due`] may return a client.
    pub(super) fn next_end(&self) -> Option<Time> {
        self.ends.front().map(|(end, ..)| *end)
    }

    fn cell(&self, path: &Path) -> usize {
        // The remainder is less than 2^10, so it fits a `usize` of any width.
        usize::try_from(self.keys.hash_one(path) % CELLS as u64).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use turnbuckle_engine::Transport;

    fn path(port: u16) -> Path {
        Path {
            server: SocketAddr::from(([192, 0, 2, 1], 3478)),
            client: SocketAddr::from(([198, 51, 100, 7], port)),
            transport: Transport::Udp,
        }
    }

    #[test]
    fn a_flood_of_strangers_takes_no_more_room_than_the_table() {
        let mut strangers = Strangers::default();
        for port in 1..=60_000 {
            let number = u64::from(port);
            let known = strangers.at(&path(port), Time::from_secs(1), || number);
            assert_eq!(known.number, number);
        }
        assert_eq!(strangers.cells.len(), CELLS);
        assert!(strangers.ends.len() <= 2 * CELLS);
        let mut due = 0;
        while strangers.pop_due(Time::from_secs(100)).is_some() {
            due += 1;
        }
        assert!(due <= CELLS);
        assert_eq!(strangers.next_end(), None);
    }

    #[test]
    fn a_client_keeps_its_number_until_its_time_is_over_or_it_is_taken() {
        let mut strangers = Strangers::default();
        let start = Time::from_secs(1);
        assert_eq!(strangers.at(&path(1), start, || 7).number, 7);
        assert_eq!(strangers.at(&path(1), start, || 8).number, 7);
        assert!(strangers.pop_due(start).is_none());
        assert_eq!(strangers.take(&path(1)).map(|it| it.number), Some(7));
        assert_eq!(strangers.at(&path(1), start, || 9).number, 9);
        let due = strangers.pop_due(start + REMEMBERED);
        assert_eq!(due.map(|stranger| stranger.number), Some(9));
        assert!(!strangers.knows(&path(1)));
    }
}
