//! Which peers clients may reach: the one check in front of every path towards a peer.
//!
//! The invariant: an [`AllowedPeer`] comes out of [`Policy::check`] and from nowhere else, and whatever sends to a peer takes
//! that type. A path without a check does not compile (V-10).
//!
//! How an address is judged, in this order:
//!
//! 1. What no rule opens: unspecified, link-local, metadata services, limited broadcast, Teredo, 6to4, IPv4-mapped IPv6 forms
//!    of any address (what refuses the IPv4 address is named first); loopback and multicast unless their switches are on (V-01, V-02, V-03, V-05, V-11).
//! 2. The server's own addresses (V-07): a service never, the broadcast addresses of own networks never, another allocation's
//!    relayed transport address yes unless an operator's rule denies it, anything else of the host only when an operator's
//!    rule allows this very address, alone, or a range with it where that is asked for, as in coturn.
//! 3. An IPv6 address that carries an IPv4 address (V-04): only when an operator's rule allows the IPv6 form *and* the IPv4
//!    address passes all of this.
//! 4. The rules. Of those that cover the address the narrowest decides; of two equally wide ones, deny. An operator's rule
//!    that is as wide as a built-in one replaces it, a wider one does not: `allow 0.0.0.0/0` opens no private network,
//!    `allow 10.0.0.0/8` opens that one. Width is the number of addresses, so a prefix and an `a-b` range compare.
//! 5. Allowed.

mod own;
mod range;
mod range_table;
mod registry;

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

pub use self::own::{InterfaceAddress, OwnAddresses, OwnRelay};
use self::own::{Kinship, Own};
pub use self::range::{AddressRange, RangeError};
use self::range_table::{Entry, RangeTable};
use self::registry::Builtin;
use crate::address::{Embedding, Nat64Prefix, PeerAddress, embedded_v4, is_tunnel};

/// The operator's configuration of peers. The default is the strict persona without rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRules {
    /// Deny the whole of the IANA special-purpose registries, private networks among them (V-06).
    pub deny_special_purpose: bool,
    /// Let clients reach 127.0.0.0/8 and ::1.
    pub allow_loopback: bool,
    /// Let clients reach 224.0.0.0/4 and ff00::/8.
    pub allow_multicast: bool,
    /// An allow rule over a range opens the server's own addresses in it, as coturn's does; else only a rule over one address does.
    pub ranges_open_own: bool,
    /// Prefixes of the NAT64 translators in reach, so that the IPv4 addresses inside are judged.
    pub nat64_prefixes: Vec<Nat64Prefix>,
    /// Allow and deny rules, in the operator's order.
    pub rules: Vec<Rule>,
}

impl Default for PolicyRules {
    fn default() -> Self {
        Self::strict()
    }
}

impl PolicyRules {
    /// Returns the strict persona: every special-purpose address is denied until a rule allows it.
    pub fn strict() -> Self {
        Self {
            // guard: V-06-registries
            deny_special_purpose: true,
            allow_loopback: false,
            allow_multicast: false,
            ranges_open_own: false,
            nat64_prefixes: Vec::new(),
            rules: Vec::new(),
        }
    }

    /// Returns the persona that a coturn configuration expects: private networks and multicast are allowed, loopback only by its
    /// switch.
    pub fn coturn() -> Self {
        Self {
            deny_special_purpose: false,
            allow_multicast: true,
            ranges_open_own: true,
            ..Self::strict()
        }
    }
}

/// Whether a rule lets peers in or keeps them out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Clients may reach the range.
    Allow,
    /// Clients may not reach the range.
    Deny,
}

/// One rule of the operator's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The action for the addresses of the range.
    pub action: Action,
    /// About which addresses.
    pub range: AddressRange,
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Allow => "allow",
            Action::Deny => "deny",
        };
        write!(formatter, "{action} {}", self.range)
    }
}

/// Why a peer is refused: the cause behind a 403 or a dropped Send indication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forbidden {
    /// Limited broadcast, or the directed broadcast of an own network.
    Broadcast,
    /// An IPv6 form that carries an IPv4 address, without a rule that allows the form.
    Embedded,
    /// Link-local or site-local.
    LinkLocal,
    /// Loopback.
    Loopback,
    /// The metadata or platform service of a cloud.
    Metadata,
    /// Multicast.
    Multicast,
    /// The server's own address.
    Own,
    /// A listener of the server's, or a service its configuration names.
    Service,
    /// In a special-purpose registry.
    SpecialPurpose,
    /// Teredo or 6to4.
    Tunnel,
    /// This host, or no host.
    Unspecified,
    /// Denied by an operator's rule.
    Rule,
}

