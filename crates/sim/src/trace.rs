//! What happened, as a hash of everything and, when asked for, as text of the last steps.

use std::collections::VecDeque;
use std::fmt;

/// The record of one run.
///
/// The hash covers every input and every output, so two runs with equal hashes did the same. Text
/// costs time and is kept only when a failing seed is run again to be read.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    text: Option<VecDeque<String>>,
    lines_max: usize,
}

impl Trace {
    /// Makes a trace that keeps the last `lines_max` lines of text; none when that is 0.
    #[must_use]
    pub fn new(lines_max: usize) -> Self {
        Self {
            hash: 0xCBF2_9CE4_8422_2325,
            text: (lines_max > 0).then(VecDeque::new),
            lines_max,
        }
    }

    /// Adds bytes to the hash, with their length, so that neighbours cannot run together.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.number(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.number(u64::from(*byte));
        }
    }

    /// Adds a number to the hash.
    pub fn number(&mut self, number: u64) {
        self.hash = (self.hash ^ number)
            .wrapping_mul(0x0000_0100_0000_01B3)
            .rotate_left(23);
    }

    /// Adds a line of text, built only if text is kept.
    pub fn line<T: fmt::Display>(&mut self, line: impl FnOnce() -> T) {
        if let Some(text) = &mut self.text {
            if text.len() == self.lines_max {
                text.pop_front();
            }
            text.push_back(line().to_string());
        }
    }

    /// Returns the hash of all that happened so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the lines kept, oldest first.
    #[must_use]
    pub fn text(&self) -> Vec<String> {
        self.text.iter().flatten().cloned().collect()
    }
}

/// Writes a virtual time as seconds with microseconds.
#[must_use]
pub fn seconds(nanos: u64) -> String {
    format!("{}.{:06}", nanos / 1_000_000_000, nanos / 1000 % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_tells_neighbouring_byte_strings_apart() {
        let hash = |parts: &[&[u8]]| {
            let mut trace = Trace::new(0);
            for part in parts {
                trace.bytes(part);
            }
            trace.hash()
        };
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
        assert_ne!(hash(&[b"abcdefgh"]), hash(&[b"abcdefgi"]));
        assert_eq!(hash(&[b"abcdefghi"]), hash(&[b"abcdefghi"]));
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let mut trace = Trace::new(2);
        for line in ["one", "two", "three"] {
            trace.line(|| line);
        }
        assert_eq!(trace.text(), ["two", "three"]);
        let mut silent = Trace::new(0);
        silent.line(|| -> String { unreachable!("text is not kept") });
        assert!(silent.text().is_empty());
    }
}
