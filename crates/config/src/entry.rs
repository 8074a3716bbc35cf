//! Properties of one key in the option table, for printing it and for checking text against it.

use crate::value::Kind;

/// Headings under which options are listed, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Listening, relay and external addresses and ports.
    Addresses,
    /// Threads and the UDP data path.
    Threads,
    /// Authentication, realms, nonces.
    Authentication,
    /// TLS and DTLS.
    Tls,
    /// Quotas, bandwidth, lifetimes.
    Limits,
    /// Peer access control.
    Peers,
    /// STUN behaviour and compatibility.
    Stun,
    /// Redirection of clients to other servers.
    Redirection,
    /// User databases.
    Databases,
    /// Process and logging.
    Process,
    /// Prometheus exporter.
    Prometheus,
    /// Telnet console.
    Console,
    /// Web administration.
    WebAdmin,
}

impl Group {
    /// All groups in order.
    pub const ALL: [Self; 13] = [
        Self::Addresses,
        Self::Threads,
        Self::Authentication,
        Self::Tls,
        Self::Limits,
        Self::Peers,
        Self::Stun,
        Self::Redirection,
        Self::Databases,
        Self::Process,
        Self::Prometheus,
        Self::Console,
        Self::WebAdmin,
    ];

    /// Returns the heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Addresses => "Listening, relay and external addresses",
            Self::Threads => "Threads and the UDP data path",
            Self::Authentication => "Authentication, realms, nonces",
            Self::Tls => "TLS and DTLS",
            Self::Limits => "Quotas, bandwidth, lifetimes",
            Self::Peers => "Peer access control",
            Self::Stun => "STUN behaviour and compatibility",
            Self::Redirection => "Redirection to other servers",
            Self::Databases => "User databases",
            Self::Process => "Process and logging",
            Self::Prometheus => "Prometheus",
            Self::Console => "Telnet console",
            Self::WebAdmin => "Web administration",
        }
    }
}

/// How far this version supports a key.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Support {
    /// The key does what its documentation says.
    Works,
    /// Only these values are accepted, because they describe what the server always does.
    Only {
        values: &'static [&'static str],
        otherwise: &'static str,
    },
    /// Accepted whatever the value, and nothing changes.
    NoEffect(&'static str),
    /// Part of coturn, not yet of this server.
    NotYet(&'static str),
    /// Refused for good.
    Refused(&'static str),
    /// Acts on the command line only (`--help` and the like).
    CommandLine,
}

/// When a value of a key holds that is new in a configuration that is read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reload {
    /// At once.
    Live,
    /// For allocations that begin from then on.
    NewSessions,
    /// When the server is started anew.
    Restart,
}

impl Reload {
    /// Returns the words for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "at once",
            Self::NewSessions => "new sessions",
            Self::Restart => "restart",
        }
    }
}

/// A condition without which a key has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Tls,
    Dtls,
    DtlsOrQuic,
    Quic,
    TcpRelays,
    Database,
    Secrets,
    RequestLines,
    LogFile,
    Syslog,
    BatchCounters,
    Metrics,
    MetricsTls,
    Console,
}

impl Need {
    /// All needs, in the order in which those that are not met are noted.
    pub(crate) const ALL: [Self; 14] = [
        Self::Tls,
        Self::Dtls,
        Self::DtlsOrQuic,
        Self::Quic,
        Self::TcpRelays,
        Self::Database,
        Self::Secrets,
        Self::RequestLines,
        Self::LogFile,
        Self::Syslog,
        Self::BatchCounters,
        Self::Metrics,
        Self::MetricsTls,
        Self::Console,
    ];

    /// Names the condition, as a note does after "without".
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Tls => "TLS or DTLS, which need `cert` and `pkey`",
            Self::Dtls => "`dtls`, `cert` and `pkey`",
            Self::DtlsOrQuic => "`dtls` or `quic`, `cert` and `pkey`",
            Self::Quic => "`quic`, `cert` and `pkey`",
            Self::TcpRelays => "`no-tcp-relay=false`",
            Self::Database => "`userdb`",
            Self::Secrets => "`use-auth-secret` or `static-auth-secret`",
            Self::RequestLines => "`Verbose`",
            Self::LogFile => "`log-file`",
            Self::Syslog => "`syslog`, `journald` or `log-format=rfc5424`",
            Self::BatchCounters => "`udp-recvmmsg-log` or `udp-sendmmsg-log`",
            Self::Metrics => "`prometheus`",
            Self::MetricsTls => "`prometheus-tls`",
            Self::Console => "`cli` and `cli-password`",
        }
    }
}

