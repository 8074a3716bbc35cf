//! Metrics for Prometheus, and health (coturn inventory §1.11).

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::entry::{Group, Need};
use crate::findings::Findings;
use crate::host::resolve;
use crate::machine::Machine;
use crate::problem::{Origin, Problem};
use crate::row::{Row, Setting, Topic, each, file_path, flag, number, one};
use crate::topics::tls::Tls;
use crate::value::Kind;

/// Who may read metrics, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exporter {
    /// Whether metrics are served; [`Self::has_tls`] has them served too.
    pub is_on: bool,
    /// Whether metrics are served over TLS, and over nothing else.
    pub has_tls: bool,
    /// File with the certificate for that; without it that of the server. Given together with [`Self::key`] or not at all.
    pub certificate: Option<PathBuf>,
    /// File with the private key for that.
    pub key: Option<PathBuf>,
    /// The TCP port.
    pub port: u16,
    /// The address; `None` for every address of the machine.
    pub address: Option<IpAddr>,
    /// The path of the metrics.
    pub path: Box<str>,
    /// Whether traffic is told apart by user, not by realm alone.
    pub labels_users: bool,
    /// Whether the status page is served beside them.
    pub has_page: bool,
    /// Names that requests may give as their Host, besides IP addresses and `localhost`.
    pub hosts: Vec<Box<str>>,
}

impl Exporter {
    /// Returns whether metrics are served.
    #[must_use]
    pub fn is_served(&self) -> bool {
        self.is_on || self.has_tls
    }
}

impl Topic for Exporter {
    type Settings = Self;
}

/// The address as it was written, or what is wrong with the text, and where it stands.
#[derive(Default)]
pub(crate) struct GivenAddress(Option<(Result<String, String>, Origin)>);

impl GivenAddress {
    /// What stands for a line that is no text for an address.
    pub(crate) fn unusable(problem: Problem) -> Self {
        Self(Some((Err(problem.message), problem.origin)))
    }
}

impl Topic for GivenAddress {
    type Settings = Exporter;
}

/// The row of [`ADDRESS`], which is looked up.
pub(crate) const ADDRESS_ROWS: &[Row<GivenAddress>] = &[Row::new(
    "O-192",
    ADDRESS,
    Group::Prometheus,
    Kind::Address,
    "IP address or host name of the metrics, or `any` for every address of the machine. Of a name \
     with several addresses it is the first of IPv4, else the first.",
)
.default("127.0.0.1")
.coturn_default(
    "(any)",
    "metrics name realms and tell how busy the server is, without asking who reads them",
)
.turnserver_default(ANY)
.live()
.works(Setting {
    take: |given, written| {
        let (text, origin) = written.placed_text();
        given.0 = Some((Ok(text), origin));
        Ok(())
    },
    show: |exporter| match exporter.address {
        Some(address) => one(address),
        None => one(ANY),
    },
})];

/// The key of the address.
pub(crate) const ADDRESS: &str = "prometheus-address";
/// The word for every address of the machine.
const ANY: &str = "any";

