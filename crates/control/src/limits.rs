//! What every listener of the control side allows.

use std::time::Duration;

/// Time until the head of a request has to be there.
pub(crate) const HEAD: Duration = Duration::from_secs(5);

/// Time without accepting after it failed, for want of descriptors for example.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);
