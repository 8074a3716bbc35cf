//! ConnectionBind: who may bind a connection, and the engine that has it (RFC 6062 §5.4).

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_wire::Method;

use super::handover::Handover;
use super::table::State;
use crate::allocations::Allocations;
use crate::auth::Proof;
use crate::change::Change;
use crate::command::Outcome;
use crate::config::Config;
use crate::credential::User;
use crate::id::{AllocationId, ClientTuple, ConnectionId};
use crate::out::Out;
use crate::reject::Reject;
use crate::request::Request;
use crate::rules::Rules;
use crate::time::{Now, Time};

/// Refuses a ConnectionBind request that came in a datagram, whoever sent it (RFC 6062 §5.4). Returns `None` for all others.
pub(crate) fn refuse_datagram(
    request: &Request<'_>,
    rules: &Rules,
    out: &mut Out,
) -> Option<Outcome> {
    let is_bind = request.message.method() == Method::CONNECTION_BIND;
    if !is_bind || request.from.transport.is_stream() {
        return None;
    }
    let reject = Reject::BadRequest("ConnectionBind over UDP");
    let answer_len = out.reply_reject(&rules.config, &request.envelope(), None, reject);
    Some(out.spend_unverified(rules, request, answer_len))
}

/// Handles a ConnectionBind request that came on a connection (RFC 6062 §5.4).
pub(crate) fn bind_connection(
    request: &Request<'_>,
    proof: &Proof,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<Outcome, Reject> {
    // a control connection stays one, and one that another shard has was one
    // guard: V-30-data-connection, V-30-third-shard
    let is_control = request.is_handed_on || allocations.client(&request.from).is_some();
    if is_control {
        return Err(Reject::BadRequest("ConnectionBind on a control connection"));
    }
    let Ok(Some(connection)) = request.message.connection_id() else {
        return Err(Reject::BadRequest("CONNECTION-ID missing or malformed"));
    };
    let connection = ConnectionId(connection);
    let owner = rules.commons.connections.owner_of(connection);
    let shard = owner
        .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?
        .shard;
    let handover = Handover {
        shard,
        connection,
        envelope: request.envelope(),
        key: proof.response_key.clone(),
        user: Arc::clone(&proof.user),
    };
    if shard == rules.shard {
        bind_here(request.now.time, &handover, rules, allocations, out)?;
        return Ok(Outcome::Done);
    }
    Ok(Outcome::HandOver(Box::new(handover)))
}

/// Joins a peer data connection of this engine with the connection that the request came on.
fn bind_here(
    now: Time,
    handover: &Handover,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) -> Result<(), Reject> {
    let Handover {
        connection,
        envelope,
        key,
        user,
        ..
    } = handover;
    let connection = *connection;
    let held = allocations
        .connections
        .get(connection)
        .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
    let allocation = held.allocation;
    let owner = allocations
        .live(allocation)
        .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
    // mutant: connection-of-another-user
    if !owner.account.user().is_same_as(user) {
        return Err(Reject::WrongCredentials);
    }
    let held = allocations
        .connections
        .get_mut(connection)
        .ok_or(Reject::BadRequest("CONNECTION-ID unknown"))?;
    match &held.state {
        State::Unbound { deadline, .. } if now < *deadline => held.state = State::Bound,
        // mutant: connection-bound-twice
        State::Unbound { .. } | State::Bound | State::Connecting(_) | State::Failed(_) => {
            return Err(Reject::BadRequest(
                "Connection bound already, or not in time",
            ));
        }
    }
    out.changes.push_back(Change::PeerBound {
        allocation,
        connection,
        client: envelope.to.remote,
    });
    out.reply_success(&rules.config, envelope, key.as_ref(), |_, _| {});
    out.outbox.join(connection, envelope.to);
    Ok(())
}

/// Takes a ConnectionBind request from another engine, together with the client's connection, which is `client` here.
pub(crate) fn take_over(
    now: Now,
    client: ClientTuple,
    handover: Handover,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let mut handover = handover;
    handover.envelope.to = client;
    if let Err(reject) = bind_here(now.time, &handover, rules, allocations, out) {
        out.reply_reject(
            &rules.config,
            &handover.envelope,
            handover.key.as_ref(),
            reject,
        );
    }
}

/// RFC 8656 §19.
const INSUFFICIENT_CAPACITY: u16 = 508;

/// Answers a ConnectionBind request that could not be moved to the engine it is for. The connection is `client` now.
pub(crate) fn decline(client: ClientTuple, handover: Handover, config: &Config, out: &mut Out) {
    let Handover {
        mut envelope, key, ..
    } = handover;
    envelope.to = client;
    out.reply_error(config, &envelope, key.as_ref(), INSUFFICIENT_CAPACITY);
}

/// Returns the path of the control connection that a ConnectionBind request belongs to: its nonce may have been issued there.
/// Clients authenticate a new connection as they do the control connection (RFC 6062 §4.3), and some use its nonce. Only the same
/// client address qualifies, and a connection is bound only once.
pub(crate) fn control_connection(
    request: &Request<'_>,
    rules: &Rules,
) -> Option<(SocketAddr, SocketAddr)> {
    if request.message.method() != Method::CONNECTION_BIND {
        return None;
    }
    let connection = ConnectionId(request.message.connection_id().ok()??);
    let owner = rules.commons.connections.owner_of(connection)?;
    // guard: V-22-control-nonce
    let is_same_host = owner.client.ip() == request.from.remote.ip();
    is_same_host.then_some((owner.client, owner.listener))
}

/// Returns the user who presented a token for the connection that a ConnectionBind request is about. The request itself carries no
/// token (RFC 7635 §9), and the connection that it comes on has no allocation.
pub(crate) fn token_holder(request: &Request<'_>, rules: &Rules) -> Option<Arc<User>> {
    if request.message.method() != Method::CONNECTION_BIND {
        return None;
    }
    let connection = ConnectionId(request.message.connection_id().ok()??);
    let owner = rules.commons.connections.owner_of(connection)?;
    // with token holders only, so that no other request reveals which connections exist
    Some(owner.user).filter(|user| user.has_token())
}

/// Assigns the connections of an allocation to `user`, whose token has been renewed.
pub(crate) fn renew_connections(
    id: AllocationId,
    user: &Arc<User>,
    rules: &Rules,
    allocations: &Allocations,
) {
    for connection in allocations.connections.of_allocation(id) {
        rules.commons.connections.renew(connection.lease.id(), user);
    }
}
