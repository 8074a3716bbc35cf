//! Calls that go on while something happens to the relay, and clients whose rights are to be exact after it.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use super::{Client, Inbound, Server, Site, channel, peer_receives, peer_socket};

/// Time between two datagrams of a call, one way.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// A client with a channel to a peer, and what has arrived of what was sent, each way.
pub(crate) struct Call {
    pub(crate) client: Client,
    peer: UdpSocket,
    relayed: SocketAddr,
    pub(crate) sent: u32,
    pub(crate) at_peer: Vec<u32>,
    pub(crate) at_client: Vec<u32>,
}

impl Call {
    pub(crate) fn new(site: Site, server: &Server) -> Self {
        Self::between(Client::new(site.ip(2), server), peer_socket(site.ip(7)))
    }

    /// Makes the call of a client that has no allocation yet.
    pub(crate) fn between(mut client: Client, peer: UdpSocket) -> Self {
        let relayed = client.allocate();
        let to = peer.local_addr().expect("bound");
        client.channel_bind(channel(0), to).expect(200);
        peer.set_nonblocking(true).expect("fcntl");
        Self {
            client,
            peer,
            relayed,
            sent: 0,
            at_peer: Vec::new(),
            at_client: Vec::new(),
        }
    }

    /// Sends one datagram each way.
    pub(crate) fn send(&mut self) {
        let number = self.sent.to_be_bytes();
        self.client.send_channel_data(channel(0), &number);
        let sent = self.peer.send_to(&number, self.relayed);
        sent.expect("sent");
        self.sent += 1;
    }

    /// Takes what has arrived.
    pub(crate) fn hear(&mut self) {
        let mut buffer = [0; 4];
        while let Ok((4, _)) = self.peer.recv_from(&mut buffer) {
            self.at_peer.push(u32::from_be_bytes(buffer));
        }
        for inbound in self.client.arrived() {
            let Inbound::Channel { data, .. } = inbound else {
                panic!("{inbound:?}");
            };
            let number = data.try_into().expect("a number");
            self.at_client.push(u32::from_be_bytes(number));
        }
    }

    /// Returns whether something that was sent later than `number` has arrived both ways.
    pub(crate) fn has_passed(&self, number: u32) -> bool {
        let is_later = |at: &Vec<u32>| at.last().is_some_and(|&last| last > number);
        is_later(&self.at_peer) && is_later(&self.at_client)
    }

    pub(crate) fn lost(&self) -> usize {
        2 * self.sent as usize - self.at_peer.len() - self.at_client.len()
    }
}

pub(crate) fn tick(calls: &mut [Call]) {
    for call in &mut *calls {
        call.send();
    }
    thread::sleep(TICK);
    for call in calls {
        call.hear();
    }
}

/// Clients of one user: one keeps its call, one has given up its allocation, and one has a permission that has ended.
pub(crate) struct Holders {
    pub(crate) stays: Call,
    ends: Call,
    permitted: Client,
    /// The peer of the permission.
    peer: UdpSocket,
}

impl Holders {
    /// What a server for them is started with: few ports, a small quota, and permissions that end soon.
    pub(crate) const OPTIONS: [&str; 4] = [
        "--min-port=50000",
        "--max-port=50003",
        "--user-quota=3",
        "--permission-lifetime=2",
    ];

    pub(crate) fn new(site: Site, server: &Server) -> Self {
        let stays = Call::new(site, server);
        let mut ends = Call::new(site, server);
        ends.client.refresh(0).expect(200);
        let mut permitted = Client::new(site.ip(2), server);
        let relayed = permitted.allocate();
        let peer = peer_socket(site.ip(9));
        let to = peer.local_addr().expect("bound");
        permitted.create_permission(&[to]).expect(200);
        permitted.send_indication(to, b"while it is permitted");
        assert_eq!(peer_receives(&peer).1, relayed);
        thread::sleep(Duration::from_millis(2_500)); // the lifetime of the permission
        peer.set_nonblocking(true).expect("fcntl");
        Self {
            stays,
            ends,
            permitted,
            peer,
        }
    }

    /// Checks that what had ended is ended, that the rest is there, and that ports and quotas count just that.
    pub(crate) fn assert_exact(&mut self, site: Site, server: &Server) {
        let Self {
            stays,
            ends,
            permitted,
            peer,
        } = self;
        ends.client.refresh(600).expect(437);
        ends.client
            .send_channel_data(channel(0), b"on a channel that has ended");
        ends.client.settle();
        ends.hear();
        assert!(ends.at_peer.is_empty(), "a channel is back");
        let to = peer.local_addr().expect("bound");
        permitted.send_indication(to, b"when it is not permitted");
        permitted.settle();
        assert!(
            peer.recv_from(&mut [0; 100]).is_err(),
            "a permission is back"
        );
        permitted.refresh(600).expect(200);
        stays.client.refresh(600).expect(200);
        // Two allocations are there. A third is within the quota, a fourth is not, whoever asks for a fifth port gets none.
        Client::new(site.ip(3), server).allocate();
        Client::new(site.ip(4), server)
            .allocate_with(|_| {})
            .expect(486);
        Client::other(site.ip(5), server).allocate();
        Client::other(site.ip(6), server)
            .allocate_with(|_| {})
            .expect(508);
    }
}
