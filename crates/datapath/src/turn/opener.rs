//! Opening and closing sockets at the end of a turn.

use std::io;
use std::net::SocketAddr;

use rustix::event::epoll::{self, EventData, EventFlags};

use crate::names::{Bind, EndpointId, EndpointKind, Listen, StreamId, StreamListenerId};
use crate::reports::Warning;
use crate::settings::Settings;
use crate::sockets::epolls::{self, Epolls};
use crate::sockets::opening::{DetachedStream, HeldSocket, Sockets};
use crate::sockets::table::{Bound, Held, Table};
use crate::stream::connection::Detached;
use crate::stream::streams::Streams;
use crate::udp::grown::Grown;

/// Makes `epolls` report when something arrives.
fn watch(bound: &Bound, kind: u64, epolls: &Epolls) -> io::Result<()> {
    let data = EventData::new_u64(kind | u64::from(bound.endpoint.id.to_u32()));
    epoll::add(&epolls.media, bound.socket.fd(), data, EventFlags::IN)?;
    Ok(())
}

/// The sockets of a data path, borrowed for the end of a turn.
pub(super) struct Opener<'a> {
    pub(super) settings: &'a Settings,
    pub(super) epolls: &'a Epolls,
    pub(super) table: &'a mut Table,
    pub(super) streams: &'a mut Streams,
    pub(super) grown: &'a mut Grown,
    pub(super) warnings: &'a mut Vec<Warning>,
}

impl Sockets for Opener<'_> {
    fn bind(&mut self, bind: Bind) -> io::Result<EndpointId> {
        let warnings = &mut *self.warnings;
        let bound = self
            .table
            .open(bind, self.settings, &mut |warning| warnings.push(warning))?;
        let id = bound.endpoint.id;
        let is_charged = bound.socket.is_charged();
        let kind = match bind.kind {
            EndpointKind::Relay => epolls::RELAY,
            EndpointKind::Listener { .. } | EndpointKind::SharedRelay => epolls::CLIENTS,
        };
        watch(bound, kind, self.epolls).inspect_err(|_| {
            self.table.remove(id);
        })?;
        if bind.kind != EndpointKind::Relay {
            self.table.clients.push(id);
        } else if is_charged {
            self.grown.add(id);
        }
        Ok(id)
    }

    fn hold(&mut self, address: SocketAddr) -> io::Result<HeldSocket> {
        let warnings = &mut *self.warnings;
        let held = Held::open(address, self.settings, &mut |warning| {
            warnings.push(warning);
        });
        held.map(HeldSocket::new)
    }

    fn bind_held(&mut self, held: HeldSocket, token: u64) -> io::Result<EndpointId> {
        let held: Held = held.into_inner().ok_or(io::ErrorKind::InvalidInput)?;
        let bound = self.table.take_in(held, token, self.settings)?;
        let id = bound.endpoint.id;
        let is_charged = bound.socket.is_charged();
        watch(bound, epolls::RELAY, self.epolls).inspect_err(|_| {
            self.table.remove(id);
        })?;
        if is_charged {
            self.grown.add(id);
        }
        Ok(id)
    }

    fn local_addr(&self, endpoint: EndpointId) -> Option<SocketAddr> {
        self.table.get(endpoint).map(|bound| bound.endpoint.local)
    }

    fn forbid_fragments(&mut self, endpoint: EndpointId) {
        if let Some(bound) = self.table.get_mut(endpoint) {
            let is_v6 = bound.endpoint.local.is_ipv6();
            // Without it datagrams leave as from any other relay socket.
            let _ = bound.socket.never_fragment(is_v6);
        }
    }

    fn close(&mut self, endpoint: EndpointId) {
        self.table.closing.push(endpoint);
    }

    fn listen_for_peers(&mut self, listen: Listen) -> io::Result<StreamListenerId> {
        self.streams
            .listen_for_peers(listen, self.settings, self.epolls)
    }

    fn close_listener(&mut self, listener: StreamListenerId) {
        self.streams.close_listener(listener);
    }

    fn connect(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<StreamId> {
        self.streams
            .connect(local, remote, self.settings, self.epolls)
    }

    fn detach(&mut self, stream: StreamId) -> Option<DetachedStream> {
        let detached = self.streams.table.detach(stream, self.epolls);
        detached.map(DetachedStream::new)
    }

    fn adopt(&mut self, stream: DetachedStream) -> io::Result<StreamId> {
        let stream: Detached = stream.into_inner().ok_or(io::ErrorKind::InvalidInput)?;
        let is_cut = stream.is_cut();
        let id = self.streams.table.adopt(stream, self.epolls)?;
        if is_cut {
            self.streams.note_cut(id);
        }
        Ok(id)
    }
}
