//! The logs of the system: syslog and systemd's journal, by their sockets.
//!
//! Both sockets block while the daemon does not read, so each is written to by a thread of its own ([`super::outlet`]). A daemon that is gone costs
//! the lines that come until it is there again.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use super::entry::Entry;
use super::format::{Format, Header, cut, severity};

/// The socket of syslog.
pub(super) const SYSLOG: &str = "/dev/log";

/// The socket of the journal, by its own protocol.
pub(super) const JOURNAL: &str = "/run/systemd/journal/socket";

/// The socket of a daemon that may be started again.
struct Daemon {
    path: PathBuf,
    socket: Option<UnixDatagram>,
}

impl Daemon {
    /// Sends a datagram. If the socket that is open leads nowhere any more, to the daemon that is there now.
    ///
    /// # Errors
    ///
    /// No daemon listens.
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        if let Some(socket) = &self.socket
            && socket.send(datagram).is_ok()
        {
            return Ok(());
        }
        let socket = UnixDatagram::unbound()?;
        socket.connect(&self.path)?;
        socket.send(datagram)?;
        self.socket = Some(socket);
        Ok(())
    }
}

/// Syslog: records in the form of RFC 3164, which every daemon reads at its socket, or of RFC 5424.
pub(super) struct Syslog {
    daemon: Daemon,
    header: Header,
    format: Format,
}

impl Syslog {
    pub(super) fn new(path: impl Into<PathBuf>, header: Header, format: Format) -> Self {
        Self {
            daemon: Daemon {
                path: path.into(),
                socket: None,
            },
            header,
            format,
        }
    }

    /// Sends an entry.
    ///
    /// # Errors
    ///
    /// No daemon listens.
    pub(super) fn send(&mut self, entry: &Entry) -> io::Result<()> {
        let record = match &self.format {
            // The daemon knows the time.
            Format::Text(_) if entry.session.is_some() => return Ok(()),
            Format::Text(_) => self.old(entry, &cut(entry.message.clone())),
            Format::Json => match self.format.record(entry) {
                Some(object) => self.old(entry, &object),
                None => return Ok(()),
            },
            Format::Rfc5424(_) => self.format.record(entry).unwrap_or_default(),
        };
        self.daemon.send(record.as_bytes())
    }

    /// Returns a record in the form of RFC 3164, as programs write it to the socket: without time and host.
    fn old(&self, entry: &Entry, content: &str) -> String {
        let Header {
            facility, program, ..
        } = &self.header;
        let priority = facility * 8 + severity(entry.level);
        format!("<{priority}>{program}[{}]: {content}", std::process::id())
    }
}

/// The journal, by systemd's native protocol: a datagram of fields, and one of each for a session's.
pub(super) struct Journal {
    daemon: Daemon,
    header: Header,
}

impl Journal {
    pub(super) fn new(path: impl Into<PathBuf>, header: Header) -> Self {
        Self {
            daemon: Daemon {
                path: path.into(),
                socket: None,
            },
            header,
        }
    }

    /// Sends an entry.
    ///
    /// # Errors
    ///
    /// No journal listens.
    pub(super) fn send(&mut self, entry: &Entry) -> io::Result<()> {
        let mut datagram = Vec::new();
        let mut add = |name: &str, value: &str| add_field(&mut datagram, name, value);
        add("MESSAGE", &cut(entry.message.clone()));
        add("PRIORITY", &severity(entry.level).to_string());
        add("SYSLOG_FACILITY", &self.header.facility.to_string());
        add("SYSLOG_IDENTIFIER", self.header.program);
        for (name, value) in entry.session.iter().flat_map(|session| session.fields()) {
            let name = format!("TURN_{}", name.to_ascii_uppercase());
            add(&name, &value.text());
        }
        self.daemon.send(&datagram)
    }
}

/// Adds a field (systemd's "Native Journal Protocol"). A value that holds the end of a line is preceded by its length, so that it cannot be taken
/// for another field.
fn add_field(datagram: &mut Vec<u8>, name: &str, value: &str) {
    datagram.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        datagram.push(b'\n');
        datagram.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        datagram.push(b'=');
    }
    datagram.extend_from_slice(value.as_bytes());
    datagram.push(b'\n');
}
