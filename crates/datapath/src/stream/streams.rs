//! A shard's connections and listeners: accepting, reading, ending.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use rustix::event::epoll::{self, EventFlags};
use rustix::net::sockopt::socket_error;

use super::accept::{self, Listener};
use super::connection::{Shutdown, Start, StreamTable};
use super::read::Arena;
use super::shortage::Shortage;
use crate::counters::StreamCounters;
use crate::handler::StreamHandler;
use crate::names::{Listen, StreamId, StreamListenerId, narrow};
use crate::queue::SendQueue;
use crate::reports::StreamEnd;
use crate::settings::Settings;
use crate::sockets::epolls::Epolls;
use crate::views::{Accepted, Admission};

/// A shard's connections and what it takes to serve them.
#[derive(Debug)]
pub(crate) struct Streams {
    listeners: Vec<Option<Listener>>,
    /// Places of listeners that were closed.
    free_listeners: Vec<u32>,
    /// Listeners that the shard waits for directly.
    exclusive: Vec<u32>,
    pub(crate) table: StreamTable,
    /// Connections whose work the handler cut short in the last turn.
    pub(crate) cut: Vec<StreamId>,
    /// The same list while it is processed.
    looking: Vec<StreamId>,
    /// The same of strangers, the first to be served first.
    pub(crate) cut_strangers: VecDeque<StreamId>,
    pub(crate) arena: Arena,
    pub(crate) shortage: Shortage,
}

impl Streams {
    pub(crate) fn new() -> Self {
        Self {
            listeners: Vec::new(),
            free_listeners: Vec::new(),
            exclusive: Vec::new(),
            table: StreamTable::default(),
            cut: Vec::new(),
            looking: Vec::new(),
            cut_strangers: VecDeque::new(),
            arena: Arena::default(),
            shortage: Shortage::default(),
        }
    }

    /// Looks at the listeners again, if a shortage of descriptors has kept them from being looked at for long enough.
    #[cold]
    pub(crate) fn resume(&mut self, now_ns: u64, epolls: &Epolls) {
        if !self.shortage.is_over(now_ns) {
            return;
        }
        let exclusive = self
            .exclusive_listeners()
            .map(|(name, listener)| listener.watch(name, epolls));
        if exclusive
            .chain([epolls.watch_listeners(true)])
            .any(|result| result.is_err())
        {
            // No memory for it: once more later. Those that are watched already say so and stay.
            self.shortage.noticed(now_ns);
        }
    }

    /// Returns the listeners that the shard waits for by themselves: as many as addresses at most, and none by default.
    fn exclusive_listeners(&self) -> impl Iterator<Item = (u32, &Listener)> {
        let listeners = self.exclusive.iter().copied();
        listeners.filter_map(|name| Some((name, self.listeners.get(name as usize)?.as_ref()?)))
    }

    /// Enables events about connections that wait, once they are admitted.
    fn add_listener(
        &mut self,
        listener: Listener,
        epolls: &Epolls,
    ) -> io::Result<StreamListenerId> {
        let name = match self.free_listeners.pop() {
            Some(name) => name,
            None => {
                self.listeners.push(None);
                narrow(self.listeners.len() - 1)
            }
        };
        if let Err(error) = listener.watch(name, epolls) {
            self.free_listeners.push(name);
            return Err(error);
        }
        if listener.is_exclusive() {
            self.exclusive.push(name);
        }
        self.listeners[name as usize] = Some(listener);
        Ok(StreamListenerId(name))
    }

    /// Listens on an address, without admitting anybody yet.
    pub(crate) fn listen(
        &mut self,
        listen: Listen,
        epolls: &Epolls,
        settings: &Settings,
    ) -> io::Result<StreamListenerId> {
        let name = self.add_listener(Listener::bind(listen, settings)?, epolls)?;
        self.shortage.prepare();
        Ok(name)
    }

