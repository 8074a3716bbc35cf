//! One-to-one address translation in front of this machine.

use std::net::IpAddr;

use super::local::LaterAddresses;
use crate::findings::Findings;
use crate::host::{list, resolve, unfit_external};
use crate::machine::Machine;
use crate::problem::Origin;

/// A local address and the public address that a translator in front of this machine maps to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExternalAddress {
    /// The address that clients see.
    pub public: IpAddr,
    /// The address that sockets are bound to; same family as `public`.
    pub private: IpAddr,
}

/// Returns the translation of each relay address, and the public addresses that stand for all.
pub(crate) fn external_addresses(
    given: Vec<(String, Origin)>,
    relays: &[IpAddr],
    later: &LaterAddresses,
    machine: &Machine,
    findings: &mut Findings,
) -> (Vec<ExternalAddress>, Vec<IpAddr>) {
    let mut entries: Vec<ExternalAddress> = Vec::new();
    let mut of_all: Vec<IpAddr> = Vec::new();
    for (text, origin) in given {
        let text = text.trim();
        let added = match text.split_once('/') {
            Some((public, private)) => pair(public, private, relays, machine),
            None => {
                let fit = resolve(text, machine).unwrap_or_default().into_iter();
                of_all.extend(fit.filter(|public| unfit_external(*public).is_none()));
                single(text, relays, later, machine)
            }
        };
        match added {
            Ok(added) => {
                let is_taken =
                    |new: &ExternalAddress| entries.iter().any(|old| old.private == new.private);
                if let Some(double) = added.iter().find(|new| is_taken(new)) {
                    let message = format!("`{}` is mapped twice; allowed once", double.private);
                    findings.misfit(&origin, "external-ip", message, "the first one counts");
                } else {
                    entries.extend(added);
                }
            }
            Err(message) => {
                let instead = "passed over: relay addresses are told to clients without it";
                findings.misfit(&origin, "external-ip", message, instead);
            }
        }
    }
    (entries, of_all)
}

fn pair(
    public: &str,
    private: &str,
    relays: &[IpAddr],
    machine: &Machine,
) -> Result<Vec<ExternalAddress>, String> {
    let public = resolve(public, machine)?;
    let private = resolve(private, machine)?;
    let ([public], [private]) = (public.as_slice(), private.as_slice()) else {
        return Err("names a host with several addresses; write both addresses".to_owned());
    };
    if public.is_ipv4() != private.is_ipv4() {
        return Err("maps IPv4 to IPv6; allowed: two addresses of one family".to_owned());
    }
    if let Some(message) = unfit_external(*public) {
        return Err(message);
    }
    if !relays.contains(private) {
        return Err(format!(
            "private address `{private}` is not a relay address; allowed: {}",
            list(relays)
        ));
    }
    Ok(vec![ExternalAddress {
        public: *public,
        private: *private,
    }])
}

/// Maps one public address per family, for every relay address of that family except loopback.
fn single(
    text: &str,
    relays: &[IpAddr],
    later: &LaterAddresses,
    machine: &Machine,
) -> Result<Vec<ExternalAddress>, String> {
    // Whatever the machine gets later is mapped then.
    let has_none_yet = later.follows_relays && relays.iter().all(IpAddr::is_loopback);
    let mut entries = Vec::new();
    for public in resolve(text, machine)? {
        if let Some(message) = unfit_external(public) {
            return Err(message);
        }
        let fitting = relays
            .iter()
            .filter(|private| private.is_ipv4() == public.is_ipv4() && !private.is_loopback());
        let before = entries.len();
        entries.extend(fitting.map(|private| ExternalAddress {
            public,
            private: *private,
        }));
        if before == entries.len() && !has_none_yet {
            return Err(format!(
                "`{public}` would map no relay address: none of its family is there except \
                 loopback; give `relay-ip`"
            ));
        }
    }
    Ok(entries)
}
