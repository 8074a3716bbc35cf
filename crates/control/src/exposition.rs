//! The two text formats that Prometheus reads: its own, version 0.0.4, and OpenMetrics 1.0.
//!
//! A library is not used: coturn's families have to come in coturn's order with coturn's texts, and they have names that OpenMetrics does not allow
//! for counters. They are of unknown type there.

use std::fmt::{Display, Write as _};

/// Bytes that are enough for a relay with a few shards, so that a text is not moved while it grows.
const USUAL_LEN: usize = 48 * 1024;

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Prometheus' own, version 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// Returns the format that the value of an Accept header asks for. Without a wish it is Prometheus' own.
    pub(crate) fn of_accept(accept: &str) -> Self {
        let quality = |wanted: &str| {
            let ranges = accept.split(',').map(str::trim);
            let found = ranges.filter_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                let is_wanted = parts.next()?.eq_ignore_ascii_case(wanted);
                let q = parts.find_map(|part| part.strip_prefix("q="));
                is_wanted.then(|| q.map_or(1.0, |q| q.parse().unwrap_or(0.0)))
            });
            found.fold(0.0, f32::max)
        };
        let wanted = quality("application/openmetrics-text");
        match wanted > 0.0 && wanted >= quality("text/plain") {
            true => Self::OpenMetrics,
            false => Self::Text,
        }
    }

    /// Returns the media type.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What the samples of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// Sums that only grow. The names of the samples end in `_total`.
    Counter,
    /// coturn's sums, whose names do not.
    CoturnCounter,
    /// Values that rise and fall.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// Metrics as text, family by family.
pub(crate) struct Exposition {
    text: String,
    format: Format,
}

/// A family that is being written.
pub(crate) struct Family<'a> {
    exposition: &'a mut Exposition,
    name: &'a str,
    kind: Type,
}

impl Exposition {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            text: String::with_capacity(USUAL_LEN),
            format,
        }
    }

    /// Begins a family. `name` is without the `_total` of counters.
    pub(crate) fn family<'a>(&'a mut self, name: &'a str, help: &str, kind: Type) -> Family<'a> {
        let (suffix, word) = match (self.format, kind) {
            (Format::Text, Type::Counter) => ("_total", "counter"),
            (Format::OpenMetrics, Type::Counter) | (Format::Text, Type::CoturnCounter) => {
                ("", "counter")
            }
            (Format::OpenMetrics, Type::CoturnCounter) => ("", "unknown"),
            (_, Type::Gauge) => ("", "gauge"),
            (_, Type::Histogram) => ("", "histogram"),
        };
        let text = &mut self.text;
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name}{suffix} {}", Escaped(help, self.format));
        let _ = writeln!(text, "# TYPE {name}{suffix} {word}");
        Family {
            exposition: self,
            name,
            kind,
        }
    }

    /// Returns the whole text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

impl Family<'_> {
    /// Writes a sample with these labels.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let suffix = match self.kind {
            Type::Counter => "_total",
            Type::CoturnCounter | Type::Gauge | Type::Histogram => "",
        };
        self.line(suffix, labels, value);
    }

    /// Writes a histogram with these labels: for each bound how many were at most as large and larger than the bound before, how many were larger than
    /// all bounds, and the sum.
    pub(crate) fn histogram(
        &mut self,
        labels: &[(&str, &str)],
        counts: &[(&str, u64)],
        larger: u64,
        sum: impl Display,
    ) {
        let mut count = 0;
        for (bound, more) in counts {
            count += more;
            let labels = [labels, &[("le", *bound)]].concat();
            self.line("_bucket", &labels, count);
        }
        count += larger;
        let labels_of_all = [labels, &[("le", "+Inf")]].concat();
        self.line("_bucket", &labels_of_all, count);
        self.line("_sum", labels, sum);
        self.line("_count", labels, count);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let text = &mut self.exposition.text;
        let _ = write!(text, "{}{suffix}", self.name);
        for (index, (name, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let _ = write!(text, "{before}{name}=\"{}\"", Quoted(value));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(text, "{after} {value}");
    }
}

impl Drop for Family<'_> {
    fn drop(&mut self) {
        // As the library does that coturn uses. OpenMetrics has no empty lines.
        if self.exposition.format == Format::Text {
            self.exposition.text.push('\n');
        }
    }
}

/// A help text with its line ends escaped.
struct Escaped<'a>(&'a str, Format);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        escape(f, self.0, self.1 == Format::OpenMetrics)
    }
}

/// The value of a label, which a user may have chosen.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        escape(f, self.0, true)
    }
}

/// Writes a text with a backslash before what would end it; quotes, if `quotes` end it. What lies between these is written in one piece.
fn escape(f: &mut std::fmt::Formatter<'_>, text: &str, quotes: bool) -> std::fmt::Result {
    let ends = |byte: &u8| matches!(byte, b'\\' | b'\n') || quotes && *byte == b'"';
    let mut rest = text;
    while let Some(place) = rest.as_bytes().iter().position(ends) {
        let (before, from) = rest.split_at(place);
        f.write_str(before)?;
        f.write_str(match from.as_bytes()[0] {
            b'\n' => "\\n",
            b'"' => "\\\"",
            _ => "\\\\",
        })?;
        rest = &from[1..];
    }
    f.write_str(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_user_has_chosen_ends_neither_its_label_nor_its_line() {
        let mut exposition = Exposition::new(Format::Text);
        let mut family = exposition.family("a", "one\ntwo", Type::CoturnCounter);
        family.sample(&[("user", "\"} 9\nb 1\\"), ("realm", "r")], 3);
        drop(family);
        assert_eq!(
            exposition.finish(),
            "# HELP a one\\ntwo\n# TYPE a counter\na{user=\"\\\"} 9\\nb 1\\\\\",realm=\"r\"} 3\n\n"
        );
    }

    #[test]
    fn the_same_families_are_openmetrics_where_that_is_asked_for() {
        let mut exposition = Exposition::new(Format::OpenMetrics);
        let mut family = exposition.family("a", "Of coturn.", Type::CoturnCounter);
        family.sample(&[], 1);
        drop(family);
        let mut family = exposition.family("b", "Own.", Type::Counter);
        family.sample(&[], 2);
        drop(family);
        let mut family = exposition.family("c", "Sizes.", Type::Histogram);
        family.histogram(&[("shard", "0")], &[("1", 4), ("2", 3)], 2, 30);
        drop(family);
        assert_eq!(
            exposition.finish(),
            "# HELP a Of coturn.\n# TYPE a unknown\na 1\n\
             # HELP b Own.\n# TYPE b counter\nb_total 2\n\
             # HELP c Sizes.\n# TYPE c histogram\n\
             c_bucket{shard=\"0\",le=\"1\"} 4\nc_bucket{shard=\"0\",le=\"2\"} 7\n\
             c_bucket{shard=\"0\",le=\"+Inf\"} 9\nc_sum{shard=\"0\"} 30\nc_count{shard=\"0\"} 9\n\
             # EOF\n"
        );
    }

    #[test]
    fn the_format_is_what_the_scraper_likes_best() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
             application/openmetrics-text;version=0.0.1;q=0.75,\
             text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            ("text/plain", Format::Text),
            (prometheus, Format::OpenMetrics),
            (
                "application/openmetrics-text;q=0.2, text/plain;q=0.3",
                Format::Text,
            ),
            ("application/openmetrics-text;q=0", Format::Text),
        ] {
            assert_eq!(Format::of_accept(accept), format, "{accept}");
        }
    }
}
