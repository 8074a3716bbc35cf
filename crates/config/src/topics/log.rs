//! The log (coturn inventory §1.10), and our own keys about counters.

pub(crate) mod form;
pub(crate) mod level;
pub(crate) mod syslog;

use std::path::PathBuf;
use std::time::Duration;

use self::form::{Form, LogFormat, Timestamps};
use self::level::Level;
use self::syslog::{Syslog, facility, facility_name};
use crate::choice::{Choice, chosen, kind_of, word};
use crate::entry::{Group, Need};
use crate::findings::Findings;
use crate::row::{Row, Setting, Topic, choice, file_path, flag, off, one, seconds};
use crate::value::Kind;

const STDOUT: &str = "log lines go to standard output; let the service manager keep them";

/// The settings of the log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    /// A line for each change of a session.
    pub sessions: bool,
    /// Lines about requests, besides those about sessions.
    pub requests: bool,
    /// Lines about Binding requests, where there are some about requests.
    pub binding: bool,
    /// Time between two lines of the requested counters.
    pub statistics_interval: Duration,
    /// File that receives all counters as JSON when the relay ends.
    pub statistics_file: Option<PathBuf>,
    /// Lines go to standard output.
    pub to_stdout: bool,
    /// Lines go to this file.
    pub file: Option<PathBuf>,
    /// Without such a file lines go to one in the first of coturn's directories that can be written to.
    pub usual_file: bool,
    /// The file's name holds the day, and each day has its own.
    pub is_dated: bool,
    /// The logs of the system, beside or in place of these.
    pub syslog: Syslog,
    /// Lines below this level are left out.
    pub level_min: Level,
    /// The form of a line.
    pub form: Form,
}

impl Log {
    /// Returns whether the end of each session is logged as a record of its own: every form has one but coturn's.
    #[must_use]
    pub fn has_summaries(&self) -> bool {
        self.form.format != LogFormat::Coturn || self.syslog.is_journal_used
    }

    /// Returns whether lines go to the same outputs in the same form.
    #[must_use]
    pub fn has_same_outputs(&self, other: &Self) -> bool {
        let of = |log: &Self| {
            let file = (log.file.clone(), log.usual_file, log.is_dated);
            (log.to_stdout, file, log.syslog, log.form.clone())
        };
        of(self) == of(other)
    }

    /// Returns whether lines about requests can occur at all.
    pub(crate) fn tells_requests(&self, findings: &Findings) -> bool {
        self.requests || (findings.is_lenient() && self.sessions)
    }
}

impl Topic for Log {
    type Settings = Self;
}

