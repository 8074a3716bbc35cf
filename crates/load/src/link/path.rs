//! The sockets of a path, and the datagrams that are under way.

use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::fate::{Counts, Direction, Rules};

/// Most clients that are served; each has a socket.
const CLIENTS_MAX: usize = 1_024;
/// Most datagrams that are under way.
const UNDER_WAY_MAX: usize = 65_536;
/// Most datagrams that one socket gives before the next one's turn.
const TURN_MAX: usize = 256;
/// Longest wait, so that signals are seen.
const TICK: Duration = Duration::from_millis(50);
/// Room that each socket asks the kernel for, so that what is lost is lost by the rules.
const BUFFER_LEN: usize = 8 * 1024 * 1024;

/// A path between clients and one server.
pub(super) struct Path {
    front: UdpSocket,
    server: SocketAddr,
    rules: Rules,
    clients: Vec<Client>,
    by_address: HashMap<SocketAddr, usize>,
    to_server: Direction,
    to_client: Direction,
    under_way: BinaryHeap<Datagram>,
    /// How many datagrams have ever been under way: those that are due at the same moment leave in their order.
    number: u64,
    /// Until when nothing arrives, once that has begun.
    silent_until: Option<Instant>,
    counts: Counts,
}

struct Client {
    address: SocketAddr,
    /// Where the server sees it.
    socket: UdpSocket,
    /// Datagrams that it has sent from there.
    count: u64,
}

struct Datagram {
    due: Instant,
    number: u64,
    client: usize,
    is_to_server: bool,
    bytes: Vec<u8>,
}

impl PartialEq for Datagram {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Datagram {}

impl PartialOrd for Datagram {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Datagram {
    /// Orders datagrams so that the greatest one is due first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl Path {
    /// Binds a socket at `listen`.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(super) fn new(
        listen: SocketAddr,
        server: SocketAddr,
        rules: Rules,
        seed: u64,
    ) -> io::Result<Self> {
        Ok(Self {
            front: bound(listen)?,
            server,
            rules,
            clients: Vec::new(),
            by_address: HashMap::new(),
            to_server: Direction::new(rules, seed),
            to_client: Direction::new(rules, !seed),
            under_way: BinaryHeap::new(),
            number: 0,
            silent_until: None,
            counts: Counts::default(),
        })
    }

    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        self.front.local_addr()
    }

