//! Data and ICMP errors, compared with the model: I1, I2 and I10.

use std::borrow::Cow;
use std::net::SocketAddr;

use turnbuckle_engine::{DropReason, Endpoint, Framing, IcmpError, Outcome, SendRoute};
use turnbuckle_wire::{
    AttributeType, Class, DATA_INDICATION_HEADER_MAX, Message, Method, data_indication_header,
    padding_len,
};

use super::mirror::add;
use super::{Datagram, Output, Watched, describe_step};
use crate::message::channel_data;
use crate::model::{Expect, Inbound, Tuple, canonical};
use crate::plan;
use crate::server::{Step, Verdict};
use crate::trace::seconds;
use crate::violation::{Violation, ensure};

impl Watched {
    /// Has a channel message arrive, and judges what becomes of it (RFC 8656 §12.6).
    pub(super) fn channel(
        &mut self,
        now: u64,
        from: Tuple,
        bytes: &[u8],
    ) -> Result<Output, Violation> {
        // The host's part: find number and length before it asks for a route.
        let header = bytes.split_first_chunk::<4>();
        let claim = header.map(|([n0, n1, l0, l1], rest)| {
            let len = usize::from(u16::from_be_bytes([*l0, *l1]));
            (u16::from_be_bytes([*n0, *n1]), rest.get(..len))
        });
        let moved = matches!(claim, Some((_, Some(_)))) && self.model.data_came(from, now);
        let exact = self.model.at(now);
        let expect = exact.channel_data(from, bytes);
        // The peer may be a relayed address that is over, and its owner's timer may not have fired.
        let lenient = match exact {
            Cow::Owned(mut lenient) => {
                lenient.lingering = self.model.in_use();
                lenient.channel_data(from, bytes)
            }
            Cow::Borrowed(_) => expect.clone(),
        };
        let mut output = Output::default();
        let Some((number, Some(payload))) = claim else {
            self.coverage.count("malformed channel data", 0);
            ensure(expect == Expect::Malformed, "model", || {
                format!("malformed, expected {expect:?}")
            })?;
            return Ok(output);
        };
        let mut step = self.server.channel(now, from, number, payload.len());
        self.trace.line(|| {
            format!(
                "{} {from:?} channel {number:#06x} {} bytes -> {}",
                seconds(now),
                payload.len(),
                describe_step(&step),
            )
        });
        self.record(&step)?;
        self.moved(now, from, moved, &mut step)?;
        self.no_effects(&step)?;
        let framed = payload.len() + 4;
        let relayed = matches!(step.verdict, Verdict::Channel(Ok(_)));
        self.mirror.count_usage(from, |usage| {
            add(&mut usage.client_received, framed);
            if relayed {
                add(&mut usage.peer_sent, payload.len());
            }
        });
        match &step.verdict {
            Verdict::Channel(Ok(route)) => {
                let relay = self.bound_outside(route.relay, step.shard)?;
                let to = self.server.outside(route.peer.address());
                let found = Expect::Relay {
                    from: relay,
                    to,
                    data: payload.to_vec(),
                    dont_fragment: false,
                };
                ensure(found == expect || found == lenient, "I2", || {
                    format!("channel data goes {relay} -> {to}, expected {expect:?}")
                })?;
                self.coverage.count("channel data relayed", 0);
                self.send_to_peer(from, relay, route.peer.address(), payload, &mut output)?;
            }
            Verdict::Channel(Err(reason)) => {
                self.dropped(*reason, &step)?;
                // What is over may be missed under another name until its timer fires.
                let reasons = [
                    DropReason::NoAllocation,
                    DropReason::ChannelNotBound,
                    DropReason::ChannelReserved,
                ];
                let silence = matches!(&expect, Expect::Silence(r)
                    if r.contains(reason) || reasons.contains(reason) && r.iter().any(|r| reasons.contains(r)));
                ensure(silence, "model", || {
                    format!("dropped as {reason:?}, expected {expect:?}")
                })?;
            }
            other => {
                return Err(Violation::new(
                    "model",
                    format!("{other:?} for channel data"),
                ));
            }
        }
        self.invariants(now)?;
        Ok(output)
    }

