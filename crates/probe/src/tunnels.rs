//! V-89: every forbidden peer as the target of a tunnel (RFC 9298), in every spelling, by every version of HTTP.
//!
//! A tunnel that is granted is a failure. A datagram goes with each request, and its text is the request's, so that the canary can judge what
//! becomes of it. In a bound tunnel the peers are those of contexts and of datagrams in the uncompressed one, at several ports; no name or spelling of
//! them is there. Each context and each datagram is a probe of its own.

mod bound;
mod spellings;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use turnbuckle_client::Transport;
use turnbuckle_client::blocking::{Http3, Tunnel, tcp};

use self::bound::{Bound, Carrier};
use self::spellings::{NAMES, Spelling, spellings};
use crate::addresses::{Forbidden, forbidden};
use crate::arguments::{Door, Ways};
use crate::canary::Canary;
use crate::context::Context;
use crate::matrix::{ARRIVAL, Tally, verdict};
use crate::report::{Report, Verdict};

pub(super) const ROW: (&str, &str) = ("V-89", "forbidden peers as targets of tunnels");

/// What a request for a tunnel to a forbidden peer is answered (RFC 9298 §3.1).
const FORBIDDEN_STATUS: u16 = 403;
/// What one that is granted counts as having been answered, if there was no status or none is known.
const OPENED_STATUS: u16 = 200;
/// A target that no relay may have.
const FORBIDDEN: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Requests of one connection: a server need not take more of who gets no tunnel.
const REQUESTS_MAX: u32 = 64;

/// A way to tunnels.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Way {
    /// HTTP/1.1 or HTTP/3.
    door: Door,
    is_bound: bool,
}

impl Way {
    /// Returns the ways that a door stands for.
    fn of(door: Door) -> Vec<Self> {
        let way = |door, is_bound| Self { door, is_bound };
        match door {
            Door::Turn => Vec::new(),
            Door::Http1 | Door::Http3 => vec![way(door, false)],
            Door::Bind => vec![way(Door::Http1, true), way(Door::Http3, true)],
        }
    }

    fn name(self) -> String {
        let bound = if self.is_bound { ", bound" } else { "" };
        format!("{}{bound}", self.door.name())
    }

    /// Returns what is tried.
    const fn what(self) -> &'static str {
        match (self.door, self.is_bound) {
            (Door::Http1, false) => "forbidden peers as targets of tunnels by HTTP/1.1",
            (Door::Http1, true) => "forbidden peers in bound tunnels by HTTP/1.1",
            (_, false) => "forbidden peers as targets of tunnels by HTTP/3",
            (_, true) => "forbidden peers in bound tunnels by HTTP/3",
        }
    }
}

/// What was tried, and what was not answered first, and why.
#[derive(Default)]
struct Tried {
    tally: Tally,
    silence: Option<String>,
}

impl Tried {
    /// Counts a request, which was granted or not, with its status.
    fn asked(&mut self, text: &str, answer: io::Result<(bool, u16)>) {
        let Self { tally, silence } = self;
        tally.probes += 1;
        match answer {
            Ok((true, status)) => tally.granted.push(format!("{text}: {status}")),
            Ok((false, _)) => tally.refused += 1,
            Err(error) => {
                tally.unanswered += 1;
                silence.get_or_insert_with(|| format!("{text}: {error}"));
            }
        }
    }
}

/// A client by one way.
struct Visitor<'a> {
    context: &'a Context,
    way: Way,
    /// Whether the server speaks TLS, for HTTP/1.1.
    is_secure: bool,
    connection: Option<Http3>,
    requests: u32,
    bound: Option<Bound>,
}

