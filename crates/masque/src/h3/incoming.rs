//! The client's unidirectional streams (RFC 9114 §6.2): one for control, two for QPACK, and others that are not read.

use std::collections::BTreeMap;

use turnbuckle_wire::Varint;

use super::code::{Code, Wrong};
use super::frames::{Frames, Piece, kind};
use super::qpack::{Instructions, Side};
use super::settings::{Settings, number};

/// The longest payload of a frame of the control stream that is kept, in bytes.
const CONTROL_PAYLOAD_MAX: u64 = 4096;

/// What a client says beside its requests.
#[derive(Debug, Default)]
pub(super) struct ClientSide {
    /// What it says of itself, once it has.
    pub(super) settings: Option<Settings>,
    /// In memory of their own as requests are: there are three at most that stay.
    pub(super) incoming: BTreeMap<u64, Box<Incoming>>,
    /// The first of its unidirectional streams that has not been seen yet: they begin in the order of their numbers.
    pub(super) next_incoming: u64,
    pub(super) critical: Critical,
    /// Frames and instructions that nothing follows from, less those that something follows from.
    pub(super) useless: u32,
}

/// One stream.
#[derive(Debug)]
pub(super) enum Incoming {
    /// What its type is has not come whole.
    Untyped(Vec<u8>),
    Control(Control),
    Instructions(Instructions),
    /// Its type is not known, and the client is asked to end it.
    Unread,
}

/// Which streams there have been, of which each may be there once.
#[derive(Debug, Default)]
pub(super) struct Critical {
    has_control: bool,
    has_encoder: bool,
    has_decoder: bool,
}

/// What has come of a stream.
#[derive(Debug, Default)]
pub(super) struct Read {
    /// The client's settings.
    pub(super) settings: Option<Settings>,
    /// Frames and instructions that nothing follows from.
    pub(super) useless: u32,
    /// Whether the stream is not to be read any more.
    pub(super) stops: bool,
}

impl Incoming {
    pub(super) const fn new() -> Self {
        Self::Untyped(Vec::new())
    }

    /// Reads what has come.
    pub(super) fn read(
        &mut self,
        mut bytes: &[u8],
        critical: &mut Critical,
    ) -> Result<Read, Wrong> {
        let mut read = Read::default();
        if let Self::Untyped(head) = self {
            let mut of_type = None;
            while let Some((&byte, rest)) = bytes.split_first()
                && of_type.is_none()
            {
                head.push(byte);
                bytes = rest;
                of_type = Varint::read(head);
            }
            let Some((of_type, _)) = of_type else {
                return Ok(read);
            };
            *self = critical.begin(of_type)?;
            if matches!(self, Self::Unread) {
                read.stops = true;
                read.useless += 1;
            }
        }
        match self {
            Self::Untyped(_) | Self::Unread => {}
            Self::Control(control) => control.read(bytes, &mut read)?,
            Self::Instructions(instructions) => read.useless += instructions.read(bytes)?,
        }
        Ok(read)
    }

    /// Handles the end of the stream, by its end or by a reset.
    pub(super) const fn ended(&self) -> Result<(), Wrong> {
        match self {
            Self::Untyped(_) | Self::Unread => Ok(()),
            Self::Control(_) | Self::Instructions(_) => Err(Wrong::Connection(
                Code::CLOSED_CRITICAL_STREAM,
                "a critical stream has ended",
            )),
        }
    }
}

