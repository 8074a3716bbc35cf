//! V-01 to V-07, V-11: every forbidden peer, in every form, by every path, on every kind of allocation.
//!
//! A request that is granted is a failure, and so is a Connect that was tried (447). Send indications and ChannelData have no answer:
//! the canary judges them, by the name of the probe that each datagram carries.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use turnbuckle_wire::{AddressFamily, AttributeType, Class, Method, padding_len};

use crate::addresses::{Forbidden, forbidden};
use crate::attacks;
use crate::canary::Canary;
use crate::context::Context;
use crate::report::{Report, Verdict};
use turnbuckle_client::Transport;
use turnbuckle_client::blocking::{Session, code, plain};
use turnbuckle_client::{TCP, UDP};

/// Channel numbers that servers of either RFC take (RFC 8656 §12).
const CHANNELS: u16 = 0x1000;
const CHANNEL_MIN: u16 = 0x4000;
/// How long what was sent may take to reach the canary.
pub(super) const ARRIVAL: Duration = Duration::from_millis(300);

pub(super) const ROWS: [(&str, &str); 8] = [
    ("V-01", "loopback peers"),
    ("V-02", "\"this host\" as a peer"),
    ("V-03", "IPv4-mapped peers"),
    ("V-04", "other embeddings of IPv4"),
    ("V-05", "link-local addresses, metadata services"),
    ("V-06", "private and special-purpose networks"),
    ("V-07", "the server's own address"),
    ("V-11", "multicast and broadcast peers"),
];

/// The result of one row.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) probes: u64,
    pub(super) refused: u64,
    pub(super) unanswered: u64,
    pub(super) granted: Vec<String>,
}

/// The kind of a request.
#[derive(Clone, Copy)]
enum Ask {
    Permission,
    Channel(u16),
    Connection,
}

/// A kind of allocation, and how to have one.
struct Holder {
    name: String,
    session: Session,
    connects: bool,
}

/// Runs the matrix; the number of probes is part of the report.
pub(super) fn run(context: &Context, report: &mut Report) -> io::Result<()> {
    let started = Instant::now();
    let peers = forbidden(context.target.server.ip());
    let mut tallies: BTreeMap<&str, Tally> = BTreeMap::new();
    let (mut holders, missing) = holders(context)?;
    for holder in &mut holders {
        probe(context, holder, &peers, &mut tallies);
    }
    for holder in &mut holders {
        // Once through, so that what was sent before has been dealt with.
        holder.session.is_answered();
        let _ = holder.session.refresh(0);
    }
    std::thread::sleep(ARRIVAL);
    let hits = context.canary.as_ref().map(Canary::hits);
    report.matrix_seconds = started.elapsed().as_secs_f64();
    for (row, what) in ROWS {
        let Some(tally) = tallies.get(row) else {
            continue;
        };
        let hit = |text: &&String| text.starts_with(row);
        let received: Vec<&String> = hits.iter().flatten().filter(hit).collect();
        report.probes += tally.probes;
        report.add(row, what, None, verdict(tally, &received));
    }
    if let Some(stray) = hits.iter().flatten().find(|text| !text.starts_with("V-")) {
        report.add(
            "V-12",
            "connections to forbidden peers",
            None,
            Verdict::Failed(stray.clone()),
        );
    }
    for (name, code) in missing {
        report.note(format!(
            "not tried on a {name}: Allocate is answered with {code}"
        ));
    }
    match (&context.canary, hits) {
        (Some(_), Some(hits)) => {
            report.hits = hits.len();
            hear(context, report);
        }
        _ => report.note(
            "no canary listens: indications and ChannelData are sent, but nobody would hear them"
                .to_owned(),
        ),
    }
    Ok(())
}

/// Says whether the server held, by its answers and by what the canary has received.
pub(super) fn verdict(tally: &Tally, received: &[&String]) -> Verdict {
    let Tally {
        probes,
        refused,
        unanswered,
        granted,
    } = tally;
    let mut text = format!("{probes} probes, {refused} requests refused");
    if *unanswered > 0 {
        text += &format!(", {unanswered} not answered");
    }
    match (granted.first(), received.first()) {
        (None, None) => Verdict::Held(text),
        (granted_first, received_first) => {
            if let Some(first) = granted_first {
                text += &format!(", {} GRANTED, first {first}", granted.len());
            }
            if let Some(first) = received_first {
                text += &format!(", {} REACHED THE CANARY, first: {first}", received.len());
            }
            Verdict::Failed(text)
        }
    }
}

