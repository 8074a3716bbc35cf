//! A page under docs/operating, and the blocks of code on it.

use std::fs;
use std::path::PathBuf;

/// A page's text.
pub(crate) struct Page {
    name: String,
    text: String,
}

/// Returns where a page is.
pub(crate) fn path(name: &str) -> PathBuf {
    let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operating");
    PathBuf::from(pages).join(format!("{name}.md"))
}

impl Page {
    pub(crate) fn read(name: &str) -> Self {
        let text = fs::read_to_string(path(name)).expect("the page is there");
        let name = name.to_owned();
        Self { name, text }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the blocks of a language. There is at least one.
    pub(crate) fn blocks(&self, language: &str) -> Vec<&str> {
        let begin = format!("```{language}\n");
        let blocks = self.text.split(&begin).skip(1);
        let blocks: Vec<&str> = blocks
            .map(|rest| rest.split("```").next().expect("an end"))
            .collect();
        assert!(!blocks.is_empty(), "{}: no {language}", self.name);
        blocks
    }
}

/// Returns what stands behind `key` wherever it occurs, without quotes, up to the end of the value.
pub(crate) fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let found = text.match_indices(key).map(|(index, key)| {
        let rest = &text[index + key.len()..];
        match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().expect("a quote"),
            None => rest.split([',', ';', '\n', ' ']).next().expect("a word"),
        }
    });
    found.collect()
}

/// Returns the first of [`values`].
#[track_caller]
pub(crate) fn value<'a>(text: &'a str, key: &str) -> &'a str {
    let found = values(text, key).first().copied();
    found.unwrap_or_else(|| panic!("no {key}in {text}"))
}
