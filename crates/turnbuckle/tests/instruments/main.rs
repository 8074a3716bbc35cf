//! The instruments as programs: what they count must be what happened.
#![expect(clippy::unwrap_used, reason = "tests")]

mod load;
mod peer;
mod program;
mod stand_in;