/// How coturn treats a key.
#[derive(Debug, Clone, Copy)]
pub struct Coturn {
    /// Row of the coturn inventory; empty for keys of our own.
    pub row: &'static str,
    /// Row of the inventory at which the key is listed: its own, or for a key of our own the one before it.
    pub(crate) place: &'static str,
    /// coturn's default where it is another one, and why ours differs.
    pub default: Option<(&'static str, &'static str)>,
    /// As `turnserver` the server does what coturn does by default, or notes what else.
    pub(crate) differs_as_serve_alone: bool,
    /// The value that holds when nothing is written and the server runs as `turnserver`, where it is another one.
    pub(crate) turnserver_default: Option<&'static str>,
    /// How this server is stricter than coturn about the key's values.
    pub stricter: Option<&'static str>,
    /// A flag that is on however it is written.
    pub(crate) is_always_on: bool,
}

/// One key of the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The key, which is also the long option.
    pub name: &'static str,
    /// Other names of the same key.
    pub aliases: &'static [&'static str],
    /// Letter on the command line.
    pub short: Option<char>,
    /// Where it is listed.
    pub group: Group,
    /// What values look like.
    pub kind: Kind,
    /// The value that holds when nothing is written, and a value for the sample file where that is none.
    pub values: Values,
    /// May be written several times.
    pub is_repeatable: bool,
    /// Values are never printed.
    pub is_secret: bool,
    /// What the key does.
    pub doc: &'static str,
    /// How coturn treats the key.
    pub coturn: Coturn,
    pub(crate) holds: Holds,
    pub(crate) support: Support,
}

/// When a value of a key has an effect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holds {
    /// Without this condition it has none.
    pub(crate) needs: Option<Need>,
    /// When it has one after a reload.
    pub(crate) reload: Reload,
}

/// Values of a key that are printed.
#[derive(Debug, Clone, Copy)]
pub struct Values {
    /// The value that holds when nothing is written; empty if there is none. Words in parentheses describe a computed one.
    pub default: &'static str,
    /// A value that would be accepted, where the default is none.
    pub(crate) example: &'static str,
}

impl Values {
    /// Returns the default if it can be written in a file, and is not only described.
    pub(crate) fn literal_default(&self) -> Option<&'static str> {
        let is_literal = !self.default.is_empty() && !self.default.starts_with('(');
        is_literal.then_some(self.default)
    }
}

/// How a key relates to coturn's key of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Works as in coturn.
    Same,
    /// Works as in coturn, and refuses or changes something for safety.
    Stricter(&'static str),
    /// Does not exist in coturn.
    New,
    /// Only the named values are accepted; they describe what the server always does.
    Limited {
        /// Values accepted.
        values: &'static [&'static str],
        /// Why others are refused.
        otherwise: &'static str,
    },
    /// Accepted, changes nothing.
    WithoutEffect(&'static str),
    /// Not in this version.
    NotYet(&'static str),
    /// Refused, with the reason.
    Refused(&'static str),
}

impl Entry {
    /// Returns the value that holds when nothing is written and the server runs as `turnserver`.
    pub(crate) fn turnserver_default(&self) -> &'static str {
        self.coturn
            .turnserver_default
            .unwrap_or(self.values.default)
    }

    /// Says how the key relates to coturn's.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.support {
            Support::Works | Support::CommandLine => {
                match (self.coturn.row, self.coturn.stricter) {
                    ("", _) => Status::New,
                    (_, Some(how)) => Status::Stricter(how),
                    _ => Status::Same,
                }
            }
            Support::Only { values, otherwise } => Status::Limited { values, otherwise },
            Support::NoEffect(why) => Status::WithoutEffect(why),
            Support::NotYet(what) => Status::NotYet(what),
            Support::Refused(why) => Status::Refused(why),
        }
    }

    /// Returns whether the key acts on the command line only, such as `--help`.
    #[must_use]
    pub fn is_command_line(&self) -> bool {
        matches!(self.support, Support::CommandLine)
    }

    /// Returns when a new value holds after a reload. Keys that have no value that could be another one have none.
    #[must_use]
    pub fn reload(&self) -> Option<Reload> {
        matches!(self.support, Support::Works).then_some(self.holds.reload)
    }

    /// Returns whether the key does what its documentation says.
    #[must_use]
    pub fn is_working(&self) -> bool {
        matches!(self.support, Support::Works | Support::CommandLine)
    }
}
