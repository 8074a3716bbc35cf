//! Dispatch: passes each message to the file that handles its method.

use turnbuckle_wire::{Class, Message, Method, ParseError};

use crate::address::PeerAddress;
use crate::allocations::Allocations;
use crate::command::Outcome;
use crate::config::Service;
use crate::drop_reason::DropReason;
use crate::engine::Engine;
use crate::id::{ClientTuple, Transport};
use crate::random::Random;
use crate::request::{Answered, Request, Served, unknown_attributes};
use crate::served::served;
use crate::time::Now;
use crate::{
    allocate, binding, channel, classic, ending, mobility, permission, proof, redirect, refresh,
    send, tcp,
};

impl<R: Random> Engine<R> {
    /// Handles one STUN message; `bytes` is the whole datagram.
    pub fn handle_stun(&mut self, now: Now, from: ClientTuple, bytes: &[u8]) -> Outcome {
        self.handle_message(now, from, bytes, false, true)
    }

    /// Handles a STUN message as [`Self::handle_stun`] does, and never says [`Outcome::Ask`].
    pub fn handle_finally(&mut self, now: Now, from: ClientTuple, bytes: &[u8]) -> Outcome {
        self.handle_message(now, from, bytes, false, false)
    }

    /// Handles one STUN message of a client whose connection another shard has: it is never joined here.
    pub fn handle_handed_on(&mut self, now: Now, from: ClientTuple, bytes: &[u8]) -> Outcome {
        self.handle_message(now, from, bytes, true, false)
    }