impl Visitor<'_> {
    /// Asks for a tunnel to `host`, as it stands in the path, and sends `text` with the request. Returns whether there is a tunnel, with the status.
    fn ask(&mut self, host: &str, text: &str) -> io::Result<(bool, u16)> {
        let (user, early) = (&self.context.target.credentials, text.as_bytes());
        let authority = &self.context.targets.authority;
        let target = (host, self.context.port());
        if self.way.door == Door::Http1 {
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
            Ok((_, Some(refused))) => Ok((false, refused)),
            Ok((stream, None)) => {
                connection.end(stream);
                Ok((true, OPENED_STATUS))
            }
            Err(error) => {
                self.connection = None;
                Err(error)
            }
        }
    }

    /// Sends `text` to a peer in a bound tunnel, and registers the peer. Returns whether it is registered, with the status that a request for a tunnel
    /// to it would have, or that of the request for the bound tunnel if that is refused.
    fn name(&mut self, peer: SocketAddr, text: &str) -> io::Result<(bool, u16)> {
        let bound = match self.bound.take().filter(Bound::has_room) {
            Some(bound) => bound,
            None => match self.bind()? {
                Ok(bound) => bound,
                Err(refused) => return Ok((false, refused)),
            },
        };
        let bound = self.bound.insert(bound);
        let named = bound.send(peer, text).and_then(|()| bound.register(peer));
        if named.is_err() {
            self.bound = None;
        }
        Ok(match named? {
            true => (true, OPENED_STATUS),
            false => (false, FORBIDDEN_STATUS),
        })
    }

    /// Asks for a bound tunnel. Returns the status if it is refused.
    fn bind(&self) -> io::Result<Result<Bound, u16>> {
        let (target, authority) = (&self.context.target, &self.context.targets.authority);
        let carrier = if self.way.door == Door::Http1 {
            let mut tunnel = self.by_stream()?;
            let answer = tunnel.ask_bound(authority, &target.credentials)?;
            if !answer.is_open {
                return Ok(Err(answer.status));
            }
            Carrier::Http1(tunnel)
        } else {
            let mut connection = Http3::connect(target.server, authority)?;
            match connection.ask_bound(authority, &target.credentials)? {
                (stream, None) => Carrier::Http3(Box::new(connection), stream),
                (_, Some(refused)) => return Ok(Err(refused)),
            }
        };
        Bound::new(carrier).map(Ok)
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

    /// Returns why there is no such way in, if there is none.
    fn is_missing(&mut self) -> Option<String> {
        let answer = match self.way.is_bound {
            true => self.name(SocketAddr::new(FORBIDDEN, self.context.port()), ROW.0),
            false => self.ask(&FORBIDDEN.to_string(), ROW.0),
        };
        match answer {
            Ok((true, _) | (_, FORBIDDEN_STATUS)) => None,
            Ok((_, status)) => Some(format!("a request is answered with {status}")),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Tries all targets, or as many as are wanted.
    fn tries(&mut self) -> Tried {
        let context = self.context;
        let own = context.targets.names.iter().map(String::as_str);
        let names = NAMES.into_iter().chain(own).map(|name| Spelling {
            form: "a name",
            host: name.to_owned(),
        });
        let peers = forbidden(context.target.server.ip());
        let addresses = peers.iter().flat_map(|peer| spellings(peer.ip));
        let addresses = addresses.step_by(context.targets.one_in.into());
        let mut tried = Tried::default();
        for Spelling { form, host } in names.chain(addresses) {
            let text = format!("{} {host} ({form}) by {}", ROW.0, self.way.name());
            let answer = self.ask(&host, &text);
            tried.asked(&text, answer);
        }
        tried
    }

    /// Tries all peers in bound tunnels, or as many as are wanted.
    fn tries_bound(&mut self) -> Tried {
        let context = self.context;
        let mut tried = Tried::default();
        for (peer, form) in peers_named(context) {
            let text = format!("{} {peer} ({form}) by {}", ROW.0, self.way.name());
            // The datagram, which only a canary can judge.
            tried.tally.probes += 1;
            let answer = self.name(peer, &text);
            tried.asked(&text, answer);
        }
        tried
    }

    /// Shows that the canary hears a peer that is allowed.
    fn reach(&mut self, canary: &Canary, ip: IpAddr) -> Verdict {
        let text = format!("allowed, by {}", self.way.name());
        let answer = match self.way.is_bound {
            true => self.name(SocketAddr::new(ip, self.context.port()), &text),
            false => self.ask(&ip.to_string().replace(':', "%3A"), &text),
        };
        match answer {
            Ok((true, _)) => {}
            Ok((false, status)) => return Verdict::Failed(format!("{ip}: refused with {status}")),
            Err(error) => return Verdict::Failed(format!("{ip}: {error}")),
        }
        std::thread::sleep(ARRIVAL);
        let hits = canary.hits();
        match hits == [text] {
            true => Verdict::Held(format!("{ip} by a tunnel of {}", self.way.name())),
            false => Verdict::Failed(format!("{ip}: the canary heard {hits:?}")),
        }
    }
}

/// Returns what is named in bound tunnels, with how it is written: every wanted address at every port.
fn peers_named(context: &Context) -> impl Iterator<Item = (SocketAddr, &'static str)> {
    let peers = forbidden(context.target.server.ip()).into_iter();
    let peers = peers.step_by(context.targets.one_in.into());
    let ports = context.ports();
    peers.flat_map(move |Forbidden { ip, form, .. }| {
        let ports = ports.clone();
        ports.map(move |port| (SocketAddr::new(ip, port), form))
    })
}

/// Tries all targets by each of the wanted ways that the server has. Returns whether it has one.
pub(super) fn run(context: &Context, ways: &Ways, report: &mut Report) -> bool {
    let started = Instant::now();
    let mut is_there = false;
    for way in ways.doors.iter().flat_map(|door| Way::of(*door)) {
        let mut visitor = Visitor {
            context,
            way,
            is_secure: false,
            connection: None,
            requests: 0,
            bound: None,
        };
        visitor.is_secure = way.door == Door::Http1
            && ways.transports.contains(&Transport::Tls)
            && visitor.by_tls().is_ok();
        if let Some(why) = visitor.is_missing() {
            report.note(format!("no tunnels tried by {}: {why}", way.name()));
            continue;
        }
        is_there = true;
        let Tried { tally, silence } = match way.is_bound {
            true => visitor.tries_bound(),
            false => visitor.tries(),
        };
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
        report.add(ROW.0, way.what(), None, verdict);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canary::PORTS;

    #[test]
    fn there_are_twenty_thousand_probes_in_bound_tunnels() {
        let peers = forbidden(IpAddr::from([20, 0, 0, 1])).len();
        // Each at every port, by a context and by a datagram, in both versions of HTTP.
        let probes = peers * usize::from(PORTS) * 2 * Way::of(Door::Bind).len();
        assert!(probes >= 20_000, "{probes}");
    }
}
