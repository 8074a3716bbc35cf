//! Connections by number.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::outgoing::Outgoing;
use super::{INDEX_BITS, INDEX_MASK, StreamEnd, StreamId};
use crate::queue::narrow;

/// Marks event data that names a connection; the lower half is its name.
pub(crate) const EVENT_TAG: u64 = 1 << 32;

const READING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// One connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: OwnedFd,
    pub(crate) id: StreamId,
    /// Bytes that the handler wants to see again.
    pub(crate) kept: Vec<u8>,
    /// What the kernel has not taken yet; `None` as long as it takes everything.
    pub(crate) outgoing: Option<Box<Outgoing>>,
    /// Set when the connection is to be closed at the next flush.
    pub(crate) ending: Option<StreamEnd>,
    /// Whether the event queue reports when it can be written.
    awaits_room: bool,
}

impl Stream {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket, and what waits for it.
    pub(crate) fn socket_and_outgoing(&mut self) -> (BorrowedFd<'_>, Option<&mut Outgoing>) {
        (self.socket.as_fd(), self.outgoing.as_deref_mut())
    }

    /// Asks to be told, or no longer to be told, when the socket takes bytes again.
    #[cold]
    pub(crate) fn await_room(&mut self, epoll: &OwnedFd, wanted: bool) -> io::Result<()> {
        if self.awaits_room != wanted {
            let flags = if wanted {
                READING | EventFlags::OUT
            } else {
                READING
            };
            epoll::modify(epoll, &self.socket, event_data(self.id), flags)?;
            self.awaits_room = wanted;
        }
        Ok(())
    }
}

/// Connections by index; indexes are reused, names are not soon.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    stream: Option<Stream>,
}

impl Table {
    /// Takes in a socket and has the event queue watch it.
    pub(crate) fn insert(&mut self, socket: OwnedFd, epoll: &OwnedFd) -> io::Result<StreamId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.places.len() > INDEX_MASK as usize => {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            None => {
                self.places.push(Place {
                    generation: 0,
                    stream: None,
                });
                narrow(self.places.len() - 1)
            }
        };
        let place = &mut self.places[index as usize];
        let id = StreamId::new(index, place.generation);
        if let Err(errno) = epoll::add(epoll, &socket, event_data(id), READING) {
            self.free.push(index);
            return Err(errno.into());
        }
        place.stream = Some(Stream {
            socket,
            id,
            kept: Vec::new(),
            outgoing: None,
            ending: None,
            awaits_room: false,
        });
        Ok(id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.places
            .get_mut(id.index())?
            .stream
            .as_mut()
            .filter(|stream| stream.id == id)
    }

    /// Takes a connection out; closing its socket is dropping it, which takes it from the event queue too.
    pub(crate) fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let place = self.places.get_mut(id.index())?;
        let stream = place.stream.take_if(|stream| stream.id == id)?;
        place.generation = place.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        self.free.push(narrow(id.index()));
        Some(stream)
    }

    /// The names of all connections.
    pub(crate) fn ids(&self) -> Vec<StreamId> {
        let streams = self.places.iter().filter_map(|place| place.stream.as_ref());
        streams.map(|stream| stream.id).collect()
    }
}

fn event_data(id: StreamId) -> EventData {
    EventData::new_u64(EVENT_TAG | u64::from(id.to_u32()))
}
