//! Servers to compare: a command line each, with placeholders.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::scenario::Transport;

/// The servers that come with the program.
const SHIPPED: &str = include_str!("../servers.toml");

/// One server with its settings.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    pub(crate) name: String,
    /// A command line; see [`Values`] for the placeholders.
    pub(crate) command: String,
    /// The same with TCP, TLS and DTLS besides, for scenarios with such a transport.
    #[serde(default)]
    pub(crate) all_transports: Option<String>,
    /// Whether `command` opens tunnels of UDP in HTTP/3.
    #[serde(default)]
    pub(crate) tunnels: bool,
    /// By which clients come to it whatever the scenario says, so that transports can be compared.
    #[serde(default)]
    pub(crate) transport: Option<Transport>,
    /// A line of shell that prints which version it is.
    #[serde(default)]
    pub(crate) version: Option<String>,
    /// Signal that ends it.
    #[serde(default = "term")]
    pub(crate) stop: String,
    /// Scenarios that it cannot run, with the reason: reported, not tried.
    #[serde(default)]
    pub(crate) cannot: BTreeMap<String, String>,
}

impl Server {
    /// Returns by which transport clients come to it in a scenario by `transport`.
    pub(crate) fn transport(&self, transport: Transport) -> Transport {
        self.transport.unwrap_or(transport)
    }

    /// Returns its command line for a scenario by `transport`, if it has one.
    pub(crate) fn command(&self, transport: Transport) -> Option<&str> {
        match self.transport(transport) {
            Transport::Udp => Some(&self.command),
            Transport::Tcp | Transport::Tls | Transport::Dtls => self.all_transports.as_deref(),
            Transport::Masque => self.tunnels.then_some(&self.command),
        }
    }
}

fn term() -> String {
    "TERM".to_owned()
}

/// What placeholders stand for.
#[derive(Clone, Debug)]
pub(crate) struct Values(pub(crate) Vec<(&'static str, String)>);

impl Values {
    /// Splits into words and fills in.
    ///
    /// # Errors
    ///
    /// If a `{name}` is not known.
    pub(crate) fn words(&self, command: &str) -> Result<Vec<String>> {
        let words = shell_words::split(command).with_context(|| format!("`{command}`"))?;
        words
            .into_iter()
            .map(|word| self.fill(word).with_context(|| format!("`{command}`")))
            .collect()
    }

    pub(crate) fn fill(&self, text: String) -> Result<String> {
        let mut filled = text;
        for (name, value) in &self.0 {
            filled = filled.replace(&format!("{{{name}}}"), value);
        }
        if let Some(start) = filled.find('{')
            && let Some(len) = filled.get(start..).and_then(|rest| rest.find('}'))
        {
            let unknown = filled.get(start..=start + len).unwrap_or_default();
            let known: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
            bail!("no placeholder {unknown}; these are: {}", known.join(", "));
        }
        Ok(filled)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServersFile {
    server: Vec<Server>,
}

/// Returns the shipped servers, and those of a file, which replace shipped ones of the same name.
pub(crate) fn known(file: Option<&Path>) -> Result<Vec<Server>> {
    let mut servers = parse(SHIPPED).context("servers.toml")?;
    if let Some(path) = file {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        for server in parse(&text).with_context(|| path.display().to_string())? {
            servers.retain(|each| each.name != server.name);
            servers.push(server);
        }
    }
    Ok(servers)
}

fn parse(text: &str) -> Result<Vec<Server>> {
    let servers = toml::from_str::<ServersFile>(text)?.server;
    for server in &servers {
        for command in [&server.command].into_iter().chain(&server.all_transports) {
            shell_words::split(command)
                .with_context(|| format!("command of server {}", server.name))?;
        }
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn fills_placeholders_within_words_and_refuses_unknown_ones() {
        let values = Values(vec![
            ("listen", "10.0.0.1".to_owned()),
            ("user", "a b".to_owned()),
        ]);
        assert_eq!(
            values.words("srv -L {listen} 'u={user}'").expect("words"),
            ["srv", "-L", "10.0.0.1", "u=a b"]
        );
        let error = values.words("srv {lisen}").expect_err("an error");
        assert!(
            format!("{error:#}").contains("no placeholder {lisen}; these are: listen, user"),
            "{error:#}"
        );
    }

    #[test]
    fn the_shipped_servers_read_and_have_one_name_each() {
        let servers = known(None).expect("servers");
        let mut names: Vec<_> = servers.iter().map(|server| &server.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), servers.len());
    }

    /// Programs of other versions stand in for coturn, and print their arguments.
    #[test]
    fn coturn_is_told_to_listen_for_dtls_where_it_knows_how() {
        use std::os::unix::fs::PermissionsExt as _;
        use std::process::Command;

        let servers = known(None).expect("servers");
        let coturn = servers.iter().find(|server| server.name == "coturn");
        let command = coturn.and_then(|server| server.command(Transport::Dtls));
        let words = shell_words::split(command.expect("coturn speaks DTLS")).expect("words");
        let path = std::env::var("PATH").expect("a PATH");
        for (version, is_told) in [
            ("4.6.1", false),
            ("4.9.0", false),
            ("4.17.1", true),
            ("5.0", true),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let program = folder.path().join("turnserver");
            let script =
                format!("#!/bin/sh\n[ \"$1\" = --version ] && echo {version} || echo \"$@\"\n");
            std::fs::write(&program, script).expect("written");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&program, mode).expect("executable");
            let output = Command::new(&words[0])
                .args(&words[1..])
                .env("PATH", format!("{}:{path}", folder.path().display()))
                .output()
                .expect("it runs");
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(printed.contains("--lt-cred-mech"), "{version}: {output:?}");
            assert_eq!(printed.contains(" --dtls"), is_told, "{version}: {printed}");
        }
    }

    #[test]
    fn the_servers_that_a_scenario_names_are_there_and_speak_its_transport() {
        let servers = known(None).expect("servers");
        for scenario in Scenario::all_shipped().expect("scenarios") {
            for name in &scenario.servers {
                let server = servers.iter().find(|server| server.name == *name);
                let command = server.and_then(|server| server.command(scenario.transport));
                assert!(command.is_some(), "{}: {name}", scenario.name);
            }
        }
    }
}
