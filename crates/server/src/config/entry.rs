//! What the option table says about one key.

use super::draft::Draft;
use super::problem::Origin;
use super::settings::Config;
use super::value::{Kind, Value};

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

    /// The heading.
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

/// Takes a value over into the draft; an error says what is wrong with the value, and does not repeat secrets.
pub(super) type Apply = fn(&mut Draft, &Value, &Origin) -> Result<(), String>;
/// Reads the effective values back; several for repeatable keys, none where nothing is set.
pub(super) type Show = fn(&Config) -> Vec<String>;

/// What this version does with a key.
#[derive(Debug, Clone, Copy)]
pub(super) enum Support {
    /// The key does what its documentation says.
    Works { apply: Apply, show: Show },
    /// Only these values are accepted, because they say what the server does anyway.
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
    /// The value that holds when nothing is written; empty if there is none. Words in parentheses describe a computed one.
    pub default: &'static str,
    /// May be written several times.
    pub is_repeatable: bool,
    /// Values are never printed.
    pub is_secret: bool,
    /// What the key does.
    pub doc: &'static str,
    /// Row of the coturn inventory; empty for keys of our own.
    pub row: &'static str,
    /// coturn's default where it is another one, and why ours differs.
    pub coturn_default: Option<(&'static str, &'static str)>,
    /// How this server is stricter than coturn about the key's values.
    pub stricter: Option<&'static str>,
    pub(super) support: Support,
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
    /// Only the named values are accepted; they are what the server does anyway.
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
    pub(super) const fn new(
        row: &'static str,
        name: &'static str,
        group: Group,
        kind: Kind,
        doc: &'static str,
    ) -> Self {
        Self {
            name,
            aliases: &[],
            short: None,
            group,
            kind,
            default: "",
            is_repeatable: false,
            is_secret: false,
            doc,
            row,
            coturn_default: None,
            stricter: None,
            support: Support::NotYet(""),
        }
    }

    pub(super) const fn short(mut self, letter: char) -> Self {
        self.short = Some(letter);
        self
    }

    pub(super) const fn aliases(mut self, names: &'static [&'static str]) -> Self {
        self.aliases = names;
        self
    }

    pub(super) const fn default(mut self, value: &'static str) -> Self {
        self.default = value;
        self
    }

    pub(super) const fn repeatable(mut self) -> Self {
        self.is_repeatable = true;
        self
    }

    pub(super) const fn secret(mut self) -> Self {
        self.is_secret = true;
        self
    }

    pub(super) const fn coturn_default(mut self, value: &'static str, why: &'static str) -> Self {
        self.coturn_default = Some((value, why));
        self
    }

    pub(super) const fn stricter(mut self, how: &'static str) -> Self {
        self.stricter = Some(how);
        self
    }

    pub(super) const fn works(mut self, apply: Apply, show: Show) -> Self {
        self.support = Support::Works { apply, show };
        self
    }

    pub(super) const fn only(
        mut self,
        values: &'static [&'static str],
        otherwise: &'static str,
    ) -> Self {
        self.support = Support::Only { values, otherwise };
        self
    }

    pub(super) const fn no_effect(mut self, why: &'static str) -> Self {
        self.support = Support::NoEffect(why);
        self
    }

    pub(super) const fn not_yet(mut self, what: &'static str) -> Self {
        self.support = Support::NotYet(what);
        self
    }

    pub(super) const fn refused(mut self, why: &'static str) -> Self {
        self.support = Support::Refused(why);
        self
    }

    pub(super) const fn command_line(mut self) -> Self {
        self.support = Support::CommandLine;
        self
    }

    /// How the key relates to coturn's.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.support {
            Support::Works { .. } | Support::CommandLine => match (self.row, self.stricter) {
                ("", _) => Status::New,
                (_, Some(how)) => Status::Stricter(how),
                _ => Status::Same,
            },
            Support::Only { values, otherwise } => Status::Limited { values, otherwise },
            Support::NoEffect(why) => Status::WithoutEffect(why),
            Support::NotYet(what) => Status::NotYet(what),
            Support::Refused(why) => Status::Refused(why),
        }
    }

    /// True for what acts on the command line only, such as `--help`.
    #[must_use]
    pub fn is_command_line(&self) -> bool {
        matches!(self.support, Support::CommandLine)
    }

    /// True if the key does what its documentation says.
    #[must_use]
    pub fn is_working(&self) -> bool {
        matches!(self.support, Support::Works { .. } | Support::CommandLine)
    }
}
