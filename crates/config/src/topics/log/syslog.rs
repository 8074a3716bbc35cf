//! The system's log, and its facilities by their names.

/// Whether lines go to syslog, and under which facility.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Syslog {
    /// Lines go there.
    pub is_used: bool,
    /// The facility that they are of, 0 to 23.
    pub facility: u8,
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
