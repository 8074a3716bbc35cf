//! Sending clients elsewhere: 300 (Try Alternate) to Allocate requests (RFC 8489 §10), and 403 while the server drains.
//!
//! A redirection goes only to a client that proved who it is, under its integrity key (RFC 8489 §14.8, V-14); where nobody can, because
//! no credentials are configured at all, it goes to everybody, within the budget for strangers, as a balancer's. Who redirects
//! everybody to an address of its own would send clients in circles, so a listener that is in the list serves.

use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use turnbuckle_wire::{IntegrityKey, Method};

use crate::command::Outcome;
use crate::engine::Engine;
use crate::id::Transport;
use crate::random::Random;
use crate::reject::TRY_ALTERNATE;
use crate::reply::Request;

/// Servers to send clients to, by the transport they come with. One that stands several times gets as many times the clients.
#[derive(Clone, Debug, Default)]
pub struct Redirection {
    /// For DTLS clients.
    pub dtls: Vec<Alternate>,
    /// For TCP clients.
    pub tcp: Vec<Alternate>,
    /// For TLS clients.
    pub tls: Vec<Alternate>,
    /// For UDP clients.
    pub udp: Vec<Alternate>,
    /// Listeners that serve whoever comes: a list may name them, as coturn's auxiliary servers.
    pub exempt: Vec<SocketAddr>,
}

/// A server to send clients to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alternate {
    /// Where it is.
    pub address: SocketAddr,
    /// The name in its certificate, if that is another one than this server's: at most 255 ASCII characters.
    pub domain: Option<Box<str>>,
}

impl Redirection {
    fn of(&self, transport: Transport) -> &[Alternate] {
        match transport {
            Transport::Dtls => &self.dtls,
            Transport::Tcp => &self.tcp,
            // mutant: redirection-of-another-transport
            Transport::Tls => &self.tls,
            Transport::Udp => &self.udp,
        }
    }
}

/// Whose turn it is, over all engines, by [`Transport`].
#[derive(Debug, Default)]
pub(crate) struct Rotation([AtomicUsize; 4]);

impl Rotation {
    fn advance(&self, transport: Transport) -> usize {
        let turn = match transport {
            Transport::Dtls => &self.0[0],
            Transport::Tcp => &self.0[1],
            Transport::Tls => &self.0[2],
            Transport::Udp => &self.0[3],
        };
        // mutant: redirection-takes-no-turns
        turn.fetch_add(1, Relaxed)
    }
}

impl<R: Random> Engine<R> {
    /// From now on Allocate requests get 403; what there is lives on, and retransmissions are answered (coturn's SIGUSR1).
    pub fn drain(&mut self) {
        // mutant: draining-lets-in
        self.is_draining = true;
    }

    /// Answers an Allocate request of a server that nobody can log in to with 300, where clients of its kind are to go elsewhere.
    pub(crate) fn redirect_stranger(&mut self, request: &Request<'_>) -> Option<Outcome> {
        // guard: V-14-stranger
        let is_balancer = !self.authenticator.has_credentials();
        if !is_balancer || request.message.method() != Method::ALLOCATE {
            return None;
        }
        let answer_len = self.redirect(request, None)?;
        Some(self.spend_unverified(request, answer_len))
    }

    /// Answers an Allocate request with 300 where clients of its kind are to go elsewhere. Returns the length of the answer.
    pub(crate) fn redirect(
        &mut self,
        request: &Request<'_>,
        key: Option<&IntegrityKey>,
    ) -> Option<usize> {
        let transport = request.from.transport;
        let alternates = self.config.redirection.of(transport);
        // guard: V-14-loop
        if alternates.is_empty() || self.serves_itself(alternates, request) {
            return None;
        }
        let turn = self.commons.rotation.advance(transport);
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
        let answer_len = self.write_error(&envelope, key, TRY_ALTERNATE, |writer| {
            writer.alternate_server(first.address);
            if let Some(other) = other {
                writer.alternate_server(other);
            }
            if let Some(domain) = first.domain.as_deref().filter(|_| knows_domains) {
                writer.alternate_domain(domain);
            }
        });
        Some(answer_len)
    }

    /// Whether the listener that `request` came to serves by itself: it redirects nobody, or is one of the alternates, by its own
    /// address or the one a NAT gives it.
    fn serves_itself(&self, alternates: &[Alternate], request: &Request<'_>) -> bool {
        let local = self.listener_address(request.from.listener);
        // mutant: redirection-of-exempt-listeners
        if self.config.redirection.exempt.contains(&local) {
            return true;
        }
        let relays = self.config.relays.iter();
        let external: Option<IpAddr> = relays
            .filter(|relay| relay.local == local.ip())
            .find_map(|relay| relay.external);
        let seen_as = external.map(|ip| SocketAddr::new(ip, local.port()));
        alternates
            .iter()
            .any(|alternate| alternate.address == local || Some(alternate.address) == seen_as)
    }
}
