//! Sending by a thread that listens as well, as it must where a connection or a session has one owner.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::listener::Listener;
use super::sender::{self, Media, Sender};
use super::session::Via;

/// What such a thread sends besides requests, once it is known.
pub(super) struct Sending {
    tasks: Option<Receiver<sender::Task>>,
    sender: Option<Sender>,
    /// Places of the sessions' clients in the thread.
    places: Vec<usize>,
    /// There is more to send at once.
    is_eager: bool,
}

impl Sending {
    /// Begins with nothing to send; what is to be sent will come from `tasks`.
    pub(super) fn new(tasks: Option<Receiver<sender::Task>>) -> Self {
        Self {
            tasks,
            sender: None,
            places: Vec::new(),
            is_eager: false,
        }
    }

    /// Sees whether it is known by now what to send.
    ///
    /// # Errors
    /// Packets do not fit.
    pub(super) fn learn(&mut self) -> anyhow::Result<()> {
        let task = match self.tasks.as_ref().map(Receiver::try_recv) {
            None | Some(Err(TryRecvError::Empty)) => return Ok(()),
            Some(Err(TryRecvError::Disconnected)) => {
                self.tasks = None;
                return Ok(());
            }
            Some(Ok(task)) => task,
        };
        let (sender, ways) = Sender::new(task)?;
        for via in ways {
            let Via::Listener(place) = via else {
                anyhow::bail!("a socket in place of a connection");
            };
            self.places.push(place);
        }
        self.sender = Some(sender);
        self.is_eager = true;
        Ok(())
    }

    /// Begins a turn of the sender, if there is one.
    pub(super) fn turn_started(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.turn_started();
        }
    }

    /// Returns how long there is nothing to do for the thread of `listener`, if nothing arrives.
    pub(super) fn wait(&self, listener: &Listener) -> Duration {
        let wait = listener.wait();
        let Some(sender) = &self.sender else {
            return wait;
        };
        if self.is_eager {
            return Duration::ZERO;
        }
        if sender.is_done() || sender.is_over() {
            return wait;
        }
        let due = sender.next_due().unwrap_or(u64::MAX);
        wait.min(Duration::from_nanos(
            due.saturating_sub(listener.clock.now()),
        ))
    }

    /// Sends what is due by what `media` makes of the places of the sessions' clients.
    pub(super) fn send<'a, M: Media>(&'a mut self, media: impl FnOnce(&'a [usize]) -> M) {
        if let Some(sender) = &mut self.sender {
            self.is_eager = sender.send(&mut media(&self.places));
            sender.publish();
        }
    }

    /// Counts datagrams as failed that were counted as sent and were not.
    pub(super) fn failed(&mut self, datagrams: u32) {
        if let Some(sender) = &mut self.sender {
            sender.failed(datagrams);
        }
    }

    /// Returns what was sent, by so many system calls; `gso_sends` of them were trains.
    pub(super) fn finish(self, send_calls: u64, gso_sends: u64) -> Option<sender::Outcome> {
        self.sender.map(|sender| sender::Outcome {
            send_calls,
            gso_sends,
            ..sender.finish()
        })
    }
}
