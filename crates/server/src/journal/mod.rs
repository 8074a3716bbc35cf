//! The bytes that an engine's changes are kept in, so that another process can make the same engine of them
//! ([`turnbuckle_engine::Engine::restore`]).

mod record;
pub mod segment;
#[cfg(test)]
mod tests;
