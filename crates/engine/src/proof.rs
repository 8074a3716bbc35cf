//! Authentication of requests (RFC 8489 §9.2), and the answer to a request that is not authenticated.

use core::net::SocketAddr;
use std::sync::Arc;

use turnbuckle_wire::Method;

use crate::allocation::Entry;
use crate::allocations::Allocations;
use crate::auth::{Authenticator, Proof, Rejection};
use crate::command::{Outcome, Question};
use crate::credential::prepare_name;
use crate::drop_reason::DropReason;
use crate::mobility;
use crate::out::Out;
use crate::random::Random;
use crate::reject::Reject;
use crate::request::Request;
use crate::rules::Rules;
use crate::tcp;

/// RFC 8489 §14.8.
const STALE_NONCE: u16 = 438;
/// RFC 8489 §14.8.
const UNAUTHENTICATED: u16 = 401;

/// The answer to a datagram that is too short to be a client's first request. A challenge would be four times as long.
const TOO_SHORT: Reject = Reject::BadRequest("shorter than any first request of a client");

/// Finds out who sent a request.
pub(crate) fn authenticate(
    request: &Request<'_>,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &Allocations,
    random: &mut impl Random,
) -> Result<Proof, Rejection> {
    let path = (
        request.from.remote,
        rules.listeners.address(request.from.listener),
    );
    let proof = authenticate_on(request, path, rules, authenticator, allocations, random);
    let Err(rejection) = &proof else {
        return proof;
    };
    if rejection.code != STALE_NONCE {
        return proof;
    }
    let elsewhere = tcp::control_connection(request, rules).into_iter();
    for path in elsewhere.chain(mobility::paths_of_ticket(request, rules)) {
        if let Ok(proof) = authenticate_on(request, path, rules, authenticator, allocations, random)
        {
            return Ok(proof);
        }
    }
    proof
}

/// Authenticates a request whose nonce was issued to `client` at `listener`.
fn authenticate_on(
    request: &Request<'_>,
    (client, listener): (SocketAddr, SocketAddr),
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &Allocations,
    random: &mut impl Random,
) -> Result<Proof, Rejection> {
    let session = allocations.client(&request.from);
    let session = session
        .and_then(|id| allocations.table.at(id))
        .map(Entry::user);
    let holder = match (session, &rules.config.auth.third_parties) {
        (None, Some(_)) => tcp::token_holder(request, rules),
        _ => None,
    };
    let session = session.or(holder.as_ref());
    authenticator.authenticate_within(
        request.now,
        random,
        client,
        listener,
        &request.message,
        session,
    )
}

/// Answers a request that proved nothing.
pub(crate) fn challenge(
    request: &Request<'_>,
    rejection: &Rejection,
    rules: &Rules,
    out: &mut Out,
) -> Outcome {
    if let Some(question) = question(request, rejection) {
        return Outcome::Ask(question);
    }
    let message = &request.message;
    let is_guess = rejection.code == UNAUTHENTICATED
        && (message.has_integrity_sha256() || message.has_integrity_sha1());
    // guard: V-63-users
    if is_guess && rules.config.answers.are_users_due {
        return Outcome::Dropped(DropReason::UsersDue);
    }
    if rejection.challenge.is_some() && request.is_too_short_for_challenge() {
        let answer_len = out.reply_reject(&rules.config, &request.envelope(), None, TOO_SHORT);
        return out.spend_unverified(rules, request, answer_len);
    }
    let third_parties = rules.config.auth.third_parties.as_ref();
    let answer_len = out.write_error(
        &rules.config,
        &request.envelope(),
        None,
        rejection.code,
        |writer, _| {
            if let Some(challenge) = &rejection.challenge {
                writer
                    .realm(challenge.realm.as_bytes())
                    .nonce(challenge.nonce.as_bytes());
                if let Some(third_parties) = third_parties {
                    writer.third_party_authorization(third_parties.server_name().as_bytes());
                }
                if !challenge.password_algorithms.is_empty() {
                    writer.password_algorithms(challenge.password_algorithms);
                }
            }
        },
    );
    out.outbox.explain(rejection.why);
    match is_guess {
        true => out.spend_guess(rules, request, answer_len),
        false => out.spend_unverified(rules, request, answer_len),
    }
}

/// Returns whom a user database is to be asked about before a request is refused. A ConnectionBind request is never put off: what follows it
/// on its connection is for a peer, and its user has proven who it is on the control connection.
fn question(request: &Request<'_>, rejection: &Rejection) -> Option<Question> {
    if !request.may_ask
        || !rejection.may_be_asked
        || request.message.method() == Method::CONNECTION_BIND
    {
        return None;
    }
    let name = core::str::from_utf8(request.message.username().ok()??).ok()?;
    // No database has a user of another name, and some refuse the query: NUL is none of PostgreSQL's characters.
    prepare_name(name)
        .ok()
        .filter(|prepared| **prepared == *name)?;
    let challenge = rejection.challenge.as_ref()?;
    Some(Question {
        realm: Arc::clone(&challenge.realm),
        name: name.into(),
    })
}

/// Returns the error code that a request without a fresh nonce usually gets; `None` if it is answered without proof.
pub(crate) fn usual_refusal(request: &Request<'_>) -> Option<u16> {
    let message = &request.message;
    let has_integrity = message.has_integrity_sha256() || message.has_integrity_sha1();
    match message.method() {
        Method::BINDING => None,
        _ if has_integrity => Some(STALE_NONCE),
        _ => Some(UNAUTHENTICATED),
    }
}

/// Returns whether the source's budget is exhausted and this request cannot change that. Only a request with a fresh nonce can be
/// authenticated.
///
/// Checked before the users are looked up and an answer is signed, so that a flood does not cause that work.
pub(crate) fn is_refused_anyway(
    request: &Request<'_>,
    rules: &Rules,
    authenticator: &mut Authenticator,
    allocations: &Allocations,
) -> bool {
    let from = &request.from;
    if authenticator.is_guests(from.remote, &request.message) {
        return false;
    }
    let budget = &rules.commons.unverified;
    // A client that completed a handshake has a proven address. Only the number of its answers is limited.
    if from.transport.proves_address() || !budget.is_exhausted(request.now.time, from.remote.ip()) {
        return false;
    }
    let listener = rules.listeners.address(from.listener);
    let session = allocations.client(from);
    let session = session
        .and_then(|id| allocations.table.at(id))
        .map(Entry::user);
    !authenticator.has_fresh_nonce(
        request.now,
        from.remote,
        listener,
        &request.message,
        session,
    )
}
