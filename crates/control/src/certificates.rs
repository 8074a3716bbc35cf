//! The certificates that the relay has: whose they are and how long they are good.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
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

/// The files of certificates.
pub(crate) struct Certificates {
    files: Vec<PathBuf>,
    /// What they held, and when they were read.
    read: Mutex<Option<(Instant, Value)>>,
}

impl Certificates {
    pub(crate) fn new(files: Vec<PathBuf>) -> Self {
        Self {
            files,
            read: Mutex::default(),
        }
    }

    /// Returns what there is to be seen of each, which is at most a minute old.
    pub(crate) fn show(&self) -> Value {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, shown)) = &*read
            && when.elapsed() < FRESH
        {
            return shown.clone();
        }
        let shown: Value = self.files.iter().map(|file| describe(file)).collect();
        *read = Some((Instant::now(), shown.clone()));
        shown
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
    Ok(json!({
        "subject": subject,
        "names": names.take(NAMES_MAX).collect::<Vec<_>>(),
        "not_after": certificate.not_after().to_string(),
        "days_left": left.days,
    }))
}
