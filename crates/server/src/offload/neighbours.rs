//! Keeps the next hops of published channels: a thread that asks the kernel by which device and to which neighbour each destination is reached.
//!
//! It asks whenever a destination is new, and anew for all of them when routes, neighbours or devices have changed. A destination whose neighbour is not
//! known is relayed by the shard, whose packet makes the kernel look for the neighbour.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use turnbuckle_datapath::offload::{Hop, Hops, Wanted};

use super::netlink::{Device, Netlink};

/// Pause between two passes, in which notices gather.
const PAUSE: Duration = Duration::from_millis(20);
/// Time between two passes without a notice.
const INTERVAL: Duration = Duration::from_secs(30);

/// The thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Neighbours {
    _stop: UnixStream,
}

impl Neighbours {
    /// Asks for all next hops, and starts the thread that keeps them. Only devices in `attached` are next hops.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(super) fn follow(
        netlink: Netlink,
        hops: Arc<Hops>,
        attached: Vec<u32>,
    ) -> io::Result<Self> {
        let (stop, is_stopped) = UnixStream::pair()?;
        let mut resolver = Resolver { netlink, attached };
        resolver.resolve(&hops);
        let thread = std::thread::Builder::new().name("neighbours".into());
        thread.spawn(move || {
            while wait(&resolver.netlink, &hops, &is_stopped) {
                resolver.netlink.clear_notices();
                resolver.resolve(&hops);
                std::thread::sleep(PAUSE);
            }
        })?;
        Ok(Self { _stop: stop })
    }
}

/// Waits until there is something to ask. Returns `false` when the thread is to end.
fn wait(netlink: &Netlink, hops: &Hops, is_stopped: &UnixStream) -> bool {
    let timeout = Timespec::try_from(INTERVAL).ok();
    let mut wanted = [
        PollFd::from_borrowed_fd(is_stopped.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(netlink.notices(), PollFlags::IN),
        PollFd::from_borrowed_fd(hops.news(), PollFlags::IN),
    ];
    // Interrupted by a signal: then it is asked once more than needed.
    let _ = poll(&mut wanted, timeout.as_ref());
    wanted[0].revents().is_empty()
}

/// Asks for next hops.
struct Resolver {
    netlink: Netlink,
    attached: Vec<u32>,
}

impl Resolver {
    /// Sets the next hop of each destination that is wanted.
    fn resolve(&mut self, hops: &Hops) {
        let mut devices = BTreeMap::new();
        for (wanted, _) in hops.wanted() {
            // What the kernel does not tell is not known.
            let hop = self.hop(wanted, &mut devices).unwrap_or(None);
            hops.set(wanted, hop);
        }
    }

    fn hop(
        &mut self,
        wanted: Wanted,
        devices: &mut BTreeMap<u32, Option<Device>>,
    ) -> io::Result<Option<Hop>> {
        let Some(way) = self.netlink.way(wanted.from, wanted.to)? else {
            return Ok(None);
        };
        if !self.attached.contains(&way.device) {
            return Ok(None);
        }
        if let std::collections::btree_map::Entry::Vacant(place) = devices.entry(way.device) {
            place.insert(self.netlink.device(way.device)?);
        }
        let Some(device) = devices.get(&way.device).and_then(Option::as_ref) else {
            return Ok(None);
        };
        let to = self.netlink.neighbour(way.device, way.neighbour)?;
        let mtu = way.mtu.filter(|&mtu| mtu > 0).unwrap_or(u32::MAX);
        Ok(to.map(|to| Hop {
            device: way.device,
            mtu: device.mtu.min(u16::try_from(mtu).unwrap_or(u16::MAX)),
            to,
            from: device.address,
        }))
    }
}
