//! Process, logging and signals (coturn inventory §1.10), and our own keys about them.

use std::time::Duration;

use crate::config::entry::{Entry, Group};
use crate::config::value::Kind;

use super::{flag, one};

const GROUP: Group = Group::Process;
const STDOUT: &str = "log lines go to standard output; let the service manager keep them";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new("O-160", "daemon", GROUP, Kind::Flag, "Detaches from the terminal.")
        .short('o')
        .default("false")
        .only(&["false"], "the process stays in the foreground; start it from a service manager"),
    Entry::new("O-161", "pidfile", GROUP, Kind::File, "File for the process id.").default("(none)").not_yet("writing a process id file is"),
    Entry::new("O-162", "proc-user", GROUP, Kind::Text(255), "User to become once sockets are open.").not_yet("changing the user is"),
    Entry::new("O-162", "proc-group", GROUP, Kind::Text(255), "Group to become once sockets are open.").not_yet("changing the group is"),
    Entry::new("O-163", "verbose", GROUP, Kind::Flag, "Logs each change of a session.").short('v').default("false").works(
        |draft, value, _| {
            draft.log.sessions = value.flag();
            Ok(())
        },
        |config| flag(config.log.sessions),
    ),
    Entry::new("O-164", "Verbose", GROUP, Kind::Flag, "Logs each packet.")
        .short('V')
        .default("false")
        .only(&["false"], "logging each packet is not implemented yet"),
    Entry::new("O-165", "log-file", GROUP, Kind::File, "Where log lines go.")
        .short('l')
        .default("stdout")
        .coturn_default("(a file in /var/log)", STDOUT)
        .only(&["stdout", "-"], "log files are not implemented yet"),
    Entry::new("O-166", "no-stdout-log", GROUP, Kind::Flag, "No log lines on standard output.").default("false").only(&["false"], STDOUT),
    Entry::new("O-167", "syslog", GROUP, Kind::Flag, "Log lines go to syslog.").default("false").only(&["false"], "syslog is not implemented yet"),
    Entry::new("O-168", "syslog-facility", GROUP, Kind::Text(32), "Facility of syslog lines.").not_yet("syslog is"),
    Entry::new("O-169", "simple-log", GROUP, Kind::Flag, "Log file without process id, date and rotation.")
        .default("false")
        .no_effect("there are no log files in this version"),
    Entry::new("O-170", "log-min-level", GROUP, Kind::Choice(&["debug", "info", "warning", "error"]), "Lowest level of lines that are logged.")
        .default("debug")
        .only(&["debug"], "filtering by level is not implemented yet"),
    Entry::new("O-171", "new-log-timestamp", GROUP, Kind::Flag, "Time stamps in ISO 8601 form.")
        .default("true")
        .only(&["true"], "seconds since start are not implemented yet"),
    Entry::new("O-172", "new-log-timestamp-format", GROUP, Kind::Text(128), "Form of time stamps.").not_yet("other forms of time stamps are"),
    Entry::new("O-173", "log-binding", GROUP, Kind::Flag, "Logs Binding requests too.")
        .default("false")
        .only(&["false"], "logging Binding requests is not implemented yet"),
    Entry::new("O-178", "drain-min-allocations", GROUP, Kind::Integer { min: 0, max: u32::MAX, unit: "allocations" }, "SIGUSR1 drains the server: new allocations get 403, and it ends when it has no more than this number.")
        .default("0")
        .works(
            |draft, value, _| {
                draft.limits.drained = value.integer();
                Ok(())
            },
            |config| one(config.limits.drained),
        ),
    Entry::new("O-182", "version", GROUP, Kind::Flag, "Prints the version and ends.").command_line(),
    Entry::new("O-182", "help", GROUP, Kind::Flag, "Prints the options and ends.").short('h').command_line(),
    Entry::new("O-182", "config", GROUP, Kind::File, "File to read. Without it none is read.")
        .short('c')
        .stricter("exactly the file named; no search in other directories, and a missing file is an error")
        .command_line(),
    Entry::new("O-182", "no-config", GROUP, Kind::Flag, "Reads no file.").short('n').command_line(),
    Entry::new(
        "",
        "statistics-interval",
        GROUP,
        Kind::Integer { min: 1, max: 86_400, unit: "seconds" },
        "Time between two prints of the counters that udp-recvmmsg-log and udp-sendmmsg-log ask for.",
    )
    .default("10")
    .works(
        |draft, value, _| {
            draft.log.statistics_interval = Duration::from_secs(value.integer().into());
            Ok(())
        },
        |config| one(config.log.statistics_interval.as_secs()),
    ),
    Entry::new("", "statistics-file", GROUP, Kind::File, "File that receives all counters as JSON when the relay ends.").default("(none)").works(
        |draft, value, _| {
            draft.log.statistics_file = Some(value.text().into());
            Ok(())
        },
        |config| config.log.statistics_file.iter().map(|path| path.display().to_string()).collect(),
    ),
];
