//! V-89: every forbidden peer as the target of a tunnel (RFC 9298), in every spelling, by every version of HTTP.
//!
//! A tunnel that is granted is a failure. A datagram goes with each request, and its text is the request's, so that the canary can judge what
//! becomes of it. In a bound tunnel the peers are those of contexts and of datagrams in the uncompressed one; no name or spelling of them is there.

mod bound;
mod spellings;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use turnbuckle_client::Transport;
use turnbuckle_client::blocking::{Http3, Tunnel, tcp};

use self::bound::Bound;
use self::spellings::{NAMES, Spelling, spellings};
use crate::addresses::forbidden;
use crate::arguments::{Door, Ways};
use crate::canary::Canary;
use crate::context::Context;
use crate::matrix::{ARRIVAL, Tally, verdict};
use crate::report::{Report, Verdict};

pub(super) const ROW: (&str, &str) = ("V-89", "forbidden peers as targets of tunnels");

/// What a request for a tunnel to a forbidden peer is answered (RFC 9298 §3.1).
const FORBIDDEN_STATUS: u16 = 403;
/// A target that no relay may have.
const FORBIDDEN: &str = "127.0.0.1";
/// Requests of one connection: a server need not take more of who gets no tunnel.
const REQUESTS_MAX: u32 = 64;

/// A client of one door.
struct Visitor<'a> {
    context: &'a Context,
    door: Door,
    /// Whether the server speaks TLS, for HTTP/1.1.
    is_secure: bool,
    connection: Option<Http3>,
    requests: u32,
    bound: Option<Bound>,
}

