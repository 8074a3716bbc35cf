//! Who has proven nothing is served when everybody else has been, and for a bounded time.
//!
//! Accepting a connection, reading from it and closing it costs as much as relaying dozens of datagrams, and a TLS handshake as much as hundreds. So
//! listeners, and connections of which the handler says that they are strangers, wait until what the turn has for others has left, and
//! then share a slice of time ([`Settings::strangers_slice`](crate::Settings::strangers_slice)). Whom it does not reach is reported as ready again,
//! by the next turn, before those who become ready later; and none can stay in front for long, since what a stranger may send before it has proven something
//! or is closed is bounded.

use std::time::Instant;

use rustix::event::epoll::Event;

use super::{Datapath, low};
use crate::handler::Handler;
use crate::stream::{LISTENER_TAG, StreamId};

/// Whether what is ready is a listener or a connection that has proven nothing.
#[inline]
pub(super) fn is_stranger<H: Handler>(name: u64, handler: &H) -> bool {
    is_listener(name) || handler.is_stranger(StreamId::from_u32(low(name)))
}

fn is_listener(name: u64) -> bool {
    name & LISTENER_TAG != 0
}

impl Datapath {
    /// Serves the strangers, which are the first `count` events, after a flush. Those that are there go before those that come, so that the
    /// number of those that wait does not grow; but a listener gets a few accepted whatever they do.
    #[cold]
    pub(super) fn serve_strangers<H: Handler>(&mut self, count: usize, handler: &mut H) {
        // guard: V-47-strangers-last
        self.flush(handler);
        let until = Instant::now() + self.settings.strangers_slice;
        let mut is_first = true;
        for index in 0..count {
            let Event { flags, data } = self.events[index];
            if is_listener(data.u64()) {
                continue;
            }
            // guard: V-47-strangers-slice
            if !is_first && Instant::now() >= until {
                break;
            }
            is_first = false;
            self.serve_stream(data.u64(), flags, handler);
            // Closing it is most of the work with a connection that has come and gone.
            self.flush(handler);
        }
        for index in 0..count {
            let name = self.events[index].data.u64();
            if is_listener(name) {
                let now_ns = self.now_ns();
                self.streams.accept(
                    low(name),
                    (now_ns, until),
                    &self.epoll,
                    &self.settings,
                    &self.counters.stream,
                    &mut self.queue,
                    handler,
                );
            }
        }
    }
}
