//! When to pause before reading.
