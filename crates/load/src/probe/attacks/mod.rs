//! The attacks besides the matrix. Each is a function that tries one row and says how it ended.

mod authentication;
mod exhaustion;
mod parsing;
mod peers;

use std::io;

use super::Context;
use super::report::{Report, Verdict};

/// One attack.
type Attack = fn(&Context) -> io::Result<Verdict>;

/// All of them, in the order of the threat list.
const ATTACKS: [(&str, &str, Attack); 24] = [
    ("V-13", "permissions", peers::permissions),
    (
        "V-20",
        "predictable ports and nonces",
        authentication::randomness,
    ),
    (
        "V-22",
        "another client's nonce",
        authentication::stolen_nonce,
    ),
    (
        "V-23",
        "attributes behind the integrity attribute",
        authentication::trailing_attributes,
    ),
    (
        "V-24",
        "repeated attributes",
        authentication::repeated_attributes,
    ),
    (
        "V-26",
        "telling users from strangers",
        authentication::enumeration,
    ),
    ("V-27", "bidding down", authentication::bid_down),
    (
        "V-28",
        "another user on a client's 5-tuple",
        authentication::hijack,
    ),
    ("V-29", "conflicting channels", peers::channels),
    (
        "V-30",
        "forged mobility tickets",
        authentication::forged_tickets,
    ),
    (
        "V-31",
        "access tokens of any length",
        authentication::access_tokens,
    ),
    (
        "PROXY",
        "a stranger's PROXY protocol header",
        peers::proxy_header,
    ),
    (
        "V-40",
        "more bytes to strangers than from them",
        exhaustion::amplification,
    ),
    ("V-41", "answers to answers", exhaustion::reflection),
    ("V-42", "DTLS before a cookie", exhaustion::dtls),
    (
        "V-44",
        "even ports and reservations without end",
        exhaustion::reservations,
    ),
    ("V-45", "permissions without end", exhaustion::permissions),
    ("V-47", "streams that trickle", exhaustion::trickle),
    ("V-49", "padding for strangers", exhaustion::padding),
    ("V-52", "lifetimes without end", exhaustion::lifetimes),
    ("V-61", "lengths that lie", parsing::lengths),
    (
        "V-60",
        "padding with something in it",
        parsing::dirty_padding,
    ),
    ("V-65", "the server's name for strangers", parsing::software),
    ("V-14", "redirections of strangers", parsing::redirections),
];

/// Rows that take more than the server's address.
const NOT_TRIED: [(&str, &str, &str); 5] = [
    (
        "V-21",
        "state for strangers",
        "takes the server's memory to be seen",
    ),
    (
        "V-25",
        "comparing in constant time",
        "takes times on the server's host",
    ),
    ("V-43", "quotas", "takes a server with a quota"),
    (
        "V-46",
        "slow readers",
        "takes the server's memory to be seen",
    ),
    ("V-66", "forged ICMP", "takes raw sockets on a peer's host"),
];

/// Tries what is wanted.
pub(super) fn run(context: &Context, report: &mut Report) -> io::Result<()> {
    for (row, what, attack) in ATTACKS {
        if context.wants(row) {
            report.add(row, what, attack(context)?);
        }
    }
    for (row, what, why) in NOT_TRIED {
        if context.wants(row) {
            report.add(row, what, Verdict::NotTried(why.to_owned()));
        }
    }
    Ok(())
}

/// Held if nothing is wrong, failed with what is first.
fn judge(held: impl Into<String>, wrong: &[String]) -> Verdict {
    match wrong.first() {
        None => Verdict::Held(held.into()),
        Some(first) if wrong.len() == 1 => Verdict::Failed(first.clone()),
        Some(first) => Verdict::Failed(format!("{first}, and {} more", wrong.len() - 1)),
    }
}
