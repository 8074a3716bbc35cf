//! Answers to requests, counted by method and error code.

use turnbuckle_counters::Counter;
use turnbuckle_wire::{Class, Message, Method};

/// Methods and their names; the last stands for all others.
const METHODS: [(Option<Method>, &str); 8] = [
    (Some(Method::ALLOCATE), "allocate"),
    (Some(Method::BINDING), "binding"),
    (Some(Method::CHANNEL_BIND), "channel_bind"),
    (Some(Method::CONNECT), "connect"),
    (Some(Method::CONNECTION_BIND), "connection_bind"),
    (Some(Method::CREATE_PERMISSION), "create_permission"),
    (Some(Method::REFRESH), "refresh"),
    (None, "other"),
];

/// Success, and the error codes that the engine gives. Another code would be counted as the first one of its hundred, and the last of all as 500.
const CODES: [u16; 19] = [
    200, 300, 400, 401, 403, 404, 405, 420, 437, 438, 440, 441, 442, 443, 446, 447, 486, 500, 508,
];

/// How many answers there were of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerCount {
    /// The method, in lower case.
    pub method: &'static str,
    /// The error code; 200 for success.
    pub code: u16,
    /// How many.
    pub count: u64,
}

/// A counter for each method and code.
#[derive(Debug, Default)]
pub(crate) struct AnswerCounters([[Counter; CODES.len()]; METHODS.len()]);

impl AnswerCounters {
    /// Counts an answer that the engine has written. Returns its error code, or `None` if it is no answer; 200 is success.
    pub(crate) fn count(&self, answer: &[u8]) -> Option<u16> {
        let message = Message::parse(answer).ok()?;
        let code = match message.class() {
            Class::Success => 200,
            Class::Error => message.error_code().ok()??.code,
            Class::Request | Class::Indication => return None,
        };
        let place = |method| METHODS.iter().position(|(of, _)| *of == method);
        let row = place(Some(message.method())).or_else(|| place(None))?;
        let hundred = code - code % 100;
        let column = CODES.iter().position(|&of| of == code);
        let column = column.or_else(|| CODES.iter().position(|&of| of >= hundred));
        self.0[row][column.unwrap_or(CODES.len() - 1)].add(1);
        Some(code)
    }

    /// Returns how many answers had an error code.
    pub(crate) fn with_code(&self, code: u16) -> u64 {
        let column = CODES.iter().position(|&of| of == code);
        let rows = self.0.iter().filter_map(|row| row.get(column?));
        rows.map(Counter::get).sum()
    }

    pub(crate) fn add_all(&self, other: &Self) {
        for (sums, parts) in self.0.iter().zip(&other.0) {
            for (sum, part) in sums.iter().zip(parts) {
                sum.add(part.get());
            }
        }
    }

    /// Returns the kinds of answers that there were.
    pub(crate) fn counts(&self) -> Vec<AnswerCount> {
        let mut counts = Vec::new();
        for ((_, method), row) in METHODS.iter().zip(&self.0) {
            for (code, counter) in CODES.into_iter().zip(row) {
                let count = counter.get();
                if count > 0 {
                    counts.push(AnswerCount {
                        method,
                        code,
                        count,
                    });
                }
            }
        }
        counts
    }
}
