//! `docs/compatibility.md`: what becomes of each of coturn's options.

use super::super::entry::{Entry, Group, Status};
use super::super::lenient;
use super::super::table;
use super::of_group;

const INTRODUCTION: &str = "# Compatibility with coturn

<!-- Made by `turnbuckle options --compatibility`; a test compares. Change crates/server/src/config/table instead. -->

What becomes of each option of coturn 4.17.1. The binary runs under two names:

- **`turnbuckle serve`** refuses what it does not understand, and starts with everything special closed.
- **`turnserver`** (a link of that name to the binary) takes coturn's command lines and files as they are. It looks for the file where coturn looks,
  takes a flag by its first letter and a number by its leading digits, and lets the last of several lines count. What it does not do it names in a warning at
  the start and passes over; it refuses, with exit code 255, what cannot be passed over: a port, address or peer range that cannot be read, because the
  server would listen elsewhere or open something; a database that it cannot read, because nobody could log in; and, as coturn does, options that do not exist.

Three of coturn's defaults hold under neither name: nobody relays without credentials (`no-auth`), multicast peers are refused, and so are
the host's own addresses and the metadata services of clouds. Private networks can be reached through `turnserver` as through coturn, with a warning;
`denied-peer-ip` closes them.

`turnbuckle install-links /usr/local/bin` makes the links: `turnserver`, `turnadmin`, `turnutils_uclient`, `turnutils_peer`, `turnutils_stunclient` and
`turnutils_natdiscovery`. With `--force /usr/bin` they take the place of an installed coturn's, and the units and init scripts of its package start this binary
as they are (`Type=notify`, `--pidfile=`, `-o`).

## Log lines

`turnserver` logs by coturn's lines, with time and level before each. Always: `IPv4. UDP listener opened on: ...`, `Total General servers: N`,
`check_stun_auth: user X credentials are incorrect`, `A peer IP X denied in the range: A-B`. With `verbose`, each behind `session N: `:
`new|refreshed, realm=<R>, username=<U>, lifetime=L[, cipher=C, method=M]`; `realm <R> user <U>: incoming packet ALLOCATE processed, success` or `..., error C: text`,
and for errors the same once more as `incoming packet message processed`; `peer X lifetime updated: T` and `peer X deleted`; `usage: realm=<R>, username=<U>, rp=, rb=, sp=, sb=` and
`peer usage: ...`; `TCP socket closed remotely A:P`; `closed (2nd stage), user <U> realm <R> origin <O>, local A, remote B, reason: text`; `delete: realm=<R>, username=<U>`.
When it serves it prints `ready` and tells systemd. What is different:

- Usage is of data alone, without requests and answers; besides the end of a session it is said with a Refresh when 4096 datagrams have come since it was said last. The
  numbers are of the time since then, as coturn's are.
- Lines about clients that proved nothing stay below 10 KB/s together, those about the requests of one session at 10 per second after the first 200; how many were left out is said.
- What a client chooses, such as its name, is escaped, so that a line stays one line and a field one field, and cut at 255 bytes.
- An unknown user and a wrong password have the same line: the server does not tell them apart.
";

/// The page that says of each of coturn's options what becomes of it.
#[must_use]
pub fn compatibility() -> String {
    let mut text = String::from(INTRODUCTION);
    let coturns = || table::entries().filter(|entry| !entry.row.is_empty());
    let count = |is: fn(&Status) -> bool| coturns().filter(|entry| is(&entry.status())).count();
    let work = count(|status| matches!(status, Status::Same | Status::Stricter(_) | Status::New));
    let limited = count(|status| matches!(status, Status::Limited { .. }));
    let ignored = count(|status| matches!(status, Status::WithoutEffect(_)));
    let missing = count(|status| matches!(status, Status::NotYet(_) | Status::Refused(_)));
    text.push_str(&format!(
        "\nOf {} options {work} do what they say, {limited} are taken with the value that holds anyway, {ignored} have no effect, {missing} are not \
         served.\n",
        coturns().count()
    ));
    for group in Group::ALL {
        let rows: Vec<String> = of_group(group)
            .filter(|entry| !entry.row.is_empty())
            .map(row)
            .collect();
        if !rows.is_empty() {
            text.push_str(&format!(
                "\n## {}\n\n| Row | Option | `turnbuckle serve` | `turnserver` |\n|---|---|---|---|\n{}",
                group.title(),
                rows.concat()
            ));
        }
    }
    text.push_str(
        "\n## Keys of old coturn versions\n\nRefused by `turnbuckle serve`, passed over with a warning by `turnserver`; both say what became of them: ",
    );
    let removed: Vec<String> = table::removed_keys()
        .map(|(key, _)| format!("`{key}`"))
        .collect();
    text.push_str(&removed.join(", "));
    text.push_str(".\n");
    text
}

fn row(entry: &Entry) -> String {
    let names: Vec<String> = std::iter::once(&entry.name)
        .chain(entry.aliases)
        .map(|name| format!("`{name}`"))
        .chain(entry.short.map(|letter| format!("`-{letter}`")))
        .collect();
    let passed_over = |why: &str| match lenient::is_fatal(entry) {
        true => format!("refused: {why}"),
        false => format!("passed over: {why}"),
    };
    let (strict, lenient) = match entry.status() {
        Status::Same | Status::New => ("as in coturn".to_owned(), "as in coturn".to_owned()),
        Status::Stricter(how) => {
            let how = format!("as in coturn, and stricter: {how}");
            (how.clone(), how)
        }
        Status::Limited { values, otherwise } => {
            let values = values.join(", ");
            (
                format!("only {values}: {otherwise}"),
                format!("{values}; else {}", passed_over(otherwise)),
            )
        }
        Status::WithoutEffect(why) => {
            let why = format!("no effect: {why}");
            (why.clone(), why)
        }
        Status::NotYet(what) => {
            let why = format!("{what} not implemented");
            (format!("refused: {why}"), passed_over(&why))
        }
        Status::Refused(why) => (format!("refused: {why}"), passed_over(why)),
    };
    let lenient = match lenient == strict {
        true => "the same".to_owned(),
        false => lenient,
    };
    let cell = |text: &str| text.replace('|', "\\|");
    format!(
        "| {} | {} | {} | {} |\n",
        entry.row,
        names.join(", "),
        cell(&strict),
        cell(&lenient)
    )
}
