//! Stateless nonces.
