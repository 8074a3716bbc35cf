//! Requests and their answers, compared with the model; and the model taking over what it saw.

mod allocated;
mod reply;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use turnbuckle_engine::{Change, EndCause, RelayOpenError};
use turnbuckle_wire::{AddressFamily, AttributeType, Class, Message, Method};

use self::reply::{code_of, method_name, parse_reply};
use super::{Datagram, Output, Watched, describe};
use crate::model::{Allocation, Expect, Mobility, Pending, Proof, Reservation, Tuple};
use crate::queue::{MS, SECOND};
use crate::server::{Opening, Step, clocks};
use crate::violation::{Violation, ensure};

impl Watched {
    /// Judges a request of which the engine says that it is answered, or will be.
    pub(super) fn answered(
        &mut self,
        now: u64,
        from: Tuple,
        message: &Message<'_>,
        proof: &Proof,
        expects: &[Expect],
        step: Step,
    ) -> Result<Output, Violation> {
        ensure(message.class() == Class::Request, "I8", || {
            format!("an answer to {}", describe(message))
        })?;
        if step.replies.is_empty() {
            return self.opens(now, from, expects, step);
        }
        let [(to, bytes)] = step.replies.as_slice() else {
            let count = step.replies.len();
            return Err(Violation::new(
                "I8",
                format!("{count} answers to {}", describe(message)),
            ));
        };
        ensure(*to == from, "I8", || {
            format!("the answer to {from:?} goes to {to:?}")
        })?;
        ensure(step.opens.is_empty(), "I8", || {
            "answered and asked for a socket".to_owned()
        })?;
        let reply = parse_reply(bytes)?;
        let same = reply.transaction_id() == message.transaction_id()
            && reply.method() == message.method();
        ensure(same, "I8", || {
            format!("{} answers {}", describe(&reply), describe(message))
        })?;
        let code = code_of(&reply)?;
        let fits = |expect: &Expect| match expect {
            Expect::Answer { success, codes } => {
                if code == 0 {
                    *success
                } else {
                    codes.contains(&code)
                }
            }
            _ => false,
        };
        ensure(expects.iter().any(fits), "model", || {
            let bytes = message.as_bytes();
            let request = describe(message);
            format!("{request} answered {code}, expected {expects:?}: {bytes:02x?}")
        })?;
        self.coverage.count(method_name(message.method()), code);
        let proven = proof.user.is_some() && !matches!(code, 401 | 438);
        self.check_reply(now, from, message, &reply, proven.then_some(proof), code)?;
        if !proven {
            let (asked, sent) = (message.as_bytes().len(), bytes.len());
            let source = from.client.ip();
            // An answer beyond three times its request is a challenge of required parts, of a length that is known.
            let realm_len = self.secrets.realm.len().next_multiple_of(4);
            let fingerprint_len = if message.has_fingerprint() { 8 } else { 0 };
            let challenge_len = 20 + 8 + 4 + realm_len + 4 + 28 + 12 + fingerprint_len;
            let is_first_request = asked >= 28 || message.method() == Method::BINDING;
            let is_challenge = matches!(code, 401 | 438) && sent <= challenge_len;
            ensure(
                sent <= 3 * asked || is_challenge && is_first_request,
                "I3",
                || format!("{sent} bytes for {asked} to who proved nothing"),
            )?;
            let shared = self.server.commons.unverified_bucket(source);
            self.ledger
                .unverified_reply(now, source, shared, asked, sent)?;
        }
        if code == 0 && message.method() != Method::BINDING {
            self.take_over(now, from, message, &reply)?;
        }
        self.follow(now, &step.changes, step.shard)?;
        Ok(Output {
            datagrams: vec![Datagram {
                from: to.server,
                to: to.client,
                bytes: bytes.clone(),
            }],
            openings: Vec::new(),
        })
    }

