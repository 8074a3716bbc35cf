//! How a connection to PostgreSQL is made, which is libpq's way.

#[path = "support/certificates.rs"]
mod certificates;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "support/postgres.rs"]
mod postgres;
#[expect(dead_code, reason = "what is in the tables is for the others")]
mod support;

use turnbuckle_users::Connection;

use self::postgres::source;

#[test]
fn the_server_of_tls_is_proven_as_far_as_the_mode_says() {
    let (authority, issuer) = certificates::authority();
    let (stranger, _) = certificates::authority();
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(file("ca.pem"), authority).expect("written");
    std::fs::write(file("stranger.pem"), stranger).expect("written");
    let server = postgres::server_with(|folder| {
        certificates::write(folder, &issuer, "db.example.org");
        let file = |name: &str| folder.join(name).display().to_string();
        [
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", file("cert.pem")),
            format!("ssl_key_file={}", file("key.pem")),
        ]
        .into_iter()
        .flat_map(|option| ["-c".to_owned(), option])
        .collect()
    });
    let Some(server) = server else {
        return;
    };
    for (mode, host, ca, is_right) in [
        ("verify-full", "db.example.org", "ca.pem", true),
        ("verify-full", "other.example.org", "ca.pem", false),
        ("verify-full", "db.example.org", "stranger.pem", false),
        ("verify-ca", "other.example.org", "ca.pem", true),
        ("verify-ca", "db.example.org", "stranger.pem", false),
    ] {
        let words = format!(
            "hostaddr=127.0.0.1 host={host} sslmode={mode} sslrootcert={}",
            file(ca)
        );
        let error = Connection::open(&source(server.port, &words)).err();
        let is_permanent = error.as_ref().map(|error| error.is_permanent());
        let expected = (!is_right).then_some(true);
        assert_eq!(is_permanent, expected, "{words}: {error:?}");
    }
}

#[test]
fn without_tls_no_file_of_tls_is_read() {
    let Some(server) = postgres::server_with(|_| Vec::new()) else {
        return;
    };
    let words = "sslcert=/nothing/cert.pem sslkey=/nothing/key.pem";
    let without = source(server.port, words);
    assert!(Connection::open(&without).is_ok());
    let with = source(server.port, &format!("{words} sslmode=require"));
    let error = Connection::open(&with).err().expect("refused");
    assert!(
        error.to_string().contains("sslcert /nothing/cert.pem"),
        "{error}"
    );
}