impl Forbidden {
    /// Returns a short description for logs and for an operator.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Broadcast => "broadcast address",
            Self::Embedded => "IPv4 address embedded in IPv6",
            Self::LinkLocal => "link-local address",
            Self::Loopback => "loopback address",
            Self::Metadata => "cloud metadata service",
            Self::Multicast => "multicast address",
            Self::Own => "own address",
            Self::Service => "own service",
            Self::SpecialPurpose => "special-purpose address",
            Self::Tunnel => "tunnel address",
            Self::Unspecified => "unspecified address",
            Self::Rule => "denied by rule",
        }
    }
}

impl fmt::Display for Forbidden {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A peer that the policy permits. Only [`Policy::check`] makes one.
///
/// It knows the peer by two addresses, which differ only for another allocation of this server behind a one-to-one NAT: there
/// the client names the external address, and the packet goes to the local one, because not every NAT hairpins (V-07).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllowedPeer {
    peer: PeerAddress,
    send_to: IpAddr,
    is_relayed: bool,
}

impl AllowedPeer {
    /// Returns the address to send to.
    pub fn address(self) -> SocketAddr {
        // mutant: send-to-loopback
        SocketAddr::new(self.send_to, self.peer.port())
    }

    /// Returns the address that permissions are compared with: the peer's as clients know it.
    pub fn ip(self) -> IpAddr {
        self.peer.ip()
    }

    /// Returns the peer's transport address as clients know it.
    pub fn peer(self) -> PeerAddress {
        self.peer
    }

    /// Returns whether the peer is a port of this server's relay range. The kernel gives ports of that range to other programs as
    /// well, so nothing is sent unless the port is leased at that moment (V-07).
    pub(crate) fn is_relayed(self) -> bool {
        self.is_relayed
    }
}

/// The rules in the form of look-ups.
#[derive(Clone, Debug)]
pub struct Policy {
    rules: PolicyRules,
    never: Tables,
    decided: Tables,
    own: Own,
}

/// The action of one table entry, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Builtin(&'static Builtin),
    /// Index into the operator's rules.
    Rule(usize, Action),
}

/// The verdict on one address, and what it rests on.
#[derive(Clone, Copy, Debug)]
struct Decision {
    /// The address to send to, or why not.
    verdict: Result<IpAddr, Forbidden>,
    basis: Basis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Basis {
    Table(Source),
    Own,
    Embedded(Embedding, Ipv4Addr),
    Default,
}

impl Policy {
    /// Returns the rules it was made of.
    pub(crate) fn rules(&self) -> &PolicyRules {
        &self.rules
    }

    /// Compiles rules. The server's own addresses are unknown until [`Self::set_own_addresses`].
    pub fn new(rules: PolicyRules) -> Self {
        let mut never = vec![registry::NEVER];
        // guard: V-01-loopback
        if !rules.allow_loopback {
            never.push(registry::LOOPBACK);
        }
        // guard: V-11-multicast
        if !rules.allow_multicast {
            never.push(registry::MULTICAST);
        }
        let mut denied = vec![registry::UNIQUE_LOCAL];
        if rules.deny_special_purpose {
            denied.push(registry::SPECIAL_PURPOSE);
        }
        Self {
            never: Tables::new(never.into_iter().flatten(), &[]),
            decided: Tables::new(denied.into_iter().flatten(), &rules.rules),
            own: Own::new(&OwnAddresses::default()),
            rules,
        }
    }

    /// Replaces what is known about the server's own addresses (V-07).
    pub fn set_own_addresses(&mut self, own: &OwnAddresses) {
        self.own = Own::new(own);
    }

    /// Judges a peer as a client named it, for permissions, channels and Send indications alike.
    ///
    /// A permission is for an address whatever the port (RFC 8656 §9), so a client may name port 0; then an own relay address
    /// is allowed, and the port is judged when data is sent.
    ///
    /// # Errors
    ///
    /// The peer is not to be reached: answer 403, or drop the indication.
    pub fn check(&self, peer: SocketAddr) -> Result<AllowedPeer, Forbidden> {
        let decision = self.judge(peer);
        let peer = PeerAddress::new(peer);
        // guard: V-10-connect
        let send_to = decision.verdict?;
        // Where the host's own programs may be reached anyway, it does not matter whose the port is.
        let is_relayed = decision.basis == Basis::Own
            && !peer.ip().is_loopback()
            && !self.is_named_by_allow_rule(peer.ip());
        Ok(AllowedPeer {
            peer,
            send_to,
            is_relayed,
        })
    }

