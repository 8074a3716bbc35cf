//! Redirection of clients to other servers: 300 (Try Alternate) to Allocate requests (RFC 8489 §10).
//!
//! A redirection goes only to a client that proved who it is, under its integrity key (RFC 8489 §14.8, V-14); where nobody can, because
//! no credentials are configured at all, it goes to everybody, within the budget for strangers, as a balancer's. Who redirects
//! everybody to an address of its own would send clients in circles, so a listener that is in the list serves.

pub(crate) mod alternates;

use core::net::{IpAddr, SocketAddr};

use turnbuckle_wire::{IntegrityKey, Method};

use self::alternates::Alternate;
use crate::auth::Authenticator;
use crate::command::Outcome;
use crate::id::Transport;
use crate::out::Out;
use crate::reject::TRY_ALTERNATE;
use crate::reply::Extent;
use crate::request::Request;
use crate::rules::Rules;

/// Answers an Allocate request of a server that nobody can log in to with 300, where clients of its kind are to go elsewhere.
pub(crate) fn redirect_stranger(
    request: &Request<'_>,
    rules: &Rules,
    authenticator: &Authenticator,
    out: &mut Out,
) -> Option<Outcome> {
    // guard: V-14-stranger
    let is_balancer = !authenticator.has_credentials();
    if !is_balancer || request.message.method() != Method::ALLOCATE {
        return None;
    }
    let answer_len = redirect(request, None, rules, out)?;
    Some(out.spend_unverified(rules, request, answer_len))
}

/// Answers an Allocate request with 300 where clients of its kind are to go elsewhere. Returns the length of the answer.
pub(crate) fn redirect(
    request: &Request<'_>,
    key: Option<&IntegrityKey>,
    rules: &Rules,
    out: &mut Out,
) -> Option<usize> {
    let transport = request.from.transport;
    let alternates = rules.config.redirection.of(transport);
    // guard: V-14-loop
    if alternates.is_empty() || serves_itself(alternates, request, rules) {
        return None;
    }
    let turn = rules.commons.rotation.advance(transport);
    let pick = |is_ipv4: bool| {
        let of_family = |alternate: &&Alternate| alternate.address.is_ipv4() == is_ipv4;
        let count = alternates.iter().filter(of_family).count();
        let mut of_family = alternates.iter().filter(of_family);
        of_family.nth(turn.checked_rem(count)?)
    };
    // mutant: redirection-to-the-other-family
    let is_ipv4 = request.from.remote.is_ipv4();
    let first = pick(is_ipv4).cloned()?;
    let other = pick(!is_ipv4).map(|alternate| alternate.address);
    // mutant: redirection-names-the-domain-to-all
    let knows_domains = matches!(transport, Transport::Tls | Transport::Dtls)
        && request.message.has_integrity_sha256();
    let envelope = request.envelope();
    // guard: V-14-proof
    let answer_len = out.write_error(
        &rules.config,
        &envelope,
        key,
        TRY_ALTERNATE,
        |writer, extent| {
            writer.alternate_server(first.address);
            // clients go to the first that they can reach (RFC 8489 §10)
            if let Some(other) = other.filter(|_| extent == Extent::Whole) {
                writer.alternate_server(other);
            }
            if let Some(domain) = first.domain.as_deref().filter(|_| knows_domains) {
                writer.alternate_domain(domain);
            }
        },
    );
    Some(answer_len)
}

/// Returns whether the listener that `request` came to serves requests itself. It does if it redirects nobody, or if it is one of
/// the alternates, by its own address or the one a NAT gives it.
fn serves_itself(alternates: &[Alternate], request: &Request<'_>, rules: &Rules) -> bool {
    let local = rules.listeners.address(request.from.listener);
    // mutant: redirection-of-exempt-listeners
    if rules.config.redirection.exempt.contains(&local) {
        return true;
    }
    let relays = rules.config.relays.all();
    let external: Option<IpAddr> = relays
        .filter(|relay| relay.local == local.ip())
        .find_map(|relay| relay.external);
    let seen_as = external.map(|ip| SocketAddr::new(ip, local.port()));
    alternates
        .iter()
        .any(|alternate| alternate.address == local || Some(alternate.address) == seen_as)
}
