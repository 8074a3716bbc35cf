//! The certificates that the relay has: whose they are, how long they are good, and whether clients accept them today.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::x509::X509;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Time after which the files are read again.
const FRESH: Duration = Duration::from_secs(60);

/// Names of a certificate that are shown.
const NAMES_MAX: usize = 8;

/// The certificates that clients of the relay are shown; none if it speaks neither TLS nor DTLS nor QUIC.
#[derive(Default)]
pub(crate) struct Certificates(Mutex<Files>);

/// Files of certificates.
#[derive(Default)]
struct Files {
    paths: Vec<PathBuf>,
    /// What they held, and when they were read.
    read: Option<(Instant, Value)>,
}

impl Certificates {
    /// Goes on with the files of another configuration.
    pub(crate) fn set_files(&self, paths: Vec<PathBuf>) {
        let mut files = self.files();
        if files.paths != paths {
            *files = Files { paths, read: None };
        }
    }

    /// Returns what there is to be seen of each, which is at most a minute old.
    pub(crate) fn show(&self) -> Value {
        let mut files = self.files();
        if let Some((when, shown)) = &files.read
            && when.elapsed() < FRESH
        {
            return shown.clone();
        }
        let shown: Value = files.paths.iter().map(|file| describe(file)).collect();
        files.read = Some((Instant::now(), shown.clone()));
        shown
    }

    /// Returns a line for each file whose certificate no client accepts today. The files are read now: a certificate that was renewed counts at once. One
    /// that cannot be read has no line, since the relay goes on with what it read before.
    pub(crate) fn faults(&self) -> Vec<String> {
        let paths = self.files().paths.clone();
        paths.iter().filter_map(|file| fault(file)).collect()
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns why a client does not accept the certificate in a file now, if that is so.
fn fault(file: &Path) -> Option<String> {
    let certificate = X509::from_pem(&fs::read(file).ok()?).ok()?;
    let now = Asn1Time::days_from_now(0).ok()?;
    let (begin, end) = (certificate.not_before(), certificate.not_after());
    let file = file.display();
    if end < now {
        Some(format!(
            "the certificate {file} has expired: {end}; clients refuse TLS, DTLS and QUIC, UDP and TCP are served"
        ))
    } else if begin > now {
        Some(format!(
            "the certificate {file} is not valid before {begin}; clients refuse TLS, DTLS and QUIC, UDP and TCP are served"
        ))
    } else {
        None
    }
}

/// Describes the first certificate of a file, or says why that cannot be done.
pub(crate) fn describe(file: &Path) -> Value {
    let described = match fs::read(file) {
        Ok(text) => X509::from_pem(&text)
            .and_then(|certificate| fields(&certificate))
            .map_err(|_| "holds no certificate in PEM form".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    let mut described = described.unwrap_or_else(|error| json!({ "error": error }));
    described["file"] = file.display().to_string().into();
    described
}

fn fields(certificate: &X509) -> Result<Value, ErrorStack> {
    let mut entries = certificate.subject_name().entries_by_nid(Nid::COMMONNAME);
    let subject = entries
        .next()
        .and_then(|entry| entry.data().to_string().ok())
        .unwrap_or_default();
    let names = certificate.subject_alt_names();
    let names = names.iter().flatten().filter_map(|name| {
        let address = || match name.ipaddress()? {
            bytes @ [_, _, _, _] => <[u8; 4]>::try_from(bytes).ok().map(std::net::IpAddr::from),
            bytes => <[u8; 16]>::try_from(bytes).ok().map(std::net::IpAddr::from),
        };
        let found = name.dnsname().map(str::to_owned);
        found.or_else(|| address().map(|address| address.to_string()))
    });
    let left = Asn1Time::days_from_now(0)?.diff(certificate.not_after())?;
    let since_1970 = Asn1Time::from_unix(0)?.diff(certificate.not_after())?;
    Ok(json!({
        "subject": subject,
        "names": names.take(NAMES_MAX).collect::<Vec<_>>(),
        "not_after": certificate.not_after().to_string(),
        "not_after_unix_s": i64::from(since_1970.days) * 86_400 + i64::from(since_1970.secs),
        "days_left": left.days,
    }))
}
