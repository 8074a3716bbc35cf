//! Servers by TLS, and what each end proves itself with.

use std::net::TcpListener;
use std::sync::mpsc::channel;

use openssl::ssl::{SslAcceptor, SslFiletype, SslMethod, SslVerifyMode};
use openssl::x509::X509;
use turnbuckle_users::Connection;

use crate::server::Server;
use crate::{certificates, source};

#[test]
fn a_server_by_tls_must_prove_the_name_that_it_is_asked_for() {
    let Some(server) = Server::start_with_tls("db.example", "no", "TLSv1.3") else {
        return;
    };
    let words = server.words();
    let ca = server.path("ca.pem");
    let try_with = |more: &str| {
        let words = format!("{words} tls=true {more}");
        Connection::open(&source(&words)).and_then(|mut opened| opened.ask("r", "n"))
    };
    try_with(&format!("ca={ca} sni=db.example")).expect("proven");
    let authority = std::fs::read_to_string(&ca).expect("written");
    let own = folder_of(&server, "own", &authority);
    let other = folder_of(&server, "other", &certificates::stranger().0);
    try_with(&format!("capath={own} sni=db.example")).expect("proven");
    try_with("verify=none").expect("not asked to prove anything");
    // Its certificate is not good for the address that it is reached at.
    for wrong in [
        format!("ca={ca}"),
        format!("ca={ca} servername=other.example"),
        "sni=db.example".to_owned(),
        format!("capath={other} sni=db.example"),
    ] {
        let error = try_with(&wrong).expect_err(&wrong);
        assert!(error.is_permanent(), "{wrong}: {error}");
        assert!(
            error.to_string().contains("certificate"),
            "{wrong}: {error}"
        );
    }
    let error = try_with("ca=/nonexistent/ca.pem").expect_err("no such file");
    assert!(error.to_string().contains("/nonexistent/ca.pem"), "{error}");
}

/// Makes a folder in which the certificate of an authority is called by its hash, as OpenSSL looks for it.
fn folder_of(server: &Server, name: &str, authority: &str) -> String {
    let folder = server.path(name);
    let certificate = X509::from_pem(authority.as_bytes()).expect("a certificate");
    let file = format!("{folder}/{:08x}.0", certificate.subject_name_hash());
    std::fs::create_dir(&folder).expect("made");
    std::fs::write(file, authority).expect("written");
    folder
}

#[test]
fn a_server_by_tls_that_wants_a_certificate_is_given_that_of_the_words_and_refuses_others_and_none()
{
    // What a server thinks of a certificate it says at its place in the handshake, and from 1.3 on afterwards, when we may be writing already.
    for (version, says_all) in [("TLSv1.2", true), ("TLSv1.3", false)] {
        let Some(server) = Server::start_with_tls("db.example", "yes", version) else {
            return;
        };
        for (certificate, is_right) in [
            ("client", true),
            ("chain", true),
            ("stranger", false),
            ("", false),
        ] {
            let file = |end: &str| server.path(&format!("{certificate}.{end}"));
            let files = match certificate {
                "" => String::new(),
                _ => format!("cert={} clientkey={}", file("pem"), file("key")),
            };
            let (words, ca) = (server.words(), server.path("ca.pem"));
            let words = format!("{words} tls=true ca={ca} sni=db.example {files}");
            let opened = Connection::open(&source(&words));
            let asked = opened.and_then(|mut opened| opened.ask("r", "n"));
            assert_eq!(asked.is_ok(), is_right, "{words}: {asked:?}");
            if let Err(error) = asked
                && says_all
            {
                let text = error.to_string();
                assert!(
                    error.is_permanent() && text.contains("alert"),
                    "{words}: {text}"
                );
            }
        }
    }
}

#[test]
fn what_a_server_thinks_of_a_certificate_after_the_handshake_is_said() {
    let folder = tempfile::tempdir().expect("a directory");
    let (_, issuer) = certificates::authority();
    certificates::write(folder.path(), &issuer, "db.example");
    let file = |name: &str| folder.path().join(name);
    let mut acceptor = SslAcceptor::mozilla_modern_v5(SslMethod::tls_server()).expect("TLS");
    acceptor
        .set_private_key_file(file("key.pem"), SslFiletype::PEM)
        .expect("a key");
    acceptor
        .set_certificate_file(file("cert.pem"), SslFiletype::PEM)
        .expect("a certificate");
    acceptor.set_verify(SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT);
    let acceptor = acceptor.build();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its own").port();
    std::thread::scope(|scope| {
        let (tell, ended) = channel::<()>();
        scope.spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            let refused = acceptor.accept(stream).expect_err("no certificate");
            // Redis closes the connection, which may overtake what it has said.
            let _ = ended.recv();
            drop(refused);
        });
        let words = format!("ip=127.0.0.1 port={port} tls=true verify=none");
        let error = Connection::open(&source(&words)).err().expect("refused");
        drop(tell);
        let text = error.to_string();
        assert!(error.is_permanent(), "{text}");
        assert!(text.contains("certificate required"), "{text}");
    });
}
