//! Texts made from the option table: help, reference page, sample file, manual page.

mod about;
mod compatibility;
mod help;
mod man;
mod markdown;
mod sample;

pub use compatibility::compatibility;
pub use help::{help, help_one};
pub use man::man;
pub use markdown::markdown;
#[cfg(test)]
pub(crate) use sample::example;
pub use sample::sample;
