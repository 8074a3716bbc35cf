//! A path between two hosts: what it does to a datagram.

use crate::queue::MS;
use crate::random::Seeded;

/// How badly a path behaves. Probabilities are in parts per million, delays in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Datagrams that never arrive.
    pub loss_ppm: u32,
    /// Datagrams that arrive twice.
    pub duplicate_ppm: u32,
    /// Datagrams held back long enough for later ones to pass.
    pub reorder_ppm: u32,
    /// Datagrams that arrive with bytes changed, cut off or added.
    pub corrupt_ppm: u32,
    /// Least delay.
    pub delay_min: u64,
    /// Jitter on top of the least delay.
    pub jitter: u64,
}

impl Faults {
    /// Returns a path that delivers everything, in order, after 10 ms.
    #[must_use]
    pub fn none() -> Self {
        Self {
            loss_ppm: 0,
            duplicate_ppm: 0,
            reorder_ppm: 0,
            corrupt_ppm: 0,
            delay_min: 10 * MS,
            jitter: 0,
        }
    }

    /// Returns what arrives of one datagram: for each copy the delay and the bytes.
    pub fn carry(&self, random: &mut Seeded, bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let copies = match (
            random.chance(self.loss_ppm),
            random.chance(self.duplicate_ppm),
        ) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        };
        (0..copies)
            .map(|_| {
                let mut delay = self.delay_min + random.below(self.jitter.saturating_add(1));
                if random.chance(self.reorder_ppm) {
                    delay += random.between(20 * MS, 800 * MS);
                }
                let mut carried = bytes.to_vec();
                if random.chance(self.corrupt_ppm) {
                    corrupt(random, &mut carried);
                }
                (delay, carried)
            })
            .collect()
    }
}

/// Damages a datagram the way that finds parser bugs: mostly one small change.
pub fn corrupt(random: &mut Seeded, bytes: &mut Vec<u8>) {
    match random.below(8) {
        0 => bytes.truncate(random.index(bytes.len() + 1)),
        1 => {
            let len = random.index(9);
            bytes.extend(random.bytes(len));
        }
        2 if bytes.len() >= 4 => {
            let value = [0x00, 0xFF, 0x40, 0x50][random.index(4)];
            let at = random.index(4);
            bytes[at] = value;
        }
        _ if bytes.is_empty() => {}
        _ => {
            for _ in 0..random.between(1, 3) {
                let at = random.index(bytes.len());
                bytes[at] ^= 1 << random.below(8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::MILLION;

    #[test]
    fn a_path_without_faults_delivers_once_and_unchanged() {
        let mut random = Seeded::new(1);
        let arrived = Faults::none().carry(&mut random, b"data");
        assert_eq!(arrived, [(10 * MS, b"data".to_vec())]);
    }

    #[test]
    fn each_fault_alone_does_what_it_says() {
        let mut random = Seeded::new(2);
        let lossy = Faults {
            loss_ppm: MILLION,
            ..Faults::none()
        };
        assert!(lossy.carry(&mut random, b"data").is_empty());
        let twice = Faults {
            duplicate_ppm: MILLION,
            ..Faults::none()
        };
        assert_eq!(twice.carry(&mut random, b"data").len(), 2);
        let late = Faults {
            reorder_ppm: MILLION,
            ..Faults::none()
        };
        assert!(late.carry(&mut random, b"data")[0].0 >= 30 * MS);
        let noisy = Faults {
            corrupt_ppm: MILLION,
            ..Faults::none()
        };
        let changed = (0..50)
            .filter(|_| noisy.carry(&mut random, b"data")[0].1 != b"data")
            .count();
        assert!(changed > 30);
    }

    #[test]
    fn corrupting_an_empty_datagram_is_harmless() {
        let mut random = Seeded::new(4);
        for _ in 0..100 {
            corrupt(&mut random, &mut Vec::new());
        }
    }
}
