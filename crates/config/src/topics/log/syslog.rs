//! The system's logs, and the facilities of syslog by their names.

/// Whether lines go to the system's logs, and under which facility.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Syslog {
    /// Lines go to syslog, by its socket.
    pub is_used: bool,
    /// Lines go to systemd's journal, by its own protocol.
    pub is_journal_used: bool,
    /// The facility that they are of, 0 to 23.
    pub facility: u8,
}

impl Syslog {
    /// Returns whether lines go to one of them.
    #[must_use]
    pub fn is_any_used(self) -> bool {
        self.is_used || self.is_journal_used
    }
}

/// Names of `syslog.h`; the place in the list is the number.
const FACILITIES: [&str; 24] = [
    "LOG_KERN",
    "LOG_USER",
    "LOG_MAIL",
    "LOG_DAEMON",
    "LOG_AUTH",
    "LOG_SYSLOG",
    "LOG_LPR",
    "LOG_NEWS",
    "LOG_UUCP",
    "LOG_CRON",
    "LOG_AUTHPRIV",
    "LOG_FTP",
    "",
    "",
    "",
    "",
    "LOG_LOCAL0",
    "LOG_LOCAL1",
    "LOG_LOCAL2",
    "LOG_LOCAL3",
    "LOG_LOCAL4",
    "LOG_LOCAL5",
    "LOG_LOCAL6",
    "LOG_LOCAL7",
];

/// Returns the facility of this name.
pub(crate) fn facility(name: &str) -> Option<u8> {
    let found = FACILITIES
        .iter()
        .position(|known| *known == name && !name.is_empty());
    found.and_then(|index| u8::try_from(index).ok())
}

/// Returns the name of a facility.
pub(crate) fn facility_name(facility: u8) -> &'static str {
    FACILITIES
        .get(usize::from(facility))
        .copied()
        .unwrap_or_default()
}
