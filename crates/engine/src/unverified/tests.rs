//! Bounds on what unverified sources get.
