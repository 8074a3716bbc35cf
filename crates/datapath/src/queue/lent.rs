//! Datagrams that a handler writes into buffers that the queue lends.

use std::net::SocketAddr;

use super::{SendQueue, first_part};
use crate::names::EndpointId;

impl SendQueue {
    /// Lends an empty buffer for [`Self::send_owned`].
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.owned.lend()
    }

    /// Queues the datagrams in `bytes`, `segment` bytes in each and the rest in the last, without copying them. They form trains as forwarded
    /// ones do. An empty buffer is taken back and sends nothing.
    ///
    /// # Panics
    /// When `segment` is 0 and there are bytes.
    pub fn send_owned(
        &mut self,
        endpoint: EndpointId,
        to: SocketAddr,
        bytes: Vec<u8>,
        segment: usize,
    ) {
        if let Some(record) = self.owned.own(bytes, segment) {
            self.join(endpoint, to, record);
        }
    }

    /// Does the same as [`Self::send_owned`] for datagrams that must not be fragmented: DF is set, or for IPv6 no fragment header is made. They are trains of
    /// their own.
    ///
    /// # Panics
    /// As [`Self::send_owned`].
    pub fn send_owned_unfragmented(
        &mut self,
        endpoint: EndpointId,
        to: SocketAddr,
        bytes: Vec<u8>,
        segment: usize,
    ) {
        let Some(mut rest) = self.owned.own(bytes, segment) else {
            return;
        };
        let flow = self.flow_place(endpoint, to);
        let mut left = rest.count;
        while left > 0 {
            let room = self.room_when_empty(rest.len);
            let part = first_part(&mut rest, room);
            let number = self.push_train(endpoint, to, part, true);
            self.note_newest(flow, number);
            left -= part.count;
        }
    }
}
