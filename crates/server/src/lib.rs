//! The relay: engine joined to datapath, shards, counters.
#![forbid(unsafe_code)]

pub use turnbuckle_config as config;

mod asking;
mod binding;
mod clock;
#[cfg(test)]
mod configured;
mod control;
mod counters;
mod doctor;
pub mod handle;
mod journal;
mod links;
mod log;
mod offload;
mod process;
mod random;
mod resolve;
mod shard;
#[doc(hidden)]
pub mod simulation;
mod survive;
mod tls;
mod translate;
mod turnadmin;
mod users;

pub use control::{Configuration, ServeError, rehearse, serve, serve_and_reload};
pub use counters::{Accounting, AnswerCount, counters_page};
pub use doctor::{Examination, examine};
pub use log::{Output, Outputs, Seal, Sink, Summary};
pub use process::{detach, notify, say_panics_at_once};
pub use survive::{Survival, adopts, survive};
pub use turnadmin::turnadmin;

/// Reads the certificate and key that a configuration names, and says how long the certificate is good, or what is wrong with the
/// files; `None` if clients are shown no certificate.
#[must_use]
pub fn examine_certificate(config: &config::Config) -> Option<Result<String, String>> {
    tls::files::examine(&config.tls)
}
