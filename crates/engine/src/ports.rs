//! Ports of relayed transport addresses: one bitmap per relay address, and a lease that gives its port back on drop.
//!
//! The invariant: a port is free or under exactly one [`PortLease`]; there is no other way to give a port back, so none can leak
//! or be given back twice. The choice among free ports is uniform (RFC 6056 §3.3.2).
//!
//! A lease is a right, not a socket: a port is *open* from when the host has its socket until the lease ends. Whether it is open is
//! noted for each protocol, because another program may have the socket of the other one. [`PortPools::is_open`] reads that without
//! the lock that leases are given out under: it is asked for each train between two allocations (V-07).

use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::config::{RelayAddress, RelayConfig};
use crate::id::{Family, RelayProtocol};
use crate::policy::AllowedPeer;

const EVEN_BITS: u64 = 0x5555_5555_5555_5555; // a word starts at an even port

/// The pools of all relay addresses.
#[derive(Debug)]
pub(crate) struct PortPools {
    /// Filled from the front; the empty ones are for addresses that the machine gets later.
    pools: Box<[OnceLock<Pool>]>,
    range: RangeInclusive<u16>,
}

#[derive(Debug)]
struct Pool {
    address: RelayAddress,
    ports: Bitmap,
    /// Ports are leased; otherwise those that are out are waited for.
    is_in_use: AtomicBool,
}

/// Most relay addresses that may come after the start.
const LATER_MAX: usize = 64;

/// The kind of port that is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PortKind {
    Any,
    Even,
    /// An even port whose odd sibling is free as well; both are leased.
    EvenPair,
}

/// Counts of the ports of one relay address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Ports in the range.
    pub size: u32,
    /// Ports nobody has, counted bit by bit.
    pub free: u32,
    /// Leases that are out.
    pub leased: u32,
}

impl PortPools {
    /// Makes the pools of a server that is to lease ports of `config.addresses`.
    pub(crate) fn of(config: &RelayConfig) -> Arc<Self> {
        Self::made(&config.addresses, &config.former, &config.ports)
    }

    #[cfg(test)]
    fn new(addresses: &[RelayAddress], range: &RangeInclusive<u16>) -> Arc<Self> {
        Self::made(addresses, &[], range)
    }

    fn made(
        addresses: &[RelayAddress],
        former: &[RelayAddress],
        range: &RangeInclusive<u16>,
    ) -> Arc<Self> {
        let is_former = |it: &&RelayAddress| addresses.iter().all(|now| now.local != it.local);
        let named = addresses.iter().map(|&it| Pool::new(it, range, true));
        let waited_for = former.iter().filter(is_former);
        let waited_for = waited_for.map(|&it| Pool::new(it, range, false));
        let pools = named
            .chain(waited_for)
            .map(OnceLock::from)
            .chain(core::iter::repeat_with(OnceLock::new).take(LATER_MAX))
            .collect();
        Arc::new(Self {
            pools,
            range: range.clone(),
        })
    }