impl Critical {
    /// Begins a stream of this type.
    fn begin(&mut self, of_type: u64) -> Result<Incoming, Wrong> {
        const CONTROL: u64 = 0x00;
        const PUSH: u64 = 0x01;
        const ENCODER: u64 = 0x02;
        const DECODER: u64 = 0x03;
        let (was_there, stream) = match of_type {
            CONTROL => (
                std::mem::replace(&mut self.has_control, true),
                Incoming::Control(Control::default()),
            ),
            ENCODER => (
                std::mem::replace(&mut self.has_encoder, true),
                Incoming::Instructions(Instructions::new(Side::Encoder)),
            ),
            DECODER => (
                std::mem::replace(&mut self.has_decoder, true),
                Incoming::Instructions(Instructions::new(Side::Decoder)),
            ),
            // A client pushes nothing.
            PUSH => (true, Incoming::Unread),
            _ => return Ok(Incoming::Unread),
        };
        match was_there {
            false => Ok(stream),
            true => Err(Wrong::Connection(
                Code::STREAM_CREATION_ERROR,
                "a stream that must not be there",
            )),
        }
    }
}

/// The client's control stream.
#[derive(Debug, Default)]
pub(super) struct Control {
    frames: Frames,
    payload: Vec<u8>,
    has_settings: bool,
    /// The largest push that the client allows, and the last that it named with GOAWAY.
    push_max: Option<u64>,
    going_away: Option<u64>,
}

impl Control {
    fn read(&mut self, mut bytes: &[u8], read: &mut Read) -> Result<(), Wrong> {
        while let Some(piece) = self.frames.next(&mut bytes) {
            match piece {
                Piece::Begins(kind, len) => self.begins(kind, len)?,
                Piece::Payload(kind, part, is_last) => {
                    if is_kept(kind) {
                        self.payload.extend_from_slice(part);
                    }
                    if is_last {
                        let payload = std::mem::take(&mut self.payload);
                        self.frame(kind, &payload, read)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn begins(&self, kind: u64, len: u64) -> Result<(), Wrong> {
        if !self.has_settings && kind != kind::SETTINGS {
            return Err(Wrong::Connection(
                Code::MISSING_SETTINGS,
                "the control stream does not begin with SETTINGS",
            ));
        }
        let is_unexpected = matches!(kind, kind::DATA | kind::HEADERS | kind::PUSH_PROMISE)
            || kind::RESERVED.contains(&kind)
            || (kind == kind::SETTINGS && self.has_settings);
        if is_unexpected {
            return Err(unexpected());
        }
        // guard: V-87-control
        if is_kept(kind) && len > CONTROL_PAYLOAD_MAX {
            return Err(Wrong::Connection(
                Code::EXCESSIVE_LOAD,
                "a frame of the control stream is too long",
            ));
        }
        Ok(())
    }

    /// Takes a whole frame.
    fn frame(&mut self, kind: u64, payload: &[u8], read: &mut Read) -> Result<(), Wrong> {
        if kind == kind::SETTINGS {
            self.has_settings = true;
            read.settings = Some(Settings::of_payload(payload)?);
            return Ok(());
        }
        read.useless += 1;
        if !is_kept(kind) {
            return Ok(());
        }
        let mut rest = payload;
        let id = number(&mut rest).filter(|_| rest.is_empty());
        let id = id.ok_or(Wrong::Connection(Code::FRAME_ERROR, "not one number"))?;
        let is_right = match kind {
            kind::MAX_PUSH_ID => {
                let before = self.push_max.replace(id);
                before.is_none_or(|before| before <= id)
            }
            kind::GOAWAY => {
                let before = self.going_away.replace(id);
                before.is_none_or(|before| before >= id)
            }
            // Nothing was ever promised that could be cancelled.
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(Wrong::Connection(
                Code::ID_ERROR,
                "a number of a push that cannot be",
            )),
        }
    }
}

/// Returns whether the payload of such a frame is looked at.
const fn is_kept(kind: u64) -> bool {
    matches!(
        kind,
        kind::SETTINGS | kind::GOAWAY | kind::MAX_PUSH_ID | kind::CANCEL_PUSH
    )
}

/// Returns what ends a connection with a frame where it must not be.
pub(super) const fn unexpected() -> Wrong {
    Wrong::Connection(Code::FRAME_UNEXPECTED, "a frame where it must not be")
}
