//! The pages of sessions that an operator asks for, made some sessions a turn.
//!
//! Invariant: after a turn at most [`SESSIONS_PER_TURN`] sessions are listed or ended and [`PLACES_PER_TURN`] places of the table looked at, however much is
//! asked for. A shard that is not done with its pages does not wait, and what has come meanwhile is relayed before it goes on with them.

use std::collections::VecDeque;

use turnbuckle_datapath::SendQueue;

use super::front::Front;
use super::hub::Hub;
use crate::handle::{Page, PageRequest, Purpose};

/// Places of the table that one page may look at.
const PLACES_PER_PAGE_MAX: u32 = 8192;

/// Sessions that are listed or ended after one turn.
pub(in crate::shard) const SESSIONS_PER_TURN: usize = 32;

/// Places of the table that are looked at after one turn.
pub(in crate::shard) const PLACES_PER_TURN: u32 = 256;

/// The pages that a shard has not answered yet, in the order in which they were asked for.
#[derive(Default)]
pub(in crate::shard) struct Pages(VecDeque<Begun>);

/// A page that is being made.
struct Begun {
    wish: PageRequest,
    /// The place of the table that is looked at next.
    slot: u32,
    page: Page,
}

impl Pages {
    /// Takes a wish for a page.
    pub(in crate::shard) fn begin(&mut self, wish: PageRequest) {
        self.0.push_back(Begun {
            slot: wish.from,
            page: Page::default(),
            wish,
        });
    }

    /// Returns whether a page waits to be gone on with.
    pub(in crate::shard) fn has_work(&self) -> bool {
        !self.0.is_empty()
    }

    /// Goes on with the first page, and answers when it is whole.
    pub(in crate::shard) fn work<F: Front>(
        &mut self,
        hub: &mut Hub,
        front: &mut F,
        tx: &mut SendQueue,
    ) {
        let Some(mut begun) = self.0.pop_front() else {
            return;
        };
        if begun.go_on(hub, front, tx) {
            (begun.wish.reply)(begun.page);
        } else {
            self.0.push_front(begun);
        }
    }
}

impl Begun {
    /// Lists or ends the next sessions that pass the filter. Returns whether the page is whole.
    fn go_on<F: Front>(&mut self, hub: &mut Hub, front: &mut F, tx: &mut SendQueue) -> bool {
        let Self { wish, slot, page } = self;
        let end = hub.engine.session_slots();
        let last = wish.from.saturating_add(PLACES_PER_PAGE_MAX).min(end);
        let last_of_turn = slot.saturating_add(PLACES_PER_TURN).min(last);
        let room = wish.max.saturating_sub(page.sessions.len());
        let mut found = Vec::new();
        while *slot < last_of_turn && found.len() < room.min(SESSIONS_PER_TURN) {
            if let Some(held) = hub.engine.session_at(*slot) {
                let sessions = &hub.changes.sessions;
                let number = sessions.public_number(held.id());
                let age = hub.now.time.since(held.created());
                if wish.filter.admits(number, age, &held) {
                    let seal = front.protection(held.client());
                    page.sessions.push(sessions.describe(&held, seal, hub.now));
                    found.push(held.id());
                }
            }
            *slot += 1;
        }
        let is_whole = *slot >= last || found.len() == room;
        if is_whole {
            page.next = (*slot < end).then_some(*slot);
        }
        if wish.purpose == Purpose::End && !found.is_empty() {
            for allocation in found {
                hub.engine.cancel(hub.now, allocation);
            }
            hub.ended_sessions();
            hub.carry_out_commands(front, tx);
        }
        is_whole
    }
}
