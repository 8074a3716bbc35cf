//! The process as the system sees it (coturn inventory §1.10), and the keys that act on the command line alone.

use std::path::PathBuf;

use super::console::Console;
use super::exporter::{Exporter, GivenAddress};
use super::statsdb::StatsDatabase;
use crate::choice::{Choice, kind_of};
use crate::entry::Group;
use crate::row::{Row, Setting, Topic, choice, file_path, flag, one, text};
use crate::value::Kind;

/// Where `turnbuckle ctl` reaches the relay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ControlSocket {
    /// At `control.sock` in the directory that the service manager has made (`RUNTIME_DIRECTORY`, systemd.exec(5)), if it has made one.
    #[default]
    InRuntimeDirectory,
    /// Nowhere.
    Nowhere,
    /// At this path.
    At(PathBuf),
}

impl ControlSocket {
    /// Name of the socket in the runtime directory.
    pub const NAME: &str = "control.sock";

    const RUNTIME: &str = "runtime-directory";
    const NONE: &str = "none";
}

/// Whether calls outlive the process that relays them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Survive {
    /// Where that works.
    Auto,
    /// They end with it.
    #[default]
    Off,
    /// They do, or the server does not start.
    On,
}

impl Choice for Survive {
    const WORDS: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("auto", Self::Auto), ("on", Self::On)];
}

/// The process as the system sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    /// It goes to the background once it serves.
    pub is_daemon: bool,
    /// File that holds its number while it runs.
    pub pid_file: Option<PathBuf>,
    /// User to become once all sockets are open.
    pub user: Option<Box<str>>,
    /// Group to become.
    pub group: Option<Box<str>>,
    /// Whether its calls outlive it when it is killed.
    pub survive: Survive,
    /// Where it takes an operator's commands.
    pub control_socket: ControlSocket,
    /// SIGHUP has it read its configuration again.
    pub reloads_on_hangup: bool,
    /// Where it takes the commands of coturn's console.
    pub console: Console,
    /// What it shows of itself.
    pub exporter: Exporter,
    /// Whom it tells what happens to sessions.
    pub statsdb: StatsDatabase,
}

/// The given values about the process.
#[derive(Default)]
pub(crate) struct GivenProcess {
    pub(crate) settings: Process,
    /// To be looked up for [`Process::exporter`].
    pub(crate) metrics_address: GivenAddress,
}

impl Topic for Process {
    type Settings = Self;
}

type Key = Row<Process>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-160",
        "daemon",
        Group::Process,
        Kind::Flag,
        "Goes to the background once it serves; what fails before that is said on the terminal \
         and shows in the exit code.",
    )
    .short('o')
    .default("false")
    .works(flag!(is_daemon)),
    Key::new(
        "O-161",
        "pidfile",
        Group::Process,
        Kind::File,
        "File that holds the process id while the server runs.",
    )
    .default("(none; /var/run/turnserver.pid for turnserver)")
    .stricter(
        "of the other places that coturn tries only /var/spool, /var and the current directory, \
         and only by turnserver: anybody could have put a link into /tmp",
    )
    .example("/run/turnbuckle.pid")
    .turnserver_default("/var/run/turnserver.pid")
    .works(file_path!(pid_file)),
    Key::new(
        "O-162",
        "proc-user",
        Group::Process,
        Kind::Text(255),
        "User to become once sockets are open. Certificates and the user database have to be \
         readable for it.",
    )
    .default("(none)")
    .stricter(
        "its own group is taken over too, unless proc-group names another one, and the \
         supplementary groups are left",
    )
    .example("turnserver")
    .works(text!(user)),
    Key::new(
        "O-162",
        "proc-group",
        Group::Process,
        Kind::Text(255),
        "Group to become once sockets are open.",
    )
    .default("(that of proc-user)")
    .example("turnserver")
    .works(text!(group)),
    Key::own(
        "O-162",
        "control-socket",
        Group::Process,
        Kind::File,
        "Unix socket at which turnbuckle ctl reaches the server: a path, none, or \
         runtime-directory for control.sock in the directory that the service manager gives \
         ($RUNTIME_DIRECTORY), if it gives one. The owner and the group of the server may \
         connect.",
    )
    .default("runtime-directory")
    .works(Setting {
        take: |process, written| {
            process.control_socket = match written.value.text() {
                ControlSocket::RUNTIME => ControlSocket::InRuntimeDirectory,
                ControlSocket::NONE => ControlSocket::Nowhere,
                path => ControlSocket::At(path.into()),
            };
            Ok(())
        },
        show: |process| match &process.control_socket {
            ControlSocket::InRuntimeDirectory => one(ControlSocket::RUNTIME),
            ControlSocket::Nowhere => one(ControlSocket::NONE),
            ControlSocket::At(path) => one(path.display()),
        },
    }),
    Key::own(
        "O-162",
        "reload-on-hangup",
        Group::Process,
        Kind::Flag,
        "SIGHUP has the server read its configuration again, and not only begin log files anew.",
    )
    .default("true")
    .turnserver_default("false")
    .works(flag!(reloads_on_hangup)),
    Key::own(
        "O-162",
        "survive",
        Group::Process,
        kind_of!(Survive),
        "Whether calls by UDP go on when the relay process is killed or crashes: on has two \
         further processes that keep its sockets open and start the next one, which takes them \
         over, or the server does not start; auto the same where it works. Clients by TCP, TLS \
         and DTLS have to connect again.",
    )
    .default("off")
    .works(choice!(survive)),
    Key::new(
        "O-182",
        "version",
        Group::Process,
        Kind::Flag,
        "Prints the version and ends.",
    )
    .command_line(),
    Key::new(
        "O-182",
        "help",
        Group::Process,
        Kind::Flag,
        "Prints the options and ends.",
    )
    .short('h')
    .command_line(),
    Key::new(
        "O-182",
        "config",
        Group::Process,
        Kind::File,
        "File to read. Without it none is read.",
    )
    .short('c')
    .stricter(
        "exactly the file named; no search in other directories, and a missing file is an error \
         (turnserver searches as coturn does)",
    )
    .command_line(),
    Key::new(
        "O-182",
        "no-config",
        Group::Process,
        Kind::Flag,
        "Reads no file.",
    )
    .short('n')
    .command_line(),
];
