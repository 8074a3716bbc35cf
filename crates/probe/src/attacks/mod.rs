//! The attacks besides the matrix. Each is a function that tries one row by one transport and says how it ended.

mod authentication;
mod exhaustion;
mod handshakes;
mod parsing;
mod peers;
mod strangers;
mod streams;
mod tcp_relays;
pub(super) mod tickets;

use std::io;

use crate::context::Context;
use crate::report::{Report, Verdict};
use turnbuckle_client::Transport;

/// How a row is tried.
type Try = fn(&Context, Transport) -> io::Result<Verdict>;

/// One attack.
struct Attack {
    row: &'static str,
    what: &'static str,
    over: &'static [Transport],
    run: Try,
}

const EVERY: &[Transport] = &Transport::ALL;
const STREAMS: &[Transport] = &[Transport::Tcp, Transport::Tls];
/// What shows in all that came before, or takes more than one transport.
const ONCE: &[Transport] = &[];
const UDP: &[Transport] = &[Transport::Udp];
const TCP: &[Transport] = &[Transport::Tcp];
const TLS: &[Transport] = &[Transport::Tls];
const DTLS: &[Transport] = &[Transport::Dtls];

const fn attack(
    row: &'static str,
    what: &'static str,
    over: &'static [Transport],
    run: Try,
) -> Attack {
    Attack {
        row,
        what,
        over,
        run,
    }
}

/// All attacks, in the order of the threat list.
#[rustfmt::skip]
const ATTACKS: [Attack; 36] = [
    attack("V-10", "a peer that connects without a permission", STREAMS, tcp_relays::uninvited),
    attack("V-12", "scanning ports by Connect", STREAMS, tcp_relays::scan),
    attack("V-13", "permissions", EVERY, peers::permissions),
    attack("V-16", "consoles beside the relay", TCP, streams::consoles),
    attack("V-20", "predictable ports and nonces", EVERY, authentication::randomness),
    attack("V-21", "work for who has proved nothing", EVERY, authentication::forged_integrity),
    attack("V-22", "another client's nonce", EVERY, authentication::stolen_nonce),
    attack("V-23", "attributes behind the integrity attribute", EVERY, authentication::trailing_attributes),
    attack("V-24", "repeated attributes", EVERY, authentication::repeated_attributes),
    attack("V-26", "telling users from strangers", EVERY, authentication::enumeration),
    attack("V-27", "bidding down", EVERY, authentication::bid_down),
    attack("V-28", "another user on a client's 5-tuple", EVERY, authentication::hijack),
    attack("V-29", "conflicting channels", EVERY, peers::channels),
    attack("V-30", "forged mobility tickets", EVERY, tickets::forged),
    attack("V-30", "mobility tickets used again", EVERY, tickets::used_again),
    attack("V-31", "access tokens of any length", EVERY, authentication::access_tokens),
    attack("V-32", "credentials that have expired", EVERY, authentication::expired),
    attack("V-33", "one credential for many, over its quota", ONCE, exhaustion::quota_of_all),
    attack("V-34", "a realm that a stranger names", EVERY, authentication::realm),
    attack("PROXY", "a stranger's PROXY protocol header", TCP, peers::proxy_header),
    attack("V-40", "more bytes to strangers than from them", UDP, exhaustion::amplification),
    attack("V-41", "answers to answers", EVERY, exhaustion::reflection),
    attack("V-42", "DTLS before a cookie", DTLS, handshakes::before_a_cookie),
    attack("V-42", "another client's DTLS cookie", DTLS, handshakes::stolen_cookie),
    attack("V-42", "a flood of DTLS hellos", DTLS, handshakes::flood),
    attack("V-43", "more allocations than a quota", EVERY, exhaustion::quota),
    attack("V-44", "even ports and reservations without end", EVERY, exhaustion::reservations),
    attack("V-45", "permissions without end", EVERY, exhaustion::permissions),
    attack("V-48", "TLS handshakes gone wrong", TLS, handshakes::gone_wrong),
    attack("V-49", "padding for strangers", UDP, exhaustion::padding),
    attack("V-52", "lifetimes without end", EVERY, exhaustion::lifetimes),
    attack("V-61", "lengths that lie", EVERY, parsing::lengths),
    attack("V-63", "noise", EVERY, parsing::noise),
    attack("V-60", "padding with something in it", ONCE, parsing::dirty_padding),
    attack("V-65", "the server's name for strangers", ONCE, parsing::software),
    attack("V-14", "redirections of strangers", ONCE, parsing::redirections),
];

