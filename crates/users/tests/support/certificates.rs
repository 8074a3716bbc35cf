//! Certificates of servers, made anew for each test.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType};
use rcgen::{IsCa, Issuer, KeyPair};

/// Returns the certificate of an authority, and what it signs with.
pub(crate) fn authority() -> (String, Issuer<'static, KeyPair>) {
    authority_called("an authority of tests")
}

/// Returns the same of an authority that nobody trusts.
pub(crate) fn stranger() -> (String, Issuer<'static, KeyPair>) {
    authority_called("a stranger")
}

fn authority_called(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let (params, key) = of_authority(name);
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
    put(&folder.join("cert.pem"), &certificate.pem());
    put(&folder.join("key.pem"), &key.serialize_pem());
}

/// Returns what is to be the certificate of an authority, and its key.
pub(crate) fn of_authority(name: &str) -> (CertificateParams, KeyPair) {
    let mut params = called(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params, KeyPair::generate().expect("a key"))
}

/// Returns what is to be a certificate of this common name.
pub(crate) fn called(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// Writes a file for the owner of its folder alone: PostgreSQL takes no key that others may read.
pub(crate) fn put(path: &Path, content: &str) {
    std::fs::write(path, content).expect("written");
    let own = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, own).expect("set up");
    let owner = std::fs::metadata(path.parent().expect("a folder")).expect("a folder");
    std::os::unix::fs::chown(path, Some(owner.uid()), Some(owner.gid())).expect("set up");
}