    pub(super) const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Waits until something arrives or is due, and deals with it.
    ///
    /// # Errors
    /// What waiting returns.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let due = self.under_way.peek().map_or(TICK, |datagram| {
            datagram.due.saturating_duration_since(now).min(TICK)
        });
        let ready = self.wait(due)?;
        let now = Instant::now();
        let mut buffer = vec![0; 65_536];
        if ready[0] {
            self.receive_from_clients(now, &mut buffer);
        }
        for (client, _) in ready[1..].iter().enumerate().filter(|(_, ready)| **ready) {
            self.receive_from_server(now, client, &mut buffer);
        }
        self.send_what_is_due(Instant::now());
        Ok(())
    }

    /// Returns which sockets have something: the front's, then those of the clients.
    fn wait(&self, longest: Duration) -> io::Result<Vec<bool>> {
        let sockets =
            std::iter::once(&self.front).chain(self.clients.iter().map(|one| &one.socket));
        let mut polled: Vec<_> = sockets
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(longest).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(polled.iter().map(|one| !one.revents().is_empty()).collect())
    }

    fn receive_from_clients(&mut self, now: Instant, buffer: &mut [u8]) {
        for _ in 0..TURN_MAX {
            let Ok((len, from)) = self.front.recv_from(buffer) else {
                return; // nothing more, or an ICMP error about an answer
            };
            self.counts.received += 1;
            match self.client(from) {
                Some(client) => self.take(now, client, true, &buffer[..len]),
                None => self.counts.too_many_clients += 1,
            }
        }
    }

    fn receive_from_server(&mut self, now: Instant, client: usize, buffer: &mut [u8]) {
        for _ in 0..TURN_MAX {
            let Ok(len) = self.clients[client].socket.recv(buffer) else {
                return;
            };
            self.counts.received += 1;
            self.take(now, client, false, &buffer[..len]);
        }
    }

    /// Returns the client at an address; `None` if there are too many.
    fn client(&mut self, from: SocketAddr) -> Option<usize> {
        if let Some(&client) = self.by_address.get(&from) {
            return Some(client);
        }
        if self.clients.len() >= CLIENTS_MAX {
            return None;
        }
        let socket = self.towards_server(None).ok()?;
        self.clients.push(Client {
            address: from,
            socket,
            count: 0,
        });
        self.by_address.insert(from, self.clients.len() - 1);
        Some(self.clients.len() - 1)
    }

    /// Gives a client another socket towards the server if that is due. What the server has sent to the old one is lost with it.
    fn rebind(&mut self, client: usize) {
        let is_due =
            self.rules.rebind_after > 0 && self.clients[client].count >= self.rules.rebind_after;
        if is_due && let Ok(socket) = self.towards_server(self.rules.rebind_to) {
            self.clients[client].socket = socket;
            self.clients[client].count = 0;
            self.counts.rebound += 1;
        }
        self.clients[client].count += 1;
    }

    /// Returns a socket towards the server, from an address if one is named.
    fn towards_server(&self, from: Option<IpAddr>) -> io::Result<UdpSocket> {
        let any = match self.server {
            SocketAddr::V4(_) => IpAddr::from([0; 4]),
            SocketAddr::V6(_) => IpAddr::from([0_u16; 8]),
        };
        let socket = bound(SocketAddr::new(from.unwrap_or(any), 0))?;
        socket.connect(self.server)?;
        Ok(socket)
    }

    /// Says whether nothing arrives at this moment.
    fn is_silent(&mut self, now: Instant) -> bool {
        let rules = &self.rules;
        if rules.silent_after > 0 && self.counts.received > rules.silent_after {
            let until = self.silent_until.get_or_insert(now + rules.silent_for);
            return now < *until;
        }
        false
    }

    fn take(&mut self, now: Instant, client: usize, is_to_server: bool, bytes: &[u8]) {
        let (direction, lost) = match is_to_server {
            true => (&mut self.to_server, &mut self.counts.lost_up),
            false => (&mut self.to_client, &mut self.counts.lost_down),
        };
        let Some(fate) = direction.next() else {
            *lost += 1;
            return;
        };
        if self.is_silent(now) {
            self.counts.silenced += 1;
            return;
        }
        if self.under_way.len() >= UNDER_WAY_MAX {
            self.counts.crowded += 1;
            return;
        }
        let mut bytes = bytes.to_vec();
        if let Some(bit) = fate.wrong_bit
            && !bytes.is_empty()
        {
            let bit = bit as usize % (8 * bytes.len());
            bytes[bit / 8] ^= 1 << (bit % 8);
            self.counts.corrupt += 1;
        }
        self.counts.late += u64::from(fate.is_late);
        self.number += 1;
        self.under_way.push(Datagram {
            due: now + fate.takes,
            number: self.number,
            client,
            is_to_server,
            bytes,
        });
    }

    fn send_what_is_due(&mut self, now: Instant) {
        while self.under_way.peek().is_some_and(|one| one.due <= now)
            && let Some(datagram) = self.under_way.pop()
        {
            if datagram.is_to_server {
                self.rebind(datagram.client);
            }
            let client = &self.clients[datagram.client];
            let sent = match datagram.is_to_server {
                true => client.socket.send(&datagram.bytes),
                false => self.front.send_to(&datagram.bytes, client.address),
            };
            match sent {
                Ok(_) => self.counts.sent += 1,
                Err(_) => self.counts.not_sent += 1,
            }
        }
    }
}