    /// Returns the verdict on a peer, with the rule that decided, for an operator to read.
    pub fn explain(&self, peer: SocketAddr) -> Explanation<'_> {
        let decision = self.judge(peer);
        Explanation {
            policy: self,
            peer,
            decision,
        }
    }

    /// Returns the canonical address of a datagram's source, as clients know that peer. For another allocation of this server
    /// behind a one-to-one NAT it is the external address. Permissions and channels are looked up by it.
    pub fn admit(&self, source: SocketAddr) -> PeerAddress {
        let source = PeerAddress::new(source);
        PeerAddress::new(self.own.seen(source.address()))
    }

    /// Returns whether an Allocate request may come from `client`. It may not come from Teredo and 6to4 addresses (RFC 8656 §21.4).
    pub fn accepts_client(&self, client: SocketAddr) -> bool {
        !is_tunnel(client.ip())
    }

    /// Returns the verdict on a peer as a client named it. An IPv4-mapped address is refused whatever the rules allow. A packet to
    /// it would leave as IPv4 or not at all, so it is not the address of an IPv6 peer (RFC 4291 §2.5.5.2).
    fn judge(&self, named: SocketAddr) -> Decision {
        let decision = self.decide(PeerAddress::new(named));
        match mapped_v4(named) {
            // guard: V-03-mapped
            Some(v4) if decision.verdict.is_ok() => Decision {
                verdict: Err(Forbidden::Embedded),
                basis: Basis::Embedded(Embedding::Mapped, v4),
            },
            _ => decision,
        }
    }

    fn decide(&self, peer: PeerAddress) -> Decision {
        let ip = peer.ip();
        if let Some(decision) = self.never_allowed(ip) {
            return decision;
        }
        let own = |verdict| Decision {
            verdict,
            basis: Basis::Own,
        };
        match self.own.kinship(ip, peer.port()) {
            Kinship::Foreign => {}
            // guard: V-11-broadcast
            Kinship::Broadcast => return own(Err(Forbidden::Broadcast)),
            // Loopback got past step 1 by its switch, which is about nothing but the host's own programs.
            // mutant: policy-own-opened-by-any-rule
            Kinship::Own if ip.is_loopback() || self.is_named_by_allow_rule(ip) => {}
            // guard: V-07-own
            Kinship::Own => return own(Err(Forbidden::Own)),
            // guard: V-07-listener
            Kinship::Service => return own(Err(Forbidden::Service)),
            // guard: V-07-hairpin
            Kinship::Relayed { local } => return self.decide_relayed(ip, local),
        }
        // guard: V-04-embedded
        if let IpAddr::V6(v6) = ip {
            for (form, v4) in embedded_v4(v6, &self.rules.nat64_prefixes) {
                let is_allowed_form =
                    matches!(self.decided.find(ip), Some(Source::Rule(_, Action::Allow)));
                let inner = PeerAddress::new(SocketAddr::new(v4.into(), peer.port()));
                let verdict = match self.decide(inner).verdict {
                    // guard: V-04-embedded-allowed
                    _ if !is_allowed_form => Err(Forbidden::Embedded),
                    // A packet that leaves as IPv6 towards the translator does not come back as another allocation's.
                    // mutant: policy-own-inside-ipv6
                    Ok(_) if self.own.kinship(inner.ip(), inner.port()) != Kinship::Foreign => {
                        Err(Forbidden::Own)
                    }
                    verdict => verdict,
                };
                if verdict.is_err() {
                    return Decision {
                        verdict,
                        basis: Basis::Embedded(form, v4),
                    };
                }
            }
        }
        self.decide_by_rules(ip)
    }

    /// Judges another allocation's relayed transport address.
    fn decide_relayed(&self, ip: IpAddr, local: IpAddr) -> Decision {
        if let Some(decision) = self.never_allowed(local) {
            return decision;
        }
        match self.decided.find(ip) {
            Some(source @ Source::Rule(_, Action::Deny)) => Decision {
                verdict: Err(Forbidden::Rule),
                basis: Basis::Table(source),
            },
            _ => Decision {
                verdict: Ok(local),
                basis: Basis::Own,
            },
        }
    }

    /// Returns whether the deciding rule allows `ip` although it is the server's own address. The rule has to name `ip` alone, or a
    /// range where the configuration accepts that.
    fn is_named_by_allow_rule(&self, ip: IpAddr) -> bool {
        match self.decided.find(ip) {
            Some(Source::Rule(index, Action::Allow)) => {
                let rule = self.rules.rules.get(index);
                let is_alone = rule.is_some_and(|rule| rule.range == AddressRange::from(ip));
                is_alone || self.rules.ranges_open_own
            }
            _ => false,
        }
    }

