//! How much a line of the log matters.

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Level {
    /// Of use to whoever looks for a mistake.
    #[default]
    Debug,
    /// What happens.
    Info,
    /// What an operator should know.
    Warning,
    /// What fails.
    Error,
}

impl Level {
    /// All levels, the least first.
    pub const ALL: [Self; 4] = [Self::Debug, Self::Info, Self::Warning, Self::Error];

    /// Returns the word in a line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warning => "WARNING",
            Self::Error => "ERROR",
        }
    }
}
