//! The form of a line.

/// The form of a line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Form {
    /// Text for people, or a record for programs.
    pub format: LogFormat,
    /// The prefix of a line of text.
    pub timestamps: Timestamps,
}

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Text, as coturn writes it.
    #[default]
    Coturn,
    /// One object of JSON.
    Json,
    /// A record of syslog (RFC 5424 §6).
    Rfc5424,
}

/// The prefix of a line of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Timestamps {
    /// Nothing.
    #[default]
    None,
    /// Seconds since the start, and the level.
    Elapsed,
    /// The time of day by this format of `strftime`, where `%f` is milliseconds, and the level.
    Format(Box<str>),
}

impl Timestamps {
    /// coturn's format.
    pub const ISO: &str = "%FT%T.%f%z";
}
