//! Certificates for TLS and DTLS.

mod certificates;

pub(crate) use certificates::{Certificates, CurrentTls, current, suite_name};
