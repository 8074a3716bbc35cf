//! `docs/counters.md`, from the declarations.

use std::fmt::Write as _;

use turnbuckle_counters::{Group, Kind};
use turnbuckle_datapath::Counters;

use super::ShardCounters;

/// Returns the page that explains each counter.
#[must_use]
pub fn counters_page() -> String {
    let mut page = String::from(
        "# Counters\n\nThis page is made from the declarations by `turnbuckle options --counters`.\n\n\
         At its end the relay writes the counters of all shards, added up, to `statistics-file`: one member for each, an object of reasons where there are several. \
         The members `in`, `out` and `dropped` are sums, and `in = out + dropped` holds exactly. `drops` has the reasons of all who drop; \
         the same name from several of them is one member.\n",
    );
    write_groups(&mut page, &ShardCounters::GROUPS);
    page.push_str("\n# Counters of the data path\n\nThese are not in `statistics-file`; `udp-recvmmsg-log` and `udp-sendmmsg-log` print some of them.\n");
    write_groups(&mut page, &Counters::GROUPS);
    page
}

fn write_groups(page: &mut String, groups: &[&Group]) {
    for group in groups {
        let _ = write!(
            page,
            "\n## {}\n\nCounted by {}.\n\n| name | unit | meaning |\n|---|---|---|\n",
            group.name, group.counted_by
        );
        for counter in group.counters {
            let unit = match counter.kind {
                Kind::Level => format!("{} now", counter.unit.as_str()),
                Kind::Total => counter.unit.as_str().to_owned(),
            };
            let _ = writeln!(
                page,
                "| `{}` | {unit} | {} |",
                counter.name, counter.meaning
            );
            for label in counter.labels {
                let _ = writeln!(
                    page,
                    "| `{}`: `{}` | | {} |",
                    counter.name, label.name, label.meaning
                );
            }
        }
    }
}
