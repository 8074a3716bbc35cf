//! A stand-in for a relay and its peer: it grants every request and sends packets back itself, wrong in known ways.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use turnbuckle_wire::{ChannelData, Class, Message, MessageWriter, Method};

/// What the stand-in does to packets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    /// Every tenth is dropped, every tenth comes twice, every tenth after the next one, and every tenth with a byte changed.
    Tenths,
    /// All come so much later.
    Delay(Duration),
}

/// What was done to packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    pub(crate) received: u64,
    pub(crate) dropped: u64,
    pub(crate) doubled: u64,
    pub(crate) swapped: u64,
    pub(crate) changed: u64,
    /// Time each packet spent here.
    pub(crate) delays: Vec<Duration>,
}

pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Done>,
}

impl StandIn {
    pub(crate) fn start(harm: Harm) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Holds what comes while a busy machine leaves this thread no time, for as many seconds as a test sends. Others than root get what the system allows.
        let bytes = 4 << 20;
        setsockopt(&socket, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &bytes))
            .unwrap();
        // Looks at the flag, and at packets to be sent later, that often.
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let address = socket.local_addr().unwrap();
        let stop = Arc::<AtomicBool>::default();
        let flag = Arc::clone(&stop);
        let thread = thread::spawn(move || serve(&socket, harm, &flag));
        Self {
            address,
            stop,
            thread,
        }
    }

    pub(crate) fn finish(self) -> Done {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

struct Held {
    bytes: Vec<u8>,
    to: SocketAddr,
    arrived: Instant,
}

fn serve(socket: &UdpSocket, harm: Harm, stop: &AtomicBool) -> Done {
    let mut done = Done::default();
    let mut held = Vec::<Held>::new();
    let mut clients = HashSet::new();
    let mut buffer = vec![0; 65_536];
    while !stop.load(Ordering::Relaxed) {
        if let Harm::Delay(delay) = harm {
            let due = held
                .iter()
                .take_while(|held| held.arrived.elapsed() >= delay)
                .count();
            for held in held.drain(..due) {
                socket.send_to(&held.bytes, held.to).unwrap();
                done.delays.push(held.arrived.elapsed());
            }
        }
        let Ok((len, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let bytes = &mut buffer[..len];
        if let Ok(message) = Message::parse(bytes) {
            clients.insert(from);
            socket.send_to(&grant(&message, from), from).unwrap();
            continue;
        }
        if !clients.contains(&from) {
            // Meant for somebody who had this port before.
            continue;
        }
        let data = ChannelData::parse_datagram(bytes).unwrap().data;
        // Behind its check and its session a packet has its number; the highest bit says that it counts.
        let number = u64::from_be_bytes(data[8..16].try_into().unwrap());
        assert_eq!(number >> 63, 1, "without a warm-up all packets count");
        done.received += 1;
        let arrived = Instant::now();
        let held_back = |bytes: &[u8]| Held {
            bytes: bytes.to_vec(),
            to: from,
            arrived,
        };
        match (harm, number % 10) {
            (Harm::Delay(_), _) => held.push(held_back(bytes)),
            (Harm::Tenths, 1) => done.dropped += 1,
            (Harm::Tenths, 3) => {
                done.doubled += 1;
                socket.send_to(bytes, from).unwrap();
                socket.send_to(bytes, from).unwrap();
            }
            (Harm::Tenths, 5) => held.push(held_back(bytes)),
            (Harm::Tenths, 9) => {
                done.changed += 1;
                bytes[len - 1] ^= 1;
                socket.send_to(bytes, from).unwrap();
            }
            (Harm::Tenths, _) => {
                socket.send_to(bytes, from).unwrap();
                // After the next one of its flow.
                let late = held.extract_if(.., |held| held.to == from && number % 10 == 6);
                for held in late {
                    done.swapped += 1;
                    socket.send_to(&held.bytes, held.to).unwrap();
                }
            }
        }
    }
    // Those whose next one never came stayed here.
    if matches!(harm, Harm::Tenths) {
        done.dropped += held.len() as u64;
    }
    done
}

/// Writes a success, with all that any request wants to know.
fn grant(request: &Message<'_>, client: SocketAddr) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    let mut writer = MessageWriter::new(
        &mut bytes,
        Class::Success,
        request.method(),
        request.transaction_id(),
    );
    if request.method() == Method::ALLOCATE {
        writer
            .xor_relayed_address(client)
            .xor_mapped_address(client);
    }
    writer.lifetime(600);
    let len = writer.finish().unwrap();
    bytes.truncate(len);
    bytes
}
