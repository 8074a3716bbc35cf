//! One HTTP/3 connection as its client sees it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use turnbuckle_wire::{UDP_CONTEXT, Varint};

use super::code::{Code, Wrong};
use super::frames::{Frames, Piece, frame, kind};
use super::incoming::{Critical, Incoming, unexpected};
use super::request;
use super::server::QUARTER_MAX;
use super::settings::{self, FIELDS_SIZE_MAX, Settings};
use crate::credentials::BasicCredentials;
use crate::target::Target;

/// Frames that do not belong into an answer, or not where they are (RFC 9114 §4.4, §7.2). No push was ever allowed.
const NEVER_HERE: [u64; 7] = [
    kind::DATA,
    kind::HEADERS,
    kind::CANCEL_PUSH,
    kind::SETTINGS,
    kind::PUSH_PROMISE,
    kind::GOAWAY,
    kind::MAX_PUSH_ID,
];

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened<T> {
    /// Its tunnel is open.
    Opened(T),
    /// It is refused, with this status code.
    Refused(T, u16),
    /// Its stream has ended, before an answer or after.
    Ended(T),
}

/// What a server must not do. The connection is to be closed with this code, and nothing more to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The code to close with.
    pub code: Code,
    /// The reason, for people.
    pub why: &'static str,
}

impl From<Wrong> for Violation {
    fn from(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Connection(code, why) => Self { code, why },
            Wrong::Stream(code) => Self {
                code,
                why: "an answer that cannot be one",
            },
        }
    }
}

/// An HTTP/3 connection that asks for tunnels of UDP. `T` is the host's name for a tunnel.
///
/// Sans-IO, as [`Server`](super::Server): the host opens the streams, and each method that says something returns the bytes. Payloads come and go in DATAGRAM
/// frames alone; what a server sends in capsules is passed over, unless the host wants it.
#[derive(Debug)]
pub struct Client<T> {
    settings: Option<Settings>,
    incoming: BTreeMap<u64, Incoming>,
    critical: Critical,
    requests: BTreeMap<u64, Asked<T>>,
    happened: VecDeque<Happened<T>>,
    unclaimed: u64,
    keeps_capsules: bool,
}

/// A request whose stream is open.
#[derive(Debug)]
struct Asked<T> {
    tunnel: T,
    frames: Frames,
    /// What has come of the field section of the answer; `None` once the tunnel is open.
    section: Option<Vec<u8>>,
    /// What has come in the tunnel's stream, if the host wants it.
    capsules: Vec<u8>,
}

impl<T> Default for Client<T> {
    fn default() -> Self {
        Self {
            settings: None,
            incoming: BTreeMap::new(),
            critical: Critical::default(),
            requests: BTreeMap::new(),
            happened: VecDeque::new(),
            unclaimed: 0,
            keeps_capsules: false,
        }
    }
}

impl<T: Copy> Client<T> {
    /// Returns a client that keeps what comes in the streams of tunnels, for [`Self::capsules`].
    #[must_use]
    pub fn keeping_capsules() -> Self {
        Self {
            keeps_capsules: true,
            ..Self::default()
        }
    }

    /// Returns what the client's control stream, a unidirectional one, begins with.
    #[must_use]
    pub fn control(&self) -> Vec<u8> {
        settings::of_client()
    }

    /// Returns whether the server opens tunnels and takes datagrams; `None` until it has said so (RFC 9220 §3).
    #[must_use]
    pub fn serves(&self) -> Option<bool> {
        let settings = self.settings.as_ref();
        settings.map(|it| it.takes_connect && it.takes_datagrams)
    }

    /// Returns a request for a tunnel to `target`, with which `stream` begins: a bidirectional one of the client's that nothing was sent on. The last are
    /// the name and the password of its user.
    pub fn ask(
        &mut self,
        stream: u64,
        tunnel: T,
        authority: &str,
        target: SocketAddr,
        (name, password): (&str, &str),
    ) -> Vec<u8> {
        self.asked(stream, tunnel);
        // Colons of IPv6 addresses are escaped (RFC 9298 §3).
        let host = target.ip().to_string().replace(':', "%3A");
        let path = Target::path(&host, target.port());
        request::asking(authority, &path, &BasicCredentials::field(name, password))
    }

    /// Takes note of a request of the host's own making, with which `stream` begins ([`asking`](super::asking), [`asking_bound`](super::asking_bound)).
    pub fn asked(&mut self, stream: u64, tunnel: T) {
        let asked = Asked {
            tunnel,
            frames: Frames::default(),
            section: Some(Vec::new()),
            capsules: Vec::new(),
        };
        self.requests.insert(stream, asked);
    }

    /// Returns what has come in the stream of a tunnel that is open, and that the host has not taken out.
    pub fn capsules(&mut self, stream: u64) -> Option<&mut Vec<u8>> {
        let asked = self.requests.get_mut(&stream)?;
        Some(&mut asked.capsules)
    }

    /// Returns capsules as they are sent in a tunnel's stream.
    #[must_use]
    pub fn in_stream(capsules: &[u8]) -> Vec<u8> {
        frame(kind::DATA, capsules)
    }

