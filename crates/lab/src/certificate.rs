//! The certificate of servers that speak TLS or DTLS: made where the server runs, for the run, by nobody that anybody trusts.

use anyhow::{Context as _, Result};

use crate::host::Host;
use crate::server::Server;

/// Returns the path for `{certificate}`, in the scratch directory.
pub(crate) fn certificate(tmp: &str) -> String {
    format!("{tmp}/certificate.pem")
}

/// Returns the path for `{key}`.
pub(crate) fn key(tmp: &str) -> String {
    format!("{tmp}/key.pem")
}

/// Makes certificate and key, ECDSA with P-256, if the server wants them and they are not there.
///
/// # Errors
///
/// What `openssl` says.
pub(crate) fn provide(relay: &Host, server: &Server, tmp: &str) -> Result<()> {
    let mut commands = [&server.command].into_iter().chain(&server.all_transports);
    if !commands.any(|command| command.contains("{certificate}")) {
        return Ok(());
    }
    let (certificate, key) = (certificate(tmp), key(tmp));
    relay
        .run(&format!(
            "mkdir -p {tmp} && {{ test -s {certificate} || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 \
             -subj /CN=turnbuckle-lab -keyout {key} -out {certificate}; }}"
        ))
        .context("no certificate for the server (openssl is needed)")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::CpuList;

    fn server(command: &str) -> Server {
        toml::from_str(&format!("name = 'x'\ncommand = '{command}'")).expect("a server")
    }

    #[test]
    fn a_certificate_is_made_once_and_only_for_who_wants_it() {
        let host = Host::new("here", &[], CpuList::all(1)).expect("a shell");
        let tmp = std::env::temp_dir().join(format!("turnbuckle-lab-test-{}", std::process::id()));
        let tmp = tmp.display().to_string();
        provide(&host, &server("x"), &tmp).expect("nothing to do");
        assert!(host.run(&format!("test -e {tmp}")).is_err());
        let read = || host.run(&format!("cat {} {}", certificate(&tmp), key(&tmp)));
        provide(&host, &server("x --cert {certificate}"), &tmp).expect("a certificate");
        let first = read().expect("both files");
        assert!(
            first.contains("BEGIN CERTIFICATE") && first.contains("PRIVATE KEY"),
            "{first}"
        );
        provide(&host, &server("x --cert {certificate}"), &tmp).expect("a certificate");
        assert_eq!(read().expect("both files"), first);
        host.run(&format!("rm -r {tmp}")).expect("removed");
    }
}
