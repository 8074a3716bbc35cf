//! `turnbuckle probe quic`: the rules of QUIC (RFC 9000, 9001) that a server has to hold against clients that do not, tried against any of them.
//!
//! [`rules`] has what a connection is closed for, [`strangers`] what those get who have proven nothing, [`floods`] what a connection may be made to do
//! very often. The client is made by hand ([`link`], [`wire`]), because no stack sends any of it.

mod floods;
mod link;
mod rules;
mod strangers;
mod wire;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustls::pki_types::ServerName;
use turnbuckle_client::certificates::{Signatures, taking_any};
use turnbuckle_client::server_address;

use self::link::{Link, Offer};
use crate::output;
use crate::report::{Report, Verdict};

/// Command line of `turnbuckle probe quic`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// The server's address; its port is 3478 unless given
    #[arg(value_name = "ADDRESS[:PORT]", value_parser = server_address, required_unless_present = "list")]
    server: Option<SocketAddr>,
    /// The protocol that is asked for (ALPN)
    #[arg(long, value_name = "NAME", default_value = "h3")]
    alpn: String,
    /// The name that is asked for; its certificate is not checked
    #[arg(long, value_name = "NAME", default_value = "relay.example.org")]
    server_name: String,
    /// Frames of each flood
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    frames: u32,
    /// How long an answer may take, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(50..=60_000))]
    patience_ms: u32,
    /// Only the rows whose rule begins so, as in 'RFC 9000 §19'
    #[arg(long, value_name = "RULE", default_value = "")]
    only: String,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Print all rows, and end
    #[arg(long)]
    list: bool,
}

/// What all rows need.
struct Context {
    server: SocketAddr,
    offer: Offer,
    patience: Duration,
    frames: u32,
}

impl Context {
    /// Prepares a connection with the usual offer.
    fn link(&self) -> anyhow::Result<Link> {
        Link::new(self.server, &self.offer)
    }

    /// Shakes hands as a client should.
    fn connected(&self) -> Result<Link, Verdict> {
        let mut link = self.link().map_err(|error| unable(&error))?;
        match link.shake(self.patience) {
            true => Ok(link),
            false => Err(Verdict::Failed(format!(
                "a handshake by the rules failed: {}",
                said(&link)
            ))),
        }
    }

    /// Returns that the server held, if it still shakes hands.
    fn still_serves(&self, text: impl Into<String>) -> Verdict {
        match self.connected() {
            Ok(_) => Verdict::Held(text.into()),
            Err(verdict) => verdict,
        }
    }
}

/// One thing that is tried.
struct Row {
    /// The rule that it is about.
    rule: &'static str,
    what: &'static str,
    act: fn(&Context) -> Verdict,
}

fn rows() -> impl Iterator<Item = &'static Row> {
    rules::ROWS
        .iter()
        .chain(strangers::ROWS)
        .chain(floods::ROWS)
}