    /// Handles what has come on a stream.
    ///
    /// # Errors
    ///
    /// What the server must not do.
    pub fn received(&mut self, stream: u64, bytes: &[u8]) -> Result<(), Violation> {
        match stream % 4 {
            0 => Ok(self.answered(stream, bytes)?),
            3 => Ok(self.incoming_received(stream, bytes)?),
            // RFC 9114 §6.1
            _ => Err(Violation {
                code: Code::STREAM_CREATION_ERROR,
                why: "a bidirectional stream of the server's",
            }),
        }
    }

    /// Handles the end of what the server sends on a stream, in order or by a reset.
    ///
    /// # Errors
    ///
    /// What the server must not do.
    pub fn ended(&mut self, stream: u64) -> Result<(), Violation> {
        if let Some(asked) = self.requests.remove(&stream) {
            self.happened.push_back(Happened::Ended(asked.tunnel));
        }
        if let Some(incoming) = self.incoming.remove(&stream) {
            incoming.ended()?;
        }
        Ok(())
    }

    /// Takes the payload of a DATAGRAM frame (RFC 9297 §2.1, RFC 9298 §5). Returns whose it is and what the target sent; `None` if it is for no open
    /// tunnel or of a context that nobody registered.
    ///
    /// # Errors
    ///
    /// What the server must not do.
    pub fn datagram(&mut self, payload: &Bytes) -> Result<Option<(T, Bytes)>, Violation> {
        const WRONG: Violation = Violation {
            code: Code::DATAGRAM_ERROR,
            why: "a datagram that cannot be one",
        };
        let quarter = Varint::read(payload).filter(|&(quarter, _)| quarter <= QUARTER_MAX);
        let (quarter, len) = quarter.ok_or(WRONG)?;
        let asked = self.requests.get(&(quarter * 4));
        let Some(asked) = asked.filter(|asked| asked.section.is_none()) else {
            self.unclaimed += 1;
            return Ok(None);
        };
        let rest = payload.slice(len..);
        match Varint::read(&rest).ok_or(WRONG)? {
            (UDP_CONTEXT, len) => Ok(Some((asked.tunnel, rest.slice(len..)))),
            _ => {
                self.unclaimed += 1;
                Ok(None)
            }
        }
    }

    /// Returns what goes before a payload for the target of the tunnel of a stream, in a DATAGRAM frame.
    #[must_use]
    pub fn datagram_head(stream: u64) -> Vec<u8> {
        let numbers = [stream / 4, UDP_CONTEXT];
        let numbers = numbers.into_iter().filter_map(Varint::new);
        numbers.flat_map(|it| it.as_bytes().to_vec()).collect()
    }

    /// Takes what has become of the next request.
    pub fn poll(&mut self) -> Option<Happened<T>> {
        self.happened.pop_front()
    }

    /// Returns how many datagrams were for no tunnel or context that there is.
    #[must_use]
    pub const fn unclaimed(&self) -> u64 {
        self.unclaimed
    }

    fn answered(&mut self, stream: u64, mut bytes: &[u8]) -> Result<(), Wrong> {
        let Some(asked) = self.requests.get_mut(&stream) else {
            return Ok(());
        };
        let Asked {
            tunnel,
            frames,
            section,
            capsules,
        } = asked;
        while let Some(piece) = frames.next(&mut bytes) {
            match (piece, &mut *section) {
                (Piece::Begins(kind::HEADERS, len), Some(_)) if len > FIELDS_SIZE_MAX as u64 => {
                    let why = "the fields of an answer are too long";
                    return Err(Wrong::Connection(Code::EXCESSIVE_LOAD, why));
                }
                (Piece::Begins(kind::HEADERS, _), Some(_))
                | (Piece::Begins(kind::DATA, _), None) => {}
                (Piece::Begins(kind, _), _)
                    if NEVER_HERE.contains(&kind) || kind::RESERVED.contains(&kind) =>
                {
                    return Err(unexpected());
                }
                (Piece::Payload(kind::HEADERS, part, is_last), Some(kept)) => {
                    kept.extend_from_slice(part);
                    if !is_last {
                        continue;
                    }
                    match request::status(kept)?.ok_or(Wrong::Stream(Code::MESSAGE_ERROR))? {
                        // More answers come behind those (RFC 9114 §4.1).
                        100..=199 => kept.clear(),
                        200..=299 => {
                            *section = None;
                            self.happened.push_back(Happened::Opened(*tunnel));
                        }
                        status => {
                            self.happened.push_back(Happened::Refused(*tunnel, status));
                            self.requests.remove(&stream);
                            return Ok(());
                        }
                    }
                }
                (Piece::Payload(kind::DATA, part, _), None) if self.keeps_capsules => {
                    capsules.extend_from_slice(part);
                }
                (Piece::Begins(..) | Piece::Payload(..), _) => {}
            }
        }
        Ok(())
    }

    fn incoming_received(&mut self, stream: u64, bytes: &[u8]) -> Result<(), Wrong> {
        let incoming = self.incoming.entry(stream).or_insert_with(Incoming::new);
        let read = incoming.read(bytes, &mut self.critical)?;
        if let Some(settings) = read.settings {
            self.settings = Some(settings);
        }
        Ok(())
    }
}
