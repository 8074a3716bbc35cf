//! A budget for bytes sent to sources that proved nothing.

/// How many bytes such a source may be sent.
#[derive(Clone, Debug, Default)]
pub struct UnverifiedLimits {}