/// Runs it; the exit code says whether the server held.
///
/// # Errors
/// The server does not shake hands at all.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if arguments.list {
        for row in rows() {
            output::line(&format!("{:<18} {}", row.rule, row.what));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let Some(server) = arguments.server else {
        bail!("takes a server's address");
    };
    let started = Instant::now();
    let context = Context {
        server,
        offer: offer(&arguments.alpn, &arguments.server_name)?,
        patience: Duration::from_millis(arguments.patience_ms.into()),
        frames: arguments.frames,
    };
    if let Err(Verdict::Failed(text) | Verdict::NotTried(text)) = context.connected() {
        bail!(
            "{server} is no server of QUIC version 1 with {}: {text}",
            arguments.alpn
        );
    }
    let mut report = Report::default();
    for row in rows().filter(|row| row.rule.starts_with(&arguments.only)) {
        report.add(row.rule, row.what, None, (row.act)(&context));
    }
    let seconds = started.elapsed().as_secs_f64();
    if arguments.json {
        report.print_json(seconds);
    } else {
        report.print(seconds);
    }
    Ok(match report.is_clean() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Makes the offer of a client by the rules, which is as long the next time: it keeps no ticket and no word of the key share that the server prefers, with
/// which its first packet would be longer than 1,200 bytes.
fn offer(alpn: &str, server_name: &str) -> anyhow::Result<Offer> {
    let mut tls = taking_any(Signatures::Checked)?;
    tls.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let name = ServerName::try_from(server_name.to_owned());
    Ok(Offer {
        tls: Arc::new(tls),
        name: name.context("--server-name")?,
        parameters: rules::parameters(),
        names_source: true,
        has_parameters: true,
        id_len: 8,
        token: Vec::new(),
    })
}

/// Says what has become of a connection.
fn said(link: &Link) -> String {
    match link.seen.closed {
        Some((code, false)) => format!("closed with {code:#06x}"),
        Some((code, true)) => format!("closed by the application with {code:#06x}"),
        None if link.seen.datagrams_in == 0 => "nothing came".to_owned(),
        None => "it went on".to_owned(),
    }
}

fn unable(error: &anyhow::Error) -> Verdict {
    Verdict::NotTried(error.to_string())
}

#[cfg(test)]
mod tests {
    use openssl::asn1::Asn1Time;
    use openssl::hash::MessageDigest;
    use openssl::pkey::PKey;
    use openssl::x509::X509;
    use rustls::crypto::aws_lc_rs::default_provider;
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
    use rustls::quic::{ClientConnection, Connection, ServerConnection, Version};

    use super::*;

    /// Makes a server that gives tickets, and takes early data with them.
    fn server() -> Arc<rustls::ServerConfig> {
        let key = PKey::generate_ed25519().expect("a key");
        let mut made = X509::builder().expect("a certificate");
        let (from, to) = (Asn1Time::days_from_now(0), Asn1Time::days_from_now(1));
        made.set_version(2).expect("a version");
        made.set_pubkey(&key).expect("its key");
        made.set_not_before(&from.expect("a time")).expect("a time");
        made.set_not_after(&to.expect("a time")).expect("a time");
        made.sign(&key, MessageDigest::null()).expect("a signature");
        let chain = vec![CertificateDer::from(made.build().to_der().expect("bytes"))];
        let key = PrivatePkcs8KeyDer::from(key.private_key_to_pkcs8().expect("bytes"));
        let mut config = rustls::ServerConfig::builder_with_provider(default_provider().into())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("TLS 1.3")
            .with_no_client_auth()
            .with_single_cert(chain, key.into())
            .expect("certificate and key");
        config.alpn_protocols = vec![b"h3".to_vec()];
        config.max_early_data_size = u32::MAX;
        Arc::new(config)
    }

    /// Hands over what one side has to say, the bytes of each encryption level for themselves.
    fn carry(from: &mut Connection, to: &mut Connection) {
        loop {
            let mut bytes = Vec::new();
            let has_new_keys = from.write_hs(&mut bytes).is_some();
            to.read_hs(&bytes).expect("what the other side says");
            if bytes.is_empty() && !has_new_keys {
                return;
            }
        }
    }

    /// Makes a connection by the offer until the tickets have come. Returns how many bytes it begins with, and whether it offers early data.
    fn begun(offer: &Offer, server: &Arc<rustls::ServerConfig>) -> (usize, bool) {
        let (tls, name) = (Arc::clone(&offer.tls), offer.name.clone());
        let client = ClientConnection::new(tls, Version::V1, name, offer.parameters.clone());
        let mut client = Connection::from(client.expect("a client"));
        let server = Arc::clone(server);
        let server = ServerConnection::new(server, Version::V1, rules::parameters());
        let mut server = Connection::from(server.expect("a server"));
        let mut first = Vec::new();
        client.write_hs(&mut first);
        let has_early_keys = client.zero_rtt_keys().is_some();
        server.read_hs(&first).expect("a client's flight");
        for _ in 0..2 {
            carry(&mut server, &mut client);
            carry(&mut client, &mut server);
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        (first.len(), has_early_keys)
    }

    #[test]
    fn only_what_is_about_early_data_begins_with_a_ticket() {
        let (server, usual) = (
            server(),
            offer("h3", "relay.example.org").expect("an offer"),
        );
        let (first, _) = begun(&usual, &server);
        assert_eq!(begun(&usual, &server), (first, false));
        let keeping = rules::keeping_tickets(&usual);
        assert_eq!(begun(&keeping, &server), (first, false));
        let (with_ticket, has_early_keys) = begun(&keeping, &server);
        assert!(with_ticket > first && has_early_keys, "{with_ticket}");
    }
}