    /// Lets connections arrive at a listener.
    pub(crate) fn admit(&mut self, id: StreamListenerId, epolls: &Epolls) -> io::Result<()> {
        let listener = self
            .listeners
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut);
        listener.ok_or(io::ErrorKind::NotFound)?.admit(id.0, epolls)
    }

    /// Listens on the address of a relay.
    pub(crate) fn listen_for_peers(
        &mut self,
        listen: Listen,
        settings: &Settings,
        epolls: &Epolls,
    ) -> io::Result<StreamListenerId> {
        self.add_listener(Listener::bind_relay(listen, settings)?, epolls)
    }

    pub(crate) fn listener(&self, id: StreamListenerId) -> Option<&Listener> {
        self.listeners.get(id.0 as usize)?.as_ref()
    }

    /// Stops listening. Connections that were accepted stay.
    pub(crate) fn close_listener(&mut self, id: StreamListenerId) {
        let listener = self.listeners.get_mut(id.0 as usize);
        if listener.and_then(Option::take).is_some() {
            self.free_listeners.push(id.0);
            self.exclusive.retain(|name| *name != id.0);
        }
    }

    /// Begins a connection.
    pub(crate) fn connect(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        settings: &Settings,
        epolls: &Epolls,
    ) -> io::Result<StreamId> {
        let socket = accept::connect(local, remote, settings)?;
        // guard: V-46-unbound
        self.table.enter(socket, Start::Connecting, epolls)
    }

    /// Accepts connections that wait at a listener, up to a limit of number and of time.
    #[cold]
    #[expect(
        clippy::too_many_arguments,
        reason = "parts of a data path that is borrowed in pieces"
    )]
    pub(crate) fn accept<H: StreamHandler>(
        &mut self,
        name: u32,
        (now_ns, until): (u64, Instant),
        epolls: &Epolls,
        settings: &Settings,
        counters: &StreamCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(Some(listener)) = self.listeners.get(name as usize) else {
            return;
        };
        if self.shortage.is_on() {
            return;
        }
        let table = &mut self.table;
        let mut accepted_any = false;
        let limit = (settings.accepts_per_turn, until);
        let end = listener.accept(limit, counters, |socket, remote| {
            accepted_any = true;
            let id = table.insert(socket, listener.start)?.id;
            let accepted = Accepted {
                token: listener.token,
                remote,
            };
            let admission = handler.accepted(id, &accepted, queue);
            if admission == Admission::Refused {
                counters.refused.add(1);
                table.remove(id);
                return Ok(());
            }
            counters.accepted.add(1);
            // guard: V-47-strangers-apart
            let is_stranger = admission == Admission::Stranger;
            if let Some(stream) = table.get_mut(id)
                && stream.enter(epolls, is_stranger).is_err()
            {
                stream.ending = Some(StreamEnd::Failed);
                queue.touch_stream(id);
            }
            Ok(())
        });
        if accepted_any {
            self.shortage.relieved();
        }
        match end {
            Ok(()) => {
                self.shortage.relieved();
                self.shortage.prepare();
            }
            Err(_) => self.run_short(name, now_ns, epolls, settings, counters),
        }
    }

    /// Ignores all listeners for a while. Resets the connections that wait at one of them if the shortage has lasted too long.
    fn run_short(
        &mut self,
        name: u32,
        now_ns: u64,
        epolls: &Epolls,
        settings: &Settings,
        counters: &StreamCounters,
    ) {
        self.shortage.noticed(now_ns);
        if let Some(Some(listener)) = self.listeners.get(name as usize)
            && self.shortage.take_spare(now_ns)
        {
            listener.turn_away(settings.accepts_per_turn, counters);
            self.shortage.prepare();
        }
        // The failure would be that it is not watched.
        let _ = epolls.watch_listeners(false);
        for (_, listener) in self.exclusive_listeners() {
            let _ = epoll::delete(&epolls.media, listener.fd());
        }
    }

    /// Handles a connection that is ready. What can be written is written by the flush that follows.
    #[inline]
    pub(crate) fn serve<H: StreamHandler>(
        &mut self,
        id: StreamId,
        flags: EventFlags,
        epolls: &Epolls,
        counters: &StreamCounters,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if stream.is_connecting() {
            return self.connected(id, epolls, queue, handler);
        }
        if flags.contains(EventFlags::OUT) && stream.outgoing.is_some() {
            queue.touch_stream(id);
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
            || stream.ending.is_some()
        {
            return;
        }
        // The kernel keeps what came before a reset. Nobody is there to be answered, and a handshake is much work.
        // guard: V-47-reset
        let is_reset = stream.is_stranger() && flags.contains(EventFlags::ERR);
        if is_reset || !stream.is_reading() {
            // Otherwise a flush in this turn has ended the reading since the event was reported.
            if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
                self.failed_unread(id, epolls, queue);
            }
            return;
        }
        // What was cut is shown by itself, once in a turn.
        if stream.kept.is_cut || stream.is_kept_unread() {
            return;
        }
        let result = self.arena.read(stream, counters, queue, handler);
        self.was_shown(id, result, epolls, queue, handler);
    }

    /// Begins to go through the connections that were cut, so that those which are cut once more wait for the next turn.
    pub(crate) fn start_cut(&mut self) {
        std::mem::swap(&mut self.cut, &mut self.looking);
    }

    /// Returns the next connection that was cut in an earlier turn.
    pub(crate) fn next_cut(&mut self) -> Option<StreamId> {
        self.looking.pop()
    }

    /// Shows what was kept of a connection that was cut.
    #[cold]
    pub(crate) fn show_again<H: StreamHandler>(
        &mut self,
        id: StreamId,
        epolls: &Epolls,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if stream.ending.is_some() {
            return;
        }
        if stream.is_kept_unread() {
            return self.note_cut(id);
        }
        let result = self.arena.show_again(stream, queue, handler);
        self.was_shown(id, result, epolls, queue, handler);
    }

    /// Has a connection be shown again in the next turn.
    #[cold]
    pub(crate) fn note_cut(&mut self, id: StreamId) {
        match self.table.get_mut(id) {
            Some(stream) if stream.is_stranger() => self.cut_strangers.push_back(id),
            Some(_) => self.cut.push(id),
            None => {}
        }
    }

    /// Returns whether a connection is to be shown again.
    #[inline]
    pub(crate) fn has_cut(&self) -> bool {
        !(self.cut.is_empty() && self.cut_strangers.is_empty())
    }

    /// Updates a connection after it was shown to the handler.
    #[inline]
    fn was_shown<H: StreamHandler>(
        &mut self,
        id: StreamId,
        result: Result<(), StreamEnd>,
        epolls: &Epolls,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        match result {
            Ok(()) if stream.kept.is_cut => self.note_cut(id),
            Ok(()) => {}
            Err(StreamEnd::Remote) if stream.partner.is_some() => {
                self.half_closed(id, epolls, queue);
                handler.stream_ended(id);
            }
            Err(ending) => self.end(id, ending, queue),
        }
    }

    /// Finds out what became of a connection that this side began.
    #[cold]
    fn connected<H: StreamHandler>(
        &mut self,
        id: StreamId,
        epolls: &Epolls,
        queue: &mut SendQueue,
        handler: &mut H,
    ) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        let result = match socket_error(stream.fd()) {
            Ok(Ok(())) => stream.set_connected(epolls),
            Ok(Err(errno)) | Err(errno) => Err(errno.into()),
        };
        if result.is_err() {
            self.table.remove(id);
        }
        handler.connected(id, result, queue);
    }

    /// Handles an error of a connection that is not read. It ends if it is not joined. If it is joined, the next read or write
    /// finds the error.
    #[cold]
    fn failed_unread(&mut self, id: StreamId, epolls: &Epolls, queue: &mut SendQueue) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        if stream.partner.is_none() || stream.unwatch(epolls).is_err() {
            self.end(id, StreamEnd::Failed, queue);
        }
    }

    /// Handles the end of the other side's stream on a joined connection, by ending this side's stream on the one it is joined with.
    #[cold]
    fn half_closed(&mut self, id: StreamId, epolls: &Epolls, queue: &mut SendQueue) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        stream.has_ended = true;
        if stream.set_reading(epolls, false).is_err() {
            return self.end(id, StreamEnd::Failed, queue);
        }
        let partner = stream.partner;
        if let Some(partner) = partner.and_then(|partner| self.table.get_mut(partner)) {
            partner.shutdown = Shutdown::Wanted;
            queue.touch_stream(partner.id);
        }
    }

    /// Has a connection end at the next flush, after what is queued for it.
    pub(crate) fn end(&mut self, id: StreamId, ending: StreamEnd, queue: &mut SendQueue) {
        if let Some(stream) = self.table.get_mut(id)
            && stream.ending.is_none()
        {
            stream.ending = Some(ending);
            queue.touch_stream(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd as _, OwnedFd};

    use super::*;

    /// Returns how many descriptors an event queue watches.
    fn watched(queue: &OwnedFd) -> usize {
        let info = format!("/proc/self/fdinfo/{}", queue.as_raw_fd());
        let info = std::fs::read_to_string(info).unwrap();
        info.lines().filter(|line| line.starts_with("tfd:")).count()
    }

    #[test]
    fn a_shortage_changes_one_entry_however_many_listeners_there_are() {
        let epolls = Epolls::new().unwrap();
        let mut streams = Streams::new();
        let settings = Settings::default();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        for token in 0..50 {
            let listen = Listen { address, token };
            let id = streams.listen_for_peers(listen, &settings, &epolls);
            assert!(streams.listener(id.unwrap()).is_some());
        }
        assert_eq!(
            (watched(&epolls.media), watched(&epolls.listeners)),
            (2, 50)
        );
        streams.run_short(0, 1000, &epolls, &settings, &StreamCounters::default());
        assert_eq!(
            (watched(&epolls.media), watched(&epolls.listeners)),
            (1, 50)
        );
        streams.resume(1000, &epolls);
        assert_eq!(watched(&epolls.media), 1);
        streams.resume(1_000_000_000, &epolls);
        assert_eq!(
            (watched(&epolls.media), watched(&epolls.listeners)),
            (2, 50)
        );
    }
}
