//! What a run may contain. Each seed switches some of it off (swarm testing).
//!
//! A history with every fault at once seldom gets far into the state space: with loss everywhere no
//! client ever reaches its second channel. Leaving out a random part of the faults in each seed
//! finds more, and the same switches let a failing seed be reduced to the faults that it needs.

use std::fmt;

use crate::random::Seeded;

macro_rules! features {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// One thing that can happen in a run.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Feature {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Feature {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

features! {
    /// Datagrams get lost.
    Loss,
    /// Datagrams arrive twice.
    Duplicate,
    /// Datagrams overtake each other.
    Reorder,
    /// Datagrams arrive damaged.
    Corrupt,
    /// The NAT in front of a client gives it another address.
    Rebind,
    /// The server dies and is rebuilt from its change stream.
    Crash,
    /// A dead server stays dead for a while.
    Downtime,
    /// The journal was begun anew with a snapshot of the engine before a rebuild.
    CompactJournal,
    /// The host finds relay ports taken by somebody else.
    AddressInUse,
    /// The host cannot open relay sockets.
    OutOfResources,
    /// The host takes its time to open a relay socket.
    SlowOpen,
    /// The host looks at its timers late.
    LateTimers,
    /// Routers and peers send ICMP errors.
    Icmp,
    /// Requests without credentials arrive from forged addresses.
    SpoofedRequests,
    /// Requests arrive with a wrong MESSAGE-INTEGRITY, user, realm or nonce.
    BadCredentials,
    /// Captured datagrams are sent again, later, from their own and from other addresses.
    Replay,
    /// Captured datagrams are sent again damaged.
    Mutation,
    /// Random bytes arrive at listeners and relayed addresses.
    Junk,
    /// Another user, or none, sends in the name of a client's 5-tuple.
    Hijack,
    /// Hosts without permission send to relayed addresses.
    ForgedPeers,
    /// Clients ask for peers that nobody may reach.
    ForbiddenPeers,
    /// Clients send requests that are well authenticated and otherwise odd.
    OddRequests,
    /// Clients ask for both families, or for IPv6.
    Families,
    /// Clients ask for even ports and reservations.
    EvenPorts,
    /// Clients use MESSAGE-INTEGRITY-SHA256.
    Sha256,
    /// Clients let things expire instead of refreshing them.
    Neglect,
    /// So few relay ports that they run out.
    FewPorts,
    /// Small quotas and limits.
    SmallLimits,
    /// A one-to-one NAT in front of the relay addresses.
    ExternalAddress,
    /// No relay address of the IPv6 family.
    NoIpv6,
    /// Nonces that end soon.
    ShortNonces,
    /// Data arrives at the very moments at which something ends.
    Sharpshooters,
    /// Peers speak without being asked.
    UnsolicitedPeers,
    /// Allocations that peer with relayed addresses of this same server.
    Hairpin,
    /// The host cannot set the DF bit.
    NoDontFragment,
    /// Channel numbers of RFC 5766, up to 0x7FFF.
    OldChannels,
    /// Users are time-limited usernames made from a shared secret.
    RestUsers,
    /// The server lets clients move, and they do (RFC 8016).
    Mobility,
}

/// A set of features.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// Nothing out of the ordinary.
    pub const NONE: Self = Self(0);

    /// Returns the set of all features.
    #[must_use]
    pub fn all() -> Self {
        Feature::ALL
            .iter()
            .fold(Self::NONE, |set, feature| set.with(*feature))
    }

    /// Draws the set of one seed.
    #[must_use]
    pub fn draw(random: &mut Seeded) -> Self {
        // Some seeds get nearly everything, some nearly nothing, most something between.
        let ppm = [150_000, 400_000, 600_000, 900_000][random.index(4)];
        Feature::ALL.iter().fold(Self::NONE, |set, feature| {
            if random.chance(ppm) {
                set.with(*feature)
            } else {
                set
            }
        })
    }

    /// Returns whether `feature` is in the set.
    #[must_use]
    pub fn has(self, feature: Feature) -> bool {
        self.0 & bit(feature) != 0
    }

    /// Returns the set with `feature`.
    #[must_use]
    pub fn with(self, feature: Feature) -> Self {
        Self(self.0 | bit(feature))
    }

    /// Returns the set without `feature`.
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        Self(self.0 & !bit(feature))
    }

    /// Returns the features of the set.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        Feature::ALL
            .iter()
            .copied()
            .filter(move |feature| self.has(*feature))
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

fn bit(feature: Feature) -> u64 {
    1 << (feature as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_is_on_in_some_seeds_and_off_in_others() {
        for feature in Feature::ALL {
            let on = (0..64)
                .filter(|seed| Features::draw(&mut Seeded::new(*seed)).has(*feature))
                .count();
            assert!((8..56).contains(&on), "{feature:?} is on in {on} of 64");
        }
    }

    #[test]
    fn a_set_gives_back_what_was_put_in() {
        let set = Features::NONE.with(Feature::Loss).with(Feature::RestUsers);
        assert_eq!(
            set.iter().collect::<Vec<_>>(),
            [Feature::Loss, Feature::RestUsers]
        );
        assert_eq!(
            set.without(Feature::Loss),
            Features::NONE.with(Feature::RestUsers)
        );
        assert_eq!(Features::all().iter().count(), Feature::ALL.len());
    }
}
