//! One connection: the password, then one command after the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout, timeout_at};

use super::input::{Foreign, Input};
use super::typed::Typed;
use super::{Console, change, pc, sessions};
use crate::asking::{ask, say};
use crate::limits::PAUSE;
use crate::pages::{Action, one_session};

/// Time after which what has come is a command although no line has ended.
const NOTHING_FOLLOWS: Duration = Duration::from_millis(50);

/// Time for the password.
const PASSWORD: Duration = Duration::from_secs(30);

/// Time between two commands.
const IDLE: Duration = Duration::from_secs(3600);

/// Time in which a reader has to take the next piece.
const READ: Duration = Duration::from_secs(10);

/// Bytes that are written together.
const PIECE_LEN: usize = 16 * 1024;

const ENTER_PASSWORD: &str = "Enter password: ";
const PROMPT: &str = "> ";

const HELP: &str = "
  ?, h, help - show this text
  quit, q, exit, bye - leave the console
  drain - take no new allocations, and end when few enough are left
  stop, shutdown, halt - end the relay
  pc - show the configuration
  sr <realm> - show sessions of this realm alone
  ur - show those of all realms
  so <origin> - show sessions of this origin alone
  uo - show those of all origins
  tc <param-name> - switch a parameter, one with (*) in pc
  cc <param-name> <param-value> - change a parameter, one with (**) in pc
  ps [username] - show sessions, of this user alone
  psp <usernamestr> - show sessions of users whose name has this in it
  pu [udp|tcp|dtls|tls] - show users and how many sessions each has
  lr - begin the log file anew
  aas, das <ip>[:port] - add and delete an alternate server
  atas, dtas <ip>[:port] - the same for TLS and DTLS clients
  atcpas, dtcpas <ip>[:port] - the same for TCP clients
  audpas, dudpas <ip>[:port] - the same for UDP clients
  cs <session-id> - end a session
";

/// The connection is over.
pub(super) struct Gone;

/// What a client sees.
pub(super) struct Screen {
    stream: TcpStream,
    waiting: String,
}

impl Screen {
    /// Writes a line. The end of a line is that of telnet (RFC 854), and what could be a command to a terminal is escaped.
    pub(super) async fn line(&mut self, line: &str) -> Result<(), Gone> {
        self.text(line);
        self.waiting.push_str("\r\n");
        match self.waiting.len() >= PIECE_LEN {
            true => self.flush().await,
            false => Ok(()),
        }
    }

