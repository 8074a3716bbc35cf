//! Process, logging and signals (coturn inventory §1.10), and our own keys about them.

use std::time::Duration;

use crate::config::entry::{Entry, Group};
use crate::config::settings::{Level, Timestamps};
use crate::config::syslog::{DAEMON, facility, facility_name};
use crate::config::value::Kind;

use super::{flag, one};

const GROUP: Group = Group::Process;
const STDOUT: &str = "log lines go to standard output; let the service manager keep them";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new("O-160", "daemon", GROUP, Kind::Flag, "Goes to the background once it serves; what fails before that is said on the terminal and shows in the exit code.")
        .short('o')
        .default("false")
        .works(
            |draft, value, _| {
                draft.process.is_daemon = value.flag();
                Ok(())
            },
            |config| flag(config.process.is_daemon),
        ),
    Entry::new("O-161", "pidfile", GROUP, Kind::File, "File that holds the process id while the server runs.")
        .default("(none; /var/run/turnserver.pid for turnserver)")
        .stricter("of the other places that coturn tries only /var/spool, /var and the current directory, and only by turnserver: anybody could have put a link into /tmp")
        .works(
            |draft, value, _| {
                draft.process.pid_file = Some(value.text().into());
                Ok(())
            },
            |config| config.process.pid_file.iter().map(|path| path.display().to_string()).collect(),
        ),
    Entry::new("O-162", "proc-user", GROUP, Kind::Text(255), "User to become once sockets are open. Certificates and the user database have to be readable for it.")
        .default("(none)")
        .stricter("its own group is taken over too, unless proc-group names another one, and the supplementary groups are left")
        .works(
            |draft, value, _| {
                draft.process.user = Some(value.text().into());
                Ok(())
            },
            |config| config.process.user.iter().map(ToString::to_string).collect(),
        ),
    Entry::new("O-162", "proc-group", GROUP, Kind::Text(255), "Group to become once sockets are open.").default("(that of proc-user)").works(
        |draft, value, _| {
            draft.process.group = Some(value.text().into());
            Ok(())
        },
        |config| config.process.group.iter().map(ToString::to_string).collect(),
    ),
    Entry::new("O-163", "verbose", GROUP, Kind::Flag, "Logs each change of a session; turnserver logs each request too.").short('v').default("false").works(
        |draft, value, _| {
            draft.log.sessions = value.flag();
            Ok(())
        },
        |config| flag(config.log.sessions),
    ),
    Entry::new("O-164", "Verbose", GROUP, Kind::Flag, "As verbose, and logs each request and its answer.")
        .short('V')
        .default("false")
        .stricter("data is counted, not logged: a line for each packet would be slower than the packets")
        .works(
            |draft, value, _| {
                draft.log.requests = value.flag();
                Ok(())
            },
            |config| flag(config.log.requests),
        ),
    Entry::new("O-165", "log-file", GROUP, Kind::File, "File that log lines go to beside standard output, or one of the words stdout, - and syslog. Its name gets the day.")
        .short('l')
        .default("stdout")
        .coturn_default("(a file in /var/log)", STDOUT)
        .works(
            |draft, value, _| {
                let log = &mut draft.log;
                (log.file, log.usual_file) = (None, false);
                match value.text() {
                    "stdout" | "-" => log.to_stdout = true,
                    "syslog" => log.syslog = Some(draft.syslog_facility),
                    file => log.file = Some(file.into()),
                }
                Ok(())
            },
            |config| match &config.log.file {
                Some(file) => one(file.display()),
                None => one("stdout"),
            },
        ),
    Entry::new("O-166", "no-stdout-log", GROUP, Kind::Flag, "No log lines on standard output.").default("false").works(
        |draft, value, _| {
            draft.log.to_stdout = !value.flag();
            Ok(())
        },
        |config| flag(!config.log.to_stdout && config.log.syslog.is_none()),
    ),
    Entry::new("O-167", "syslog", GROUP, Kind::Flag, "Log lines go to syslog, and nowhere else.").default("false").works(
        |draft, value, _| {
            if value.flag() {
                let log = &mut draft.log;
                log.syslog = Some(draft.syslog_facility);
                (log.to_stdout, log.file, log.usual_file) = (false, None, false);
            }
            Ok(())
        },
        |config| flag(config.log.syslog.is_some()),
    ),
    Entry::new("O-168", "syslog-facility", GROUP, Kind::Text(32), "Facility of syslog lines, such as LOG_LOCAL0.").default("LOG_DAEMON").works(
        |draft, value, _| {
            draft.syslog_facility = facility(value.text()).ok_or("is not the name of a facility, such as LOG_LOCAL0")?;
            Ok(())
        },
        |config| one(facility_name(config.log.syslog.unwrap_or(DAEMON))),
    ),
    Entry::new("O-169", "simple-log", GROUP, Kind::Flag, "The log file has exactly the name given, and no other one tomorrow.")
        .default("false")
        .works(
            |draft, value, _| {
                draft.log.is_dated = !value.flag();
                Ok(())
            },
            |config| flag(!config.log.is_dated),
        ),
    Entry::new("O-170", "log-min-level", GROUP, Kind::Choice(&["debug", "info", "warning", "error"]), "Lowest level of lines that are logged.")
        .default("debug")
        .works(
            |draft, value, _| {
                let level = Level::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(value.text()));
                draft.log.level_min = level.unwrap_or(Level::Debug);
                Ok(())
            },
            |config| one(config.log.level_min.name().to_lowercase()),
        ),
    Entry::new("O-171", "new-log-timestamp", GROUP, Kind::Flag, "Time of day and level before each line; off: seconds since the start and level.")
        .default("(true for turnserver, else neither)")
        .coturn_default("true", "whoever collects standard output stamps the lines")
        .works(
            |draft, value, _| {
                draft.log.timestamps = match value.flag() {
                    true => Timestamps::Format(Timestamps::ISO.into()),
                    false => Timestamps::Elapsed,
                };
                Ok(())
            },
            |config| match config.log.timestamps {
                Timestamps::None => Vec::new(),
                Timestamps::Elapsed => flag(false),
                Timestamps::Format(_) => flag(true),
            },
        ),
    Entry::new("O-172", "new-log-timestamp-format", GROUP, Kind::Text(128), "Form of the time of day, in the directives of strftime; %f is milliseconds.")
        .default("(%FT%T.%f%z)")
        .works(
            |draft, value, _| {
                draft.log.timestamps = Timestamps::Format(value.text().into());
                Ok(())
            },
            |config| match &config.log.timestamps {
                Timestamps::Format(format) => one(format),
                Timestamps::None | Timestamps::Elapsed => Vec::new(),
            },
        ),
    Entry::new("O-173", "log-binding", GROUP, Kind::Flag, "Logs Binding requests too, where requests are logged.")
        .default("false")
        .stricter("lines about clients that proved nothing stay below 10 KB/s together, and what was left out is counted")
        .works(
            |draft, value, _| {
                draft.log.binding = value.flag();
                Ok(())
            },
            |config| flag(config.log.binding),
        ),
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
        .stricter("exactly the file named; no search in other directories, and a missing file is an error (turnserver searches as coturn does)")
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
