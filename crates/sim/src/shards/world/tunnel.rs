//! What somebody asks for who asks for a tunnel of UDP in HTTP (RFC 9298), by whatever connection, and what may be answered.

use std::net::{IpAddr, SocketAddr};

use super::super::client::{Terms, User};
use super::places::{PEER_PORT, PEERS, PEERS_V4, peer_at};
use super::rules::Rules;
use crate::plan;
use crate::random::Seeded;

/// A tunnel that somebody wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) user: User,
    /// Where the tunnel leads to; `None` if it is bound.
    pub(super) target: Option<SocketAddr>,
    pub(super) is_password_wrong: bool,
}

impl Wish {
    /// Returns the name and the password that are shown for it.
    pub(super) fn credentials(&self) -> (&'static str, &'static str) {
        let password = match self.is_password_wrong {
            true => "guessed",
            false => self.user.password.unwrap_or_default(),
        };
        (self.user.name, password)
    }

    /// Returns whether it may be answered with this status, if it was asked for at `since`.
    pub(super) fn may_get(&self, status: u16, since: u64, terms: Terms, rules: &Rules) -> bool {
        let unknown_since = terms.unknown_since;
        let must_be_unknown =
            self.is_password_wrong || unknown_since.is_some_and(|unknown| unknown < since);
        match status {
            101 | 200 => {
                let draining_since = terms.draining_since;
                !must_be_unknown
                    && draining_since.is_none_or(|draining| since <= draining)
                    && (self.target).is_none_or(|to| !self.is_refused(to, since, rules))
            }
            403 => (self.target).is_some_and(|to| self.may_be_refused(to, since, rules)),
            407 => self.may_be_unknown(since, terms),
            // Whether a quota is reached is another's to judge.
            429 => true,
            // No port, no rate, no socket, or no new clients.
            500..=599 => true,
            _ => false,
        }
    }

    /// Returns whether its user may not have been known at some time since then.
    pub(super) fn may_be_unknown(&self, since: u64, terms: Terms) -> bool {
        self.is_password_wrong || terms.unknown_since.is_some() || since <= terms.known_since
    }

    /// Returns whether an address has been refused to its user all the time since then.
    pub(super) fn is_refused(&self, peer: SocketAddr, since: u64, rules: &Rules) -> bool {
        let is_forbidden = !plan::may_be_peer(peer.ip());
        is_forbidden || rules.has_refused(self.user.realm, peer, since)
    }

    /// Returns whether an address may have been refused to its user at some time since then.
    pub(super) fn may_be_refused(&self, peer: SocketAddr, since: u64, rules: &Rules) -> bool {
        let is_forbidden = !plan::may_be_peer(peer.ip());
        is_forbidden || rules.may_have_refused(self.user.realm, peer, since)
    }
}

/// Draws a peer, or now and then an address that nobody may reach.
pub(super) fn draw_address(random: &mut Seeded) -> SocketAddr {
    if random.one_in(8) {
        let ip = random.choose(&plan::FORBIDDEN).copied().unwrap_or("::1");
        let ip: IpAddr = ip.parse().expect("an address");
        return SocketAddr::new(ip, PEER_PORT);
    }
    let number = match random.one_in(3) {
        true => PEERS_V4 + random.index(PEERS - PEERS_V4),
        false => random.index(PEERS_V4),
    };
    peer_at(number, PEER_PORT)
}
