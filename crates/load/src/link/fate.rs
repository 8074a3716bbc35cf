//! What becomes of datagrams: decided when they arrive, from a seed and their order alone.

use std::net::IpAddr;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// What a path does to datagrams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rules {
    /// Time that each takes, one way.
    pub(super) delay: Duration,
    /// Part of them that is lost.
    pub(super) loss: f64,
    /// Part of them that is late.
    pub(super) late: f64,
    pub(super) late_by: Duration,
    /// Part of them of which a bit is another when they arrive.
    pub(super) corrupt: f64,
    /// Datagrams of a client after which it is seen at another port; 0: never.
    pub(super) rebind_after: u64,
    /// The address at which it is seen then; `None`: the same.
    pub(super) rebind_to: Option<IpAddr>,
    /// Datagrams, of all clients and both ways, after which none arrives for a while, once; 0: never.
    pub(super) silent_after: u64,
    pub(super) silent_for: Duration,
}

/// What becomes of a datagram that is not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fate {
    pub(super) takes: Duration,
    pub(super) is_late: bool,
    /// A number that says which bit is another, if one is.
    pub(super) wrong_bit: Option<u32>,
}

/// What has become of datagrams. `received = sent + lost() + silenced + crowded + too_many_clients + not_sent`, and those that are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Lost on the way to the server.
    pub(super) lost_up: u64,
    /// Lost on the way to a client.
    pub(super) lost_down: u64,
    /// Lost because nothing arrived.
    pub(super) silenced: u64,
    /// Sent later than others; part of `sent` or under way.
    pub(super) late: u64,
    /// Sent with a bit that is another; part of `sent` or under way.
    pub(super) corrupt: u64,
    /// Arrived when as many were under way as there may be.
    pub(super) crowded: u64,
    /// From a client beyond those that there may be.
    pub(super) too_many_clients: u64,
    /// Refused by the kernel.
    pub(super) not_sent: u64,
    /// Clients that have got another port.
    pub(super) rebound: u64,
}

impl Counts {
    /// Returns how many datagrams are lost, both ways.
    pub(super) const fn lost(&self) -> u64 {
        self.lost_up + self.lost_down
    }

    /// Returns how many datagrams are under way.
    pub(super) const fn under_way(&self) -> u64 {
        let dropped = self.lost() + self.silenced + self.crowded + self.too_many_clients;
        self.received - self.sent - dropped - self.not_sent
    }
}

/// One direction of a path.
#[derive(Clone, Debug)]
pub(super) struct Direction {
    rules: Rules,
    random: SmallRng,
}

impl Direction {
    pub(super) fn new(rules: Rules, seed: u64) -> Self {
        Self {
            rules,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// Returns what becomes of the next datagram; `None` if it is lost.
    pub(super) fn next(&mut self) -> Option<Fate> {
        // All is drawn for each, so that the loss of one changes nothing about those after it.
        let is_lost = self.random.random::<f64>() < self.rules.loss;
        let is_late = self.random.random::<f64>() < self.rules.late;
        let wrong_bit = match self.rules.corrupt > 0.0 {
            true => {
                let is_corrupt = self.random.random::<f64>() < self.rules.corrupt;
                let bit = self.random.random();
                is_corrupt.then_some(bit)
            }
            false => None,
        };
        let late_by = match is_late {
            true => self.rules.late_by,
            false => Duration::ZERO,
        };
        (!is_lost).then_some(Fate {
            takes: self.rules.delay + late_by,
            is_late,
            wrong_bit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        delay: Duration::from_millis(10),
        loss: 0.01,
        late: 0.05,
        late_by: Duration::from_millis(3),
        corrupt: 0.02,
        rebind_after: 0,
        rebind_to: None,
        silent_after: 0,
        silent_for: Duration::ZERO,
    };

    fn fates(rules: Rules, seed: u64) -> Vec<Option<Fate>> {
        let mut direction = Direction::new(rules, seed);
        (0..100_000).map(|_| direction.next()).collect()
    }

    #[test]
    fn so_many_are_lost_late_and_corrupt_as_the_rules_say() {
        let fates = fates(RULES, 7);
        let lost = fates.iter().filter(|fate| fate.is_none()).count();
        assert!((900..1_100).contains(&lost), "{lost}");
        let late = fates.iter().flatten().filter(|fate| fate.is_late).count();
        assert!((4_700..5_300).contains(&late), "{late}");
        let wrong = fates.iter().flatten().filter_map(|fate| fate.wrong_bit);
        let wrong = wrong.count();
        assert!((1_850..2_150).contains(&wrong), "{wrong}");
        for fate in fates.into_iter().flatten() {
            let takes = if fate.is_late { 13 } else { 10 };
            assert_eq!(fate.takes.as_millis(), takes);
        }
    }

    #[test]
    fn one_seed_gives_one_history_whatever_is_lost() {
        assert_eq!(fates(RULES, 7), fates(RULES, 7));
        assert_ne!(fates(RULES, 7), fates(RULES, 8));
        let without_loss = fates(Rules { loss: 0.0, ..RULES }, 7);
        assert!(
            fates(RULES, 7)
                .into_iter()
                .zip(without_loss)
                .all(|(with, without)| with.is_none() || with == without)
        );
    }
}
