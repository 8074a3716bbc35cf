//! The lines that coturn's programs print about an answer.

use std::net::SocketAddr;

use super::Reflection;
use crate::output::{self, Log};

/// Above and below what stands out.
const RULE: &str = "========================================";

/// Prints answers, and counts those of servers that say where they are.
pub(crate) struct ReflectionReport {
    log: Log,
    answers: u32,
}

impl ReflectionReport {
    pub(crate) fn start() -> Self {
        Self {
            log: Log::start(),
            answers: 0,
        }
    }

    /// Prints what a server answered to a request from `local`, which stunclient leaves out.
    pub(crate) fn answer(&mut self, reflection: &Reflection, local: Option<SocketAddr>) {
        if let Some(other) = reflection.other {
            self.answers += 1;
            output::line(&format!("\n{RULE}\nRFC 5780 response {}", self.answers));
            if local.is_some() {
                self.gateway(reflection);
            }
            if let Some(origin) = reflection.origin {
                self.address("Response origin: ", origin);
            }
            self.address("Other addr: ", other);
        }
        self.reflexive(reflection.xor_mapped);
        if let Some(local) = local {
            self.address("Local addr: ", local);
        }
    }

    /// Prints the address that a server saw.
    pub(crate) fn reflexive(&self, address: SocketAddr) {
        self.address("UDP reflexive addr", address);
    }

    /// Prints whether somebody on the way rewrites addresses that stand in the clear.
    fn gateway(&self, reflection: &Reflection) {
        match reflection.mapped {
            None => {}
            Some(mapped) if mapped == reflection.xor_mapped => {
                output::line("No ALG: Mapped == XOR-Mapped");
            }
            Some(mapped) => {
                output::line("-= ALG detected! Mapped and XOR-Mapped differ! =-");
                self.address("Mapped Address: ", mapped);
            }
        }
    }

    fn address(&self, name: &str, address: SocketAddr) {
        let family = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        let (ip, port) = (address.ip(), address.port());
        self.log.line(&format!("{family}. {name}: {ip}:{port}"));
    }
}

/// Prints what a test begins with.
pub(crate) fn title(text: &str) {
    output::line(&format!("\n-= {text} =-"));
}

/// Prints what a test found out.
pub(crate) fn verdict(text: &str) {
    output::line(&format!("\n{RULE}\n{text}\n{RULE}"));
}
