//! `docs/compatibility.md`: how each of coturn's options is treated.

use super::about::of_group;
use crate::entry::{Entry, Group, Status};
use crate::lenient;
use crate::table;
use crate::value::Kind;

const INTRODUCTION: &str = "# Compatibility with coturn

<!-- Made by `turnbuckle options --compatibility`; a test compares. Change crates/config/src/topics instead. -->

What becomes of each option of coturn 4.17.1. The binary runs under two names:

- **`turnbuckle serve`** refuses what it does not understand, and starts with everything special closed.
- **`turnserver`** (a link of that name to the binary) takes coturn's command lines and files as they are. It looks for the file where coturn looks,
  takes a flag by its first letter and a number by its leading digits, and lets the last of several lines count. It starts with what coturn starts with:
  what it does not do, and values that nobody can use, it names in a warning at the start that says what is done in their place.
  `turnbuckle check --as turnserver FILE` says the same before.

What `turnserver` refuses all the same, with exit code 255:

| What | Why |
|---|---|
| a range of `denied-peer-ip` or `allowed-peer-ip` that cannot be read | without it peers would be open that somebody meant to close, or closed that somebody needs; coturn 4.17 refuses it too, 4.6 passes over it |
| a port or a flag that is none | the server would listen elsewhere, or do what was turned off; coturn 4.17 refuses it too, 4.6 listens on a random port |
| `no-udp` and `no-tcp` without TLS or DTLS | nothing would be served |
| an option on the command line that no version of coturn has, a user or group to become that does not exist | as in coturn |
| a file that is there and cannot be read, or has more than 64 MiB | its rules would be missing |

Options that coturn had once, such as `no-tlsv1` and `prod`, are passed over with a warning, in the file and on the command line.

Without a user database `turnserver` uses the first that is there of /var/db/turndb, /usr/local/var/db/turndb and /var/lib/turn/turndb, and a warning names it. Debian's coturn 4.6 uses the last of these; coturn 4.17 uses none.

A reload is stricter than a start: a file that cannot be read whole changes nothing ([reloading.md](operating/reloading.md)).

What it does in the place of a value that cannot be used: an `external-ip` that is empty, unspecified, loopback, multicast, unknown, followed by a comment, or for an address or family that
is not relayed is passed over, and of two for the same address the first counts; a `listening-ip` or `relay-ip` that is unknown or link-local is passed over, and if none is left the others
of the machine are taken; nobody is sent to an `alternate-server` that is unknown or loopback; an `aux-server` without port is not opened; with `tls-listening-port=0` TLS is served on
`listening-port`; of `min-port` above `max-port` the range between them is taken; of two `-c` the last counts; an `-A` without value changes nothing. Where `prometheus-address`
cannot be looked up, or is empty, which is every address in coturn, no metrics are served, and an error says so.

Where a secret for time-limited credentials is given, users with passwords are left out, as in coturn, unless `users-beside-secrets` says otherwise; `turnbuckle serve` takes both. Without
`realm` the realm is the domain name of the host, or empty. `listening-ip=::` alone is IPv4 too, and `listening-ip=0.0.0.0` without `relay-ip` relays IPv4 alone unless
`denied-peer-ip` has a range of IPv6.

Three of coturn's defaults hold under neither name: nobody relays without credentials (`no-auth`) but from networks that are private or named, multicast peers are refused, and so are
the host's own addresses and the metadata services of clouds. Private networks can be reached through `turnserver` as through coturn, with a warning;
`denied-peer-ip` closes them.

`turnbuckle install-links /usr/local/bin` makes the links: `turnserver`, `turnadmin`, `turnutils_uclient`, `turnutils_peer`, `turnutils_stunclient` and
`turnutils_natdiscovery`. With `--force /usr/bin` they take the place of an installed coturn's, and the units and init scripts of its package start this binary
as they are (`Type=notify`, `--pidfile=`, `-o`).

What cannot be listened on yet, an address that is not there or a port that somebody has, is tried again every second while the rest serves; if the port is taken on all addresses, by UDP or by TCP, the server ends. Where a
wildcard is written, addresses that the machine gets later are listened on too, and relayed from where there is no `relay-ip`. A second server on the same ports says so, and `turnbuckle serve` does not start then. A user database that cannot be
read is tried again; users and secrets of the file can log in meanwhile.

MongoDB is tried with FerretDB, a server of the same protocol on PostgreSQL. Not run against a real server: change streams, by which a replica set tells of changes, and SCRAM, by which a user logs in.

## Seen beside coturn 4.6.1

`interop/corpus` has configurations that are started beside Debian's coturn, each server in a network namespace: who starts, what is listened on, the realm, who can log in, relayed addresses, quotas, and which
of 27 peers are permitted. Nothing else than this differs:

