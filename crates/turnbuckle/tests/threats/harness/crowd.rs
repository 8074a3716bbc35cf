//! Very many clients behind one socket: each datagram leaves from another address of 127.0.0.0/8.
//!
//! The socket is bound to the wildcard address; IP_PKTINFO names the source of each datagram (ip(7)), and the answers to all
//! those addresses come back to it.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::libc::{in_addr, in_pktinfo};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg, setsockopt, sockopt};
use turnbuckle_wire::{Class, MessageWriter, Method, TransactionId};

use super::Answer;

/// How many requests wait for an answer at a time; several crowds together fit into a socket buffer of the default size.
const WINDOW: usize = 64;
/// After so long without an answer the window's requests are sent again, once per round.
const TIMEOUT: Duration = Duration::from_millis(300);
const ROUNDS: u32 = 20;

/// Clients numbered from zero, one address to each.
pub(crate) struct Crowd {
    socket: UdpSocket,
    server: SocketAddrV4,
}

impl Crowd {
    pub(crate) fn new(server: SocketAddr) -> Self {
        let SocketAddr::V4(server) = server else {
            panic!("a crowd lives on IPv4 loopback")
        };
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a port");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        setsockopt(&socket, sockopt::RcvBuf, &(4 << 20)).expect("a receive buffer");
        Self { socket, server }
    }

    /// Returns the address of the client with this number: 127.220.0.0 onwards, beyond the addresses of [`super::Site`].
    pub(crate) fn address(client: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(127, 220, 0, 0).to_bits() + client)
    }

    /// Sends one datagram from the address of `client`.
    pub(crate) fn send(&self, client: u32, bytes: &[u8]) {
        let source = in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: in_addr {
                s_addr: u32::from_ne_bytes(Self::address(client).octets()),
            },
            ipi_addr: in_addr { s_addr: 0 },
        };
        let to = SockaddrIn::from(self.server);
        let control = [ControlMessage::Ipv4PacketInfo(&source)];
        let sent = sendmsg(
            self.socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            &control,
            MsgFlags::empty(),
            Some(&to),
        );
        assert_eq!(sent, Ok(bytes.len()), "from {}", Self::address(client));
    }

    /// Has one request answered for each client in `clients`. `request` builds it for a transaction id; `answered` takes the
    /// response. Nothing is sent for clients whose request is answered, so each is sent again only if it was lost.
    pub(crate) fn exchange(
        &self,
        clients: std::ops::Range<u32>,
        request: impl Fn(u32, TransactionId) -> Vec<u8>,
        mut answered: impl FnMut(u32, Answer),
    ) {
        let all: Vec<u32> = clients.collect();
        for window in all.chunks(WINDOW) {
            let mut waiting: Vec<(u32, Vec<u8>)> = window
                .iter()
                .map(|&client| (client, request(client, transaction_id(client))))
                .collect();
            for _ in 0..ROUNDS {
                waiting
                    .iter()
                    .for_each(|(client, bytes)| self.send(*client, bytes));
                while !waiting.is_empty()
                    && let Some(answer) = self.receive()
                {
                    // The transaction id names the client; an answer to an earlier window is a duplicate.
                    let found = waiting
                        .iter()
                        .position(|(_, bytes)| bytes[8..20] == answer.0[8..20]);
                    if let Some(index) = found {
                        let (client, _) = waiting.swap_remove(index);
                        answered(client, answer);
                    }
                }
                if waiting.is_empty() {
                    break;
                }
            }
            assert!(
                waiting.is_empty(),
                "{} requests stay without an answer",
                waiting.len()
            );
        }
    }

    /// Sends `request` once from each client, in windows, and counts the answers; what is not answered is not sent again.
    pub(crate) fn flood(
        &self,
        clients: std::ops::Range<u32>,
        mut request: impl FnMut(u32, &mut Vec<u8>),
    ) -> u64 {
        let mut bytes = Vec::new();
        let mut answers = 0;
        let all: Vec<u32> = clients.collect();
        for window in all.chunks(WINDOW) {
            for &client in window {
                bytes.clear();
                request(client, &mut bytes);
                self.send(client, &bytes);
            }
            let mut missing = window.len();
            while missing > 0 && self.receive().is_some() {
                missing -= 1;
                answers += 1;
            }
        }
        answers
    }

    /// Returns one answer, unless none comes in the socket's patience.
    fn receive(&self) -> Option<Answer> {
        let mut buffer = [0; 2048];
        let (len, _) = self.socket.recv_from(&mut buffer).ok()?;
        Some(Answer(buffer[..len].to_vec()))
    }
}

/// Returns a transaction id that contains the client's number and is used once.
fn transaction_id(client: u32) -> TransactionId {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&client.to_be_bytes());
    bytes[4..].copy_from_slice(&NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes());
    TransactionId::new(bytes)
}

/// Returns a message with a given transaction id.
pub(crate) fn message(
    class: Class,
    method: Method,
    transaction_id: TransactionId,
    build: impl FnOnce(&mut MessageWriter<'_>),
) -> Vec<u8> {
    let mut buffer = [0; 1500];
    let mut writer = MessageWriter::new(&mut buffer, class, method, transaction_id);
    build(&mut writer);
    let len = writer.finish().expect("a message of moderate size");
    buffer[..len].to_vec()
}