    fn text(&mut self, text: &str) {
        for character in text.chars() {
            match character.is_control() {
                true => self.waiting.extend(character.escape_debug()),
                false => self.waiting.push(character),
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        let waiting = std::mem::take(&mut self.waiting);
        self.send(waiting.as_bytes()).await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        match timeout(READ, self.stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}

/// Who types, and what is to be shown.
pub(super) struct Visitor {
    client: SocketAddr,
    /// Sessions of this realm alone; of all realms if it is empty.
    pub(super) realm: String,
    /// The same of an origin.
    pub(super) origin: String,
}

impl Visitor {
    /// Writes into the log what is about to be changed.
    ///
    /// # Errors
    ///
    /// The log takes nothing now, and so nothing is to be changed.
    pub(super) async fn note(&self, console: &Console, what: &str) -> Result<(), String> {
        let line = format!("console: {}: {}", self.client, what.escape_debug());
        match say(&console.commands, &line).await {
            true => Ok(()),
            false => Err("the relay takes no command now".to_owned()),
        }
    }
}

/// What becomes of the connection after a command.
enum Then {
    GoOn,
    Leave,
    EndRelay,
}

/// Serves a connection until it ends.
pub(super) async fn converse(
    console: &Arc<Console>,
    stream: TcpStream,
    client: SocketAddr,
    stranger: OwnedSemaphorePermit,
) -> Result<(), Gone> {
    let mut visitor = Visitor {
        client,
        realm: String::new(),
        origin: String::new(),
    };
    let mut screen = Screen {
        stream,
        waiting: String::new(),
    };
    greet(&mut screen).await?;
    screen.line("").await?;
    screen.line("Type '?' for help").await?;
    screen.line(ENTER_PASSWORD).await?;
    screen.flush().await?;
    let mut input = Input::default();
    let mut stranger = Some(stranger);
    let mut deadline = tokio::time::Instant::now() + PASSWORD;
    loop {
        for command in read(&mut screen, &mut input, deadline).await? {
            if let Some(place) = stranger.take() {
                if command.is_empty() {
                    screen.waiting.push_str(PROMPT);
                    stranger = Some(place);
                } else if console.admits(&command) {
                    console.failures().forgive(client.ip());
                    let _ = visitor.note(console, "password right").await;
                    screen.waiting.push_str(PROMPT);
                } else {
                    let is_last = console.failures().note(client.ip(), Instant::now());
                    // guard: V-16-console-password
                    stranger = Some(place);
                    let line = format!("warning: console: {client}: password wrong");
                    say(&console.commands, &line).await;
                    if is_last {
                        return Err(Gone);
                    }
                    screen.line(ENTER_PASSWORD).await?;
                }
                continue;
            }
            match carry_out(console, &mut visitor, &mut screen, &command).await? {
                Then::GoOn => screen.waiting.push_str(PROMPT),
                Then::Leave => return screen.flush().await,
                Then::EndRelay => {
                    let flushed = screen.flush().await;
                    while console.commands.stop().is_err() {
                        sleep(PAUSE).await;
                    }
                    return flushed;
                }
            }
        }
        screen.flush().await?;
        if stranger.is_none() {
            deadline = tokio::time::Instant::now() + IDLE;
        }
    }
}

async fn greet(screen: &mut Screen) -> Result<(), Gone> {
    screen.line("TURN Server").await?;
    let version = concat!("Turnbuckle-", env!("CARGO_PKG_VERSION"));
    screen.line(version).await
}

/// Waits for commands until a deadline.
async fn read(
    screen: &mut Screen,
    input: &mut Input,
    deadline: tokio::time::Instant,
) -> Result<Vec<String>, Gone> {
    let mut bytes = [0; 2048];
    let (mut commands, mut answers) = (Vec::new(), Vec::new());
    while commands.is_empty() {
        let until = match input.is_waiting() {
            true => tokio::time::Instant::now() + NOTHING_FOLLOWS,
            false => deadline,
        };
        match timeout_at(until, screen.stream.read(&mut bytes)).await {
            Ok(Ok(length @ 1..)) => {
                input.take(&bytes[..length], &mut commands, &mut answers)?;
                screen.send(&std::mem::take(&mut answers)).await?;
            }
            // Nothing follows, also because the client has ended its side.
            Ok(Ok(_)) | Err(_) if input.is_waiting() => commands.push(input.end()?),
            _ => return Err(Gone),
        }
    }
    Ok(commands)
}

impl From<Foreign> for Gone {
    fn from(_: Foreign) -> Self {
        Self
    }
}

async fn carry_out(
    console: &Arc<Console>,
    visitor: &mut Visitor,
    screen: &mut Screen,
    command: &str,
) -> Result<Then, Gone> {
    let done = match Typed::read(command) {
        Typed::Nothing => Ok(()),
        Typed::Help => {
            greet(screen).await?;
            for line in HELP.lines() {
                screen.line(line).await?;
            }
            Ok(())
        }
        Typed::Quit => {
            screen.line("Bye !").await?;
            return Ok(Then::Leave);
        }
        Typed::Stop => match visitor.note(console, "stop").await {
            Ok(()) => {
                screen.line("TURN server is shutting down").await?;
                return Ok(Then::EndRelay);
            }
            refused => refused,
        },
        Typed::Drain => match visitor.note(console, "drain").await {
            Ok(()) => {
                let begun = ask(|reply| console.commands.drain(reply)).await;
                begun
                    .map(drop)
                    .ok_or_else(|| "the relay takes no command now".to_owned())
            }
            refused => refused,
        },
        Typed::Configuration => {
            return pc::show(console, visitor, screen)
                .await
                .map(|()| Then::GoOn);
        }
        Typed::Realm(realm) => {
            realm.clone_into(&mut visitor.realm);
            Ok(())
        }
        Typed::Origin(origin) => {
            origin.clone_into(&mut visitor.origin);
            Ok(())
        }
        Typed::Toggle(name) => {
            return change::toggle(console, visitor, screen, name)
                .await
                .map(|()| Then::GoOn);
        }
        Typed::Change(words) => {
            return change::change(console, visitor, screen, words)
                .await
                .map(|()| Then::GoOn);
        }
        Typed::Sessions { user, is_whole } => {
            let wanted = sessions::Wanted::Sessions { user, is_whole };
            return sessions::show(console, visitor, screen, wanted)
                .await
                .map(|()| Then::GoOn);
        }
        Typed::Users { protocol } => {
            let wanted = sessions::Wanted::Users { protocol };
            return sessions::show(console, visitor, screen, wanted)
                .await
                .map(|()| Then::GoOn);
        }
        Typed::ResetLog => match visitor.note(console, "log file reopened").await {
            Ok(()) => {
                screen.line("  log reset done").await?;
                Ok(())
            }
            refused => refused,
        },
        Typed::Alternate {
            key,
            port,
            is_added,
            server,
        } => change::alternate(console, visitor, key, port, is_added, server).await,
        Typed::Cancel(number) => cancel(console, visitor, number).await,
        Typed::Unknown => {
            screen.line("Unknown command").await?;
            screen.line("").await?;
            Ok(())
        }
    };
    if let Err(why) = done {
        screen.line(&format!("  Error: {why}")).await?;
    }
    Ok(Then::GoOn)
}

/// Ends a session. As in coturn nothing is said of a number that no session has: it may be over by now.
async fn cancel(console: &Console, visitor: &Visitor, number: &str) -> Result<(), String> {
    let Ok(number) = number.parse::<u64>() else {
        return Err("the number of a session has digits alone".to_owned());
    };
    visitor
        .note(console, &format!("end session {number:018}"))
        .await?;
    let ended = one_session(&console.commands, Action::End, number).await;
    ended
        .map(drop)
        .map_err(|shard| format!("shard {shard} does not answer"))
}