/// Kinds of allocation that cannot be had, with the error code.
type Missing = Vec<(String, u16)>;

/// Returns an allocation of each kind.
fn holders(context: &Context) -> io::Result<(Vec<Holder>, Missing)> {
    let (target, first) = (&context.target, context.first());
    let v6 = AddressFamily::V6;
    let mut found = Vec::new();
    let mut missing = Vec::new();
    let mut keep = |name: String, session, connects, allocated: Result<_, u16>| match allocated {
        Ok(_) => found.push(Holder {
            name,
            session,
            connects,
        }),
        Err(code) => missing.push((name, code)),
    };
    let mut session = Session::over(target, first)?;
    let allocated = session.allocate(UDP, |_| {});
    keep("IPv4 allocation".to_owned(), session, false, allocated);
    let mut session = Session::over(target, first)?;
    let allocated = session.allocate(UDP, |writer| {
        writer.requested_address_family(v6);
    });
    keep("IPv6 allocation".to_owned(), session, false, allocated);
    for &over in &context.transports {
        let mut session = Session::over(target, over)?;
        let allocated = session.allocate(UDP, |writer| {
            writer.additional_address_family(v6);
        });
        let name = format!("dual allocation by {}", over.name());
        keep(name, session, false, allocated);
    }
    let mut reserving = Session::over(target, first)?;
    let reserved = reserving.allocate(UDP, |writer| {
        writer.even_port(true);
    });
    let token = reserved.and_then(|answer| {
        let token = answer
            .message()
            .and_then(|message| message.reservation_token().ok()?);
        token.ok_or(0_u16)
    });
    let mut session = Session::over(target, first)?;
    let allocated = token.and_then(|token| {
        session.allocate(UDP, |writer| {
            writer.bytes(AttributeType::RESERVATION_TOKEN, &token);
        })
    });
    let name = "allocation by reservation token".to_owned();
    keep(name, session, false, allocated);
    let _ = reserving.refresh(0);
    // An allocation that was moved is tested as one that was not (V-10).
    let mut session = Session::over(target, first)?;
    if let Some(moved) = attacks::tickets::moved(&mut session, target, first)? {
        keep(
            "allocation that has moved".to_owned(),
            moved.0,
            false,
            Ok(moved.1),
        );
    }
    for over in [Transport::Tcp, Transport::Tls] {
        let name = format!("TCP allocation by {}", over.name());
        if context.speaks(over) {
            let mut session = Session::over(target, over)?;
            let allocated = session.allocate(TCP, |_| {});
            keep(name, session, true, allocated);
        }
    }
    Ok((found, missing))
}

