//! What a client hears: answers, data and errors, and what has to be true of them.

use std::net::SocketAddr;

use turnbuckle_wire::{ChannelData, Class, Icmp, Message, Method};

use super::super::path::{code_of_refusal, kind_of_refusal};
use super::super::payload::{LEN_MIN, Payload};
use super::{Client, Pending, Reserved, Sort, Terms, peer_of, shows_token};
use crate::message::Attribute;
use crate::queue::SECOND;
use crate::violation::{Coverage, Violation, ensure};

/// How long a permission lasts (RFC 8656 §9).
const PERMISSION: u64 = 300 * SECOND;
/// How long an allocation lasts at least that is granted without a lifetime.
const ALLOCATION: u64 = 600 * SECOND;

impl Client {
    /// Takes what came on its connection. Returns what is sent in answer.
    pub(in super::super) fn take_stream(
        &mut self,
        now: u64,
        bytes: &[u8],
        coverage: &mut Coverage,
    ) -> Result<Vec<Vec<u8>>, Violation> {
        self.link.unread.extend_from_slice(bytes);
        let mut answers = Vec::new();
        while !self.link.unread.is_empty() {
            let first = self.link.unread[0];
            let is_message = matches!(first, 0..4 | 64..80) || self.link.is_raw;
            ensure(is_message, "data", || {
                format!("{} got bytes that are no message", self.address)
            })?;
            let Some(len) = self.message_len() else {
                break;
            };
            let message: Vec<u8> = self.link.unread.drain(..len).collect();
            if self.link.is_raw {
                coverage.count("records of peers", 0);
                self.take_data(&message)?;
            } else {
                answers.extend(self.take(now, &message, coverage)?);
            }
        }
        Ok(answers)
    }

    /// Returns how long the message is with which its unread bytes begin, if it is all there.
    fn message_len(&self) -> Option<usize> {
        let unread = &self.link.unread;
        let len = match (self.link.is_raw, &unread[..]) {
            (true, _) => LEN_MIN,
            (false, &[0..64, _, high, low, ..]) => {
                20 + usize::from(u16::from_be_bytes([high, low]))
            }
            (false, &[_, _, high, low, ..]) => {
                (4 + usize::from(u16::from_be_bytes([high, low]))).next_multiple_of(4)
            }
            _ => return None,
        };
        (unread.len() >= len).then_some(len)
    }

    /// Takes a datagram from the server. Returns the datagrams that are sent in answer.
    pub(in super::super) fn take_datagram(
        &mut self,
        now: u64,
        bytes: &[u8],
        coverage: &mut Coverage,
    ) -> Result<Vec<Vec<u8>>, Violation> {
        let Some(sessions) = &mut self.link.sessions else {
            let answer = self.take(now, bytes, coverage)?;
            return Ok(Vec::from_iter(answer));
        };
        let opened = sessions.open(now, bytes, coverage)?;
        self.may_have_ended(opened.ended)?;
        let mut datagrams = opened.answers;
        for message in opened.messages {
            let answer = self.take(now, &message, coverage)?;
            datagrams.extend(answer.and_then(|it| self.sealed(now, it)));
        }
        Ok(datagrams)
    }

    /// Takes a message from the server. Returns what is sent in answer.
    fn take(
        &mut self,
        now: u64,
        bytes: &[u8],
        coverage: &mut Coverage,
    ) -> Result<Option<Vec<u8>>, Violation> {
        if bytes.first().is_some_and(|first| (64..80).contains(first)) {
            let data = ChannelData::parse_datagram(bytes);
            let data = data.map_err(|error| Violation::new("data", error.to_string()))?;
            let number = data.number;
            let is_bound = self.asked.iter().any(|(_, it)| *it == Some(number));
            ensure(is_bound, "data", || {
                format!(
                    "{} got data on channel {number:#x}, which it has not asked for",
                    self.address
                )
            })?;
            coverage.count("channel data to clients", 0);
            return self.take_data(data.data).map(|()| None);
        }
        let message = Message::parse(bytes)
            .map_err(|error| Violation::new("data", format!("{}: {error}", self.address)))?;
        if message.class() == Class::Indication && message.method() != Method::DATA {
            coverage.count("other indications", 0);
            return Ok(None);
        }
        if let (Class::Indication, Ok(Some(icmp))) = (message.class(), message.icmp()) {
            coverage.count("errors of peers", 0);
            return self.take_error(&message, icmp).map(|()| None);
        }
        if message.class() == Class::Indication {
            let (Some(data), Ok(Some(peer))) = (message.data(), message.xor_peer_address()) else {
                return Err(Violation::new("data", "an indication without data or peer"));
            };
            ensure(self.has_asked_for(peer), "data", || {
                format!(
                    "{} got data of {peer}, which it has not asked for",
                    self.address
                )
            })?;
            coverage.count("data indications", 0);
            return self.take_data(data).map(|()| None);
        }
        self.take_answer(now, &message, coverage)
    }

