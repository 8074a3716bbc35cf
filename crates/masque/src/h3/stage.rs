//! How far a request on its stream is, and which frames may begin there.

use bytes::Bytes;

use super::brought::Open;
use super::code::{Code, Wrong};
use super::frames::{Frames, kind};
use super::incoming::unexpected;
use super::settings::FIELDS_SIZE_MAX;
use crate::refusal::Refusal;

/// Frames and instructions of one connection that nothing follows from, less those that something follows from.
const USELESS_MAX: u32 = 1024;

/// A request whose stream is open.
#[derive(Debug)]
pub(super) struct Request<T> {
    pub(super) frames: Frames,
    pub(super) state: State<T>,
}

#[derive(Debug)]
pub(super) enum State<T> {
    /// The field section has not come whole.
    Head(Vec<u8>),
    /// The host has not answered. What came since is kept.
    Asked {
        data: Vec<u8>,
        datagrams: Vec<Bytes>,
    },
    /// Capsules and datagrams come.
    Open(Open<T>),
}

impl<T> State<T> {
    /// Handles the beginning of a frame. Returns why the request is refused, if it is.
    pub(super) fn begins(
        &self,
        kind: u64,
        len: u64,
        useless: &mut u32,
    ) -> Result<Option<Refusal>, Wrong> {
        let is_head = matches!(self, Self::Head(_));
        match kind {
            // RFC 9114 §4.4: behind the field section of CONNECT there are DATA frames and what is not known.
            kind::HEADERS if is_head => {
                // guard: V-87-section
                let is_long = len > FIELDS_SIZE_MAX as u64;
                Ok(is_long.then_some(Refusal::HeadTooLarge))
            }
            kind::DATA if !is_head && len > 0 => {
                *useless = useless.saturating_sub(1);
                Ok(None)
            }
            kind::DATA if !is_head => count_useless(useless, 1).map(|()| None),
            kind::DATA
            | kind::HEADERS
            | kind::CANCEL_PUSH
            | kind::SETTINGS
            | kind::PUSH_PROMISE
            | kind::GOAWAY
            | kind::MAX_PUSH_ID => Err(unexpected()),
            kind if kind::RESERVED.contains(&kind) => Err(unexpected()),
            _ => count_useless(useless, 1).map(|()| None),
        }
    }
}

/// Counts `more` frames and instructions that nothing follows from.
pub(super) fn count_useless(useless: &mut u32, more: u32) -> Result<(), Wrong> {
    *useless = useless.saturating_add(more);
    // guard: V-87-useless
    match *useless > USELESS_MAX {
        true => Err(Wrong::Connection(
            Code::EXCESSIVE_LOAD,
            "too much that nothing follows from",
        )),
        false => Ok(()),
    }
}
