//! Keeps the next hops of published channels: a thread that asks the kernel by which device and to which neighbour each destination is reached.
//!
//! It asks for a destination when that is new, and anew for all of them when routes or devices have changed, and now and then. A notice about a neighbour
//! is a question for that neighbour, whatever the number of destinations behind it. A destination whose neighbour is not known is relayed by the shard,
//! whose packet makes the kernel look for the neighbour.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use turnbuckle_datapath::offload::{Hop, Hops, Wanted};
use turnbuckle_sys::priority::{BACKGROUND_NICE, run_in_batches};

use super::netlink::{Device, Netlink, Way};

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
        let mut resolver = Resolver::new(netlink, attached);
        resolver.resolve_all(hops.wanted(), &mut |wanted, hop| hops.set(wanted, hop));
        let thread = std::thread::Builder::new().name("neighbours".into());
        thread.spawn(move || {
            // It is no more urgent than what else runs beside the shards.
            let _ = run_in_batches(BACKGROUND_NICE);
            let mut set = |wanted, hop| hops.set(wanted, hop);
            let mut resolved = Instant::now();
            while wait(&resolver.kernel, &hops, &is_stopped) {
                let changed = resolver.kernel.take_notices();
                let new = hops.take_new();
                if changed.has_routes || resolved.elapsed() >= INTERVAL {
                    resolved = Instant::now();
                    resolver.resolve_all(hops.wanted(), &mut set);
                } else {
                    for neighbour in changed.neighbours {
                        resolver.look_again(neighbour, &mut set);
                    }
                    for wanted in new {
                        resolver.resolve(wanted, &mut set);
                    }
                }
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

/// What answers questions about the way of a packet.
trait Questions {
    /// Returns the way from an address of this host to a destination elsewhere.
    fn way(&mut self, wanted: Wanted) -> io::Result<Option<Way>>;

    /// Returns a device with Ethernet frames.
    fn device(&mut self, index: u32) -> io::Result<Option<Device>>;

    /// Returns the link-layer address of a neighbour, if it is known.
    fn neighbour(&mut self, device: u32, ip: IpAddr) -> io::Result<Option<[u8; 6]>>;
}

impl Questions for Netlink {
    fn way(&mut self, wanted: Wanted) -> io::Result<Option<Way>> {
        Self::way(self, wanted.from, wanted.to)
    }

    fn device(&mut self, index: u32) -> io::Result<Option<Device>> {
        Self::device(self, index)
    }

    fn neighbour(&mut self, device: u32, ip: IpAddr) -> io::Result<Option<[u8; 6]>> {
        Self::neighbour(self, device, ip)
    }
}

/// Asks for next hops. What the kernel does not tell is not known.
struct Resolver<Q> {
    kernel: Q,
    attached: Vec<u32>,
    devices: BTreeMap<u32, Option<Device>>,
    neighbours: BTreeMap<(u32, IpAddr), Neighbour>,
}

/// What was said of a neighbour.
struct Neighbour {
    to: Option<[u8; 6]>,
    /// Pairs whose packets it gets, and how long they may be.
    behind: BTreeMap<Wanted, u16>,
}

impl<Q: Questions> Resolver<Q> {
    fn new(kernel: Q, attached: Vec<u32>) -> Self {
        Self {
            kernel,
            attached,
            devices: BTreeMap::new(),
            neighbours: BTreeMap::new(),
        }
    }

    /// Asks anew for the next hops of all pairs that are wanted.
    fn resolve_all(
        &mut self,
        wanted: Vec<(Wanted, Option<Hop>)>,
        set: &mut impl FnMut(Wanted, Option<Hop>),
    ) {
        self.devices.clear();
        self.neighbours.clear();
        for (wanted, _) in wanted {
            self.resolve(wanted, set);
        }
    }

    /// Asks for the next hop of one pair.
    fn resolve(&mut self, wanted: Wanted, set: &mut impl FnMut(Wanted, Option<Hop>)) {
        let hop = self.hop(wanted).unwrap_or(None);
        set(wanted, hop);
    }

    /// Asks for a neighbour anew, if packets of a pair go to it.
    fn look_again(
        &mut self,
        (device, ip): (u32, IpAddr),
        set: &mut impl FnMut(Wanted, Option<Hop>),
    ) {
        let Some(neighbour) = self.neighbours.get_mut(&(device, ip)) else {
            return;
        };
        let to = self.kernel.neighbour(device, ip).unwrap_or(None);
        if to == neighbour.to {
            return;
        }
        neighbour.to = to;
        let Some(from) = self.devices.get(&device).and_then(Option::as_ref) else {
            return;
        };
        for (&wanted, &mtu) in &neighbour.behind {
            set(wanted, hop(from, mtu, to));
        }
    }

    fn hop(&mut self, wanted: Wanted) -> io::Result<Option<Hop>> {
        let Some(way) = self.kernel.way(wanted)? else {
            return Ok(None);
        };
        if !self.attached.contains(&way.device) {
            return Ok(None);
        }
        if let Entry::Vacant(place) = self.devices.entry(way.device) {
            place.insert(self.kernel.device(way.device)?);
        }
        let Some(device) = self.devices.get(&way.device).and_then(Option::as_ref) else {
            return Ok(None);
        };
        let neighbour = match self.neighbours.entry((way.device, way.neighbour)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Neighbour {
                to: self.kernel.neighbour(way.device, way.neighbour)?,
                behind: BTreeMap::new(),
            }),
        };
        let mtu = way.mtu.filter(|&mtu| mtu > 0).unwrap_or(u32::MAX);
        let mtu = device.mtu.min(u16::try_from(mtu).unwrap_or(u16::MAX));
        neighbour.behind.insert(wanted, mtu);
        Ok(hop(device, mtu, neighbour.to))
    }
}

/// Returns the next hop by a device to a neighbour, if that is known.
fn hop(device: &Device, mtu: u16, to: Option<[u8; 6]>) -> Option<Hop> {
    to.map(|to| Hop {
        device: device.index,
        mtu,
        to,
        from: device.address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: u32 = 3;
    const GATEWAY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// A kernel with one gateway, which counts what it is asked.
    struct Counting {
        to: Option<[u8; 6]>,
        ways: usize,
        devices: usize,
        neighbours: usize,
    }

    impl Questions for Counting {
        fn way(&mut self, _: Wanted) -> io::Result<Option<Way>> {
            self.ways += 1;
            Ok(Some(Way {
                device: DEVICE,
                neighbour: GATEWAY,
                mtu: None,
            }))
        }

        fn device(&mut self, index: u32) -> io::Result<Option<Device>> {
            self.devices += 1;
            Ok(Some(Device {
                index,
                name: "eth0".into(),
                address: [2; 6],
                mtu: 1500,
                has_program: true,
                attached: None,
            }))
        }

        fn neighbour(&mut self, _: u32, _: IpAddr) -> io::Result<Option<[u8; 6]>> {
            self.neighbours += 1;
            Ok(self.to)
        }
    }

    fn wanted(number: u16) -> Wanted {
        let [high, low] = number.to_be_bytes();
        Wanted {
            from: [192, 0, 2, 2].into(),
            to: [198, 51, high, low].into(),
        }
    }

    #[test]
    fn what_is_new_is_asked_for_alone_and_a_neighbour_once_for_all_behind_it() {
        let kernel = Counting {
            to: Some([1; 6]),
            ways: 0,
            devices: 0,
            neighbours: 0,
        };
        let mut resolver = Resolver::new(kernel, vec![DEVICE]);
        let mut hops = BTreeMap::new();
        let all = (0..1000).map(|number| (wanted(number), None)).collect();
        resolver.resolve_all(all, &mut |wanted, hop| {
            hops.insert(wanted, hop);
        });
        let asked = |it: &Counting| (it.ways, it.devices, it.neighbours);
        assert_eq!(asked(&resolver.kernel), (1000, 1, 1));
        resolver.resolve(wanted(1000), &mut |wanted, hop| {
            hops.insert(wanted, hop);
        });
        assert_eq!(asked(&resolver.kernel), (1001, 1, 1));
        // A notice that says nothing new, and one about a stranger.
        let mut set = |_, _| panic!("nothing has changed");
        resolver.look_again((DEVICE, GATEWAY), &mut set);
        resolver.look_again((DEVICE, [192, 0, 2, 77].into()), &mut set);
        assert_eq!(asked(&resolver.kernel), (1001, 1, 2));
        resolver.kernel.to = Some([9; 6]);
        resolver.look_again((DEVICE, GATEWAY), &mut |wanted, hop| {
            hops.insert(wanted, hop);
        });
        assert_eq!(asked(&resolver.kernel), (1001, 1, 3));
        assert_eq!(hops.len(), 1001);
        assert!(hops.values().flatten().all(|hop| hop.to == [9; 6]));
        resolver.kernel.to = None;
        resolver.look_again((DEVICE, GATEWAY), &mut |wanted, hop| {
            hops.insert(wanted, hop);
        });
        assert!(hops.values().all(Option::is_none));
    }
}
