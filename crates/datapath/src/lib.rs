//! Placeholder module documentation; replaced by the crate's first code.