type Key = Row<Log>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-163",
        "verbose",
        Group::Process,
        Kind::Flag,
        "Logs each change of a session; turnserver logs each request too.",
    )
    .short('v')
    .default("false")
    .live()
    .works(flag!(sessions)),
    Key::new(
        "O-164",
        "Verbose",
        Group::Process,
        Kind::Flag,
        "As verbose, and logs each request and its answer.",
    )
    .short('V')
    .default("false")
    .stricter(
        "data is counted, not logged: a line for each packet would be slower than the packets",
    )
    .live()
    .works(flag!(requests)),
    Key::new(
        "O-165",
        "log-file",
        Group::Process,
        Kind::File,
        "File that log lines go to beside standard output, or one of the words stdout, - and \
         syslog. Its name gets the day.",
    )
    .short('l')
    .default("stdout")
    .coturn_default("(a file in /var/log)", STDOUT)
    .differs_as_serve_alone()
    .example("stdout")
    .live()
    .works(Setting {
        take: |log, written| {
            log.file = None;
            match written.value.text() {
                "stdout" | "-" => log.to_stdout = true,
                "syslog" => log.syslog.is_used = true,
                file => log.file = Some(file.into()),
            }
            Ok(())
        },
        show: |log| match &log.file {
            Some(file) => one(file.display()),
            None => one("stdout"),
        },
    }),
    Key::new(
        "O-166",
        "no-stdout-log",
        Group::Process,
        Kind::Flag,
        "No log lines on standard output.",
    )
    .default("false")
    .live()
    .works(Setting {
        take: |log, written| {
            log.to_stdout = !written.value.flag();
            Ok(())
        },
        show: |log| one(!log.to_stdout && !log.syslog.is_any_used()),
    }),
    Key::new(
        "O-167",
        "syslog",
        Group::Process,
        Kind::Flag,
        "Log lines go to syslog, and nowhere else.",
    )
    .default("false")
    .live()
    .works(Setting {
        take: |log, written| {
            if written.value.flag() {
                log.syslog.is_used = true;
                (log.to_stdout, log.file) = (false, None);
            }
            Ok(())
        },
        show: |log| one(log.syslog.is_used),
    }),
    Key::new(
        "O-168",
        "syslog-facility",
        Group::Process,
        Kind::Text(32),
        "Facility of syslog lines, such as LOG_LOCAL0.",
    )
    .default("LOG_DAEMON")
    .needs(Need::Syslog)
    .live()
    .works(Setting {
        take: |log, written| {
            let facility = facility(written.value.text());
            log.syslog.facility =
                facility.ok_or("is not the name of a facility, such as LOG_LOCAL0")?;
            Ok(())
        },
        show: |log| one(facility_name(log.syslog.facility)),
    }),
    Key::own(
        "O-168",
        "journald",
        Group::Process,
        Kind::Flag,
        "Log lines go to systemd's journal by its own protocol, with the fields of each session \
         that ends, and nowhere else.",
    )
    .default("false")
    .live()
    .works(Setting {
        take: |log, written| {
            if written.value.flag() {
                log.syslog.is_journal_used = true;
                (log.to_stdout, log.file) = (false, None);
            }
            Ok(())
        },
        show: |log| one(log.syslog.is_journal_used),
    }),
    Key::new(
        "O-169",
        "simple-log",
        Group::Process,
        Kind::Flag,
        "The log file has exactly the name given, and no other one tomorrow.",
    )
    .default("false")
    .needs(Need::LogFile)
    .live()
    .works(off!(is_dated)),
    Key::new(
        "O-170",
        "log-min-level",
        Group::Process,
        kind_of!(Level),
        "Lowest level of lines that are logged.",
    )
    .default("debug")
    .live()
    .works(choice!(level_min)),
    Key::new(
        "O-171",
        "new-log-timestamp",
        Group::Process,
        Kind::Flag,
        "Time of day and level before each line; off: seconds since the start and level.",
    )
    .default("(true for turnserver, else neither)")
    .coturn_default("true", "whoever collects standard output stamps the lines")
    .example("true")
    .turnserver_default("true")
    .live()
    .works(Setting {
        take: |log, written| {
            log.form.timestamps = match written.value.flag() {
                true => Timestamps::Format(Timestamps::ISO.into()),
                false => Timestamps::Elapsed,
            };
            Ok(())
        },
        show: |log| match log.form.timestamps {
            Timestamps::None => Vec::new(),
            Timestamps::Elapsed => one(false),
            Timestamps::Format(_) => one(true),
        },
    }),
    Key::new(
        "O-172",
        "new-log-timestamp-format",
        Group::Process,
        Kind::Text(128),
        "Form of the time of day, in the directives of strftime; %f is milliseconds.",
    )
    .default("(%FT%T.%f%z)")
    .example(Timestamps::ISO)
    .live()
    .works(Setting {
        take: |log, written| {
            log.form.timestamps = Timestamps::Format(written.value.text().into());
            Ok(())
        },
        show: |log| match &log.form.timestamps {
            Timestamps::Format(format) => one(format),
            Timestamps::None | Timestamps::Elapsed => Vec::new(),
        },
    }),
    Key::own(
        "O-172",
        "log-format",
        Group::Process,
        kind_of!(LogFormat),
        "Form of log lines: text as coturn writes it, an object of JSON, or RFC 5424. The last \
         two have a record for each session that ends.",
    )
    .default("coturn")
    .live()
    .works(Setting {
        take: |log, written| {
            log.form.format = chosen(written.value.text())?;
            Ok(())
        },
        show: |log| one(word(log.form.format)),
    }),
    Key::new(
        "O-173",
        "log-binding",
        Group::Process,
        Kind::Flag,
        "Logs Binding requests too, where requests are logged.",
    )
    .default("false")
    .stricter(
        "lines about clients that proved nothing stay below 10 KB/s together, and what was left \
         out is counted",
    )
    .needs(Need::RequestLines)
    .live()
    .works(flag!(binding)),
    Key::own(
        "O-182",
        "statistics-interval",
        Group::Process,
        Kind::number(1, 86_400, "seconds"),
        "Time between two prints of the counters that udp-recvmmsg-log and udp-sendmmsg-log ask \
         for.",
    )
    .default("10")
    .needs(Need::BatchCounters)
    .live()
    .works(seconds!(statistics_interval)),
    Key::own(
        "O-182",
        "statistics-file",
        Group::Process,
        Kind::File,
        "File that receives all counters as JSON when the relay ends.",
    )
    .default("(none)")
    .example("turnbuckle-statistics.json")
    .live()
    .works(file_path!(statistics_file)),
];

impl Choice for Level {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("debug", Self::Debug),
        ("info", Self::Info),
        ("warning", Self::Warning),
        ("error", Self::Error),
    ];
}

impl Choice for LogFormat {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("coturn", Self::Coturn),
        ("json", Self::Json),
        ("rfc5424", Self::Rfc5424),
    ];
}

/// Takes coturn's file where this is `turnserver` and nothing says where lines go.
pub(crate) fn complete(log: &mut Log, findings: &Findings) {
    log.usual_file =
        findings.is_lenient() && !findings.is_given("log-file") && !log.syslog.is_any_used();
}

/// Reports that lines go nowhere.
pub(crate) fn check(log: &Log, findings: &mut Findings) {
    if !log.to_stdout && log.file.is_none() && !log.usual_file && !log.syslog.is_any_used() {
        findings.problem(
            "no-stdout-log",
            "leaves lines nowhere to go; give `log-file`, `syslog` or `journald` too",
        );
    }
}
