//! Endpoints by number, and the socket behind each.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::socket::{SharedSocket, Socket};
use crate::names::{Bind, ENDPOINT_GENERATION_MASK, EndpointId, EndpointKind, INDEX_MASK, narrow};
use crate::reports::Warning;
use crate::settings::Settings;

/// What an endpoint is: what it is called, what it is for, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Endpoint {
    pub(crate) id: EndpointId,
    pub(crate) token: u64,
    pub(crate) kind: EndpointKind,
    pub(crate) local: SocketAddr,
}

/// An endpoint with a socket of its own.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) endpoint: Endpoint,
    pub(crate) socket: Socket,
}

impl Bound {
    fn open(
        bind: Bind,
        receiving: bool,
        settings: &Settings,
        warn: &mut impl FnMut(Warning),
    ) -> io::Result<Self> {
        let (socket, local) = Socket::open(bind, receiving, settings, warn)?;
        Ok(Self::new(socket, bind.kind, local, bind.token))
    }

    fn new(socket: Socket, kind: EndpointKind, local: SocketAddr, token: u64) -> Self {
        // It gets its name in the table.
        let id = EndpointId::from_u32(0);
        let endpoint = Endpoint {
            id,
            token,
            kind,
            local,
        };
        Self { endpoint, socket }
    }

    /// Returns a second handle of the socket.
    pub(crate) fn share(&self) -> io::Result<SharedSocket> {
        Ok(SharedSocket {
            descriptor: self.socket.try_clone()?,
            kind: self.endpoint.kind,
            local: self.endpoint.local,
        })
    }
}

/// What endpoints send from: the socket of one, or in a backend that has fewer sockets than endpoints the socket of several.
#[derive(Debug)]
pub(crate) struct WayOut<'a> {
    pub(crate) socket: &'a mut Socket,
    /// The address of the socket.
    pub(crate) local: SocketAddr,
}

/// A relay socket that is bound and receives nothing yet: the kernel discards what comes.
#[derive(Debug)]
pub(crate) struct Held(Bound);

impl Held {
    pub(crate) fn open(
        address: SocketAddr,
        settings: &Settings,
        warn: &mut impl FnMut(Warning),
    ) -> io::Result<Self> {
        let bind = Bind {
            address,
            kind: EndpointKind::Relay,
            token: 0,
        };
        Bound::open(bind, false, settings, warn).map(Self)
    }
}

/// Endpoints by index; indexes are reused, names are not.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
    /// The endpoints that many send to: those of clients, and shared relays.
    pub(crate) clients: Vec<EndpointId>,
    /// Those that are to be closed after the next flush.
    pub(crate) closing: Vec<EndpointId>,
}

#[derive(Debug)]
struct Place {
    generation: u32,
    bound: Option<Box<Bound>>,
}

impl Table {
    /// Opens and binds a socket.
    pub(crate) fn open(
        &mut self,
        bind: Bind,
        settings: &Settings,
        warn: &mut impl FnMut(Warning),
    ) -> io::Result<&mut Bound> {
        let waits = bind.kind == EndpointKind::Listener { reuseport: true };
        self.add(Bound::open(bind, !waits, settings, warn)?)
    }

    /// Takes in a socket that was held, and lets it receive.
    pub(crate) fn take_in(
        &mut self,
        held: Held,
        token: u64,
        settings: &Settings,
    ) -> io::Result<&mut Bound> {
        let Held(mut bound) = held;
        let start = settings.buffers.relay_start;
        bound.socket.start_receive_buffer(start)?;
        bound.socket.admit_clients()?;
        bound.endpoint.token = token;
        self.add(bound)
    }

    /// Takes in a socket that another data path reads.
    pub(crate) fn adopt(
        &mut self,
        shared: SharedSocket,
        token: u64,
        settings: &Settings,
    ) -> io::Result<&mut Bound> {
        let socket = Socket::new(shared.descriptor, shared.kind, settings);
        self.add(Bound::new(socket, shared.kind, shared.local, token))
    }

    fn add(&mut self, bound: Bound) -> io::Result<&mut Bound> {
        let mut bound = Box::new(bound);
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None if self.places.len() > INDEX_MASK as usize => {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            None => {
                self.places.push(Place {
                    generation: 0,
                    bound: None,
                });
                self.places.len() - 1
            }
        };
        let place = &mut self.places[index];
        bound.endpoint.id = EndpointId::new(index, place.generation);
        Ok(place.bound.insert(bound))
    }

    #[inline]
    pub(crate) fn get(&self, id: EndpointId) -> Option<&Bound> {
        self.places
            .get(id.index())?
            .bound
            .as_deref()
            .filter(|bound| bound.endpoint.id == id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Bound> {
        self.places
            .get_mut(id.index())?
            .bound
            .as_deref_mut()
            .filter(|bound| bound.endpoint.id == id)
    }

    /// Returns the socket that an endpoint sends from.
    #[inline]
    pub(crate) fn way_out(&mut self, id: EndpointId) -> Option<WayOut<'_>> {
        let Bound { endpoint, socket } = self.get_mut(id)?;
        Some(WayOut {
            socket,
            local: endpoint.local,
        })
    }

    /// Takes out all relay sockets, those that allocations share too, with their addresses.
    pub(crate) fn take_relays(&mut self) -> impl Iterator<Item = (SocketAddr, OwnedFd)> {
        let bound = self.places.iter_mut().filter_map(|place| {
            let is_relay = |bound: &mut Box<Bound>| {
                matches!(
                    bound.endpoint.kind,
                    EndpointKind::Relay | EndpointKind::SharedRelay
                )
            };
            place.bound.take_if(is_relay)
        });
        bound.map(|bound| (bound.endpoint.local, bound.socket.into_descriptor()))
    }

    /// Returns all that are bound.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = &mut Bound> {
        self.places
            .iter_mut()
            .filter_map(|place| place.bound.as_deref_mut())
    }

    /// Closes an endpoint; its name is not used again until the index was reused 512 times.
    pub(crate) fn remove(&mut self, id: EndpointId) -> Option<Box<Bound>> {
        let place = self.places.get_mut(id.index())?;
        let bound = place.bound.take_if(|bound| bound.endpoint.id == id)?;
        place.generation = place.generation.wrapping_add(1) & ENDPOINT_GENERATION_MASK;
        self.free.push(narrow(id.index()));
        if bound.endpoint.kind != EndpointKind::Relay {
            self.clients.retain(|client| *client != id);
        }
        Some(bound)
    }
}
