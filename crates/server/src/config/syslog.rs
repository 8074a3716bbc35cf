//! The facilities of syslog by their names.

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

/// The facility where none is named.
pub(super) const DAEMON: u8 = 3;

/// The facility of this name.
pub(super) fn facility(name: &str) -> Option<u8> {
    let found = FACILITIES
        .iter()
        .position(|known| *known == name && !name.is_empty());
    found.and_then(|index| u8::try_from(index).ok())
}

/// The name of a facility.
pub(super) fn facility_name(facility: u8) -> &'static str {
    FACILITIES
        .get(usize::from(facility))
        .copied()
        .unwrap_or_default()
}
