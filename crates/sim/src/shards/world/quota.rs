//! Whether a request for a tunnel is refused for its user's quota when that is reached, and only then.
//!
//! A session takes a unit of the quota from when its request is taken, at the earliest when that is written, until the machine has closed the connection
//! it came by. So a connection whose tunnel its client knows to be open surely has one, and a connection that has asked for a tunnel may have one.
//! All clients of HTTP in a world whose sessions are bounded are one user, who has no allocations beside them.

use std::collections::BTreeMap;

use super::super::wire::{WireId, Wires};
use crate::violation::{Violation, ensure};

/// Who asks for tunnels, as far as it may have to do with a quota.
#[derive(Debug)]
pub(super) struct Quota {
    /// How many sessions there may be at a time, if they are bounded.
    most: Option<usize>,
    by_wire: BTreeMap<WireId, Session>,
}

/// A session that there may be.
#[derive(Clone, Copy, Debug)]
struct Session {
    /// When it was asked for.
    asked: u64,
    /// When its client heard that its tunnel is open.
    opened: Option<u64>,
    /// When its connection was seen to be closed.
    gone: Option<u64>,
}

impl Quota {
    pub(super) fn new(most: Option<u32>) -> Self {
        Self {
            most: most.map(|most| most as usize),
            by_wire: BTreeMap::new(),
        }
    }

    /// Takes note that a tunnel is asked for on a connection.
    pub(super) fn asked(&mut self, wire: WireId, now: u64) {
        let session = Session {
            asked: now,
            opened: None,
            gone: None,
        };
        self.by_wire.insert(wire, session);
    }

    /// Takes note of the connections that the machine has closed.
    pub(super) fn look(&mut self, now: u64, wires: &mut Wires) {
        for (wire, session) in &mut self.by_wire {
            let is_closed = wires.get(*wire).is_none_or(|it| it.has_machine_ended);
            if is_closed {
                session.gone.get_or_insert(now);
            }
        }
    }

    /// Judges the answer to who asks on a connection, which has come by now.
    pub(super) fn answered(
        &mut self,
        wire: WireId,
        status: u16,
        now: u64,
    ) -> Result<(), Violation> {
        let Some(&Session { asked, .. }) = self.by_wire.get(&wire) else {
            return Ok(());
        };
        let others = self.by_wire.iter().filter(|(other, _)| **other != wire);
        let may_be = others.clone();
        let may_be = may_be.filter(|(_, it)| it.gone.is_none_or(|gone| gone >= asked));
        let sure = others
            .filter(|(_, it)| it.gone.is_none() && it.opened.is_some_and(|opened| opened <= asked));
        let (may_be, sure) = (may_be.count(), sure.count());
        let is_right = match (status, self.most) {
            (101, Some(most)) => sure < most,
            (429, most) => most.is_some_and(|most| may_be >= most),
            _ => true,
        };
        ensure(is_right, "quotas", || {
            format!(
                "connection {wire} was answered {status} while {sure} to {may_be} others had a session, of {:?} that there may be",
                self.most
            )
        })?;
        match (status, self.by_wire.get_mut(&wire)) {
            (101, Some(session)) => session.opened = Some(now),
            // Whoever is not known has no session.
            (407, _) => drop(self.by_wire.remove(&wire)),
            _ => {}
        }
        Ok(())
    }
}
