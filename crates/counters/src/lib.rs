//! Counters that are declared once: where a number is counted stand its name, its meaning and its unit, and whoever prints numbers walks
//! the declarations. There is no second list.
//!
//! [`counters!`] declares a struct of counters, [`reasons!`] a closed list that a counter is divided by. Engine and data path, which do not
//! know each other, declare theirs with both.
//!
//! Invariant: a counter has one writer. Adding is a load and a store, which cost what a plain integer costs; any thread may read.

#![no_std]
#![forbid(unsafe_code)]

mod cell;
mod macros;

pub use cell::{Counter, Level, Measure, PerReason};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Allocations.
    Allocations,
    /// Bytes.
    Bytes,
    /// System calls.
    Calls,
    /// Connections, and sessions of DTLS.
    Connections,
    /// Datagrams, or messages of a stream that count as such.
    Datagrams,
    /// Lines of the log.
    Lines,
    /// Messages that a call moves: datagrams, or buffers of several.
    Messages,
    /// Milliseconds.
    Milliseconds,
    /// Nanoseconds.
    Nanoseconds,
    /// Requests of clients.
    Requests,
    /// Sockets.
    Sockets,
    /// How often something happened.
    Times,
}

impl Unit {
    /// Returns the unit in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allocations => "allocations",
            Self::Bytes => "bytes",
            Self::Calls => "calls",
            Self::Connections => "connections",
            Self::Datagrams => "datagrams",
            Self::Lines => "lines",
            Self::Messages => "messages",
            Self::Milliseconds => "milliseconds",
            Self::Nanoseconds => "nanoseconds",
            Self::Requests => "requests",
            Self::Sockets => "sockets",
            Self::Times => "times",
        }
    }
}

/// Whether a number only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows.
    Total,
    /// It is as high as it is now.
    Level,
}

/// One of the reasons that a counter is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// Lower case with underscores, the same for ever.
    pub name: &'static str,
    /// A sentence.
    pub meaning: &'static str,
}

/// What a counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Lower case with underscores, the same for ever; its own in its group.
    pub name: &'static str,
    /// A sentence.
    pub meaning: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Whether it only grows.
    pub kind: Kind,
    /// What it is divided by; empty if it is one number.
    pub labels: &'static [Label],
}

/// Counters that one part of the program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Lower case with underscores; its own among the groups of a program.
    pub name: &'static str,
    /// Who counts, in words.
    pub counted_by: &'static str,
    /// The counters, in the order in which [`Counted::visit`] shows them.
    pub counters: &'static [Description],
}

/// One number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// What was counted.
    pub counter: &'static Description,
    /// The part of it, if it is divided.
    pub label: Option<&'static Label>,
    /// How much.
    pub value: u64,
}

/// A struct of counters that [`counters!`] has declared.
pub trait Counted {
    /// What there is in it.
    const GROUP: &'static Group;

    /// Shows each number as it is now, zeros included, in the order of [`Group::counters`].
    fn visit(&self, show: &mut dyn FnMut(Sample));

    /// Adds the numbers of `other`, of which this one becomes a sum.
    fn add_all(&self, other: &Self);
}

/// A closed list that [`reasons!`] has declared.
pub trait Reason: Copy {
    /// How many there are.
    const COUNT: usize;

    /// Names and meanings, in the order of [`Reason::index`].
    const LABELS: &'static [Label];

    /// Returns the position in the list.
    fn index(self) -> usize;
}
