//! Reads the certificate files again when they change, and logs the result.

use std::io::Write;
use std::time::{Duration, Instant};

use super::error::ServeError;
use crate::config::{Config, Persona, Tls};
use crate::tls::{Certificates, Prepared};

/// Time between two checks of the files.
const INTERVAL: Duration = Duration::from_secs(2);

/// The certificates of a server, if it speaks TLS or DTLS.
pub(super) struct FollowedCertificates {
    certificates: Option<Certificates>,
    next_look: Instant,
}

impl FollowedCertificates {
    /// Reads the files for the first time. When started as `turnserver`, files that cannot be used leave TLS, DTLS and QUIC out of
    /// the configuration, as they do in coturn.
    ///
    /// # Errors
    ///
    /// Which key of the configuration cannot be followed, and why.
    pub(super) fn load(config: &mut Config, out: &mut impl Write) -> Result<Self, ServeError> {
        let tls = &mut config.tls;
        let certificates = match tls.is_spoken().then(|| Certificates::load(tls)) {
            Some(Err(why)) if config.persona == Persona::Turnserver => {
                let _ = writeln!(
                    out,
                    "warning: TLS, DTLS and QUIC are not served until a restart: {why}"
                );
                (tls.certificate, tls.key) = (None, None);
                None
            }
            loaded => loaded.transpose().map_err(ServeError::new)?,
        };
        Ok(Self {
            certificates,
            next_look: Instant::now() + INTERVAL,
        })
    }

    pub(super) fn current(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns when [`Self::follow`] is due.
    pub(super) fn due(&self) -> Instant {
        self.next_look
    }

    /// Reads the files again if they have changed, once it is time to look.
    pub(super) fn follow(&mut self, now: Instant, out: &mut impl Write) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + INTERVAL;
        if let Some(result) = self.certificates.as_mut().and_then(Certificates::follow) {
            self.report(&result, out);
        }
    }

    /// Reads the files that other settings name, and changes nothing yet.
    ///
    /// # Errors
    ///
    /// Which key cannot be followed, and why.
    pub(super) fn prepare(&self, config: &Tls) -> Result<Option<Prepared>, String> {
        let is_spoken = self.certificates.is_some();
        is_spoken.then(|| Certificates::prepare(config)).transpose()
    }

    /// Uses what was prepared.
    pub(super) fn take(&mut self, prepared: Option<Prepared>, out: &mut impl Write) {
        if let Some((certificates, prepared)) = self.certificates.as_mut().zip(prepared) {
            certificates.take(prepared);
            self.say_validity(out);
        }
    }

    /// Reads the files again whether or not they have changed.
    ///
    /// # Errors
    ///
    /// Why the old ones stay, or that there are none.
    pub(super) fn reload(&mut self, out: &mut impl Write) -> Result<(), String> {
        let Some(certificates) = &mut self.certificates else {
            return Err("this server speaks no TLS".to_owned());
        };
        let result = certificates.reload();
        self.report(&result, out);
        result
    }

    fn report(&self, result: &Result<(), String>, out: &mut impl Write) {
        let _ = match result {
            Ok(()) => {
                let _ = writeln!(out, "certificates read again; new connections use them");
                self.say_validity(out);
                return;
            }
            Err(why) => writeln!(out, "warning: certificates not changed: {why}"),
        };
    }

    /// Returns a name that the certificate is for.
    pub(super) fn name(&self) -> Option<&str> {
        self.certificates.as_ref()?.name()
    }

    /// Says how long the certificate is good, if there is one.
    pub(super) fn say_validity(&self, out: &mut impl Write) {
        if let Some(certificates) = &self.certificates {
            let _ = writeln!(out, "{}", certificates.validity());
        }
    }
}
