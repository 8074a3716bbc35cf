//! What comes over a connection, cut into commands.
//!
//! coturn takes whatever one read brings for one command, whether a line ends there or not, and some clients never end a line. So a command is a
//! line here, or what nothing has followed for a moment. Telnet's negotiation (RFC 854) is taken out, and every option is refused (RFC 855).

/// Bytes of a command at most.
const COMMAND_LEN_MAX: usize = 1024;

/// Begins a telnet command.
const IAC: u8 = 255;
const DONT: u8 = 254;
const DO: u8 = 253;
const WONT: u8 = 252;
const WILL: u8 = 251;
/// Begins the parameters of an option; they end with `IAC` and [`SE`].
const SB: u8 = 250;
const SE: u8 = 240;

/// Methods that browsers and other clients of HTTP begin a request with.
const METHODS: [&str; 9] = [
    "CONNECT ", "DELETE ", "GET ", "HEAD ", "OPTIONS ", "PATCH ", "POST ", "PUT ", "TRACE ",
];

/// What is no command of anybody who means this console.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Foreign;

/// Where in a telnet command the input stands.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Telnet {
    #[default]
    Text,
    Command,
    Option(u8),
    Parameters,
    ParametersCommand,
}

/// What has come and is not a whole command yet.
#[derive(Default)]
pub(super) struct Input {
    telnet: Telnet,
    line: Vec<u8>,
    /// The last byte was a carriage return, which has ended a line.
    is_after_return: bool,
}

impl Input {
    /// Takes what has come. Commands go to `commands`, and answers to telnet's negotiation to `answers`.
    ///
    /// # Errors
    ///
    /// It is nothing that anybody types: another protocol, or a command without end.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        commands: &mut Vec<String>,
        answers: &mut Vec<u8>,
    ) -> Result<(), Foreign> {
        for &byte in bytes {
            match (self.telnet, byte) {
                (Telnet::Text, IAC) => self.telnet = Telnet::Command,
                (Telnet::Text, _) => self.take_text(byte, commands)?,
                (Telnet::Command, WILL | WONT | DO | DONT) => self.telnet = Telnet::Option(byte),
                (Telnet::Command, SB) => self.telnet = Telnet::Parameters,
                (Telnet::Command, _) => self.telnet = Telnet::Text,
                (Telnet::Option(verb), option) => {
                    match verb {
                        WILL => answers.extend([IAC, DONT, option]),
                        DO => answers.extend([IAC, WONT, option]),
                        // It is off as it has been.
                        _ => {}
                    }
                    self.telnet = Telnet::Text;
                }
                (Telnet::Parameters, IAC) => self.telnet = Telnet::ParametersCommand,
                (Telnet::Parameters, _) => {}
                (Telnet::ParametersCommand, SE) => self.telnet = Telnet::Text,
                (Telnet::ParametersCommand, _) => self.telnet = Telnet::Parameters,
            }
        }
        Ok(())
    }

    /// Returns whether something waits for its end.
    pub(super) fn is_waiting(&self) -> bool {
        !self.line.is_empty()
    }

    /// Returns what waits as a command, since nothing has followed.
    ///
    /// # Errors
    ///
    /// It is nothing that anybody types.
    pub(super) fn end(&mut self) -> Result<String, Foreign> {
        let line = String::from_utf8(std::mem::take(&mut self.line)).map_err(|_| Foreign)?;
        let line = line.trim_start_matches([' ', '\t']);
        // guard: V-16-console-http
        if METHODS.iter().any(|method| line.starts_with(method)) {
            return Err(Foreign);
        }
        Ok(line.to_owned())
    }

    fn take_text(&mut self, byte: u8, commands: &mut Vec<String>) -> Result<(), Foreign> {
        let is_after_return = std::mem::take(&mut self.is_after_return);
        match byte {
            // RFC 854: a carriage return has a line feed or a zero behind it.
            b'\n' | 0 if is_after_return => {}
            b'\n' | b'\r' => {
                self.is_after_return = byte == b'\r';
                commands.push(self.end()?);
            }
            b'\t' | b' '.. if byte != 127 && self.line.len() < COMMAND_LEN_MAX => {
                self.line.push(byte);
            }
            // guard: V-16-console-not-typed
            _ => return Err(Foreign),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the commands in `chunks`, and what is answered.
    fn taken(chunks: &[&[u8]]) -> Result<(Vec<String>, Vec<u8>, Input), Foreign> {
        let (mut input, mut commands, mut answers) = (Input::default(), Vec::new(), Vec::new());
        for chunk in chunks {
            input.take(chunk, &mut commands, &mut answers)?;
        }
        Ok((commands, answers, input))
    }

    #[test]
    fn lines_are_commands_however_they_come_and_end() {
        for chunks in [
            &[&b"ps alice\r\npc\r\n\r\n"[..]][..],
            &[b"ps ali", b"ce\r", b"\npc\n", b"\r", b"\0"],
            &[b"  ps alice\npc\n\t \r\0"],
        ] {
            let (commands, answers, input) = taken(chunks).ok().unwrap();
            assert_eq!(commands, ["ps alice", "pc", ""]);
            assert!(answers.is_empty() && !input.is_waiting());
        }
        let (commands, _, mut input) = taken(&[b"ps"]).ok().unwrap();
        assert!(commands.is_empty() && input.is_waiting());
        assert_eq!(input.end().as_deref(), Ok("ps"));
        assert!(!input.is_waiting());
    }

    #[test]
    fn every_option_of_telnet_is_refused_and_nothing_of_it_is_a_command() {
        let chunks: &[&[u8]] = &[
            &[IAC, WILL, 24, IAC, DO, 1, b'p', IAC],
            &[WONT, 3, IAC, SB, 24, 0, IAC],
            &[IAC, b'x', IAC, SE, b's', IAC, 241, b'\n'],
        ];
        let (commands, answers, _) = taken(chunks).ok().unwrap();
        assert_eq!(commands, ["ps"]);
        assert_eq!(answers, [IAC, DONT, 24, IAC, WONT, 1]);
    }

    #[test]
    fn what_nobody_types_is_foreign() {
        for bytes in [
            &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
            b"POST / HTTP/1.1\r\n",
            b"\x16\x03\x01\x02\x00",
            b"ps \x1b[2J\n",
            b"\xc3\x28\n",
            &[b'a'; COMMAND_LEN_MAX + 1],
        ] {
            assert!(taken(&[bytes]).is_err(), "{bytes:?}");
        }
        let (_, _, mut input) = taken(&[b"GET / HTTP/1.1"]).ok().unwrap();
        assert_eq!(input.end(), Err(Foreign), "without an end of line too");
        assert!(taken(&["ps w\u{f6}rld\n".as_bytes()]).is_ok());
    }
}
