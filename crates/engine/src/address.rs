//! Canonical peer addresses.