/// Binds a socket that never blocks, with room for bursts as far as the system allows it.
fn bound(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    // Without the privilege the system's bound holds.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER_LEN).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_LEN)?;
    }
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        delay: Duration::ZERO,
        loss: 0.0,
        late: 0.0,
        late_by: Duration::ZERO,
        corrupt: 0.0,
        rebind_after: 0,
        rebind_to: None,
        silent_after: 0,
        silent_for: Duration::ZERO,
    };

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// Returns a path, the server that it leads to, and a client.
    fn pair(rules: Rules) -> (Path, UdpSocket, UdpSocket) {
        let server = UdpSocket::bind(loopback()).expect("an address");
        let address = server.local_addr().expect("bound");
        let path = Path::new(loopback(), address, rules, 1).expect("an address");
        let client = UdpSocket::bind(loopback()).expect("an address");
        client
            .connect(path.local().expect("bound"))
            .expect("a path");
        (path, server, client)
    }

    fn move_all(path: &mut Path, datagrams: u64) {
        while path.counts().received < datagrams || path.counts().under_way() > 0 {
            path.turn().expect("poll");
        }
    }

    #[test]
    fn what_a_client_sends_arrives_in_order_and_is_answered_from_the_same_address() {
        let (mut path, server, client) = pair(RULES);
        for number in 0..50_u8 {
            client.send(&[number]).expect("room");
        }
        move_all(&mut path, 50);
        let mut buffer = [0; 8];
        for number in 0..50 {
            let (_, from) = server.recv_from(&mut buffer).expect("a datagram");
            assert_eq!(buffer[0], number);
            server.send_to(&[number, number], from).expect("room");
        }
        move_all(&mut path, 100);
        for number in 0..50 {
            assert_eq!(client.recv(&mut buffer).expect("an answer"), 2);
            assert_eq!(buffer[..2], [number, number]);
        }
        let counts = path.counts();
        assert_eq!((counts.received, counts.sent), (100, 100));
    }

    #[test]
    fn what_is_lost_is_counted_by_its_direction() {
        let (mut path, server, client) = pair(Rules { loss: 0.3, ..RULES });
        for number in 0..100_u8 {
            client.send(&[number]).expect("room");
        }
        move_all(&mut path, 100);
        let up = path.counts().sent;
        let mut buffer = [0; 8];
        let (_, from) = server.recv_from(&mut buffer).expect("a datagram");
        for number in 0..40_u8 {
            server.send_to(&[number], from).expect("room");
        }
        move_all(&mut path, 140);
        let counts = path.counts();
        assert_eq!(counts.lost_up, 100 - up);
        assert_eq!(counts.lost_down, 40 - (counts.sent - up));
        assert!(counts.lost_up > 0 && counts.lost_down > 0, "{counts:?}");
        assert_eq!(counts.lost(), 140 - counts.sent);
    }

    #[test]
    fn late_datagrams_are_overtaken_and_none_is_lost() {
        let (mut path, server, client) = pair(Rules {
            late: 0.3,
            late_by: Duration::from_millis(20),
            ..RULES
        });
        for number in 0..50_u8 {
            client.send(&[number]).expect("room");
        }
        move_all(&mut path, 50);
        let mut buffer = [0; 8];
        let mut arrived: Vec<_> = (0..50)
            .map(|_| {
                server.recv(&mut buffer).expect("a datagram");
                buffer[0]
            })
            .collect();
        assert!(!arrived.is_sorted());
        arrived.sort_unstable();
        assert!(arrived.into_iter().eq(0..50));
        assert!(path.counts().late > 0);
    }

    #[test]
    fn a_client_gets_another_port_after_so_many_datagrams() {
        let (mut path, server, client) = pair(Rules {
            rebind_after: 4,
            ..RULES
        });
        for number in 0..9_u8 {
            client.send(&[number]).expect("room");
        }
        move_all(&mut path, 9);
        let mut buffer = [0; 8];
        let from: Vec<_> = (0..9)
            .map(|_| server.recv_from(&mut buffer).expect("a datagram").1)
            .collect();
        let changes = from.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!((changes, path.counts().rebound), (2, 2), "{from:?}");
    }

    #[test]
    fn a_client_gets_another_address_after_so_many_datagrams() {
        let (mut path, server, client) = pair(Rules {
            rebind_after: 2,
            rebind_to: Some(IpAddr::from([127, 0, 0, 2])),
            ..RULES
        });
        for number in 0..3_u8 {
            client.send(&[number]).expect("room");
        }
        move_all(&mut path, 3);
        let from = [(); 3].map(|()| server.recv_from(&mut [0; 8]).expect("a datagram").1.ip());
        assert_eq!(from, [1, 1, 2].map(|last| IpAddr::from([127, 0, 0, last])));
    }

    #[test]
    fn nothing_arrives_while_the_path_is_silent() {
        let (mut path, server, client) = pair(Rules {
            silent_after: 3,
            silent_for: Duration::from_secs(3600),
            ..RULES
        });
        for number in 0..10_u8 {
            client.send(&[number]).expect("room");
        }
        move_all(&mut path, 10);
        let counts = *path.counts();
        assert_eq!((counts.sent, counts.silenced), (3, 7));
        path.silent_until = Some(Instant::now());
        client.send(&[10]).expect("room");
        move_all(&mut path, 11);
        let mut buffer = [0; 8];
        let arrived = [(); 4].map(|()| {
            server.recv(&mut buffer).expect("a datagram");
            buffer[0]
        });
        assert_eq!(arrived, [0, 1, 2, 10]);
    }

    #[test]
    fn one_bit_of_what_is_corrupt_is_another() {
        let (mut path, server, client) = pair(Rules {
            corrupt: 1.0,
            ..RULES
        });
        for _ in 0..20 {
            client.send(&[0x5a; 100]).expect("room");
        }
        move_all(&mut path, 20);
        let mut buffer = [0; 200];
        for _ in 0..20 {
            let len = server.recv(&mut buffer).expect("a datagram");
            let wrong = buffer[..len].iter().map(|byte| (byte ^ 0x5a).count_ones());
            assert_eq!((len, wrong.sum::<u32>()), (100, 1));
        }
        assert_eq!(path.counts().corrupt, 20);
    }
}