    fn never_allowed(&self, ip: IpAddr) -> Option<Decision> {
        match self.never.find(ip)? {
            source @ Source::Builtin(builtin) => Some(Decision {
                verdict: Err(builtin.why),
                basis: Basis::Table(source),
            }),
            Source::Rule(..) => None, // the table holds no rules
        }
    }

    fn decide_by_rules(&self, ip: IpAddr) -> Decision {
        let Some(source) = self.decided.find(ip) else {
            return Decision {
                verdict: Ok(ip),
                basis: Basis::Default,
            };
        };
        let verdict = match source {
            Source::Builtin(builtin) => Err(builtin.why),
            Source::Rule(_, Action::Allow) => Ok(ip),
            Source::Rule(_, Action::Deny) => Err(Forbidden::Rule),
        };
        Decision {
            verdict,
            basis: Basis::Table(source),
        }
    }
}

/// Returns the IPv4 address that an IPv4-mapped one spells.
fn mapped_v4(peer: SocketAddr) -> Option<Ipv4Addr> {
    match peer {
        SocketAddr::V4(_) => None,
        SocketAddr::V6(v6) => v6.ip().to_ipv4_mapped(),
    }
}

/// One table a family, so that a rule over all of IPv6 says nothing about IPv4.
#[derive(Clone, Debug)]
struct Tables {
    v4: RangeTable<Source>,
    v6: RangeTable<Source>,
}

impl Tables {
    fn new(builtins: impl Iterator<Item = &'static Builtin>, rules: &[Rule]) -> Self {
        let mut v4 = Vec::new();
        let mut v6 = Vec::new();
        let mut add = |range: AddressRange, rank, value| {
            let first = range::number(range.first());
            let last = range::number(range.last());
            let table = if range.first().is_ipv4() {
                &mut v4
            } else {
                &mut v6
            };
            table.push(Entry {
                first,
                last,
                rank,
                value,
            });
        };
        for (index, &rule) in rules.iter().enumerate() {
            let rank = match rule.action {
                Action::Deny => 0,
                Action::Allow => 1,
            };
            add(rule.range, (rank, index), Source::Rule(index, rule.action));
        }
        for (index, builtin) in builtins.enumerate() {
            add(builtin.range, (2, index), Source::Builtin(builtin));
        }
        Self {
            v4: RangeTable::new(&v4),
            v6: RangeTable::new(&v6),
        }
    }

    fn find(&self, ip: IpAddr) -> Option<Source> {
        let table = if ip.is_ipv4() { &self.v4 } else { &self.v6 };
        table.find(range::number(ip))
    }
}

/// A verdict in words.
#[derive(Clone, Copy, Debug)]
pub struct Explanation<'p> {
    policy: &'p Policy,
    /// As the client named it.
    peer: SocketAddr,
    decision: Decision,
}

impl Explanation<'_> {
    /// Returns why the peer is refused, or `None` if it is allowed.
    pub fn forbidden(&self) -> Option<Forbidden> {
        self.decision.verdict.err()
    }

    /// Returns the operator's rule that decided, with its index among the rules.
    pub fn rule(&self) -> Option<(usize, Rule)> {
        match self.decision.basis {
            Basis::Table(Source::Rule(index, _)) => {
                let rule = self.policy.rules.rules.get(index)?;
                Some((index, *rule))
            }
            Basis::Table(Source::Builtin(_))
            | Basis::Own
            | Basis::Embedded(..)
            | Basis::Default => None,
        }
    }
}

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = self.peer;
        match self.decision.verdict {
            Ok(send_to) if send_to == peer.ip() => write!(formatter, "{peer}: allowed")?,
            Ok(send_to) => write!(formatter, "{peer}: allowed, sent to {send_to}")?,
            Err(Forbidden::Rule) => write!(formatter, "{peer}: denied")?,
            Err(forbidden) => write!(formatter, "{peer}: denied, {forbidden}")?,
        }
        match self.decision.basis {
            Basis::Default => formatter.write_str(" (no rule covers it)"),
            Basis::Own => formatter.write_str(" (own addresses)"),
            Basis::Embedded(form, v4) => {
                write!(formatter, " ({} form of {v4})", form.as_str())
            }
            Basis::Table(Source::Builtin(builtin)) => {
                write!(
                    formatter,
                    " (built in: {}, {})",
                    builtin.range, builtin.name
                )
            }
            Basis::Table(Source::Rule(..)) => match self.rule() {
                Some((index, rule)) => write!(formatter, " (rule {}: {rule})", index + 1),
                None => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests;
