//! `turnbuckle probe --list`: every row of the threat list, and how it is tried.

use crate::output;
use crate::{attacks, matrix, tunnels};

/// One row: id, what it is about, whether it can be seen from outside, and what cannot.
const THREATS: &str = include_str!("threats.txt");

/// A row of the list.
struct Threat<'a> {
    id: &'a str,
    what: &'a str,
    seen: &'a str,
    unseen: &'a str,
}

fn threats() -> impl Iterator<Item = Threat<'static>> {
    let rows = THREATS.lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|line| {
        let mut parts = line.split('|').map(str::trim);
        Some(Threat {
            id: parts.next()?,
            what: parts.next()?,
            seen: parts.next()?,
            unseen: parts.next()?,
        })
    })
}

/// Returns the attacks and transports that are tried for a row.
fn tried(id: &str) -> Vec<String> {
    let of_matrix = matrix::ROWS.iter().filter(|(row, _)| *row == id);
    let of_matrix = of_matrix.map(|(_, what)| format!("{what} (the matrix)"));
    let of_tunnels = [tunnels::ROW].into_iter().filter(|(row, _)| *row == id);
    let of_tunnels = of_tunnels.map(|(_, what)| format!("{what} (HTTP/1.1, HTTP/3)"));
    of_matrix.chain(of_tunnels).chain(attacks::of(id)).collect()
}

/// Prints the list.
pub(super) fn print() {
    for Threat {
        id,
        what,
        seen,
        unseen,
    } in threats()
    {
        match seen {
            "none" => output::line(&format!("{id}  {what}: does not apply: {unseen}")),
            "no" => output::line(&format!("{id}  {what}: not seen from outside: {unseen}")),
            _ => {
                output::line(&format!("{id}  {what}"));
                for text in tried(id) {
                    output::line(&format!("      tries {text}"));
                }
                if !unseen.is_empty() {
                    output::line(&format!("      not seen from outside: {unseen}"));
                }
            }
        }
    }
    output::line("docs/threats.md says what guards each row, and which tests fail without it");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_that_can_be_seen_is_tried_and_no_other() {
        let mut count = 0;
        for Threat {
            id, seen, unseen, ..
        } in threats()
        {
            count += 1;
            let is_tried = !tried(id).is_empty();
            match seen {
                "yes" => assert!(is_tried && unseen.is_empty(), "{id}"),
                "partly" => assert!(is_tried && !unseen.is_empty(), "{id}"),
                "no" | "none" => assert!(!is_tried && !unseen.is_empty(), "{id}"),
                other => panic!("{id}: {other}"),
            }
        }
        assert_eq!(count, 56 + 16, "sections 1.1 to 1.4, and V-80 to V-95");
    }
}
