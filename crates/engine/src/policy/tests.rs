//! Verdicts on addresses.
