//! Connections by number.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::SockRef;

use super::outgoing::Outgoing;
use crate::names::{INDEX_BITS, INDEX_MASK, StreamId, narrow};
use crate::reports::StreamEnd;
use crate::sockets::epolls::{Epolls, STREAM};

const READING: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

/// The state in which a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// It is being made from this side.
    Connecting,
    /// It is there, and nothing is read from it before it is joined with another one.
    Held,
    /// It is there, and is read.
    Reading,
}

/// Whether this side has ended, or is to end, what it sends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shutdown {
    Done,
    No,
    /// As soon as nothing waits.
    Wanted,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: OwnedFd,
    pub(crate) id: StreamId,
    pub(crate) kept: Kept,
    /// What the kernel has not taken yet; `None` as long as it takes everything.
    pub(crate) outgoing: Option<Box<Outgoing>>,
    /// Set when the connection is to be closed at the next flush.
    pub(crate) ending: Option<StreamEnd>,
    /// The connection that it is joined with: what is read here is sent there.
    pub(crate) partner: Option<StreamId>,
    /// Whether the other side has ended what it sends, and that was read.
    pub(crate) has_ended: bool,
    pub(crate) shutdown: Shutdown,
    /// Whether what is sent on it passes the handler's seal.
    pub(crate) is_sealed: bool,
    /// Whether the handler wants nothing to be read.
    pub(crate) is_held_back: bool,
    watch: Watch,
}

/// What the handler keeps of what came on a connection, and when it wants to see it.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// Bytes that the handler wants to see again.
    pub(crate) bytes: Vec<u8>,
    /// How many bytes, those that were kept among them, are worth being shown to the handler.
    pub(crate) awaited_len: usize,
    /// Whether the handler is to see what it kept in the next turn, whatever comes.
    pub(crate) is_cut: bool,
}

/// The events that an event queue reports for a connection.
#[derive(Debug)]
struct Watch {
    is_connecting: bool,
    /// Whether it is in the queue of those that have proven nothing.
    is_stranger: bool,
    is_reading: bool,
    /// Whether the event queue reports when it can be written.
    awaits_room: bool,
    /// What the event queue watches for; `None` when it does not watch.
    flags: Option<EventFlags>,
}

impl Stream {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the socket, and the bytes that wait for it.
    pub(crate) fn socket_and_outgoing(&mut self) -> (BorrowedFd<'_>, Option<&mut Outgoing>) {
        (self.socket.as_fd(), self.outgoing.as_deref_mut())
    }

    pub(crate) fn is_reading(&self) -> bool {
        self.watch.is_reading
    }

    /// Returns whether this side is still establishing the connection.
    pub(crate) fn is_connecting(&self) -> bool {
        self.watch.is_connecting
    }

    /// Returns whether both directions have ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.has_ended && self.shutdown == Shutdown::Done
    }

    /// Enables or disables the event that reports when the socket takes bytes again.
    #[cold]
    pub(crate) fn await_room(&mut self, epolls: &Epolls, wanted: bool) -> io::Result<()> {
        if self.watch.awaits_room != wanted {
            self.watch.awaits_room = wanted;
            self.watch(epolls)?;
        }
        Ok(())
    }

    /// Enables or disables reading. Unread bytes stay in the kernel, so that the other side has to wait.
    pub(crate) fn set_reading(&mut self, epolls: &Epolls, wanted: bool) -> io::Result<()> {
        let wanted = wanted && !self.has_ended && !self.is_held_back;
        if self.watch.is_reading != wanted {
            self.watch.is_reading = wanted;
            self.watch(epolls)?;
        }
        Ok(())
    }

    /// Notes that the connection is made.
    pub(crate) fn set_connected(&mut self, epolls: &Epolls) -> io::Result<()> {
        self.watch.is_connecting = false;
        self.watch(epolls)
    }

    /// Stops watching until an event is needed again: otherwise errors would be reported for ever.
    pub(crate) fn unwatch(&mut self, epolls: &Epolls) -> io::Result<()> {
        if self.watch.flags.take().is_some() {
            epoll::delete(self.queue(epolls), &self.socket)?;
        }
        Ok(())
    }

    /// Returns whether unread bytes stay in the kernel and cause an event in each turn. A joined connection is not watched then.
    pub(crate) fn is_kept_unread(&self) -> bool {
        self.is_held_back && self.partner.is_none()
    }

    pub(crate) fn is_stranger(&self) -> bool {
        self.watch.is_stranger
    }

    /// Has an event queue watch a new connection: the queue of the strangers, or the main one.
    pub(crate) fn enter(&mut self, epolls: &Epolls, is_stranger: bool) -> io::Result<()> {
        self.watch.is_stranger = is_stranger;
        self.watch(epolls)
    }

    /// Notes that the connection has proven itself: from now on it is served before strangers.
    #[cold]
    pub(crate) fn prove(&mut self, epolls: &Epolls) -> io::Result<()> {
        let is_watched = self.watch.flags.is_some();
        self.unwatch(epolls)?;
        self.watch.is_stranger = false;
        if is_watched {
            self.watch(epolls)?;
        }
        Ok(())
    }

    /// Returns the queue that watches the connection.
    fn queue<'a>(&self, epolls: &'a Epolls) -> &'a OwnedFd {
        match self.watch.is_stranger {
            true => &epolls.strangers,
            false => &epolls.media,
        }
    }

    fn watch(&mut self, epolls: &Epolls) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        if self.watch.awaits_room || self.watch.is_connecting {
            flags |= EventFlags::OUT;
        }
        if self.watch.is_reading {
            flags |= READING;
        }
        let queue = self.queue(epolls);
        match self.watch.flags.replace(flags) {
            Some(watched) if watched == flags => {}
            Some(_) => epoll::modify(queue, &self.socket, event_data(self.id), flags)?,
            None => epoll::add(queue, &self.socket, event_data(self.id), flags)?,
        }
        Ok(())
    }

    /// Makes closing the connection reset it, so that the other side sees that not everything arrived.
    pub(crate) fn reset_on_close(&self) {
        // Refused or not, the connection is closed.
        let _ = SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
    }
}

