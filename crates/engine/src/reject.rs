//! The reasons why requests are refused, one to one with STUN error codes.

use crate::refusal::{Limit, Refusal};

/// The error codes of RFC 8489 §14.8, RFC 8656 §19 and RFC 6062 §6.3 that the engine itself answers with. The authenticator decides
/// those of authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reject {
    /// With a description of the error, because this code alone is not specific.
    BadRequest(&'static str),
    Forbidden,
    /// 403, because the server takes no new clients.
    Draining,
    /// 403, because of the address of the client.
    ClientDenied,
    MobilityForbidden,
    UnknownAttributes,
    AllocationMismatch,
    FamilyUnsupported,
    WrongCredentials,
    TransportUnsupported,
    PeerFamilyMismatch,
    ConnectionExists,
    ConnectionFailed,
    QuotaReached(Limit),
    InsufficientCapacity(Refusal),
    /// About a shared relay socket. The reason is always given, in coturn's words, because scripts look for it.
    Shared(SharedRefusal),
}

/// What is not to be had from relay sockets that allocations share (coturn's `multiplex-peer`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedRefusal {
    /// EVEN-PORT: there is one port.
    EvenPort,
    /// A peer beyond those that an allocation may have.
    Limit,
    /// A peer that another allocation has.
    Taken,
    /// RESERVATION-TOKEN: no port is ever reserved.
    Token,
}

impl SharedRefusal {
    const fn code(self) -> u16 {
        match self {
            Self::Taken | Self::Token => 400,
            Self::EvenPort | Self::Limit => 508,
        }
    }

    const fn phrase(self) -> &'static str {
        match self {
            Self::EvenPort => "EVEN-PORT is not supported with multiplex-peer",
            Self::Limit => "Allocation reached its multiplex-peer peer-endpoint limit",
            Self::Taken => "Peer address already used by another multiplex-peer allocation",
            Self::Token => "RESERVATION-TOKEN is not supported with multiplex-peer",
        }
    }
}

/// The code that sends a client to another server (RFC 8489 §10).
pub(crate) const TRY_ALTERNATE: u16 = 300;

impl Reject {
    pub(crate) const fn code(self) -> u16 {
        match self {
            Self::BadRequest(_) => 400,
            Self::Forbidden | Self::Draining | Self::ClientDenied => 403,
            Self::MobilityForbidden => 405,
            Self::UnknownAttributes => 420,
            Self::AllocationMismatch => 437,
            Self::FamilyUnsupported => 440,
            Self::WrongCredentials => 441,
            Self::TransportUnsupported => 442,
            Self::PeerFamilyMismatch => 443,
            Self::ConnectionExists => 446,
            Self::ConnectionFailed => 447,
            Self::QuotaReached(_) => 486,
            Self::InsufficientCapacity(_) => 508,
            Self::Shared(refusal) => refusal.code(),
        }
    }

    /// Returns what the operator is told beside the code; `None` where the code says it.
    pub(crate) const fn refusal(self) -> Option<Refusal> {
        match self {
            Self::BadRequest(what) => Some(Refusal::Malformed(what)),
            Self::Draining => Some(Refusal::Draining),
            Self::ClientDenied => Some(Refusal::ClientDenied),
            Self::QuotaReached(limit) => Some(Refusal::Limit(limit)),
            Self::InsufficientCapacity(refusal) => Some(refusal),
            Self::Forbidden
            | Self::MobilityForbidden
            | Self::UnknownAttributes
            | Self::AllocationMismatch
            | Self::FamilyUnsupported
            | Self::WrongCredentials
            | Self::TransportUnsupported
            | Self::PeerFamilyMismatch
            | Self::ConnectionExists
            | Self::ConnectionFailed
            | Self::Shared(_) => None,
        }
    }

    /// Returns the reason phrase. With `is_detailed` it is more specific than the code, where there is more to report.
    pub(crate) const fn phrase(self, is_detailed: bool) -> &'static str {
        if let Self::Shared(refusal) = self {
            return refusal.phrase();
        }
        if is_detailed && let Self::BadRequest(detail) = self {
            return detail;
        }
        reason_phrase(self.code())
    }
}

/// Returns the reason phrase of an error code (RFC 8489 §14.8, RFC 8656 §19, RFC 6062 §6.3).
pub(crate) const fn reason_phrase(code: u16) -> &'static str {
    match code {
        300 => "Try Alternate",
        400 => "Bad Request",
        401 => "Unauthenticated",
        403 => "Forbidden",
        405 => "Mobility Forbidden",
        420 => "Unknown Attribute",
        437 => "Allocation Mismatch",
        438 => "Stale Nonce",
        440 => "Address Family not Supported",
        441 => "Wrong Credentials",
        442 => "Unsupported Transport Protocol",
        443 => "Peer Address Family Mismatch",
        446 => "Connection Already Exists",
        447 => "Connection Timeout or Failure",
        486 => "Allocation Quota Reached",
        508 => "Insufficient Capacity",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8656 §19, RFC 8489 §14.8, RFC 6062 §6.3 and RFC 8016 §4 by number; a code of none of them would have no phrase here.
    //= TURN-119
    #[test]
    fn every_reason_to_refuse_has_the_code_and_the_phrase_that_are_registered_for_it() {
        let registered = [
            (Reject::BadRequest("why"), 400, "Bad Request"),
            (Reject::Forbidden, 403, "Forbidden"),
            (Reject::MobilityForbidden, 405, "Mobility Forbidden"),
            (Reject::UnknownAttributes, 420, "Unknown Attribute"),
            (Reject::AllocationMismatch, 437, "Allocation Mismatch"),
            (
                Reject::FamilyUnsupported,
                440,
                "Address Family not Supported",
            ),
            (Reject::WrongCredentials, 441, "Wrong Credentials"),
            (
                Reject::TransportUnsupported,
                442,
                "Unsupported Transport Protocol",
            ),
            (
                Reject::PeerFamilyMismatch,
                443,
                "Peer Address Family Mismatch",
            ),
            (Reject::ConnectionExists, 446, "Connection Already Exists"),
            (
                Reject::ConnectionFailed,
                447,
                "Connection Timeout or Failure",
            ),
            (
                Reject::QuotaReached(Limit::User(1)),
                486,
                "Allocation Quota Reached",
            ),
            (
                Reject::InsufficientCapacity(Refusal::ReservationUnknown),
                508,
                "Insufficient Capacity",
            ),
        ];
        for (reject, code, phrase) in registered {
            assert_eq!((reject.code(), reject.phrase(false)), (code, phrase));
        }
        let with_phrase: Vec<u16> = (0..=u16::MAX)
            .filter(|code| !reason_phrase(*code).is_empty())
            .collect();
        // Those above, and 300, 401 and 438 of RFC 8489.
        let expected = [
            300, 400, 401, 403, 405, 420, 437, 438, 440, 441, 442, 443, 446, 447, 486, 508,
        ];
        assert_eq!(with_phrase, expected);
    }
}