| Name | What differs | Why |
|---|---|---|
| `binding-attributes` | Binding answers of coturn 4.6 have MAPPED-ADDRESS, RESPONSE-ORIGIN and SOFTWARE too | 4.17 has them no more unless they are asked for |
| `second-ports` | coturn 4.6 listens on listening-port + 1 too, where it has two addresses | 4.17 does only with `rfc5780`, and so does this server, where two addresses are alike |
| `own-addresses` | the host's own addresses are no peers | a relay that reaches the services of its host is a way around its firewall; `allowed-peer-ip` opens them, and a warning names the line |
| `special-peers` | multicast, broadcast, reserved, link-local and unique local addresses, metadata services, IPv4 in IPv6 | 4.17 refuses most of them as well |
| `relay-address` | without `relay-ip`, of several local addresses another one is relayed from: a public one, or the next | coturn relays from the one that the client came to |
| `families-of-a-wildcard` | coturn relays sometimes one family and sometimes both with `listening-ip=::` | it depends on its threads |
| `no-open-relay` | without credentials nobody relays | an open relay is used by strangers within hours |
| `redirect-after-login` | who has not logged in is asked to, and not redirected | an answer of 300 to anybody is of use to attackers |
| `useless-redirection` | nobody is sent to an alternate server on loopback, or to one with a port that is none | nobody could go there |
| `useless-relay-address` | refuses IPv6 relaying at once with 440 where the only IPv6 `relay-ip` is link-local; coturn tries to bind it 65,535 times, answers 508 and keeps others of that thread waiting | such an address relays nothing |
| `useless-external-ip` | an `external-ip` that is unspecified, loopback, multicast or of another family is not told to clients | nobody could send there |
| `external-ip-of-each-family` | of two `external-ip`, one of each family, both count | coturn 4.6 tells the first one for both |
| `random-ports` | no random ports for `aux-server` without a port or `tls-listening-port=0` | no client could know them |
| `administration` | no ports for the console and for web administration | the console takes `cli`, as in coturn 4.17; web administration is not served, and said so |
| `metrics` | `prometheus` is listened for | Debian builds coturn without it |
| `dtls-by-default` | no DTLS unless `dtls` says so | as in 4.17 |
| `refused-ranges` | a peer range that cannot be read is refused | see above |
| `refused-ports` | a port that is none is refused | see above |
| `refused-databases` | MongoDB as a user database is not read by a program that was built without the feature `mongo` | most want no MongoDB, and its client is large; a warning says what is missing |
| `prefixes` | a range such as `10.0.0.0/8` counts | coturn takes it for 10.0.0.0 alone |
| `narrowest-range` | a range of `denied-peer-ip` in one of `allowed-peer-ip`, or equal to it, stays refused, with a warning: the narrowest decides, and of equal ones deny | it is an exception, or one of two lines is wrong, and then refusing opens nothing; coturn does not look at `denied-peer-ip` for what is allowed |
| `starts-without` | serves where coturn 4.6 does not start: with listening addresses that are not there or link-local, with `-A` | 4.17 starts with these |
| `ports-the-other-way-round` | `min-port` above `max-port` are taken the other way round | coturn allocates nothing |
| `other-codes` | 440 for a family that is not relayed, whatever the quota; 403 for `no-udp-relay`, where coturn has 442 | RFC 8656 §7.2 |
| `time-limited-names` | with `rest-api-separator` only that character ends the time in a name | coturn takes any that is no digit |

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

/// Returns the page that lists how each of coturn's options is treated.
#[must_use]
pub fn compatibility() -> String {
    let mut text = String::from(INTRODUCTION);
    let coturns = || table::entries().filter(|entry| !entry.coturn.row.is_empty());
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
            .filter(|entry| !entry.coturn.row.is_empty())
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
        "\n## Defaults of `turnserver` that are not coturn's\n\nWhat holds when nothing is written. coturn has no such key where its column says so.\n\n\
         | Option | `turnserver` | coturn | What it does |\n|---|---|---|---|\n",
    );
    text.extend(table::entries().filter_map(different_default));
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

/// Returns the row of a key whose default as `turnserver` may be stricter than what coturn does: another one than coturn's, or any that acts where
/// coturn has no such key.
fn different_default(entry: &Entry) -> Option<String> {
    let here = entry.turnserver_default();
    let (coturn, what) = match entry.coturn.default {
        Some((coturn, _)) if here == coturn => return None,
        // A described one is coturn's too, or a note of the start says what else is done.
        Some((coturn, _)) if coturn.starts_with('(') && entry.coturn.differs_as_serve_alone => {
            return None;
        }
        Some((coturn, why)) => (format!("`{coturn}`"), why),
        None if entry.coturn.row.is_empty() && entry.is_working() && acts(here) => {
            ("no such key".to_owned(), entry.doc)
        }
        None => return None,
    };
    let cell = |text: &str| text.replace('|', "\\|");
    Some(format!(
        "| `{}` | `{here}` | {coturn} | {} |\n",
        entry.name,
        cell(what)
    ))
}

/// Returns whether a default does something.
fn acts(default: &str) -> bool {
    !matches!(default, "" | "false" | "off" | "(none)")
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
            let is_address = matches!(
                entry.kind,
                Kind::Address | Kind::AddressPort | Kind::ExternalAddress
            );
            let passed_over = "; what cannot be used is passed over with a warning";
            let lenient = format!("{how}{}", if is_address { passed_over } else { "" });
            (how, lenient)
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
        entry.coturn.row,
        names.join(", "),
        cell(&strict),
        cell(&lenient)
    )
}