/// Returns the state of a connection that leaves for another data path.
#[derive(Debug)]
pub(crate) struct Detached {
    socket: OwnedFd,
    kept: Kept,
    is_sealed: bool,
    outgoing: Option<Box<Outgoing>>,
}

impl Detached {
    /// Returns whether its handler is to be shown the kept bytes in the next turn, even if nothing new arrives.
    pub(crate) fn is_cut(&self) -> bool {
        self.kept.is_cut
    }
}

/// Connections by index; indexes are reused, names are not soon.
#[derive(Debug, Default)]
pub(crate) struct StreamTable {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    stream: Option<Stream>,
}

impl StreamTable {
    /// Takes in a socket, which no event queue watches before it [enters](Stream::enter) one.
    pub(crate) fn insert(&mut self, socket: OwnedFd, start: Start) -> io::Result<&mut Stream> {
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
        let stream = Stream {
            socket,
            id,
            kept: Kept::default(),
            outgoing: None,
            ending: None,
            partner: None,
            has_ended: false,
            shutdown: Shutdown::No,
            is_sealed: false,
            is_held_back: false,
            watch: Watch {
                is_connecting: start == Start::Connecting,
                is_stranger: false,
                is_reading: start == Start::Reading,
                awaits_room: false,
                flags: None,
            },
        };
        Ok(place.stream.insert(stream))
    }

    /// Takes in a socket and has it watched with those that have proven themselves.
    pub(crate) fn enter(
        &mut self,
        socket: OwnedFd,
        start: Start,
        epolls: &Epolls,
    ) -> io::Result<StreamId> {
        let stream = self.insert(socket, start)?;
        let id = stream.id;
        if let Err(error) = stream.enter(epolls, false) {
            self.remove(id);
            return Err(error);
        }
        Ok(id)
    }

    /// Takes a connection out for another data path.
    pub(crate) fn detach(&mut self, id: StreamId, epolls: &Epolls) -> Option<Detached> {
        let mut stream = self.remove(id)?;
        // The descriptor stays open, so this queue would go on reporting it.
        let _ = stream.unwatch(epolls);
        Some(Detached {
            socket: stream.socket,
            kept: Kept {
                awaited_len: 0,
                ..stream.kept
            },
            is_sealed: stream.is_sealed,
            outgoing: stream.outgoing,
        })
    }

    /// Takes in a connection of another data path.
    pub(crate) fn adopt(&mut self, detached: Detached, epolls: &Epolls) -> io::Result<StreamId> {
        let id = self.enter(detached.socket, Start::Reading, epolls)?;
        if let Some(stream) = self.get_mut(id) {
            stream.kept = detached.kept;
            stream.is_sealed = detached.is_sealed;
            stream.outgoing = detached.outgoing;
            let waits = stream.outgoing.is_some();
            stream.await_room(epolls, waits)?;
        }
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

    /// Removes a connection. Dropping its socket closes it and takes it off the event queue too.
    pub(crate) fn remove(&mut self, id: StreamId) -> Option<Stream> {
        let place = self.places.get_mut(id.index())?;
        let stream = place.stream.take_if(|stream| stream.id == id)?;
        place.generation = place.generation.wrapping_add(1) & (u32::MAX >> INDEX_BITS);
        self.free.push(narrow(id.index()));
        Some(stream)
    }

    /// Returns the names of all connections.
    pub(crate) fn ids(&self) -> Vec<StreamId> {
        let streams = self.places.iter().filter_map(|place| place.stream.as_ref());
        streams.map(|stream| stream.id).collect()
    }
}

fn event_data(id: StreamId) -> EventData {
    EventData::new_u64(STREAM | u64::from(id.to_u32()))
}
