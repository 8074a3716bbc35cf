//! NAT behaviour discovery ([RFC 5780]): Binding answers that leave from another address or port, go to another port of the client's
//! address, or are as long as a datagram that gets fragmented.
//!
//! Each of these could serve to hit somebody else, hence three rules. An answer goes to the address the request came from, whatever
//! the port. PADDING for a source that proved nothing is no longer than the request's own (V-49). And all of it is charged to the
//! same budget as every other answer to such a source (V-40).
//!
//! [RFC 5780]: https://www.rfc-editor.org/rfc/rfc5780

use core::net::SocketAddr;

use turnbuckle_wire::ChangeRequest;

use crate::id::{ClientTuple, Endpoint};
use crate::reject::Reject;
use crate::request::Request;

/// The length of PADDING that takes an answer beyond the MTU of an Ethernet interface (RFC 5780 §7.6).
const PADDING_LEN: usize = 1500;

/// What stands in for one listener when a client asks for an answer from elsewhere (RFC 5780 §6).
///
/// Addresses are what clients see, where a translator maps one to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// The listener's own address and port, Da and Dp of RFC 5780 §6.1.
    pub origin: SocketAddr,
    /// The other address and the other port, Ca and Cp.
    pub other: SocketAddr,
    /// The sockets that answers leave from instead; `None` where clients come by connections, which answers cannot leave.
    pub alternates: Option<Alternates>,
}

/// Sockets that answers leave from in place of the one that received the request (RFC 5780 §6.1, table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternates {
    /// The other address, the same port.
    pub change_ip: Endpoint,
    /// The same address, the other port.
    pub change_port: Endpoint,
    /// The other address and the other port.
    pub change_both: Endpoint,
}

/// The way of the answer to one Binding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Which socket the answer leaves from, and where it goes.
    pub(crate) to: ClientTuple,
    /// Where it leaves from, as the client sees it.
    pub(crate) origin: SocketAddr,
    /// The address it would leave from if address and port were both changed, as the client sees it.
    pub(crate) other: SocketAddr,
    /// The length of PADDING, if there is to be some.
    pub(crate) padding_len: Option<usize>,
}

impl Discovery {
    /// Returns the way of the answer (RFC 5780 §6.1). `is_authenticated` is whether the request was authenticated.
    ///
    /// # Errors
    ///
    /// Attributes that exclude each other, that a connection cannot serve, or that cannot be read: 400.
    pub(crate) fn plan(
        &self,
        request: &Request<'_>,
        is_authenticated: bool,
    ) -> Result<Plan, Reject> {
        let is_proven = is_authenticated || request.from.transport.proves_address();
        let message = &request.message;
        let change = message
            .change_request()
            .map_err(|_| Reject::BadRequest("CHANGE-REQUEST malformed"))?;
        let response_port = message
            .response_port()
            .map_err(|_| Reject::BadRequest("RESPONSE-PORT malformed"))?;
        let padding = message.padding();
        // guard: V-49-both
        if padding.is_some() && response_port.is_some() {
            return Err(Reject::BadRequest("PADDING with RESPONSE-PORT"));
        }
        // Neither a connection nor a proxy's client can be reached from elsewhere, or elsewhere.
        // mutant: discovery-of-connections
        let is_bare = request.from == ClientTuple::udp(request.from.listener, request.from.remote);
        let alternates = self.alternates.filter(|_| is_bare);
        let mut plan = Plan {
            to: request.from,
            origin: self.origin,
            other: self.other,
            padding_len: padding.map(|padding| padding_len(padding, is_proven)),
        };
        if let Some(change) = change.filter(|change| *change != ChangeRequest::default()) {
            let alternates =
                alternates.ok_or(Reject::BadRequest("CHANGE-REQUEST impossible here"))?;
            if change.change_ip {
                plan.origin.set_ip(self.other.ip());
            }
            if change.change_port {
                // mutant: discovery-names-the-same-port
                plan.origin.set_port(self.other.port());
            }
            plan.to.listener = match (change.change_ip, change.change_port) {
                (true, true) => alternates.change_both,
                // mutant: discovery-by-the-wrong-socket
                (true, false) => alternates.change_ip,
                (false, _) => alternates.change_port,
            };
        }
        if let Some(port) = response_port {
            // mutant: discovery-answers-port-0
            if alternates.is_none() || port == 0 {
                return Err(Reject::BadRequest("RESPONSE-PORT impossible here"));
            }
            plan.to.remote.set_port(port);
        }
        Ok(plan)
    }
}

/// Returns the length of the PADDING that answers `padding`, in bytes.
fn padding_len(padding: &[u8], is_proven: bool) -> usize {
    // guard: V-49-padding
    if is_proven {
        PADDING_LEN
    } else {
        // mutant: padding-without-bound
        padding.len().min(PADDING_LEN).next_multiple_of(4)
    }
}