    /// Checks what every answer must look like.
    fn check_reply(
        &mut self,
        now: u64,
        from: Tuple,
        message: &Message<'_>,
        reply: &Message<'_>,
        proven: Option<&Proof>,
        code: u16,
    ) -> Result<(), Violation> {
        let has = |attribute| reply.raw(attribute).is_some();
        ensure(
            reply.has_fingerprint() == message.has_fingerprint(),
            "model",
            || "FINGERPRINT is not mirrored".to_owned(),
        )?;
        let names = has(AttributeType::USERNAME) || has(AttributeType::USERHASH);
        ensure(!names, "model", || format!("{code} names the user"))?;
        if code == 0 && message.method() == Method::BINDING {
            let mapped = reply.xor_mapped_address();
            return ensure(mapped == Ok(Some(from.client)), "model", || {
                format!("mapped address {mapped:?} for {from:?}")
            });
        }
        let integrity = reply.has_integrity_sha1() || reply.has_integrity_sha256();
        if let Some(proof) = proven {
            // STUN-027, STUN-054: under the request's key and algorithm.
            let user = proof.user.as_deref().unwrap_or_default();
            let key = self.secrets.key(user, proof.sha256);
            let sound = key.is_some_and(|key| reply.check_integrity(&key).is_ok());
            let only = reply.has_integrity_sha256() == proof.sha256;
            ensure(sound && only, "model", || {
                format!("{code} under a wrong integrity")
            })?;
            ensure(!has(AttributeType::NONCE), "model", || {
                format!("{code} has a nonce")
            })?;
        } else {
            ensure(!integrity, "model", || {
                format!("{code} without proof has integrity")
            })?;
            let challenge = has(AttributeType::NONCE) && has(AttributeType::REALM);
            let silent = !has(AttributeType::NONCE) && !has(AttributeType::REALM);
            ensure(
                if matches!(code, 401 | 438) {
                    challenge
                } else {
                    silent
                },
                "model",
                || format!("{code} with challenge {challenge}"),
            )?;
            if let Some(nonce) = reply.raw(AttributeType::NONCE) {
                let elsewhere = self.nonces.known_elsewhere(from, nonce);
                ensure(!elsewhere, "model", || {
                    format!("nonce of another client for {from:?}")
                })?;
                self.nonces.note(from, reply, clocks(now).unix_s);
            }
        }
        if code == 420 {
            let listed = reply.unknown_attributes().ok().flatten();
            let listed = listed.iter().flat_map(|list| list.iter());
            let listed: BTreeSet<u16> = listed.map(AttributeType::number).collect();
            let unknown = self.model.unknown(from, message);
            ensure(listed == unknown, "model", || {
                format!("UNKNOWN-ATTRIBUTES lists {listed:04x?}, expected {unknown:04x?}")
            })?;
        }
        Ok(())
    }