type Key = Row<Exporter>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-190",
        "prometheus",
        Group::Prometheus,
        Kind::Flag,
        "Serves metrics for Prometheus, and health at /livez and /readyz, by HTTP.",
    )
    .default("false")
    .stricter("the value counts; coturn ignores it and always switches on")
    .always_on_in_coturn()
    .live()
    .works(flag!(is_on)),
    Key::new(
        "O-191",
        "prometheus-port",
        Group::Prometheus,
        Kind::Port,
        "TCP port of the metrics.",
    )
    .default("9641")
    .live()
    .works(number!(port)),
    Key::new(
        "O-193",
        "prometheus-path",
        Group::Prometheus,
        Kind::Text(255),
        "Path of the metrics.",
    )
    .default("/metrics")
    .stricter(
        "has to begin with a slash, is none of /, /livez and /readyz, and does not begin with \
         /status",
    )
    .live()
    .works(Setting {
        take: |exporter, written| {
            let path = written.value.text();
            let is_plain = path
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"?#%".contains(&byte));
            let is_taken =
                ["/", "/livez", "/readyz"].contains(&path) || path.starts_with("/status");
            if !path.starts_with('/') || !is_plain || is_taken {
                return Err(
                    "is no path for metrics; allowed: a slash and printable ASCII \
                     characters without ?, # and %, and not /, /livez, /readyz or what begins with \
                     /status"
                        .to_owned(),
                );
            }
            exporter.path = path.into();
            Ok(())
        },
        show: |exporter| one(&exporter.path),
    }),
    Key::new(
        "O-194",
        "prometheus-username-labels",
        Group::Prometheus,
        Kind::Flag,
        "Tells traffic apart by user too: the first 1,000 users by name, all others of a realm as \
         (other). Of a time-limited name it is the part without the time.",
    )
    .default("false")
    .stricter("the value counts, and names are bounded")
    .always_on_in_coturn()
    .live()
    .works(flag!(labels_users)),
    Key::new(
        "O-195",
        "prometheus-tls",
        Group::Prometheus,
        Kind::Flag,
        "Serves metrics, and what is beside them, over TLS 1.2 and 1.3 alone. Switches \
         `prometheus` on. It asks for no client certificate.",
    )
    .default("false")
    .stricter("a certificate that changes is read again")
    .live()
    .works(flag!(has_tls)),
    Key::new(
        "O-196",
        "prometheus-cert",
        Group::Prometheus,
        Kind::File,
        "Certificate for `prometheus-tls`, in PEM form, with those between it and an authority.",
    )
    .default("(cert)")
    .example("/etc/turnbuckle/metrics.pem")
    .needs(Need::MetricsTls)
    .live()
    .works(file_path!(certificate)),
    Key::new(
        "O-196",
        "prometheus-key",
        Group::Prometheus,
        Kind::File,
        "Private key for `prometheus-tls`, in PEM form. If it is encrypted, `pkey-pwd` is its \
         password.",
    )
    .default("(pkey)")
    .example("/etc/turnbuckle/metrics.key")
    .needs(Need::MetricsTls)
    .live()
    .works(file_path!(key)),
    Key::own(
        "O-196",
        "prometheus-host",
        Group::Prometheus,
        Kind::Text(253),
        "Name that a scraper may give as Host, besides IP addresses and localhost, against DNS \
         rebinding. By the name of turnserver every name is good while none is given, unless the \
         address is one of the loopback interface.",
    )
    .repeatable()
    .example("turn.example.org")
    .live()
    .works(Setting {
        take: |exporter, written| {
            exporter.hosts.push(written.value.text().into());
            Ok(())
        },
        show: |exporter| each(&exporter.hosts),
    }),
    Key::own(
        "O-196",
        "status-page",
        Group::Prometheus,
        Kind::Flag,
        "Serves a page at /status beside the metrics that shows sessions, datagrams, drops, \
         batches and certificates in a browser, drawn from /status.json. It names users, and \
         changes nothing.",
    )
    .default("false")
    .needs(Need::Metrics)
    .live()
    .works(flag!(has_page)),
];

/// Looks the address up. Where it is none, `turnserver` serves no metrics, as coturn does not: its default is every address, which is not what was
/// asked for.
pub(crate) fn find_address(
    given: GivenAddress,
    exporter: &mut Exporter,
    machine: &Machine,
    findings: &mut Findings,
) {
    let Some((text, origin)) = given.0 else {
        return;
    };
    match text.and_then(|text| address(&text, machine)) {
        Ok(found) => exporter.address = found,
        Err(message) => {
            let instead = "no metrics are served";
            findings.misfit(&origin, ADDRESS, message, instead);
            if exporter.is_served() {
                findings.raise();
            }
            exporter.is_on = false;
            exporter.has_tls = false;
            // Nobody listens there, and who looks at the setting alone does not take it for every address.
            exporter.address = Some(Ipv4Addr::LOCALHOST.into());
        }
    }
}

/// Returns the address that `text` names, of several the first of IPv4, as coturn takes it; `None` for every address.
fn address(text: &str, machine: &Machine) -> Result<Option<IpAddr>, String> {
    if text == ANY {
        return Ok(None);
    }
    let found = resolve(text, machine)?;
    let v4 = found.iter().find(|address| address.is_ipv4());
    Ok(v4.or_else(|| found.first()).copied())
}

/// Reports metrics over TLS without what TLS needs.
pub(crate) fn check(exporter: &Exporter, server: &Tls, findings: &mut Findings) {
    if !exporter.has_tls {
        return;
    }
    if exporter.certificate.is_some() != exporter.key.is_some() {
        let (given, missing) = match exporter.key {
            None => ("prometheus-cert", "prometheus-key"),
            Some(_) => ("prometheus-key", "prometheus-cert"),
        };
        findings.problem(given, format!("needs `{missing}`; give both or neither"));
    } else if exporter.certificate.is_none()
        && (server.certificate.is_none() || server.key.is_none())
    {
        findings.problem(
            "prometheus-tls",
            "needs `prometheus-cert` and `prometheus-key`, or `cert` and `pkey`; give one pair",
        );
    }
}
