//! Certificates of clients, made anew for each test.

use std::path::Path;

use rcgen::{Issuer, KeyPair};

use crate::certificates::{called, of_authority, put, stranger};

/// Writes certificates into a folder, each with its key: `client`, `other`, who is called otherwise, `chain`, with the certificate of an authority below
/// the given one, and `stranger`, of an authority that nobody knows.
pub(crate) fn write(folder: &Path, issuer: &Issuer<'_, KeyPair>) {
    let write = |name: &str, issuer: &Issuer<'_, KeyPair>, common_name: &str, chain: &str| {
        let key = KeyPair::generate().expect("a key");
        let params = called(common_name);
        let certificate = params.signed_by(&key, issuer).expect("a certificate");
        let certificates = format!("{}{chain}", certificate.pem());
        put(&folder.join(name).with_extension("pem"), &certificates);
        put(
            &folder.join(name).with_extension("key"),
            &key.serialize_pem(),
        );
    };
    write("client", issuer, "client", "");
    write("other", issuer, "other", "");
    // Signed by one whose certificate the server does not have.
    let (params, key) = of_authority("an authority below it");
    let between = params.signed_by(&key, issuer).expect("a certificate");
    let between = (between.pem(), Issuer::new(params, key));
    write("chain", &between.1, "client", &between.0);
    write("stranger", &stranger().1, "client", "");
}