    /// Leases ports of `addresses` from now on, and of no others. Beyond [`LATER_MAX`] new ones none of an address is leased.
    pub(crate) fn set(&self, addresses: &[RelayAddress]) {
        for pool in self.all() {
            let is_named = addresses.iter().any(|it| it.local == pool.address.local);
            pool.is_in_use.store(is_named, Relaxed);
        }
        for &address in addresses {
            if self.all().any(|pool| pool.address.local == address.local) {
                continue;
            }
            if let Some(empty) = self.pools.iter().find(|pool| pool.get().is_none()) {
                // Filled meanwhile only if two threads set addresses at the same time.
                let _ = empty.set(Pool::new(address, &self.range, true));
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().map_while(OnceLock::get)
    }

    pub(crate) fn supports(&self, family: Family) -> bool {
        self.all().any(|pool| pool.leases(family))
    }

    /// Leases a port of `family`; for [`PortKind::EvenPair`] also its sibling. `random` decides the address and the port.
    pub(crate) fn lease(
        self: &Arc<Self>,
        family: Family,
        kind: PortKind,
        random: u64,
    ) -> Option<(PortLease, Option<PortLease>)> {
        let count = self.all().count();
        let start = usize::try_from(random >> 32)
            .unwrap_or(0)
            .checked_rem(count)?;
        (start..count).chain(0..start).find_map(|index| {
            let pool = self.pools.get(index)?.get()?;
            if !pool.leases(family) {
                return None;
            }
            let port = pool.ports.take(kind, random)?;
            let sibling = (kind == PortKind::EvenPair).then(|| self.guard(index, port | 1));
            Some((self.guard(index, port), sibling))
        })
    }

    /// Leases the port of one exact address, if it is free. For rebuilding.
    pub(crate) fn lease_exact(self: &Arc<Self>, local: SocketAddr) -> Option<PortLease> {
        let index = self
            .all()
            .position(|pool| pool.address.local == local.ip())?;
        self.pools
            .get(index)?
            .get()?
            .ports
            .take_exact(local.port())
            .then(|| self.guard(index, local.port()))
    }

    /// Returns whether data may go to `peer` now. It may, unless the peer is one of this server's relayed transport addresses that
    /// is not open. Another program may have the socket at a port that is free or only reserved (V-07).
    #[inline]
    pub(crate) fn may_reach(&self, peer: AllowedPeer) -> bool {
        self.may_reach_by(peer, RelayProtocol::Udp)
    }

    /// Returns whether data may go to `peer` now over `protocol`.
    #[inline]
    pub(crate) fn may_reach_by(&self, peer: AllowedPeer, protocol: RelayProtocol) -> bool {
        // guard: V-07-port
        !peer.is_relayed() || self.is_open(peer.address(), protocol)
    }

    fn is_open(&self, local: SocketAddr, protocol: RelayProtocol) -> bool {
        self.all().any(|pool| {
            // guard: V-07-protocol
            // guard: V-07-reserved
            pool.address.local == local.ip() && pool.ports.is_open(local.port(), protocol)
        })
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (RelayAddress, PortCounts)> {
        self.all().map(|pool| (pool.address, pool.ports.counts()))
    }

    /// Returns the local addresses of which ports are leased now.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = IpAddr> {
        let used = self.all().filter(|pool| pool.is_in_use.load(Relaxed));
        used.map(|pool| pool.address.local)
    }

    fn guard(self: &Arc<Self>, pool: usize, port: u16) -> PortLease {
        let pool = u32::try_from(pool).expect("relay addresses are fewer than 2^32");
        PortLease {
            pools: Arc::clone(self),
            pool,
            port,
            protocol: RelayProtocol::Udp,
        }
    }

    fn pool(&self, lease: &PortLease) -> &Pool {
        self.pools[lease.pool as usize]
            .get()
            .expect("a lease is of a pool that there is")
    }
}

impl Pool {
    fn new(address: RelayAddress, range: &RangeInclusive<u16>, is_in_use: bool) -> Self {
        Self {
            address,
            ports: Bitmap::new(range),
            is_in_use: AtomicBool::new(is_in_use),
        }
    }

    /// Returns whether new leases of this family are taken from these ports.
    fn leases(&self, family: Family) -> bool {
        self.family() == family && self.is_in_use.load(Relaxed)
    }

    fn family(&self) -> Family {
        match self.address.local {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

/// One port of one relay address; gives it back on drop.
pub(crate) struct PortLease {
    pools: Arc<PortPools>,
    pool: u32,
    port: u16,
    protocol: RelayProtocol,
}

impl PortLease {
    /// Makes the lease one for a relayed transport address of `protocol`. A new lease is for UDP.
    pub(crate) fn of(mut self, protocol: RelayProtocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// Notes that the host has the socket: from now on other allocations may send there.
    pub(crate) fn open(&self) {
        let ports = &self.pools.pool(self).ports;
        ports.mark_open(self.port, self.protocol);
    }

    /// Returns the transport protocol between the address and peers.
    pub(crate) fn protocol(&self) -> RelayProtocol {
        self.protocol
    }

    /// Returns the address to bind on this host.
    pub(crate) fn local(&self) -> SocketAddr {
        SocketAddr::new(self.pools.pool(self).address.local, self.port)
    }

    /// Returns the address clients and peers see.
    pub(crate) fn external(&self) -> SocketAddr {
        let address = self.pools.pool(self).address;
        SocketAddr::new(address.external.unwrap_or(address.local), self.port)
    }

    pub(crate) fn family(&self) -> Family {
        self.pools.pool(self).family()
    }
}

impl Drop for PortLease {
    fn drop(&mut self) {
        // guard: V-44-back
        self.pools.pool(self).ports.give_back(self.port);
    }
}

impl fmt::Debug for PortLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortLease({})", self.local())
    }
}

/// The free ports of one address: bit n of word w is port `first + 64 w + n`.
#[derive(Debug)]
struct Bitmap {
    first: u16, // a multiple of 64, so that even ports are even bits
    /// Written only by who holds the lock of `leased`.
    words: Box<[AtomicU64]>,
    /// A bit for each port that is open for UDP, in the same order.
    open_for_udp: Box<[AtomicU64]>,
    /// The same for TCP.
    open_for_tcp: Box<[AtomicU64]>,
    range: RangeInclusive<u16>,
    /// Ports of the range that are not free.
    leased: Mutex<u32>,
}

impl Bitmap {
    fn new(range: &RangeInclusive<u16>) -> Self {
        let first = range.start() & !63;
        let word_count = if range.is_empty() {
            0
        } else {
            usize::from((range.end() - first) / 64) + 1
        };
        let mut words = vec![0_u64; word_count];
        for port in range.clone() {
            let (word, bit) = place(first, port);
            words[word] |= bit;
        }
        Self {
            first,
            words: words.into_iter().map(AtomicU64::new).collect(),
            open_for_udp: (0..word_count).map(|_| AtomicU64::new(0)).collect(),
            open_for_tcp: (0..word_count).map(|_| AtomicU64::new(0)).collect(),
            range: range.clone(),
            leased: Mutex::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, u32> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, kind: PortKind, random: u64) -> Option<u16> {
        let mut leased = self.lock();
        let candidates = |word: u64| match kind {
            PortKind::Any => word,
            // mutant: odd-port
            PortKind::Even => word & EVEN_BITS,
            PortKind::EvenPair => word & (word >> 1) & EVEN_BITS,
        };
        let candidates = |word: &AtomicU64| candidates(word.load(Relaxed));
        let total = match kind {
            // Known without a look at each word, of which all ports have a thousand.
            PortKind::Any => u32::try_from(self.range.len()).ok()? - *leased,
            PortKind::Even | PortKind::EvenPair => {
                let counts = self.words.iter().map(|word| candidates(word).count_ones());
                counts.sum()
            }
        };
        // guard: V-20-port
        let mut skip = u32::try_from(random.checked_rem(total.into())?).ok()?;
        for (index, word) in self.words.iter().enumerate() {
            let mut left = candidates(word);
            if skip >= left.count_ones() {
                skip -= left.count_ones();
                continue;
            }
            for _ in 0..skip {
                left &= left - 1; // clears the lowest bit; `left` has more than `skip` bits
            }
            let port = self.first
                + u16::try_from(index * 64).ok()?
                + u16::try_from(left.trailing_zeros()).ok()?;
            self.mark(&mut leased, port);
            // guard: V-44-sibling
            if kind == PortKind::EvenPair {
                self.mark(&mut leased, port | 1);
            }
            return Some(port);
        }
        None
    }

    fn take_exact(&self, port: u16) -> bool {
        let mut leased = self.lock();
        let is_free = self.range.contains(&port) && !self.is_leased(port);
        if is_free {
            self.mark(&mut leased, port);
        }
        is_free
    }

    /// Makes a free port a leased one.
    fn mark(&self, leased: &mut u32, port: u16) {
        let (word, bit) = place(self.first, port);
        self.words[word].fetch_and(!bit, Relaxed);
        *leased += 1;
    }

    fn give_back(&self, port: u16) {
        let mut leased = self.lock();
        let (word, bit) = place(self.first, port);
        self.open_for_udp[word].fetch_and(!bit, Relaxed);
        self.open_for_tcp[word].fetch_and(!bit, Relaxed);
        let before = self.words[word].fetch_or(bit, Relaxed);
        debug_assert_eq!(before & bit, 0, "port {port} was given back twice");
        *leased -= 1;
    }

    fn open_for(&self, protocol: RelayProtocol) -> &[AtomicU64] {
        match protocol {
            RelayProtocol::Tcp => &self.open_for_tcp,
            RelayProtocol::Udp => &self.open_for_udp,
        }
    }

    fn mark_open(&self, port: u16, protocol: RelayProtocol) {
        let (word, bit) = place(self.first, port);
        self.open_for(protocol)[word].fetch_or(bit, Relaxed);
    }

    /// Returns whether a port of the range is open; a port outside is not.
    fn is_open(&self, port: u16, protocol: RelayProtocol) -> bool {
        self.range.contains(&port) && {
            let (word, bit) = place(self.first, port);
            self.open_for(protocol)[word].load(Relaxed) & bit != 0
        }
    }

    /// Returns whether a port of the range is leased; a port outside is not.
    fn is_leased(&self, port: u16) -> bool {
        self.range.contains(&port) && {
            let (word, bit) = place(self.first, port);
            self.words[word].load(Relaxed) & bit == 0
        }
    }

    fn counts(&self) -> PortCounts {
        let leased = self.lock();
        let free = self
            .words
            .iter()
            .map(|word| word.load(Relaxed).count_ones())
            .sum();
        PortCounts {
            size: u32::try_from(self.range.len()).expect("at most 65536 ports"),
            free,
            leased: *leased,
        }
    }
}

fn place(first: u16, port: u16) -> (usize, u64) {
    let offset = port - first;
    (usize::from(offset / 64), 1 << (offset % 64))
}

#[cfg(test)]
mod tests;
