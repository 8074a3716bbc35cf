//! What the log is told: changes of sessions and answers to requests, in the order in which they make sense.
//!
//! Nothing here runs for data, and no answer is looked at again unless the log wants it.

use std::net::IpAddr;

use turnbuckle_engine::{Action, Change, ClientTuple, DropReason, Transport};

use super::Relay;
use crate::log::{Answer, Asked, Path, Seal};

impl Relay {
    /// Tells the log what has changed, then what was answered, then what has ended. `datagram` is the request at hand, if there is one.
    pub(super) fn tell_answers(&mut self, datagram: &[u8]) {
        if self.answers.is_empty() {
            // Between requests nothing has an order but its own.
            if datagram.is_empty() {
                self.tell_changes();
            }
            return;
        }
        for answer in &self.answers {
            if let Some(seal) = self.seal_of(&answer.to) {
                let path = self.path(&answer.to);
                self.log.sealed(path, seal, self.now.time);
            }
        }
        let mut ends = Vec::new();
        while let Some(change) = self.engine.poll_change() {
            match &change {
                Change::Ended(ended) => {
                    self.log.releasing(ended);
                    ends.push(change);
                }
                _ => self.tell_change(&change),
            }
        }
        for answer in std::mem::take(&mut self.answers) {
            let asked = Asked::of(datagram, &answer);
            let denied = self.denied_by_rule(&answer, &asked);
            let path = self.path(&answer.to);
            self.log
                .answered(path, &answer, &asked, denied, self.now.time);
        }
        for change in &ends {
            self.tell_change(change);
        }
    }

    /// Counts a request that gets no answer, and tells the log if its source has had too many.
    pub(super) fn drop_request(
        &mut self,
        reason: DropReason,
        client: &ClientTuple,
        request: &[u8],
    ) {
        self.counters.dropped(reason, 1);
        if reason == DropReason::UnverifiedBudget {
            self.log
                .suppressed(client.remote.ip(), request, self.now.time);
        }
    }

    fn tell_changes(&mut self) {
        while let Some(change) = self.engine.poll_change() {
            self.tell_change(&change);
        }
    }

    fn tell_change(&mut self, change: &Change) {
        if let Change::Ended(ended) = change {
            self.proxied.ended(ended.allocation);
        }
        self.log.change(change, self.now.time);
    }

    /// Tells the log that a client's connection is gone, before it hears what ended with it.
    pub(super) fn tell_disconnected(&mut self, client: &ClientTuple, is_orderly: bool) {
        let path = self.path(client);
        self.log.disconnected(path, is_orderly, self.now.time);
    }

    /// The peer for which a request was refused, and the rule, if it is one of the operator's.
    fn denied_by_rule(&self, answer: &Answer, asked: &Asked) -> Option<(IpAddr, String)> {
        if answer.error != Some(403) {
            return None;
        }
        asked.peers.iter().find_map(|&peer| {
            let explanation = self.engine.explain(&answer.to, peer);
            let (_, rule) = explanation.rule()?;
            (rule.action == Action::Deny).then(|| {
                let (first, last) = (rule.range.first(), rule.range.last());
                let range = match first == last {
                    true => first.to_string(),
                    false => format!("{first}-{last}"),
                };
                (peer.ip(), range)
            })
        })
    }

    fn path(&self, client: &ClientTuple) -> Path {
        Path {
            server: self.engine.listener_address(client.listener),
            client: client.remote,
            transport: client.transport,
        }
    }

    /// Cipher suite and version that protect a client, if the log has a use for them.
    fn seal_of(&self, client: &ClientTuple) -> Option<Seal> {
        if !self.log.tells_as_coturn() {
            return None;
        }
        match client.transport {
            Transport::Tls => self.connections.of_client(client)?.seal.clone(),
            Transport::Dtls => self.dtls.as_ref()?.seal_of(client.connection),
            Transport::Tcp | Transport::Udp => None,
        }
    }
}
