//! Issuing and verifying nonces.
