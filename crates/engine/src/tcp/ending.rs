//! Connections that end: closed by the host, waited for too long, or ended with what they belong to (RFC 6062 §5.5).

use super::peer_end::PeerEnd;
use super::table::State;
use crate::allocation::Entry;
use crate::allocations::Allocations;
use crate::change::Change;
use crate::id::{AllocationId, ConnectionId, Family};
use crate::out::Out;
use crate::reject::Reject;
use crate::rules::Rules;
use crate::time::Time;

/// Records that a peer data connection is closed, and with it the client data connection that was joined with it.
pub(crate) fn peer_disconnected(
    connection: ConnectionId,
    cause: PeerEnd,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    if let Some(gone) = allocations.connections.remove(connection, cause) {
        out.changes.push_back(Change::PeerDisconnected {
            allocation: gone.allocation,
            connection,
            cause,
        });
    }
}

/// Ends the connections of an allocation that have waited too long.
pub(crate) fn expire_connections(
    allocation: AllocationId,
    now: Time,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let due: Vec<ConnectionId> = allocations
        .connections
        .of_allocation(allocation)
        .filter(|connection| {
            connection
                .deadline()
                .is_some_and(|deadline| deadline <= now)
        })
        .map(|connection| connection.lease.id())
        .collect();
    for connection in due {
        expire_connection(connection, rules, allocations, out);
    }
}

/// Ends one connection that has waited too long.
pub(super) fn expire_connection(
    connection: ConnectionId,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let state = allocations
        .connections
        .get(connection)
        .map(|held| &held.state);
    match state {
        None | Some(State::Bound) => {}
        Some(State::Connecting(_)) => {
            out.outbox.close_peer(connection);
            fail_connect(connection, PeerEnd::ConnectTimeout, rules, allocations, out);
        }
        Some(State::Failed(_)) => {
            fail_connect(connection, PeerEnd::ConnectFailed, rules, allocations, out)
        }
        Some(State::Unbound { .. }) => {
            out.outbox.close_peer(connection);
            peer_disconnected(connection, PeerEnd::BindTimeout, allocations, out);
        }
    }
}

/// Answers a Connect request whose connection could not be made (RFC 6062 §5.2).
pub(super) fn fail_connect(
    connection: ConnectionId,
    cause: PeerEnd,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(gone) = allocations.connections.remove(connection, cause) else {
        return;
    };
    if let State::Connecting(connecting) | State::Failed(connecting) = gone.state {
        let code = Reject::ConnectionFailed.code();
        // mutant: connect-unanswered
        out.reply_error(
            &rules.config,
            &connecting.envelope,
            connecting.key.as_ref(),
            code,
        );
    }
}

/// Ends the connections of an allocation, or those of one of its families (RFC 6062 §5.5).
pub(crate) fn end_connections(
    allocation: AllocationId,
    family: Option<Family>,
    cause: PeerEnd,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    for connection in allocations.connections.ids_of(allocation, family) {
        end_connection(connection, cause, rules, allocations, out);
    }
}

/// Ends the connections of an allocation with peers that the policy forbids.
pub(crate) fn enforce_policy_on_connections(
    allocation: AllocationId,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let user = allocations.table.at(allocation).map(Entry::user);
    let policy = user.map_or(&rules.policies.usual, |user| rules.policies.of(user));
    let forbidden: Vec<ConnectionId> = allocations
        .connections
        .of_allocation(allocation)
        .filter(|connection| policy.check(connection.peer.address()).is_err())
        .map(|connection| connection.lease.id())
        .collect();
    for connection in forbidden {
        end_connection(connection, PeerEnd::PeerForbidden, rules, allocations, out);
    }
}

fn end_connection(
    connection: ConnectionId,
    cause: PeerEnd,
    rules: &Rules,
    allocations: &mut Allocations,
    out: &mut Out,
) {
    let Some(gone) = allocations.connections.remove(connection, cause) else {
        return;
    };
    let waiting = match gone.state {
        State::Bound | State::Unbound { .. } => {
            out.outbox.close_peer(connection);
            out.changes.push_back(Change::PeerDisconnected {
                allocation: gone.allocation,
                connection,
                cause,
            });
            return;
        }
        State::Connecting(connecting) => {
            out.outbox.close_peer(connection);
            connecting
        }
        State::Failed(connecting) => connecting,
    };
    let reject = match cause {
        PeerEnd::PeerForbidden => Reject::Forbidden,
        PeerEnd::AllocationEnded
        | PeerEnd::BindTimeout
        | PeerEnd::ClientClosed
        | PeerEnd::ConnectFailed
        | PeerEnd::ConnectTimeout
        | PeerEnd::Duplicate
        | PeerEnd::Failed
        | PeerEnd::NoPermission
        | PeerEnd::PeerClosed
        | PeerEnd::RelayClosed
        | PeerEnd::ReplyQueueFull
        | PeerEnd::Stalled
        | PeerEnd::Stopped
        | PeerEnd::TooMany => Reject::AllocationMismatch,
    };
    out.reply_reject(
        &rules.config,
        &waiting.envelope,
        waiting.key.as_ref(),
        reject,
    );
}
