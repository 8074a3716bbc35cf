//! Requests for tunnels that wait for the addresses of their targets' names.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use turnbuckle_datapath::{StreamId, Waker};
use turnbuckle_engine::{Time, User};
use turnbuckle_masque::Refusal;
use turnbuckle_quic::ConnectionName;

use crate::resolve::{Question, Replies, Resolver, WAIT_MAX};

/// The questions of a shard's connections to the resolver.
pub(super) struct Lookups {
    /// Names have no addresses without one.
    resolver: Option<Resolver>,
    replies: Option<Arc<Replies>>,
    /// Requests that wait, by when they have waited long enough.
    waiting: VecDeque<(Time, Waiting)>,
    last_number: u64,
}

/// A request that waits.
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) name: ConnectionName,
    pub(super) stream: u64,
    /// The target's port.
    pub(super) port: u16,
    /// Who asks. Another request of the connection may have been another's meanwhile.
    pub(super) user: Arc<User>,
}

impl Lookups {
    pub(super) fn new(resolver: Option<Resolver>) -> Self {
        Self {
            resolver,
            replies: None,
            waiting: VecDeque::new(),
            last_number: 0,
        }
    }

    /// Sets what wakes the shard when a name is resolved.
    pub(super) fn connect(&mut self, waker: Waker) {
        self.replies = Some(Replies::new(waker));
    }

    /// Returns when a request has waited long enough.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.waiting.front().map(|&(until, _)| until)
    }

    /// Has the host of a target resolved for a request of a user's. Returns the number of the question.
    pub(super) fn ask(
        &mut self,
        now: Time,
        (host, port): (Box<str>, u16),
        (name, stream): (ConnectionName, u64),
        user: &Arc<User>,
    ) -> Result<u64, Refusal> {
        let (Some(resolver), Some(replies)) = (&self.resolver, &self.replies) else {
            return Err(Refusal::DnsError);
        };
        self.last_number += 1;
        let number = self.last_number;
        let is_put = resolver.ask(Question {
            name: host,
            user: format!("{}\n{}", user.realm, user.quota_name).into(),
            stream: StreamId::from_u32(0), // the number names the request
            number,
            replies: Arc::clone(replies),
        });
        if !is_put {
            return Err(Refusal::Crowded);
        }
        let waiting = Waiting {
            number,
            name,
            stream,
            port,
            user: Arc::clone(user),
        };
        self.waiting.push_back((now + WAIT_MAX, waiting));
        Ok(number)
    }

    /// Takes out the requests whose names are resolved, with the addresses. Those that have waited long enough are not among them.
    pub(super) fn take_resolved(&mut self) -> Vec<(Waiting, Vec<IpAddr>)> {
        let (Some(replies), false) = (&self.replies, self.waiting.is_empty()) else {
            return Vec::new();
        };
        let resolved = replies.take().into_iter().filter_map(|answer| {
            let mut waiting = self.waiting.iter();
            let at = waiting.position(|(_, it)| it.number == answer.number)?;
            let (_, waiting) = self.waiting.remove(at)?;
            Some((waiting, answer.addresses))
        });
        resolved.collect()
    }

    /// Takes out a request that has waited long enough.
    pub(super) fn take_late(&mut self, now: Time) -> Option<Waiting> {
        let late = self.waiting.pop_front_if(|(until, _)| *until <= now);
        late.map(|(_, waiting)| waiting)
    }
}