    fn handle_message(
        &mut self,
        now: Now,
        from: ClientTuple,
        bytes: &[u8],
        is_handed_on: bool,
        may_ask: bool,
    ) -> Outcome {
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(ParseError::FingerprintMismatch) => {
                return Outcome::Dropped(DropReason::FingerprintMismatch);
            }
            Err(ParseError::MagicCookie) if from.transport == Transport::Dtls => {
                return classic::refuse_classic(now, from, bytes, &self.rules, &mut self.out);
            }
            Err(ParseError::MagicCookie)
                if from.transport == Transport::Udp
                    && self.rules.config.binding.rfc3489_binding =>
            {
                return classic::classic_binding(now, from, bytes, &self.rules, &mut self.out);
            }
            Err(_) => return Outcome::Dropped(DropReason::MalformedStun),
        };
        let method = message.method();
        if !is_served(method) && !self.serves_connections(method) {
            return Outcome::Dropped(DropReason::MethodUnknown);
        }
        let request = Request {
            message,
            from,
            now,
            is_handed_on,
            may_ask,
        };
        match message.class() {
            Class::Request if takes_requests(method) || self.serves_connections(method) => {
                self.handle_request(&request)
            }
            Class::Indication if matches!(method, Method::BINDING | Method::SEND) => {
                self.handle_indication(&request)
            }
            Class::Request | Class::Indication => Outcome::Dropped(DropReason::ClassUnexpected),
            // guard: V-41-responses
            Class::Success | Class::Error => Outcome::Dropped(DropReason::ResponseUnexpected),
        }
    }

    fn handle_indication(&mut self, request: &Request<'_>) -> Outcome {
        let served = Served {
            connections: self.rules.config.relays.tcp.is_some(),
            discovery: false,
            dont_fragment: true, // a Send indication has its own answer to it
            passes_over_discovery: self.rules.config.binding.passes_over_discovery,
            tokens: false,
        };
        if unknown_attributes(&request.message, served)
            .next()
            .is_some()
        {
            Outcome::Dropped(DropReason::UnknownAttribute)
        } else if request.message.method() == Method::BINDING {
            Outcome::Dropped(DropReason::KeepAlive)
        } else {
            send::send(request, &self.rules, &mut self.allocations, &mut self.out)
        }
    }

    #[cold]
    fn handle_request(&mut self, request: &Request<'_>) -> Outcome {
        let Self {
            rules,
            authenticator,
            allocations,
            out,
            random,
            peers,
        } = self;
        let config = &rules.config;
        let is_binding = request.message.method() == Method::BINDING;
        let is_disabled = match config.service {
            Service::StunAndTurn => false,
            Service::StunOnly => !is_binding,
            Service::TurnOnly => is_binding,
        };
        if is_disabled {
            return Outcome::Dropped(DropReason::ServiceDisabled);
        }
        if !rules.listeners.is_possible_source(request.from.remote) {
            return Outcome::Dropped(DropReason::SourceInvalid);
        }
        if !out.outbox.has_room(config.limits.reply_queue_bytes) {
            return Outcome::Dropped(DropReason::ReplyQueueFull);
        }
        if proof::is_refused_anyway(request, rules, authenticator, allocations) {
            out.withheld = proof::usual_refusal(request);
            return Outcome::Dropped(DropReason::UnverifiedBudget);
        }
        if is_binding {
            return binding::binding(request, rules, authenticator, allocations, out, random);
        }

        if let Some(refused) = tcp::refuse_datagram(request, rules, out) {
            return refused;
        }

        // RFC 8489 §6.3: authentication first, unknown attributes after it
        // guard: V-30-elsewhere
        let proof = match proof::authenticate(request, rules, authenticator, allocations, random) {
            Ok(proof) => proof,
            // guard: V-26-another-user
            Err(rejection) => {
                // mutant: remembers-strangers
                let sent_elsewhere =
                    redirect::redirect_stranger(request, rules, authenticator, out);
                return sent_elsewhere
                    .unwrap_or_else(|| proof::challenge(request, &rejection, rules, out));
            }
        };
        // only after authentication: a request that proved nothing is answered here, and takes no room in the queues between the
        // engines
        if let Some(elsewhere) = mobility::elsewhere(request, rules, allocations) {
            return elsewhere;
        }
        let served = served(request, rules);
        let key = proof.response_key.as_ref();
        if unknown_attributes(&request.message, served)
            .next()
            .is_some()
        {
            out.reply_unknown_attributes(config, request, served, key);
            return Outcome::Done;
        }
        // a request sees the allocation as it is at this moment, although timers may be a tick late
        if let Some(id) = allocations.client(&request.from)
            && allocations
                .live(id)
                .is_some_and(|allocation| allocation.wake <= request.now.time)
        {
            ending::expire(
                id,
                request.now,
                rules,
                authenticator,
                allocations,
                out,
                random,
            );
        }
        // guard: V-63-peer-rules
        if rules.config.answers.are_peer_rules_due && names_new_peer(request, allocations) {
            return Outcome::Dropped(DropReason::UsersDue);
        }
        let method = request.message.method();
        let result = if method == Method::ALLOCATE {
            allocate::allocate(
                request,
                &proof,
                rules,
                authenticator,
                allocations,
                out,
                random,
            )
        } else if method == Method::REFRESH {
            refresh::refresh(
                request,
                &proof,
                rules,
                authenticator,
                allocations,
                out,
                random,
            )
            .map(|()| Answered::Now)
        } else if method == Method::CREATE_PERMISSION {
            permission::create_permission(request, &proof, peers, rules, allocations, out)
                .map(|()| Answered::Now)
        } else if method == Method::CHANNEL_BIND {
            channel::bind_channel(request, &proof, rules, allocations, out).map(|()| Answered::Now)
        } else if method == Method::CONNECT {
            tcp::connect(request, &proof, rules, allocations, out, random).map(|()| Answered::Later)
        } else {
            match tcp::bind_connection(request, &proof, rules, allocations, out) {
                Ok(outcome) => return outcome,
                Err(reject) => Err(reject),
            }
        };
        match result {
            Ok(Answered::Now | Answered::Later) => Outcome::Done,
            Ok(Answered::InProgress) => Outcome::Dropped(DropReason::RequestInProgress),
            Err(reject) => {
                // mutant: no-answer-to-441
                out.reply_reject(config, &request.envelope(), key, reject);
                Outcome::Done
            }
        }
    }

    /// Returns whether this is a method of RFC 6062 that the server serves, because it grants TCP allocations.
    fn serves_connections(&self, method: Method) -> bool {
        self.rules.config.relays.tcp.is_some()
            && matches!(method, Method::CONNECT | Method::CONNECTION_BIND)
    }
}

/// Returns whether a request names a peer that the client has no permission for.
fn names_new_peer(request: &Request<'_>, allocations: &Allocations) -> bool {
    let Some(allocation) = (allocations.client(&request.from)).and_then(|id| allocations.live(id))
    else {
        return false;
    };
    let mut peers = request.message.xor_peer_addresses().flatten();
    let now = request.now.time;
    peers.any(|peer| !(allocation.permissions).permits(PeerAddress::new(peer).ip(), now))
}

/// Returns whether this is a method of RFC 8489 or RFC 8656.
fn is_served(method: Method) -> bool {
    takes_requests(method) || matches!(method, Method::SEND | Method::DATA)
}

fn takes_requests(method: Method) -> bool {
    matches!(
        method,
        Method::BINDING
            | Method::ALLOCATE
            | Method::REFRESH
            | Method::CREATE_PERMISSION
            | Method::CHANNEL_BIND
    )
}
