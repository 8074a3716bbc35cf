//! One flow of data: its socket, and what a packet of it looks like on the way to the relay.

use std::net::SocketAddr;

use anyhow::Context as _;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use turnbuckle_datapath::SharedSocket;
use turnbuckle_masque::h3::Client;
use turnbuckle_wire::{ChannelData, Class, MessageWriter, Method, TransactionId};

use crate::packet::{HEADER_LEN, Header};
use turnbuckle_client::Path;

/// How a packet is wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Not at all: straight to the peer.
    Bare,
    /// For a relay.
    Relayed { peer: SocketAddr, path: Path },
    /// For a tunnel of HTTP/3, by the stream that has it.
    Tunnelled { stream: u64 },
}

/// What a sender thread needs of a client that may send.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) via: Via,
    pub(super) session: u32,
    pub(super) framing: Framing,
}

/// By what a client's packets leave.
#[derive(Debug)]
pub(super) enum Via {
    /// A socket that a sender thread uses with the listener's.
    Socket {
        socket: SharedSocket,
        to: SocketAddr,
    },
    /// What its listener has; that thread sends as well. Its place there.
    Listener(usize),
}

/// Clients that leave early: about half of them, after a few packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leavers {
    pub(super) seed: u64,
}

impl Leavers {
    /// Returns how many packets a session sends that is to send `packets` if it stays.
    pub(super) fn packets_of(self, session: u32, packets: u64) -> u64 {
        let mut random = SmallRng::seed_from_u64(self.seed ^ u64::from(session));
        match random.random_range(0..8) {
            few @ 1..=4 => packets.min(few),
            _ => packets,
        }
    }

    /// Returns whether a session is one of them.
    pub(super) fn has(self, session: u32) -> bool {
        self.packets_of(session, u64::MAX) < u64::MAX
    }
}

/// A flow in a sender thread.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) number: u32,
    pub(super) sequence: u64,
    /// Packets that it sends; none after that.
    pub(super) packets: u64,
    /// A whole message.
    template: Vec<u8>,
    /// Where the packet lies in it.
    start: usize,
    end: usize,
}

impl Caller {
    /// Makes a flow of packets of `size` bytes. Messages are padded for a stream (RFC 8656 §12.5).
    ///
    /// # Errors
    /// The packet does not fit a datagram, or not the framing.
    pub(super) fn new(
        number: u32,
        framing: Framing,
        size: usize,
        packets: u64,
        is_stream: bool,
    ) -> anyhow::Result<Self> {
        let packet = vec![0x5a; size.max(HEADER_LEN)];
        let (mut template, start) = match framing {
            Framing::Bare
            | Framing::Relayed {
                path: Path::Connection,
                ..
            } => (packet.clone(), 0),
            Framing::Relayed {
                path: Path::Channel(channel),
                ..
            } => {
                let len =
                    u16::try_from(packet.len()).context("a packet of more than 65535 bytes")?;
                let header = ChannelData::header(channel, len);
                ([&header[..], &packet].concat(), header.len())
            }
            Framing::Relayed {
                peer,
                path: Path::Indications,
            } => indication(peer, number, &packet)?,
            Framing::Tunnelled { stream } => {
                let head = Client::<usize>::datagram_head(stream);
                ([&head[..], &packet].concat(), head.len())
            }
        };
        if is_stream {
            template.resize(template.len().next_multiple_of(4), 0);
        }
        Ok(Self {
            number,
            sequence: 0,
            packets,
            end: start + packet.len(),
            template,
            start,
        })
    }

    /// Returns how many bytes a message has.
    pub(super) fn message_len(&self) -> usize {
        self.template.len()
    }

    /// Appends the next message.
    #[inline]
    pub(super) fn append(&mut self, train: &mut Vec<u8>, time: u64, is_measured: bool) {
        let at = train.len();
        train.extend_from_slice(&self.template);
        let header = Header {
            session: self.number,
            sequence: self.sequence,
            is_measured,
            time,
        };
        self.sequence += 1;
        if let Some(packet) = train.get_mut(at + self.start..at + self.end) {
            header.write(packet);
        }
    }
}

/// Makes a Send indication with the packet at its end, and returns where the packet begins.
/// All of a session's have one transaction id: nothing answers an indication.
fn indication(peer: SocketAddr, session: u32, packet: &[u8]) -> anyhow::Result<(Vec<u8>, usize)> {
    let mut id = [0x7b; 12];
    id[..4].copy_from_slice(&session.to_be_bytes());
    let mut bytes = vec![0; packet.len() + 128];
    let mut writer = MessageWriter::new(
        &mut bytes,
        Class::Indication,
        Method::SEND,
        TransactionId::new(id),
    );
    writer.xor_peer_address(peer).data(packet);
    let len = writer
        .finish()
        .map_err(|error| anyhow::anyhow!("a packet of {} bytes: {error}", packet.len()))?;
    bytes.truncate(len);
    let start = len - packet.len().next_multiple_of(4);
    Ok((bytes, start))
}

#[cfg(test)]
mod tests {
    use turnbuckle_wire::Message;

    use super::*;

    #[test]
    fn an_indication_carries_the_packet_where_it_is_written() {
        for len in [HEADER_LEN, 25, 26, 27, 1_200] {
            for peer in ["192.0.2.1:3480", "[2001:db8::1]:3480"] {
                let packet: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
                let (bytes, start) = indication(peer.parse().unwrap(), 7, &packet).unwrap();
                let message = Message::parse(&bytes).unwrap();
                assert_eq!(message.data(), Some(&packet[..]));
                assert_eq!(message.data_range(), Some(start..start + len));
                assert_eq!(message.xor_peer_address(), Ok(Some(peer.parse().unwrap())));
            }
        }
    }
}
