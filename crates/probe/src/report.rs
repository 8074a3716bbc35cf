//! The attacks that were tried, and their results.

use indicatif::HumanCount;
use serde_json::json;

use crate::output;
use turnbuckle_client::Transport;

/// How a row ended.
pub(super) enum Verdict {
    /// The server did what it should.
    Held(String),
    /// It did not.
    Failed(String),
    /// It could not be tried, for this reason.
    NotTried(String),
}

struct Row {
    id: &'static str,
    what: &'static str,
    /// By what it was tried, if it makes a difference.
    over: Option<Transport>,
    verdict: Verdict,
}

impl Row {
    fn name(&self) -> String {
        match self.over {
            Some(over) => format!("{} (by {})", self.what, over.name()),
            None => self.what.to_owned(),
        }
    }
}

/// All rows of a run.
#[derive(Default)]
pub(super) struct Report {
    rows: Vec<Row>,
    notes: Vec<String>,
    /// Peers tried, by all paths.
    pub(super) probes: u64,
    /// How long that took.
    pub(super) matrix_seconds: f64,
    /// Everything that the canary received and should not have.
    pub(super) hits: usize,
}

impl Report {
    pub(super) fn add(
        &mut self,
        id: &'static str,
        what: &'static str,
        over: Option<Transport>,
        verdict: Verdict,
    ) {
        self.rows.push(Row {
            id,
            what,
            over,
            verdict,
        });
    }

    pub(super) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Returns why what was not tried was not.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether nothing failed.
    pub(super) fn is_clean(&self) -> bool {
        let failed = |row: &Row| matches!(row.verdict, Verdict::Failed(_));
        !self.rows.iter().any(failed)
    }

    /// Prints it for people.
    pub(super) fn print(&self, seconds: f64) {
        for row in &self.rows {
            let (word, text) = word(&row.verdict);
            let name = row.name();
            output::line(&format!("{word:<9} {:<6} {name}: {text}", row.id));
        }
        for note in &self.notes {
            output::line(&format!("note      {note}"));
        }
        let count = |wanted: &str| {
            let is_wanted = |row: &&Row| word(&row.verdict).0 == wanted;
            self.rows.iter().filter(is_wanted).count()
        };
        let mut line = format!(
            "{} held, {} failed, {} not tried",
            count("held"),
            count("FAILED"),
            count("not tried"),
        );
        if self.probes > 0 {
            line += &format!(
                "; {} probes of the matrix in {:.1} s, {} heard by the canary",
                HumanCount(self.probes),
                self.matrix_seconds,
                self.hits
            );
        }
        output::line(&format!("{line}; {seconds:.1} s in all"));
    }

    /// Prints it for programs, as one line of JSON.
    pub(super) fn print_json(&self, seconds: f64) {
        let rows = self.rows.iter().map(|row| {
            let (word, text) = word(&row.verdict);
            let over = row.over.map(Transport::name);
            json!({"row": row.id, "what": row.what, "transport": over, "verdict": word.to_lowercase(), "detail": text})
        });
        let line = json!({
            "rows": rows.collect::<Vec<_>>(),
            "notes": self.notes,
            "probes": self.probes,
            "matrix_seconds": self.matrix_seconds,
            "canary_hits": self.hits,
            "seconds": seconds,
        });
        output::line(&line.to_string());
    }
}

fn word(verdict: &Verdict) -> (&'static str, &str) {
    match verdict {
        Verdict::Held(text) => ("held", text),
        Verdict::Failed(text) => ("FAILED", text),
        Verdict::NotTried(text) => ("not tried", text),
    }
}

/// Returns that the server held if nothing is wrong, failed with what is first.
pub(super) fn judge(held: impl Into<String>, wrong: &[String]) -> Verdict {
    match wrong.first() {
        None => Verdict::Held(held.into()),
        Some(first) if wrong.len() == 1 => Verdict::Failed(first.clone()),
        Some(first) => Verdict::Failed(format!("{first}, and {} more", wrong.len() - 1)),
    }
}

/// Returns that nothing was tried: without an allocation there is nothing to attack.
pub(super) fn refused(code: u16) -> Verdict {
    Verdict::NotTried(format!("Allocate is answered with {code}"))
}