impl Visitor<'_> {
    /// Asks for a tunnel to `host`, as it stands in the path, and sends `text` with the request. Returns whether there is a tunnel, with the status.
    fn ask(&mut self, host: &str, text: &str) -> io::Result<(bool, u16)> {
        if self.door == Door::Bind {
            return self.name(host, text);
        }
        let (user, early) = (&self.context.target.credentials, text.as_bytes());
        let authority = &self.context.targets.authority;
        let target = (host, self.context.port());
        if self.door == Door::Http1 {
            let mut connection = self.by_stream()?;
            let answer = connection.ask(authority, target, user, early)?;
            return Ok((answer.is_open, answer.status));
        }
        if self.requests == REQUESTS_MAX {
            self.connection = None;
        }
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                self.requests = 0;
                none.insert(Http3::connect(self.context.target.server, authority)?)
            }
        };
        self.requests += 1;
        match connection.ask(authority, target, user, early) {
            Ok((stream, answer)) => {
                if answer.is_open {
                    connection.end(stream);
                }
                Ok((answer.is_open, answer.status))
            }
            Err(error) => {
                self.connection = None;
                Err(error)
            }
        }
    }

    /// Names a peer in a bound tunnel, and sends `text` to it. Returns whether it is registered, with the status that a request for a tunnel to it
    /// would have, or that of the request for the bound tunnel if that is refused.
    fn name(&mut self, peer: &str, text: &str) -> io::Result<(bool, u16)> {
        let peer = peer.parse().map_err(io::Error::other)?;
        let peer = SocketAddr::new(peer, self.context.port());
        let bound = match self.bound.take().filter(Bound::has_room) {
            Some(bound) => bound,
            None => {
                let mut tunnel = self.by_stream()?;
                let (target, targets) = (&self.context.target, &self.context.targets);
                let answer = tunnel.ask_bound(&targets.authority, &target.credentials)?;
                if !answer.is_open {
                    return Ok((false, answer.status));
                }
                Bound::new(tunnel)?
            }
        };
        let bound = self.bound.insert(bound);
        let named = bound.name(peer, text);
        if named.is_err() {
            self.bound = None;
        }
        named.map(|is_taken| (is_taken, if is_taken { 101 } else { FORBIDDEN_STATUS }))
    }

    /// Connects for HTTP/1.1.
    fn by_stream(&self) -> io::Result<Tunnel> {
        match self.is_secure {
            true => self.by_tls(),
            false => Ok(Tunnel::new(tcp(self.context.target.server)?)),
        }
    }

    /// Connects by TLS, for HTTP/1.1.
    fn by_tls(&self) -> io::Result<Tunnel> {
        let target = &self.context.target;
        let stream = tcp(target.address(Transport::Tls))?;
        Ok(Tunnel::new(target.contexts.shake_hands(stream)?))
    }

    /// Returns why there is no such door, if there is none.
    fn is_missing(&mut self) -> Option<String> {
        match self.ask(FORBIDDEN, ROW.0) {
            Ok((true, _) | (_, FORBIDDEN_STATUS)) => None,
            Ok((_, status)) => Some(format!("a request is answered with {status}")),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Tries all targets, or as many as are wanted. Returns also what was not answered first, and why.
    fn tally(&mut self) -> (Tally, Option<String>) {
        let context = self.context;
        let own = context.targets.names.iter().map(String::as_str);
        let names = NAMES.into_iter().chain(own).map(|name| Spelling {
            form: "a name",
            host: name.to_owned(),
        });
        let peers = forbidden(context.target.server.ip());
        let is_bound = self.door == Door::Bind;
        let addresses = peers.iter().flat_map(|peer| match is_bound {
            true => vec![Spelling {
                form: "an address",
                host: peer.ip.to_string(),
            }],
            false => spellings(peer.ip),
        });
        let addresses = addresses.step_by(context.targets.one_in.into());
        let (mut tally, mut silence) = (Tally::default(), None);
        for Spelling { form, host } in names.filter(|_| !is_bound).chain(addresses) {
            tally.probes += 1;
            let text = format!("{} {host} ({form}) by {}", ROW.0, self.door.name());
            match self.ask(&host, &text) {
                Ok((true, status)) => tally.granted.push(format!("{text}: {status}")),
                Ok((false, _)) => tally.refused += 1,
                Err(error) => {
                    tally.unanswered += 1;
                    silence.get_or_insert_with(|| format!("{text}: {error}"));
                }
            }
        }
        (tally, silence)
    }

    /// Shows that the canary hears a peer that is allowed.
    fn reach(&mut self, canary: &Canary, ip: IpAddr) -> Verdict {
        let text = format!("allowed, by {}", self.door.name());
        let host = match self.door {
            Door::Bind => ip.to_string(),
            _ => ip.to_string().replace(':', "%3A"),
        };
        match self.ask(&host, &text) {
            Ok((true, _)) => {}
            Ok((false, status)) => return Verdict::Failed(format!("{ip}: refused with {status}")),
            Err(error) => return Verdict::Failed(format!("{ip}: {error}")),
        }
        std::thread::sleep(ARRIVAL);
        let hits = canary.hits();
        match hits == [text] {
            true => Verdict::Held(format!("{ip} by a tunnel of {}", self.door.name())),
            false => Verdict::Failed(format!("{ip}: the canary heard {hits:?}")),
        }
    }
}

/// Tries all targets by each of the wanted ways that the server has. Returns whether it has one.
pub(super) fn run(context: &Context, ways: &Ways, report: &mut Report) -> bool {
    let started = Instant::now();
    let mut is_there = false;
    for &door in ways.doors.iter().filter(|door| **door != Door::Turn) {
        let mut visitor = Visitor {
            context,
            door,
            is_secure: false,
            connection: None,
            requests: 0,
            bound: None,
        };
        visitor.is_secure = door != Door::Http3
            && ways.transports.contains(&Transport::Tls)
            && visitor.by_tls().is_ok();
        if let Some(why) = visitor.is_missing() {
            report.note(format!("no tunnels tried by {}: {why}", door.name()));
            continue;
        }
        is_there = true;
        let (tally, silence) = visitor.tally();
        std::thread::sleep(ARRIVAL);
        let canary = context.canary.as_ref();
        let hits = canary.map(Canary::hits).unwrap_or_default();
        report.probes += tally.probes;
        report.hits += hits.len();
        // A server that answers a request late, or never, has not refused it.
        let verdict = match silence {
            None => verdict(&tally, &hits.iter().collect::<Vec<_>>()),
            Some(first) => Verdict::Failed(format!(
                "{} of {} not answered, first {first}",
                tally.unanswered, tally.probes
            )),
        };
        report.add(ROW.0, what(door), None, verdict);
        for (canary, &ip) in canary
            .into_iter()
            .flat_map(|it| context.allowed.iter().map(move |ip| (it, ip)))
        {
            let what = "the canary hears an allowed peer";
            report.add("heard", what, None, visitor.reach(canary, ip));
        }
    }
    report.matrix_seconds += started.elapsed().as_secs_f64();
    is_there
}

const fn what(door: Door) -> &'static str {
    match door {
        Door::Bind => "forbidden peers in bound tunnels by HTTP/1.1",
        Door::Http1 => "forbidden peers as targets of tunnels by HTTP/1.1",
        _ => "forbidden peers as targets of tunnels by HTTP/3",
    }
}
