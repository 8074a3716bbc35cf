//! Commands as they are typed.

/// What a command wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed<'a> {
    Nothing,
    Help,
    Quit,
    Drain,
    Stop,
    Configuration,
    /// Show the sessions of this realm alone; of all of them if it is empty.
    Realm(&'a str),
    /// The same of an origin.
    Origin(&'a str),
    Toggle(&'a str),
    Change(&'a str),
    Sessions {
        user: &'a str,
        is_whole: bool,
    },
    Users {
        protocol: &'a str,
    },
    ResetLog,
    Alternate {
        key: &'static str,
        /// The port where none is typed.
        port: u16,
        is_added: bool,
        server: &'a str,
    },
    Cancel(&'a str),
    Unknown,
}

/// Commands about alternate servers, their key, and its port.
const ALTERNATES: [(&str, &str, u16); 4] = [
    ("as", "alternate-server", 3478),
    ("tas", "tls-alternate-server", 5349),
    ("tcpas", "tcp-alternate-server", 3478),
    ("udpas", "udp-alternate-server", 3478),
];

impl<'a> Typed<'a> {
    /// Reads a command. As in coturn some have their argument behind a blank, and others begin with their name.
    pub(super) fn read(command: &'a str) -> Self {
        let argument = |name: &str| command.strip_prefix(name)?.strip_prefix(' ');
        match command.trim_end() {
            "" => return Self::Nothing,
            "?" | "h" | "help" => return Self::Help,
            "bye" | "quit" | "exit" | "q" => return Self::Quit,
            "drain" => return Self::Drain,
            "halt" | "shutdown" | "stop" => return Self::Stop,
            "pc" => return Self::Configuration,
            "ur" => return Self::Realm(""),
            "uo" => return Self::Origin(""),
            "pu" => return Self::Users { protocol: "" },
            // coturn writes a file where it is told to.
            dump if dump.starts_with("psd") => return Self::Unknown,
            _ => {}
        }
        if let Some(realm) = argument("sr") {
            return Self::Realm(realm);
        }
        if let Some(origin) = argument("so") {
            return Self::Origin(origin);
        }
        if let Some(protocol) = argument("pu") {
            return Self::Users {
                protocol: protocol.trim(),
            };
        }
        if let Some(number) = argument("cs") {
            return Self::Cancel(number.trim());
        }
        for (name, key, port) in ALTERNATES {
            for (verb, is_added) in [("a", true), ("d", false)] {
                if let Some(server) = argument(&format!("{verb}{name}")) {
                    return Self::Alternate {
                        key,
                        port,
                        is_added,
                        server: server.trim(),
                    };
                }
            }
        }
        let rest = |name| command.strip_prefix(name);
        if let Some(name) = rest("tc") {
            Self::Toggle(name.trim())
        } else if let Some(change) = rest("cc") {
            Self::Change(change.trim())
        } else if let Some(user) = rest("psp") {
            Self::Sessions {
                user: user_of(user),
                is_whole: false,
            }
        } else if let Some(user) = rest("ps") {
            Self::Sessions {
                user: user_of(user),
                is_whole: true,
            }
        } else if command.starts_with("lr") {
            Self::ResetLog
        } else {
            Self::Unknown
        }
    }
}

/// Returns the name behind blanks and a star, which stands for nothing.
fn user_of(text: &str) -> &str {
    let name = text.trim_start_matches(' ');
    name.strip_prefix('*').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_of_commands_is_known_by_its_names() {
        let sessions = |user, is_whole| Typed::Sessions { user, is_whole };
        let alternate = |key, port, is_added| Typed::Alternate {
            key,
            port,
            is_added,
            server: "h:1",
        };
        let all = [
            (&["?", "h", "help"][..], Typed::Help),
            (&["quit", "q", "exit", "bye"], Typed::Quit),
            (&["drain"], Typed::Drain),
            (&["stop", "shutdown", "halt"], Typed::Stop),
            (&["pc", "pc "], Typed::Configuration),
            (&["sr a b"], Typed::Realm("a b")),
            (&["ur", "sr "], Typed::Realm("")),
            (&["so http://h"], Typed::Origin("http://h")),
            (&["uo"], Typed::Origin("")),
            (&["tc stun-only", "tcstun-only"], Typed::Toggle("stun-only")),
            (&["tc"], Typed::Toggle("")),
            (&["cc max-bps 5"], Typed::Change("max-bps 5")),
            (&["ps", "ps ", "ps *"], sessions("", true)),
            (&["ps ann", "psann"], sessions("ann", true)),
            (&["psp an", "psp *an"], sessions("an", false)),
            (&["pu"], Typed::Users { protocol: "" }),
            (&["pu udp"], Typed::Users { protocol: "udp" }),
            (&["lr"], Typed::ResetLog),
            (&["aas h:1"], alternate("alternate-server", 3478, true)),
            (&["das h:1"], alternate("alternate-server", 3478, false)),
            (&["atas h:1"], alternate("tls-alternate-server", 5349, true)),
            (
                &["dtcpas h:1"],
                alternate("tcp-alternate-server", 3478, false),
            ),
            (
                &["audpas h:1"],
                alternate("udp-alternate-server", 3478, true),
            ),
            (&["cs 17"], Typed::Cancel("17")),
            (&[""], Typed::Nothing),
            (
                &["psd /etc/passwd", "sessions", "aas", "Ps"],
                Typed::Unknown,
            ),
        ];
        for (commands, typed) in all {
            for command in commands {
                assert_eq!(Typed::read(command), typed, "{command}");
            }
        }
    }
}