    /// Checks that an ICMP error is about what this client has sent.
    fn take_error(&self, message: &Message<'_>, icmp: Icmp) -> Result<(), Violation> {
        let peer = message.xor_peer_address().ok().flatten();
        let is_asked_for = peer.is_some_and(|peer| self.has_asked_for(peer));
        let code = self.relayed.map(code_of_refusal).map(u16::from);
        let kind = self.relayed.map(kind_of_refusal);
        let is_ours = Some(icmp.kind) == kind && Some(icmp.code) == code;
        ensure(is_asked_for && is_ours, "data", || {
            format!(
                "client {} at {} has {:?} and was told {icmp:?} of {peer:?}",
                self.owner, self.address, self.relayed
            )
        })
    }

    /// Checks that data says that it is for this client.
    fn take_data(&self, data: &[u8]) -> Result<(), Violation> {
        let payload = Payload::read(data);
        let is_ours = payload
            .is_some_and(|it| Some(it.to) == self.relayed || Some(it.to) == self.special.borrowed);
        ensure(is_ours, "data", || {
            format!(
                "client {} at {} has {:?} and got {payload:?}",
                self.owner, self.address, self.relayed
            )
        })
    }

    fn take_answer(
        &mut self,
        now: u64,
        message: &Message<'_>,
        coverage: &mut Coverage,
    ) -> Result<Option<Vec<u8>>, Violation> {
        let transaction = message.transaction_id();
        let pending = self.pending.take_if(|it| it.transaction == transaction);
        let Some(pending) = pending else {
            return Ok(None); // the answer to a request that was repeated
        };
        let Ok(error) = message.error_code() else {
            return Err(Violation::new("answer", "an error code that is none"));
        };
        let code = error.map_or(200, |error| error.code);
        coverage.count("answers", code);
        let is_unsure = self.special.has_moved && pending.since <= self.special.losses.homes;
        let lives = now < self.special.lives_until;
        if is_unsure && lives && matches!(code, 401 | 437) && !self.credentials.nonce.is_empty() {
            // It asks again for something else. When the shards know of it, it has to be served.
            coverage.count("answers before shards know", 0);
            return Ok(None);
        }
        ensure(code != 437 || !lives, "survival", || {
            format!(
                "{} has lost its allocation {:?}",
                self.address, self.relayed
            )
        })?;
        let Terms {
            unknown_since,
            known_since,
            draining_since,
        } = self.special.terms;
        // Who holds a token is known by its allocation while it does not show the token. So is a connection for data, as long as what it joins is there.
        let is_by_allocation = self.special.pass.is_some() && !shows_token(&pending.draft);
        if code == 401 && !self.credentials.nonce.is_empty() {
            let can_be = unknown_since.is_some()
                || pending.since <= known_since
                || (is_by_allocation && !lives);
            if self.special.pass.is_some() {
                coverage.count("tokens refused", 0);
            }
            ensure(can_be, "credentials", || {
                format!("{} is refused as {}", self.address, self.credentials.user)
            })?;
            self.is_over = true;
            return Ok(None);
        }
        if matches!(code, 401 | 438) {
            let nonce = message.nonce().ok().flatten();
            self.credentials.nonce = nonce.map(<[u8]>::to_vec).unwrap_or_default();
            let since = pending.since;
            let draft = pending.draft.clone();
            self.pending = Some(Pending { since, ..pending });
            return Ok(Some(self.ask(now, draft)));
        }
        if self.special.sort == Sort::Thief {
            coverage.count("connections of other holders", code);
            ensure(code != 200, "credentials", || {
                format!(
                    "{} is joined with a connection of another holder of a token",
                    self.address
                )
            })?;
        }
        if code == 200 {
            ensure(
                is_by_allocation || unknown_since.is_none_or(|since| pending.since <= since),
                "credentials",
                || format!("{} is served as {}", self.address, self.credentials.user),
            )?;
            let is_new = pending.draft.method == Method::ALLOCATE;
            ensure(
                !is_new || draining_since.is_none_or(|since| pending.since <= since),
                "draining",
                || format!("{} got an allocation", self.address),
            )?;
            self.granted(now, &pending, message)?;
            if self.relayed.is_some_and(|it| it.is_ipv6()) {
                coverage.count("granted by IPv6", 0);
            }
            if is_new && self.special.pass.is_some() {
                coverage.count("granted by tokens", 0);
            }
            let pass = self.special.pass.as_mut();
            if pass.is_some_and(|it| std::mem::take(&mut it.is_renewal)) {
                coverage.count("tokens renewed", 0);
            }
            if self.proxy().is_some() {
                coverage.count("granted through proxies", 0);
            }
        } else if matches!(
            pending.draft.method,
            Method::ALLOCATE | Method::CONNECTION_BIND
        ) || code == 437
            || pending.draft.ticket().is_some()
        {
            self.is_over = true;
        }
        Ok(None)
    }