/// Tries every peer on one allocation.
fn probe(
    context: &Context,
    holder: &mut Holder,
    peers: &[Forbidden],
    tallies: &mut BTreeMap<&'static str, Tally>,
) {
    let name = holder.name.clone();
    let mut asks: Vec<(&Forbidden, Ask)> = Vec::new();
    for (index, peer) in peers.iter().enumerate() {
        if holder.connects {
            asks.push((peer, Ask::Permission));
            asks.push((peer, Ask::Connection));
        } else {
            let number = CHANNEL_MIN + u16::try_from(index).unwrap_or(0) % CHANNELS;
            asks.push((peer, Ask::Permission));
            asks.push((peer, Ask::Channel(number)));
        }
    }
    let build = |session: &Session, (peer, ask): &(&Forbidden, Ask)| {
        let address = SocketAddr::new(peer.ip, context.port());
        match ask {
            Ask::Permission => session.signed(Method::CREATE_PERMISSION, |writer| {
                writer.xor_peer_address(address);
            }),
            Ask::Channel(number) => {
                let [high, low] = number.to_be_bytes();
                session.signed(Method::CHANNEL_BIND, |writer| {
                    writer.bytes(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0]);
                    writer.xor_peer_address(address);
                })
            }
            Ask::Connection => session.signed(Method::CONNECT, |writer| {
                writer.xor_peer_address(address);
            }),
        }
    };
    holder.session.many(&asks, build, |(peer, ask), code| {
        let tally = tallies.entry(peer.row).or_default();
        tally.probes += 1;
        let path = match ask {
            Ask::Permission => "CreatePermission",
            Ask::Channel(_) => "ChannelBind",
            Ask::Connection => "Connect",
        };
        let is_granted = code == 200 || (code == 447 && matches!(ask, Ask::Connection));
        if is_granted {
            let Forbidden { form, ip, .. } = peer;
            tally
                .granted
                .push(format!("{path} {ip} ({form}) on a {name}: {code}"));
        } else if code == 0 {
            tally.unanswered += 1;
        } else {
            tally.refused += 1;
        }
    });
    if holder.connects {
        return;
    }
    for (index, (peer, ask)) in asks.iter().enumerate() {
        let address = SocketAddr::new(peer.ip, context.port());
        let Forbidden { row, form, ip } = peer;
        let tally = tallies.entry(row).or_default();
        tally.probes += 1;
        match ask {
            Ask::Channel(number) => {
                let text = format!("{row} ChannelData to {ip} ({form}) from a {name}");
                holder.session.send(&channel_data(*number, text.as_bytes()));
            }
            _ => {
                let text = format!("{row} Send indication to {ip} ({form}) from a {name}");
                let message = plain(Class::Indication, Method::SEND, |writer| {
                    writer.xor_peer_address(address).data(text.as_bytes());
                });
                holder.session.send(&message);
            }
        }
        // The server's buffer is not what is tried here.
        if index % 64 == 63 {
            holder.session.is_answered();
        }
    }
}

/// Returns a channel message, padded so that it is right on any transport.
pub(super) fn channel_data(number: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend_from_slice(&u16::try_from(data.len()).unwrap_or(0).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len() + padding_len(data.len()), 0);
    bytes
}

/// Shows that the canary works: peers that are allowed are reached by the same paths.
fn hear(context: &Context, report: &mut Report) {
    if context.allowed.is_empty() {
        return report.note(
            "whether the canary hears was not shown: name a peer that it hears with --allowed"
                .to_owned(),
        );
    }
    for &ip in &context.allowed {
        let reached = reach(context, ip);
        let what = "the canary hears an allowed peer";
        report.add(
            "heard",
            what,
            None,
            match reached {
                Ok(()) => Verdict::Held(format!("{ip} by an indication and by a channel")),
                Err(why) => Verdict::Failed(format!("{ip}: {why}")),
            },
        );
    }
}

fn reach(context: &Context, ip: std::net::IpAddr) -> Result<(), String> {
    let canary = context.canary.as_ref().ok_or("no canary")?;
    let mut session =
        Session::over(&context.target, context.first()).map_err(|error| error.to_string())?;
    let family = AddressFamily::of(ip);
    let is_v6 = family == AddressFamily::V6;
    let allocated = session.allocate(UDP, |writer| {
        if is_v6 {
            writer.requested_address_family(family);
        }
    });
    allocated.map_err(|code| format!("Allocate is answered with {code}"))?;
    let peer = SocketAddr::new(ip, canary.port());
    let [high, low] = CHANNEL_MIN.to_be_bytes();
    let bound = session.request(Method::CHANNEL_BIND, |writer| {
        writer.bytes(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0]);
        writer.xor_peer_address(peer);
    });
    let code = code(bound.as_ref());
    if code != 200 {
        return Err(format!("ChannelBind is answered with {code}"));
    }
    session.send(&plain(Class::Indication, Method::SEND, |writer| {
        writer
            .xor_peer_address(peer)
            .data(b"allowed, by an indication");
    }));
    session.send(&channel_data(CHANNEL_MIN, b"allowed, by a channel"));
    session.is_answered();
    std::thread::sleep(ARRIVAL);
    let _ = session.refresh(0);
    let mut hits = canary.hits();
    hits.sort();
    if hits == ["allowed, by a channel", "allowed, by an indication"] {
        Ok(())
    } else {
        Err(format!("the canary heard {hits:?}"))
    }
}
