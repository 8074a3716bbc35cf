//! What the instruments print: JSON lines for programs, or sentences for people.

use std::io::{self, Write as _};
use std::time::Instant;

use serde_json::Value;

/// Prints one event as a line of JSON. A reader that went away ends nothing: the run's exit code still counts.
pub(crate) fn event(value: &Value) {
    line(&value.to_string());
}

/// Prints a line to standard output.
pub(crate) fn line(text: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Prints a line to standard error.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Lines with the seconds since the start in front, as Debian's coturn prints them.
pub(crate) struct Log(Instant);

impl Log {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.0.elapsed().as_secs()
    }

    pub(crate) fn line(&self, text: &str) {
        line(&format!("{}: : {text}", self.seconds()));
    }
}

/// Groups digits by three: `1234567` becomes `1,234,567`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }
}
