//! Where a setting comes from, and what is wrong with it.

use std::fmt;
use std::sync::Arc;

/// The place where a setting was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A line of a configuration file.
    File {
        /// The file as it was named.
        path: Arc<str>,
        /// Line number, the first being 1; 0 means the file as a whole.
        line: usize,
    },
    /// The command line.
    CommandLine,
    /// A command to the relay that runs.
    Command,
    /// Nowhere: a file was found where coturn keeps it.
    Usual,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line: 0 } => f.write_str(path),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Command => f.write_str("command"),
            Self::Usual => f.write_str("found"),
        }
    }
}

/// One reason why a configuration is refused. Holds no secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where the offending text stands.
    pub origin: Origin,
    /// The key, if the text could be read that far.
    pub key: Option<String>,
    /// What is wrong, and what is allowed.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

impl Problem {
    pub(crate) fn new(origin: &Origin, key: &str, message: impl Into<String>) -> Self {
        Self {
            origin: origin.clone(),
            key: Some(key.to_owned()),
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn unreadable(origin: &Origin, message: impl Into<String>) -> Self {
        Self {
            origin: origin.clone(),
            key: None,
            message: message.into(),
            hint: None,
        }
    }

    /// Returns what is wrong and what to do about it, without the place.
    pub(crate) fn said(&self) -> String {
        match &self.hint {
            Some(hint) => format!("{}; {hint}", self.message),
            None => self.message.clone(),
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if let Some(key) = &self.key {
            write!(f, "`{key}`: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration, in the order of the places; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Something the operator should know about a configuration that is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Where it was written; nowhere for what follows from defaults.
    pub origin: Option<Origin>,
    /// The key it is about.
    pub key: String,
    /// What to know.
    pub text: String,
    /// The server does not do what was asked for, and somebody will miss it.
    pub is_error: bool,
}

impl Note {
    /// Makes a note of a problem with which the server starts all the same.
    pub(crate) fn of(problem: Problem) -> Self {
        Self {
            text: problem.said(),
            key: problem.key.unwrap_or_else(|| "command line".to_owned()),
            origin: Some(problem.origin),
            is_error: false,
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(origin) = &self.origin {
            write!(f, "{origin}: ")?;
        }
        write!(f, "`{}`: {}", self.key, self.text)
    }
}