    /// Notes what the server has granted.
    fn granted(
        &mut self,
        now: u64,
        pending: &Pending,
        message: &Message<'_>,
    ) -> Result<(), Violation> {
        let draft = &pending.draft;
        let is_lasting =
            matches!(self.special.sort, Sort::Mobile | Sort::Plain) && self.has_no_connection();
        let is_kept = pending.since > self.special.losses.allocations;
        if matches!(draft.method, Method::ALLOCATE | Method::REFRESH)
            && !draft.attributes.contains(&Attribute::Lifetime(0))
            && is_lasting
            && is_kept
            && self.special.terms.unknown_since.is_none()
        {
            self.special.lives_until = pending.since + ALLOCATION;
        }
        match draft.method {
            Method::ALLOCATE => {
                let mapped = message.xor_mapped_address().ok().flatten();
                ensure(mapped == Some(self.address), "mapped", || {
                    format!("{} is told that it is {mapped:?}", self.address)
                })?;
                let relayed = message.xor_relayed_address().ok().flatten();
                let relayed =
                    relayed.ok_or_else(|| Violation::new("answer", "no relayed address"))?;
                self.relayed = Some(relayed);
                self.special.ticket = message.mobility_ticket().map(<[u8]>::to_vec);
                if let Ok(Some(token)) = message.reservation_token()
                    && pending.since > self.special.losses.reservations
                {
                    self.reserved = Some(Reserved {
                        address: SocketAddr::new(relayed.ip(), relayed.port() + 1),
                        token,
                        since: now,
                        is_redeemed: false,
                    });
                }
            }
            Method::REFRESH if draft.attributes.contains(&Attribute::Lifetime(0)) => {
                self.is_over = true;
            }
            Method::REFRESH if draft.ticket().is_some() => {
                self.special.ticket = message.mobility_ticket().map(<[u8]>::to_vec);
            }
            Method::CONNECT => {
                self.special.connection = message.connection_id().ok().flatten();
            }
            Method::CONNECTION_BIND => self.link.is_raw = true,
            Method::CREATE_PERMISSION | Method::CHANNEL_BIND => {
                self.peers.extend(peer_of(draft));
                let peer = peer_of(draft).map(|(peer, _)| peer).filter(|_| is_kept);
                let until = pending.since + PERMISSION;
                self.special.held.extend(peer.map(|peer| (peer, until)));
            }
            _ => {}
        }
        Ok(())
    }
}
