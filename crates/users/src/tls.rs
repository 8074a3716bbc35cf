//! What errors of TLS mean.

use std::error::Error;
use std::iter::successors;

use openssl::error::ErrorStack;

/// Returns whether TLS was not made with a server and will not be by itself: a certificate, a version or a name does not suit one of the two.
///
/// A server says what it thinks of our certificate after the handshake (RFC 8446 §4.4.2), so that the error may be one of reading.
pub(crate) fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let mut causes = successors(Some(error), |&cause| cause.source());
    causes.any(|cause| {
        let stack = cause.downcast_ref::<ErrorStack>();
        let first = stack.and_then(|stack| stack.errors().first());
        // A server that goes away in the middle is another matter.
        first.is_some_and(|first| first.reason() != Some("unexpected eof while reading"))
    })
}