    /// Has a datagram arrive at a relayed address, and judges what becomes of it.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn from_peer(
        &mut self,
        now: u64,
        relay: SocketAddr,
        source: SocketAddr,
        bytes: &[u8],
    ) -> Result<Output, Violation> {
        self.begin(now, bytes);
        let mut output = Output::default();
        let Some(socket) = self.server.socket_at(relay) else {
            self.coverage.count("no such socket", 0);
            return Ok(output);
        };
        let relay = self.server.outside(socket.local);
        let expect = self
            .model
            .at(now)
            .from_peer(relay, self.server.outside(source));
        let step = self.server.peer(now, socket, source, bytes.len());
        self.trace.line(|| {
            format!(
                "{} peer {source} -> {relay} {} bytes -> {}",
                seconds(now),
                bytes.len(),
                describe_step(&step),
            )
        });
        self.record(&step)?;
        self.no_effects(&step)?;
        let holder = self.model.at(now).by_relay(relay).map(|(holder, _)| holder);
        if let Some(holder) = holder {
            let framed = match &step.verdict {
                Verdict::Peer(Ok(route)) => match route.framing {
                    Framing::Channel(_) => Some(bytes.len() + 4),
                    Framing::Bound { .. } | Framing::DataIndication { .. } | Framing::Tunnel => {
                        Some(bytes.len())
                    }
                },
                _ => None,
            };
            self.mirror.count_usage(holder, |usage| {
                add(&mut usage.peer_received, bytes.len());
                if let Some(framed) = framed {
                    add(&mut usage.client_sent, framed);
                }
            });
        }
        match &step.verdict {
            Verdict::Peer(Ok(route)) => {
                let client = self.server.tuple(step.shard, route.client);
                let channel = match route.framing {
                    Framing::Channel(number) => Some(number.get()),
                    Framing::DataIndication { peer } => {
                        let known = self.server.outside(canonical(source));
                        ensure(peer == known, "model", || {
                            format!("data from {source} shown as from {peer}, not {known}")
                        })?;
                        None
                    }
                    Framing::Bound { .. } | Framing::Tunnel => {
                        return Err(Violation::new("model", "there is no tunnel"));
                    }
                };
                let found = client.map(|client| Inbound::Client(client, channel));
                ensure(found == Some(expect), "I2", || {
                    format!("data from {source} goes to {found:?}, expected {expect:?}")
                })?;
                let Some(client) = client else {
                    return Err(Violation::new("model", "route to an unknown listener"));
                };
                self.coverage
                    .count("data to client", u16::from(channel.is_some()));
                let bytes = match route.framing {
                    Framing::Channel(number) => channel_data(number.get(), bytes),
                    Framing::DataIndication { peer } => {
                        self.data_indication(step.shard, peer, bytes)?
                    }
                    Framing::Bound { .. } | Framing::Tunnel => {
                        return Err(Violation::new("model", "there is no tunnel"));
                    }
                };
                output.datagrams.push(Datagram {
                    from: client.server,
                    to: client.client,
                    bytes,
                });
            }
            Verdict::Peer(Err(reason)) => {
                self.dropped(*reason, &step)?;
                ensure(expect == Inbound::Silence(*reason), "model", || {
                    format!("peer data dropped as {reason:?}, expected {expect:?}")
                })?;
            }
            other => return Err(Violation::new("model", format!("{other:?} for peer data"))),
        }
        self.invariants(now)?;
        Ok(output)
    }

    /// Has an ICMP error arrive at a relayed address, and judges what becomes of it.
    ///
    /// # Errors
    ///
    /// The first rule that was broken.
    pub fn from_icmp(
        &mut self,
        now: u64,
        relay: SocketAddr,
        error: IcmpError,
    ) -> Result<Output, Violation> {
        self.begin(now, &[error.kind, error.code]);
        let mut output = Output::default();
        let Some(socket) = self.server.socket_at(relay) else {
            return Ok(output);
        };
        let relay = self.server.outside(socket.local);
        let peer = self.server.outside(error.peer);
        let expect = self
            .model
            .at(now)
            .from_icmp(relay, peer, error.kind, error.v6);
        let step = self.server.icmp(now, socket, error);
        self.trace.line(|| {
            format!(
                "{} {error:?} at {relay} -> {}",
                seconds(now),
                describe_step(&step)
            )
        });
        self.record(&step)?;
        ensure(
            step.opens.is_empty() && step.changes.is_empty(),
            "model",
            || format!("an ICMP error changed state: {:?}", step.changes),
        )?;
        match (&step.verdict, step.replies.as_slice(), expect) {
            (
                Verdict::Message(Outcome::Dropped(
                    DropReason::IcmpNotRelayed | DropReason::RelayClosed,
                )),
                [],
                None,
            ) => {
                self.coverage.count("icmp dropped", 0);
            }
            (Verdict::Message(Outcome::Done), [(to, bytes)], Some(client)) if *to == client => {
                let sound = Message::parse(bytes).is_ok_and(|message| {
                    let icmp = message.icmp().ok().flatten();
                    message.method() == Method::DATA
                        && message.class() == Class::Indication
                        && message.raw(AttributeType::DATA).is_none()
                        && message.xor_peer_address() == Ok(Some(peer))
                        && icmp.is_some_and(|i| {
                            (i.kind, i.code) == (error.kind, u16::from(error.code))
                        })
                });
                ensure(sound, "model", || format!("ICMP forwarded as {bytes:02x?}"))?;
                self.coverage.count("icmp relayed", 0);
                output.datagrams.push(Datagram {
                    from: client.server,
                    to: client.client,
                    bytes: bytes.clone(),
                });
            }
            (verdict, replies, expect) => {
                return Err(Violation::new(
                    "model",
                    format!(
                        "{error:?}: {verdict:?} with {} replies, expected {expect:?}",
                        replies.len()
                    ),
                ));
            }
        }
        self.invariants(now)?;
        Ok(output)
    }

    /// Judges the route of a Send indication (RFC 8656 §11.2).
    pub(super) fn relayed(
        &mut self,
        from: Tuple,
        bytes: &[u8],
        route: &SendRoute,
        step: &Step,
        expects: &[Expect],
    ) -> Result<Output, Violation> {
        self.no_effects(step)?;
        let relay = self.bound_outside(route.relay, step.shard)?;
        let Some(payload) = bytes.get(route.data.clone()) else {
            return Err(Violation::new(
                "model",
                format!("payload at {:?}", route.data),
            ));
        };
        let found = Expect::Relay {
            from: relay,
            to: self.server.outside(route.peer.address()),
            data: payload.to_vec(),
            dont_fragment: route.dont_fragment,
        };
        ensure(expects.contains(&found), "I2", || {
            format!("{found:?}, expected {expects:?}")
        })?;
        self.coverage.count("send relayed", 0);
        self.mirror
            .count_usage(from, |usage| add(&mut usage.peer_sent, payload.len()));
        let mut output = Output::default();
        self.send_to_peer(from, relay, route.peer.address(), payload, &mut output)?;
        Ok(output)
    }

    /// Checks I1 and I10 on the way out.
    pub(super) fn send_to_peer(
        &mut self,
        from: Tuple,
        relay: SocketAddr,
        peer: SocketAddr,
        payload: &[u8],
        output: &mut Output,
    ) -> Result<(), Violation> {
        let outside = self.server.outside(peer);
        ensure(
            plan::may_be_peer(outside.ip()) && outside.port() != 0,
            "I1",
            || format!("{} bytes to {peer}", payload.len()),
        )?;
        let serial = self.model.allocations.get(&from).map(|held| held.serial);
        self.ledger.seen_by_peer(serial, relay)?;
        output.datagrams.push(Datagram {
            from: relay,
            to: outside,
            bytes: payload.to_vec(),
        });
        Ok(())
    }

    fn data_indication(
        &mut self,
        shard: usize,
        peer: SocketAddr,
        payload: &[u8],
    ) -> Result<Vec<u8>, Violation> {
        let mut header = [0; DATA_INDICATION_HEADER_MAX];
        let len = u16::try_from(payload.len()).unwrap_or(u16::MAX);
        let id = self.server.transaction_id(shard);
        let Some(used) = data_indication_header(&mut header, id, peer, len) else {
            return Err(Violation::new(
                "model",
                "a payload that fits into no indication",
            ));
        };
        let mut bytes = header[..used].to_vec();
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + padding_len(payload.len()), 0);
        let sound = Message::parse(&bytes).is_ok_and(|message| {
            message.method() == Method::DATA
                && message.data() == Some(payload)
                && message.xor_peer_address() == Ok(Some(peer))
        });
        ensure(sound, "model", || format!("Data indication {bytes:02x?}"))?;
        Ok(bytes)
    }

    /// Returns the outside address of the relay socket that the engine names.
    fn bound_outside(&self, endpoint: Endpoint, shard: usize) -> Result<SocketAddr, Violation> {
        match self.server.socket(endpoint) {
            Some(socket) if socket.shard == shard => Ok(self.server.outside(socket.local)),
            other => Err(Violation::new(
                "I10",
                format!("route over {endpoint:?}: {other:?}"),
            )),
        }
    }
}
