//! The effective configuration, read back through the option table, and what `check` says about it.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::entry::{Entry, Support};
use crate::load::Loaded;
use crate::persona::Persona;
use crate::problem::{Origin, Problems};
use crate::table;

/// The effective value of one key.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The key's entry.
    pub entry: &'static Entry,
    /// Its values, secrets masked; empty where nothing is set and nothing is the default.
    pub values: Vec<String>,
    /// Where they were written; empty for defaults.
    pub origins: Vec<Origin>,
}

impl Effective {
    fn from(&self) -> Vec<String> {
        if self.origins.is_empty() {
            return vec!["default".to_owned()];
        }
        self.origins.iter().map(Origin::to_string).collect()
    }

    /// Returns coturn's default, if nothing was written here and coturn would do something else than the server of this name.
    fn difference(&self, persona: Persona) -> Option<(&'static str, &'static str)> {
        let coturn = &self.entry.coturn;
        let is_coturns = persona == Persona::Turnserver && coturn.differs_as_serve_alone;
        coturn
            .default
            .filter(|_| self.origins.is_empty() && !is_coturns)
    }

    fn here(&self) -> String {
        if self.entry.values.default.is_empty() {
            self.values.join(", ")
        } else {
            self.entry.values.default.to_owned()
        }
    }
}

/// Lists every key that has a place in this version, with the values that hold.
#[must_use]
pub fn effective(loaded: &Loaded) -> Vec<Effective> {
    let usable = table::entries().filter_map(|entry| {
        let values = match entry.support {
            Support::Works => table::show(entry, &loaded.config)?,
            Support::Only { values, .. } => values
                .first()
                .map(|value| (*value).to_owned())
                .into_iter()
                .collect(),
            Support::NoEffect(_)
            | Support::NotYet(_)
            | Support::Refused(_)
            | Support::CommandLine => return None,
        };
        let origins = loaded.origins.get(entry.name).cloned().unwrap_or_default();
        Some(Effective {
            entry,
            values,
            origins,
        })
    });
    usable.collect()
}

/// Returns the report of `turnbuckle check` for people: notes, what was written, and with `all` the defaults.
#[must_use]
pub fn report(result: &Result<Box<Loaded>, Problems>, all: bool) -> String {
    let loaded = match result {
        Ok(loaded) => loaded,
        Err(problems) => {
            return format!(
                "{problems}\nrefused: {}\n",
                counted(problems.0.len(), "problem")
            );
        }
    };
    let mut text = String::new();
    if !loaded.notes.is_empty() {
        text.push_str("notes\n");
        for note in &loaded.notes {
            line(&mut text, format_args!("  {note}"));
        }
        text.push('\n');
    }
    let effective = effective(loaded);
    let of_whom = match loaded.config.persona {
        Persona::Turnbuckle => "",
        Persona::Turnserver => " of turnserver",
    };
    let what = match all {
        true => "effective configuration",
        false => "what is written in the configuration",
    };
    line(&mut text, format_args!("{what}{of_whom}"));
    for one in effective
        .iter()
        .filter(|one| !one.origins.is_empty() || all && one.entry.is_working())
    {
        for (index, value) in one.values.iter().enumerate() {
            let assignment = format!("{}={value}", one.entry.name);
            let from = one.from();
            let origin = from
                .get(index)
                .or_else(|| from.last())
                .map_or("", String::as_str);
            line(&mut text, format_args!("  {assignment:<48} {origin}"));
        }
    }
    text.push_str(match all {
        true => "\ndefaults that differ from coturn's\n",
        false => "\ndefaults are listed with --all\n",
    });
    for one in effective.iter().filter(|_| all) {
        if let Some((coturn, why)) = one.difference(loaded.config.persona) {
            line(
                &mut text,
                format_args!(
                    "  {}: here {}, coturn {coturn}: {why}",
                    one.entry.name,
                    one.here()
                ),
            );
        }
    }
    text.push_str("\naccepted\n");
    text
}

/// Returns the same report for programs.
#[must_use]
pub fn report_json(result: &Result<Box<Loaded>, Problems>) -> Value {
    let loaded = match result {
        Ok(loaded) => loaded,
        Err(problems) => {
            let problems = problems.0.iter().map(|problem| {
                let (file, line) = place(Some(&problem.origin));
                json!({ "file": file, "line": line, "key": problem.key, "message": problem.message, "hint": problem.hint })
            });
            return json!({ "accepted": false, "problems": problems.collect::<Vec<_>>() });
        }
    };
    let effective = effective(loaded);
    let keys = effective
        .iter()
        .map(|one| json!({ "key": one.entry.name, "values": one.values, "from": one.from() }));
    let notes = loaded.notes.iter().map(|note| {
        let (file, line) = place(note.origin.as_ref());
        json!({ "file": file, "line": line, "key": note.key, "text": note.text })
    });
    let differences = effective.iter().filter_map(|one| {
        let (coturn, why) = one.difference(loaded.config.persona)?;
        Some(json!({ "key": one.entry.name, "here": one.here(), "coturn": coturn, "why": why }))
    });
    json!({
        "accepted": true,
        "effective": keys.collect::<Vec<_>>(),
        "notes": notes.collect::<Vec<_>>(),
        "differences": differences.collect::<Vec<_>>(),
    })
}

/// Returns file and line of what does not come from the command line or from defaults.
fn place(origin: Option<&Origin>) -> (Option<&str>, Option<usize>) {
    match origin {
        Some(Origin::File { path, line }) => (Some(path), (*line > 0).then_some(*line)),
        Some(Origin::CommandLine | Origin::Command | Origin::Usual) | None => (None, None),
    }
}

fn counted(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", arguments);
    text.truncate(text.trim_end().len());
    text.push('\n');
}
