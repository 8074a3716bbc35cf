//! Canonical forms and embeddings.