/// Those that wait for deadlines of the server, all at the same time.
#[rustfmt::skip]
const SLOW: [Attack; 5] = [
    attack("V-12", "what the time of a failed Connect tells", TCP, tcp_relays::timing),
    attack("V-46", "a peer that floods before it is bound", STREAMS, tcp_relays::flood_before_bind),
    attack("V-47", "streams that trickle", TCP, streams::trickle),
    attack("V-47", "connections that say nothing once TLS is agreed on", TLS, streams::silence),
    attack("V-48", "TLS handshakes that stop halfway", TLS, handshakes::half_open),
];

/// Those of many strangers. Each has the server to itself, unless nothing else is wanted; the one that leaves a backlog of connections is the last.
#[rustfmt::skip]
const CROWDS: [Attack; 4] = [
    attack("V-42", "DTLS sessions held by one Binding a minute, and new clients", DTLS, strangers::held),
    attack("V-47", "connections held by one Binding a minute, and new clients", TCP, strangers::held),
    attack("V-48", "a slow TLS handshake in a flood of connections", TLS, strangers::slow_client),
    attack("V-47", "connections that each send a ClientHello while a call goes on", TLS, strangers::hellos),
];

/// Runs the requested attacks.
pub(super) fn run(context: &Context, report: &mut Report) {
    let crowds = CROWDS.iter().filter(|attack| context.wants(attack.row));
    if context.strangers.alone {
        return together(context, crowds, report);
    }
    for attack in ATTACKS.iter().filter(|attack| context.wants(attack.row)) {
        for over in transports(context, attack) {
            let ended = (attack.run)(context, over.unwrap_or_else(|| context.first()));
            report.add(attack.row, attack.what, over, ended.unwrap_or_else(lost));
        }
    }
    let slow = SLOW.iter().filter(|attack| context.wants(attack.row));
    if context.quick {
        for (attack, over) in tries(context, slow.chain(crowds)) {
            let verdict = Verdict::NotTried("takes its time".to_owned());
            report.add(attack.row, attack.what, over, verdict);
        }
        return;
    }
    together(context, slow, report);
    for attack in crowds {
        together(context, [attack].into_iter(), report);
    }
}

/// Returns the attacks, each with what it is tried by.
fn tries(
    context: &Context,
    attacks: impl Iterator<Item = &'static Attack>,
) -> Vec<(&'static Attack, Option<Transport>)> {
    let tries = attacks.flat_map(|attack| {
        let over = transports(context, attack);
        over.into_iter().map(move |over| (attack, over))
    });
    tries.collect()
}

/// Tries attacks at the same time.
fn together(
    context: &Context,
    attacks: impl Iterator<Item = &'static Attack>,
    report: &mut Report,
) {
    let attacks = tries(context, attacks);
    let verdicts: Vec<_> = std::thread::scope(|scope| {
        let begin = |(attack, over): &(&'static Attack, Option<Transport>)| {
            let (run, over) = (attack.run, over.unwrap_or_else(|| context.first()));
            scope.spawn(move || run(context, over))
        };
        let begun: Vec<_> = attacks.iter().map(begin).collect();
        let ended = begun.into_iter().map(std::thread::ScopedJoinHandle::join);
        ended.collect()
    });
    for ((attack, over), verdict) in attacks.into_iter().zip(verdicts) {
        let ended = verdict.unwrap_or_else(|_| Err(io::Error::other("the attack panicked")));
        report.add(attack.row, attack.what, over, ended.unwrap_or_else(lost));
    }
}

/// Returns the verdict on a server that could be reached when the run began, and cannot any more.
#[expect(
    clippy::needless_pass_by_value,
    reason = "what it is given is the error"
)]
fn lost(error: io::Error) -> Verdict {
    Verdict::Failed(format!("the server cannot be reached: {error}"))
}

/// Returns the transports by which an attack is tried, of those that the server serves.
fn transports(context: &Context, attack: &Attack) -> Vec<Option<Transport>> {
    if attack.over.is_empty() {
        return vec![None];
    }
    let spoken = attack.over.iter().filter(|over| context.speaks(**over));
    spoken.map(|over| Some(*over)).collect()
}

/// Returns the attacks on a row, and the transports by which they are tried.
pub(super) fn of(row: &str) -> Vec<String> {
    let of_row = ATTACKS
        .iter()
        .chain(&SLOW)
        .chain(&CROWDS)
        .filter(|attack| attack.row == row);
    let name = |attack: &Attack| {
        let over: Vec<_> = attack.over.iter().map(|over| over.name()).collect();
        match over.is_empty() {
            true => attack.what.to_owned(),
            false => format!("{} ({})", attack.what, over.join(", ")),
        }
    };
    of_row.map(name).collect()
}
