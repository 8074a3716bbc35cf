//! Clients by UDP: a socket each, which the sender threads share.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use turnbuckle_datapath::{
    Bind, DatagramHandler, Datapath, EndpointId, EndpointKind, Received, SendQueue, Sockets,
    StreamHandler, TurnHandler,
};

use super::driver::Driver;
use super::listener::{Listener, Opened, Signalling, Task};
use super::sender;
use super::session::Via;

/// A thread's clients and their sockets.
pub(super) struct Udp {
    datapath: Datapath,
    clients: Clients,
}

struct Clients {
    listener: Listener,
    /// In the order of the listener's clients.
    endpoints: Vec<EndpointId>,
    local: IpAddr,
    to: SocketAddr,
}

impl Udp {
    /// Opens a socket for each client.
    ///
    /// # Errors
    /// A socket cannot be opened.
    pub(super) fn open(task: &mut Task) -> anyhow::Result<Self> {
        let mut datapath = Datapath::new(task.settings.clone())?;
        let mut endpoints = Vec::new();
        for (index, (session, _)) in task.clients.iter().enumerate() {
            let endpoint = datapath
                .bind(bind(task.route.local, index))
                .with_context(|| {
                    let local = task.route.local;
                    format!("cannot open a socket for client {session} on {local}")
                })?;
            endpoints.push(endpoint);
        }
        Ok(Self {
            datapath,
            clients: Clients {
                listener: Listener::new(task)?,
                endpoints,
                local: task.route.local,
                to: task.route.to,
            },
        })
    }
}

fn bind(local: IpAddr, index: usize) -> Bind {
    Bind {
        address: (local, 0).into(),
        kind: EndpointKind::Listener { reuseport: false },
        token: index as u64,
    }
}

impl Driver for Udp {
    fn listener(&mut self) -> &mut Listener {
        &mut self.clients.listener
    }

    fn turn(&mut self) -> anyhow::Result<()> {
        let wait = self.clients.listener.wait();
        Ok(self.datapath.turn(Some(wait), &mut self.clients)?)
    }

    fn opened(&mut self) -> anyhow::Result<Opened> {
        let (datapath, clients) = (&self.datapath, &self.clients);
        let endpoint = |index: usize| clients.endpoints.get(index).context("no such client");
        let mut opened = clients.listener.opened(|index| {
            Ok(Via::Socket {
                socket: datapath.share(*endpoint(index)?)?,
                to: clients.to,
            })
        })?;
        for &endpoint in &clients.endpoints {
            let local = datapath.local_addr(endpoint);
            opened.ports.extend(local.map(|local| local.port()));
        }
        Ok(opened)
    }

    fn finish(self) -> (Listener, Option<sender::Outcome>) {
        (self.clients.listener, None)
    }
}

impl TurnHandler for Clients {
    fn turn_started(&mut self) {
        self.listener.turn_started();
    }

    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        self.listener.turn_ended(&mut Requests {
            tx,
            sockets,
            endpoints: &mut self.endpoints,
            local: self.local,
            to: self.to,
        });
    }
}

impl DatagramHandler for Clients {
    fn received(&mut self, message: &Received<'_>, _: &mut SendQueue) {
        let now = self.listener.clock.now();
        let Ok(index) = usize::try_from(message.token) else {
            return;
        };
        // A port that was another program's a moment ago still gets what was meant for that one.
        if (message.remote.ip(), message.remote.port()) != (self.to.ip(), self.to.port()) {
            return;
        }
        for segment in message.segments() {
            self.listener.message(index, segment, now);
        }
    }
}

impl StreamHandler for Clients {}

/// How requests leave at the end of a turn.
struct Requests<'a, S> {
    tx: &'a mut SendQueue,
    sockets: &'a mut S,
    endpoints: &'a mut [EndpointId],
    local: IpAddr,
    to: SocketAddr,
}

impl<S: Sockets> Signalling for Requests<'_, S> {
    fn send(&mut self, index: usize, message: &[u8]) {
        if let Some(&endpoint) = self.endpoints.get(index) {
            self.tx.reply(endpoint, self.to, message);
        }
    }

    fn renew(&mut self, index: usize) {
        if let Some(endpoint) = self.endpoints.get_mut(index)
            && let Ok(bound) = self.sockets.bind(bind(self.local, index))
        {
            self.sockets.close(*endpoint);
            *endpoint = bound;
        }
    }
}
