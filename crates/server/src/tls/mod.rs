//! Certificates for TLS and DTLS.

mod certificates;
pub(crate) mod files;

pub(crate) use certificates::{Certificates, CurrentTls, Prepared, current, suite_name};
