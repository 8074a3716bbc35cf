//! Certificates of servers, made anew for each test.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, IsCa, Issuer, KeyPair};

/// Returns the certificate of an authority, and what it signs with.
pub(crate) fn authority() -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    (certificate.pem(), Issuer::new(params, key))
}

/// Writes `cert.pem` and `key.pem` of a server of this name or address into a folder, for the folder's owner.
pub(crate) fn write(folder: &Path, issuer: &Issuer<'_, KeyPair>, name: &str) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    // One that is called like its authority would be taken for one that has signed itself.
    params.distinguished_name = DistinguishedName::new();
    let certificate = params.signed_by(&key, issuer).expect("a certificate");
    let owner = std::fs::metadata(folder).expect("a folder");
    for (name, content) in [
        ("cert.pem", certificate.pem()),
        ("key.pem", key.serialize_pem()),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, content).expect("written");
        // PostgreSQL takes no key that others may read.
        let own = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, own).expect("set up");
        std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).expect("set up");
    }
}