    /// Applies a successful request to the model, with what the answer says.
    fn take_over(
        &mut self,
        now: u64,
        from: Tuple,
        message: &Message<'_>,
        reply: &Message<'_>,
    ) -> Result<(), Violation> {
        let rules = self.model.rules.clone();
        let lifetime = reply.lifetime().ok().flatten().map(u64::from);
        let granted = self.model.lifetime_s(message.lifetime().ok().flatten());
        let brought = (message.method() == Method::REFRESH)
            .then(|| message.mobility_ticket())
            .flatten();
        let tuple = match brought {
            Some(ticket) => self.model.of_ticket(ticket),
            None => self.model.holder(from),
        };
        let Some((tuple, held)) =
            tuple.and_then(|tuple| Some((tuple, self.model.allocations.get_mut(&tuple)?)))
        else {
            return Err(Violation::new("model", "success without an allocation"));
        };
        let id = *message.transaction_id().as_bytes();
        let family = message.requested_address_family().ok().flatten();
        let v6 = family.map(|family| family == AddressFamily::V6);
        match message.method() {
            Method::ALLOCATE => {
                self.coverage.count("allocate repeated", 0);
                let held = held.clone();
                // Rounded up, after what is less than a millisecond is left out.
                let left_s = (held.expires().saturating_sub(now) / MS).div_ceil(1000);
                allocated::check(&self.secrets, &held, from, reply, left_s)?;
            }
            Method::REFRESH => {
                let ends = message.lifetime() == Ok(Some(0));
                let expected = if ends { 0 } else { granted };
                ensure(lifetime == Some(expected), "model", || {
                    format!("refreshed for {lifetime:?}, expected {expected}")
                })?;
                let was_over = self.model.finished.contains_key(&(from, id));
                let concerned = |relay: &&SocketAddr| v6.is_none_or(|v6| relay.is_ipv6() == v6);
                let relays: Vec<_> = held.relays.keys().copied().collect();
                if ends && !was_over && relays.iter().all(|relay| concerned(&relay)) {
                    self.coverage.count("released", 0);
                    self.model.end(tuple, Some(id), now);
                    return Ok(());
                }
                if !ends {
                    for relay in relays.iter().filter(concerned) {
                        held.relays.insert(*relay, now + granted * SECOND);
                    }
                }
                if let Some(brought) = brought {
                    self.take_over_path(now, tuple, from, message, brought, reply)?;
                }
                if ends && was_over {
                    self.coverage.count("release repeated", 0);
                } else if let Some(v6) = v6.filter(|_| ends) {
                    self.coverage.count("family released", 0);
                    self.model.end_family(tuple, v6, Some(id), now);
                }
            }
            _ => {
                let number = message.channel_number().ok().flatten();
                let binds = message.method() == Method::CHANNEL_BIND;
                let peers = message.xor_peer_addresses().filter_map(Result::ok);
                for peer in peers.take(if binds { 1 } else { usize::MAX }) {
                    held.permissions
                        .insert(peer.ip(), now + rules.lifetimes.permission);
                    if let (true, Some(number)) = (binds, number) {
                        held.channels
                            .insert(number, (peer, now + rules.lifetimes.channel));
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes into the model that the client of an allocation was given another path and another ticket, or the same ones once more.
    fn take_over_path(
        &mut self,
        now: u64,
        tuple: Tuple,
        from: Tuple,
        message: &Message<'_>,
        brought: &[u8],
        reply: &Message<'_>,
    ) -> Result<(), Violation> {
        let held = self.model.allocations.get(&tuple);
        let good = held.and_then(|held| held.mobility.as_ref());
        let good = good.map(|mobility| mobility.ticket.clone());
        let repeats =
            held.is_some_and(|held| self.model.repeats(now, from, message, brought, held));
        let given = reply.mobility_ticket().map(<[u8]>::to_vec);
        if repeats {
            self.coverage.count("resume repeated", 0);
            return ensure(given == good, "model", || {
                format!("{given:02x?} for the resume that got {good:02x?}")
            });
        }
        self.coverage
            .count("resumed", u16::from(from.client.is_ipv6()));
        let fresh = given.filter(|given| !self.model.tickets.contains_key(given));
        let Some(fresh) = fresh else {
            return Err(Violation::new("model", "a resume without a new ticket"));
        };
        let id = *message.transaction_id().as_bytes();
        self.model.resumed(now, tuple, from, id, &fresh);
        Ok(())
    }

    /// Judges an Allocate request that needs a socket first.
    fn opens(
        &mut self,
        now: u64,
        from: Tuple,
        expects: &[Expect],
        step: Step,
    ) -> Result<Output, Violation> {
        let mut pending = expects.iter().filter_map(|expect| match expect {
            Expect::Open(pending) => Some(pending.clone()),
            _ => None,
        });
        let Some(pending) = pending.next() else {
            return Err(Violation::new(
                "I8",
                format!("no answer yet, expected {expects:?}"),
            ));
        };
        ensure(!step.opens.is_empty(), "I8", || {
            "no answer and no socket asked for".to_owned()
        })?;
        if let Some(address) = pending.asked.redeemed {
            self.model.redeem(address);
        }
        self.model.pending.insert(from, pending);
        // What ended in this step gave its port back before the engine asked for one.
        self.follow(now, &step.changes, step.shard)?;
        self.ask(now, from, &step.opens)?;
        Ok(Output {
            datagrams: Vec::new(),
            openings: step.opens,
        })
    }

    /// Takes note of the sockets that the engine asks for, and checks that their ports are sound.
    fn ask(&mut self, now: u64, from: Tuple, opens: &[Opening]) -> Result<(), Violation> {
        for opening in opens {
            let address = self.server.outside(opening.address);
            let taken = self.model.taken_for_certain(now);
            let rules = &self.model.rules;
            let known =
                rules.relays.contains(&address.ip()) && rules.ports.contains(&address.port());
            ensure(known, "model", || {
                format!("{address} is no relayed address")
            })?;
            let Some(pending) = self.model.pending.get_mut(&from) else {
                return Err(Violation::new("I8", format!("{address} for nobody")));
            };
            ensure(
                pending.asked.wanted[usize::from(address.is_ipv6())],
                "model",
                || format!("{address} is of a family that {from:?} does not want"),
            )?;
            ensure(!taken.contains(&address), "model", || {
                format!("{address} is taken")
            })?;
            if let Some(redeemed) = pending.asked.redeemed {
                ensure(redeemed == address, "model", || {
                    format!("{address} for {redeemed}")
                })?;
            }
            if let Some(reserve) = pending.asked.even {
                let next = SocketAddr::new(address.ip(), address.port() | 1);
                let sound = address.port().is_multiple_of(2)
                    && (!reserve || !taken.contains(&next) && rules.ports.contains(&next.port()));
                ensure(sound, "model", || {
                    format!("{address} for EVEN-PORT {reserve}")
                })?;
            }
            // Whatever waited there is over.
            let next = SocketAddr::new(address.ip(), address.port() | 1);
            let reserve = pending.asked.even == Some(true);
            let waits =
                |held: &Reservation| held.address == address || reserve && held.address == next;
            self.model.reservations.retain(|_, held| !waits(held));
            pending.opening.push(address);
            self.opening.insert((opening.shard, opening.request), from);
        }
        Ok(())
    }

    /// Judges what the engine does when it has heard that the host has tried to open a socket.
    pub(super) fn resolved(
        &mut self,
        now: u64,
        opening: Opening,
        result: Result<(), RelayOpenError>,
        step: Step,
        output: &mut Output,
    ) -> Result<(), Violation> {
        let address = self.server.outside(opening.address);
        self.coverage.count("opened", u16::from(result.is_ok()));
        let Some(from) = self.opening.remove(&(opening.shard, opening.request)) else {
            // Given up in the meantime: what was opened must be closed at once.
            self.coverage.count("opened too late", 0);
            let closes = if result.is_ok() { 1 } else { 0 };
            return ensure(
                step.closes.len() == closes && step.replies.is_empty(),
                "model",
                || format!("{address} opened too late, closed {:?}", step.closes),
            );
        };
        let retry = result == Err(RelayOpenError::AddressInUse);
        if let Some(pending) = self.model.pending.get(&from) {
            let attempts = self.server.config.limits.relay_open_attempts;
            let tried = pending
                .in_use
                .iter()
                .filter(|other| other.is_ipv6() == address.is_ipv6());
            let may_retry = pending.asked.redeemed.is_none()
                && tried.count() + 1 < usize::from(attempts)
                && self.has_other_port(pending, address);
            ensure(
                step.opens.len() == usize::from(retry && may_retry),
                "model",
                || format!("{address} {result:?}, then asked for {:?}", step.opens),
            )?;
        }
        self.ask(now, from, &step.opens)?;
        if let Some(pending) = self.model.pending.get_mut(&from) {
            pending.opening.retain(|other| *other != address);
            if result.is_ok() {
                pending.opened.push(address);
            } else if !step.opens.is_empty() {
                pending.in_use.push(address);
            }
        }
        let Some(pending) = self.model.pending.get(&from).cloned() else {
            return Err(Violation::new("model", "a socket for an unknown request"));
        };
        match step.replies.as_slice() {
            [] => ensure(!pending.opening.is_empty(), "I8", || {
                format!("the request of {from:?} is forgotten")
            })?,
            [(to, bytes)] => {
                ensure(*to == from && pending.opening.is_empty(), "I8", || {
                    format!(
                        "answer to {to:?} for {from:?} with {:?} to open",
                        pending.opening
                    )
                })?;
                self.model.pending.remove(&from);
                self.allocated(now, from, pending, bytes, &step)?;
                output.datagrams.push(Datagram {
                    from: to.server,
                    to: to.client,
                    bytes: bytes.clone(),
                });
            }
            more => return Err(Violation::new("I8", format!("{} answers", more.len()))),
        }
        self.follow(now, &step.changes, step.shard)?;
        output.openings.extend(step.opens);
        Ok(())
    }

    /// Judges the final answer to an Allocate request.
    fn allocated(
        &mut self,
        now: u64,
        from: Tuple,
        pending: Pending,
        bytes: &[u8],
        step: &Step,
    ) -> Result<(), Violation> {
        let reply = parse_reply(bytes)?;
        let code = code_of(&reply)?;
        let sound = *reply.transaction_id().as_bytes() == pending.transaction
            && reply.method() == Method::ALLOCATE;
        ensure(sound, "I8", || {
            format!("{} for {pending:?}", describe(&reply))
        })?;
        self.coverage.count(method_name(Method::ALLOCATE), code);
        if !allocated::is_granted(&self.model, &pending, code)? {
            return Ok(());
        }
        let lost = [false, true].into_iter().find(|v6| {
            let got = pending.opened.iter().any(|relay| relay.is_ipv6() == *v6);
            pending.asked.wanted[usize::from(*v6)] && !got
        });
        let missing = lost.map(|v6| (v6, 508)).or(pending.asked.missing);
        if pending.opened.len() == 2 {
            self.coverage.count("both families", 0);
        }
        let token = reply.reservation_token().ok().flatten();
        if let Some(token) = token {
            self.coverage.count("reserved", 0);
            let even = pending.opened.first().copied();
            let Some(even) = even.filter(|_| pending.asked.even == Some(true)) else {
                return Err(Violation::new("model", "a token that nobody asked for"));
            };
            let address = SocketAddr::new(even.ip(), even.port() + 1);
            let expires = now + self.model.rules.lifetimes.reservation;
            let fresh = self.model.reservations.insert(
                token,
                Reservation {
                    user: pending.user.clone(),
                    address,
                    expires,
                    certain: true,
                },
            );
            ensure(fresh.is_none(), "model", || {
                "the same token twice".to_owned()
            })?;
        }
        ensure(
            token.is_some() == (pending.asked.even == Some(true)),
            "model",
            || format!("token {token:?} for {:?}", pending.asked.even),
        )?;
        if pending.asked.redeemed.is_some() {
            self.coverage.count("redeemed", 0);
        }
        self.serial += 1;
        let mut held = Allocation {
            serial: self.serial,
            shard: step.shard,
            user: pending.user,
            transaction: pending.transaction,
            relays: pending
                .opened
                .into_iter()
                .map(|relay| (relay, now + pending.asked.lifetime_s * SECOND))
                .collect(),
            missing,
            token,
            permissions: BTreeMap::new(),
            channels: BTreeMap::new(),
            mobility: None,
        };
        if pending.asked.mobile {
            let ticket = reply.mobility_ticket().unwrap_or_default().to_vec();
            let before = self.model.tickets.insert(ticket.clone(), held.serial);
            ensure(before.is_none() && !ticket.is_empty(), "model", || {
                format!("{ticket:02x?} is no new ticket")
            })?;
            held.mobility = Some(Mobility {
                ticket,
                new_path: None,
                resumed: None,
            });
        }
        allocated::check(&self.secrets, &held, from, &reply, pending.asked.lifetime_s)?;
        self.model.allocations.insert(from, held);
        Ok(())
    }

    /// Checks what timers do: they end what is over, and answer a request whose socket never came.
    pub(super) fn timed_out(
        &mut self,
        now: u64,
        step: Step,
        output: &mut Output,
    ) -> Result<(), Violation> {
        ensure(step.opens.is_empty(), "I8", || {
            "a timer asks for a socket".to_owned()
        })?;
        for (to, bytes) in &step.replies {
            let Some(mut pending) = self.model.pending.remove(to) else {
                return Err(Violation::new(
                    "I8",
                    format!("a timer answers {to:?} again"),
                ));
            };
            ensure(now >= pending.since + OPENING_MAX, "I6", || {
                format!(
                    "{to:?} is given up {} ns after its request",
                    now - pending.since
                )
            })?;
            self.coverage.count("opening given up", 0);
            self.opening.retain(|_, tuple| tuple != to);
            pending.opening.clear();
            self.allocated(now, *to, pending, bytes, &step)?;
            output.datagrams.push(Datagram {
                from: to.server,
                to: to.client,
                bytes: bytes.clone(),
            });
        }
        let only_ends = step.changes.iter().all(|change| match change {
            Change::PermissionExpired { .. } | Change::ChannelExpired { .. } => true,
            Change::Ended(ended) => ended.cause == EndCause::Expired,
            Change::FamilyEnded { cause, .. } => *cause == EndCause::Expired,
            Change::Created(_) => !step.replies.is_empty(),
            _ => false,
        });
        ensure(only_ends, "I6", || {
            format!("a timer caused {:?}", step.changes)
        })?;
        self.follow(now, &step.changes, step.shard)
    }

    /// Returns whether another port could be tried after `failed`, which is not given back yet.
    fn has_other_port(&self, pending: &Pending, failed: SocketAddr) -> bool {
        self.model.has_port(failed.is_ipv6(), pending.asked.even)
    }
}

/// For how long a host may take to open a socket.
pub(super) const OPENING_MAX: u64 = 10 * SECOND;
