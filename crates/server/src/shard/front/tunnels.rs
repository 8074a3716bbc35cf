//! What a request for a tunnel is answered, whichever version of HTTP it came by: the same users, quotas and peer policy as for TURN.
//!
//! A door reads requests and writes answers in its own form, and remembers what waits. Every decision between the two is made here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use turnbuckle_engine::{ClientTuple, TunnelRefusal, TunnelSession, TunnelTarget, User};
use turnbuckle_masque::{Asked, Granted, Host, Refusal, Target};

use crate::shard::hub::Hub;

/// Requests of one connection that may fail to say who asks.
pub(super) const FAILURES_MAX: u8 = 3;

/// What the answer to a wrong password costs of the budget of its source: about its length, as with TURN over a connection.
const FAILURE_LEN: usize = 128;

/// Who asks for a tunnel.
pub(super) enum Identified {
    /// A user.
    Known(Arc<User>),
    /// Nobody that may, for this reason.
    Refused(Refusal),
    /// The user database is being asked, under the name that the request has.
    Waits(ClientTuple),
}

/// What has begun for a user.
pub(super) enum Begun {
    /// The engine has the tunnel under this name.
    Opening(ClientTuple),
    /// The name of its target is to be resolved.
    Named(Box<str>),
}

/// Finds out who asks for a tunnel in `realm`, from the address `source`. `client`, asked for a name, gives the request one. If it `may_ask`, the user database
/// is asked about whom is not known.
pub(super) fn identify(
    asked: &Asked,
    (realm, source): (&str, IpAddr),
    may_ask: bool,
    client: impl FnOnce() -> Option<ClientTuple>,
    hub: &mut Hub,
) -> Identified {
    if !hub.engine.serves_tunnels() {
        return Identified::Refused(Refusal::NotServed);
    }
    let Some(given) = &asked.credentials else {
        return Identified::Refused(failed(source, false, hub));
    };
    let checked = (hub.engine).check_password(hub.now, realm, &given.name, &given.password);
    let wrong = match checked {
        Ok(user) => return Identified::Known(user),
        Err(wrong) => wrong,
    };
    // guard: V-54-ask-http3
    let question = wrong.question.filter(|_| may_ask);
    if let Some(question) = question
        && let Some(client) = client()
        && hub.parking.park(hub.now.time, client, None, question)
    {
        return Identified::Waits(client);
    }
    // guard: V-63-users-http, V-63-users-http3
    let are_users_due = wrong.are_users_due;
    Identified::Refused(match are_users_due {
        true => Refusal::UsersDue,
        false => failed(source, true, hub),
    })
}

/// Says what a request is answered that proves nothing, for which `source` has the budget that it has for TURN too. One that
/// `has_proof`, a wrong one, costs bytes of it; others cost one answer, because a connection proves its address.
fn failed(source: IpAddr, has_proof: bool, hub: &mut Hub) -> Refusal {
    let len = if has_proof { FAILURE_LEN } else { 0 };
    // guard: V-93-budget
    if hub.engine.admits_unverified(hub.now.time, source, len, len) {
        return Refusal::Unauthorized;
    }
    let log = &mut hub.changes.log;
    log.suppressed(source, 401, hub.now.time);
    Refusal::TooManyAttempts
}

/// Begins a tunnel to `target` for a user, who is charged by the connection's `session`. It is opened if the user has none yet.
///
/// # Errors
///
/// What the request is answered.
pub(super) fn begin(
    session: &mut Option<TunnelSession>,
    client: ClientTuple,
    target: Target,
    user: &Arc<User>,
    serves_bound: bool,
    hub: &mut Hub,
) -> Result<Begun, Refusal> {
    charge(session, client, user, hub)?;
    let address = match target.host {
        Host::Ip(ip) => Some(SocketAddr::new(ip, target.port)),
        Host::Any if serves_bound => None,
        Host::Any => return Err(Refusal::BadRequest),
        Host::Name(name) => return Ok(Begun::Named(name)),
    };
    open(session.as_ref(), client, [address], hub)?;
    Ok(Begun::Opening(client))
}

/// Charges what a connection opens next to `user`, whatever its `session` was before.
///
/// # Errors
///
/// What the request is answered.
pub(super) fn charge(
    session: &mut Option<TunnelSession>,
    client: ClientTuple,
    user: &Arc<User>,
    hub: &Hub,
) -> Result<(), Refusal> {
    // A time-limited name is another one each time, and a password may have been changed: a tunnel is judged later by what it was asked for with.
    let is_same = (session.as_mut()).is_some_and(|session| session.renew(user));
    if !is_same {
        let opened = hub.engine.open_session(hub.now, client.remote, user);
        *session = Some(opened.map_err(refusal)?);
    }
    Ok(())
}

/// Begins a tunnel of `client` to the first of `addresses` that may be reached; a bound one has none.
///
/// # Errors
///
/// What the request is answered.
pub(super) fn open(
    session: Option<&TunnelSession>,
    client: ClientTuple,
    addresses: impl IntoIterator<Item = Option<SocketAddr>>,
    hub: &mut Hub,
) -> Result<(), Refusal> {
    let session = session.ok_or(Refusal::NoCapacity)?;
    let mut why = Refusal::DnsError;
    for address in addresses {
        match hub.engine.open_tunnel(hub.now, session, client, address) {
            Ok(_) => return Ok(()),
            Err(refused) => why = refusal(refused),
        }
    }
    Err(why)
}

/// Says what is granted in the words of an answer.
pub(super) fn granted(target: TunnelTarget) -> Granted {
    match target {
        TunnelTarget::Peer(next_hop) => Granted::Tunnel { next_hop },
        TunnelTarget::Bound { relays } => Granted::Bound {
            addresses: relays.into_iter().flatten().collect(),
        },
    }
}

/// Says why there is no tunnel in the words of an answer.
fn refusal(why: TunnelRefusal) -> Refusal {
    match why {
        TunnelRefusal::Draining => Refusal::Draining,
        TunnelRefusal::Forbidden => Refusal::Prohibited,
        TunnelRefusal::NoCapacity => Refusal::NoCapacity,
        TunnelRefusal::QuotaReached => Refusal::Crowded,
        TunnelRefusal::RulesDue => Refusal::UsersDue,
        TunnelRefusal::SwitchedOff => Refusal::NotServed,
        TunnelRefusal::Unroutable => Refusal::Unroutable,
    }
}
