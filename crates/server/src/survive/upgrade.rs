//! What a relay and its keeper say to each other about an upgrade: a wish and an answer.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

/// What an operator wants.
#[derive(Clone, Debug)]
pub struct Upgrade {
    /// The program; that which runs, as it is on disk now, if none is named.
    pub program: Option<PathBuf>,
    /// How long a trial may take, and how long the new program may take until it serves.
    pub within: Duration,
    /// Whether it is only tried.
    pub is_dry_run: bool,
}

/// A program that can take over.
#[derive(Clone, Debug)]
pub struct Tried {
    /// Number of the upgrade.
    pub number: u64,
    /// Its path.
    pub program: String,
    /// Its version.
    pub version: String,
    /// Allocations on record.
    pub allocations: u64,
    /// Those of them whose client's connection ends, and that wait for the client with its ticket.
    pub waiting: u64,
    /// Those of them that end.
    pub ending: u64,
}

/// What an upgrade has come to.
#[derive(Clone, Debug)]
pub struct Upgraded {
    /// Its number.
    pub number: u64,
    /// Version of the program before.
    pub from: String,
    /// Why the program before goes on; `None` if the new one does.
    pub put_back: Option<String>,
}

impl Upgrade {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "program": self.program.as_ref().map(|path| path.to_string_lossy()),
            "within_ms": u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX),
            "dry_run": self.is_dry_run,
        })
    }

    /// Returns what a relay has written. It may be anything.
    pub(super) fn of_json(wish: &Value) -> Option<Self> {
        Some(Self {
            program: match &wish["program"] {
                Value::Null => None,
                path => Some(PathBuf::from(path.as_str()?)),
            },
            within: Duration::from_millis(wish["within_ms"].as_u64()?.min(3_600_000)),
            is_dry_run: wish["dry_run"].as_bool()?,
        })
    }
}

impl Tried {
    pub(super) fn to_json(&self) -> Value {
        json!({
            "number": self.number,
            "program": self.program,
            "version": self.version,
            "allocations": self.allocations,
            "waiting": self.waiting,
            "ending": self.ending,
        })
    }

    pub(super) fn of_json(answer: &Value) -> Result<Self, String> {
        if let Some(why) = answer["why"].as_str() {
            return Err(why.to_owned());
        }
        let number = |name: &str| answer[name].as_u64();
        let text = |name: &str| answer[name].as_str().map(str::to_owned);
        let tried = || {
            Some(Self {
                number: number("number")?,
                program: text("program")?,
                version: text("version")?,
                allocations: number("allocations")?,
                waiting: number("waiting")?,
                ending: number("ending")?,
            })
        };
        tried().ok_or_else(|| "the keeper answers something strange".to_owned())
    }
}

/// Returns the answer of a keeper that does not upgrade.
pub(super) fn refusal(why: &str) -> Value {
    json!({ "why": why })
}
