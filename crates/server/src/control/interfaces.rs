//! Follows the addresses of this machine's interfaces. The kernel reports each change by netlink (rtnetlink(7)).
//!
//! A notice only causes all addresses to be read again. So the contents of a notice are not used, and ENOBUFS, which reports lost notices, has the
//! same effect. Without netlink the addresses are read at regular intervals.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use if_addrs::{IfAddr, get_if_addrs};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use rustix::time::Timespec;
use turnbuckle_engine::InterfaceAddress;

use super::events::Event;
use super::pending::Pending;
use super::shards::Shards;

/// `RTMGRP_IPV4_IFADDR` and `RTMGRP_IPV6_IFADDR` of linux/rtnetlink.h.
const ADDRESS_GROUPS: u32 = 0x10 | 0x100;

/// Time between two readings without a notice.
const INTERVAL: Duration = Duration::from_secs(30);

/// The same where the kernel gives no notice.
const INTERVAL_WITHOUT_NOTICES: Duration = Duration::from_secs(5);

/// The addresses of this machine's interfaces, and which of the shards know them. The thread that follows them ends when this is dropped.
pub(super) struct Interfaces {
    /// The addresses that all shards have.
    addresses: Vec<InterfaceAddress>,
    /// New addresses that not all shards have yet.
    pending: Option<Pending<Vec<InterfaceAddress>>>,
    _stop: UnixStream,
}

impl Interfaces {
    /// Reads the addresses, and sends an [`Event::Interfaces`] whenever they may have changed.
    ///
    /// # Errors
    ///
    /// The addresses cannot be read, or the thread cannot be started.
    pub(super) fn follow(events: SyncSender<Event>) -> io::Result<Self> {
        let notices = subscribe();
        let interval = match &notices {
            Some(_) => INTERVAL,
            None => INTERVAL_WITHOUT_NOTICES,
        };
        Self::follow_by(notices, interval, events)
    }

    fn follow_by(
        notices: Option<OwnedFd>,
        interval: Duration,
        events: SyncSender<Event>,
    ) -> io::Result<Self> {
        // After the subscription: what changes in between is read twice rather than never.
        let addresses = read()?;
        let (stop, is_stopped) = UnixStream::pair()?;
        let mut known = addresses.clone();
        let thread = std::thread::Builder::new().name("interfaces".into());
        thread.spawn(move || {
            while let Some(is_noticed) = wait(notices.as_ref(), &is_stopped, interval) {
                // After a read error the last known addresses stay in force.
                let Ok(current) = read() else {
                    continue;
                };
                // A notice may mean that a known address has just become usable.
                if is_noticed || current != known {
                    known.clone_from(&current);
                    if events.send(Event::Interfaces(current)).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Self {
            addresses,
            pending: None,
            _stop: stop,
        })
    }

    /// Returns the addresses that all shards have, sorted. Before the first change these are the addresses at the start.
    pub(super) fn addresses(&self) -> &[InterfaceAddress] {
        &self.addresses
    }

    /// Notes new addresses for the shards, unless the shards have them or are being sent them already.
    pub(super) fn changed(&mut self, addresses: Vec<InterfaceAddress>, shards: &mut Shards) {
        let last = match &self.pending {
            Some(pending) => pending.value(),
            None => &self.addresses,
        };
        if *last != addresses {
            shards.begin_with_interfaces(&addresses);
            self.pending = Some(Pending::new(addresses, shards.all().len()));
        }
    }

    /// Returns whether a shard has not taken the new addresses yet.
    pub(super) fn has_news(&self) -> bool {
        self.pending.is_some()
    }

    /// Sends the new addresses to the shards that have not taken them yet and have room in their queue.
    pub(super) fn publish(&mut self, shards: &Shards) {
        let known = self.pending.take_if(|pending| {
            pending.deliver(|shard, addresses| shards.set_interfaces(shard, addresses))
        });
        if let Some(known) = known {
            self.addresses.clone_from(known.value());
        }
    }
}

/// Returns the present addresses of this machine's interfaces, sorted.
///
/// # Errors
///
/// The kernel returns no addresses.
fn read() -> io::Result<Vec<InterfaceAddress>> {
    let mut found: Vec<_> = get_if_addrs()?
        .into_iter()
        .map(|interface| InterfaceAddress {
            ip: interface.ip(),
            prefix_len: match interface.addr {
                IfAddr::V4(v4) => v4.prefixlen,
                IfAddr::V6(v6) => v6.prefixlen,
            },
        })
        .collect();
    found.sort_by_key(|address| address.ip);
    Ok(found)
}

/// Returns a netlink socket that receives a notice of each address change. Returns `None` if the kernel offers none.
fn subscribe() -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = (AddressFamily::NETLINK, SocketType::RAW);
    // Without a protocol the number is 0, which is NETLINK_ROUTE.
    let socket = socket_with(kind.0, kind.1, flags, None).ok()?;
    bind(&socket, &SocketAddrNetlink::new(0, ADDRESS_GROUPS)).ok()?;
    Some(socket)
}

/// Waits for notices, for `interval` at the longest, and reads all that have arrived. Returns whether there were any. Returns `None` when the other
/// end of `is_stopped` is closed.
fn wait(notices: Option<&OwnedFd>, is_stopped: &UnixStream, interval: Duration) -> Option<bool> {
    let timeout = Timespec::try_from(interval).ok();
    let mut wanted = vec![PollFd::from_borrowed_fd(is_stopped.as_fd(), PollFlags::IN)];
    if let Some(notices) = notices {
        wanted.push(PollFd::from_borrowed_fd(notices.as_fd(), PollFlags::IN));
    }
    // Interrupted by a signal: then the addresses are read once more than needed.
    let _ = poll(&mut wanted, timeout.as_ref());
    if !wanted[0].revents().is_empty() {
        return None;
    }
    let is_noticed = wanted.get(1).is_some_and(|it| !it.revents().is_empty());
    if let Some(notices) = notices.filter(|_| is_noticed) {
        // ENOBUFS means that notices were lost and that the socket still works.
        while !matches!(
            recv(notices, &mut [0; 4096][..], RecvFlags::TRUNC),
            Err(error) if error != rustix::io::Errno::NOBUFS
        ) {}
    }
    Some(is_noticed)
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::{Receiver, sync_channel};

    use rustix::process::geteuid;
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

    use super::*;

    /// Long enough for anything; no test waits for it.
    const NEVER: Duration = Duration::from_secs(3600);

    /// A network namespace of this test's own, removed when dropped.
    struct Namespace(String);

    impl Namespace {
        fn new(name: &str) -> Self {
            let it = Self(format!("tb-{name}-{}", std::process::id()));
            it.ip(&["netns", "add", &it.0]);
            it.ip(&["-n", &it.0, "link", "set", "lo", "up"]);
            it
        }

        fn ip(&self, words: &[&str]) {
            let status = Command::new("ip").args(words).status().expect("ip runs");
            assert!(status.success(), "ip {words:?} in {}", self.0);
        }

        fn address(&self, verb: &str, address: &str) {
            self.ip(&["-n", &self.0, "address", verb, address, "dev", "lo"]);
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
        }
    }

    fn next(events: &Receiver<Event>, is_wanted: impl Fn(&[InterfaceAddress]) -> bool) {
        loop {
            match events.recv_timeout(Duration::from_secs(60)) {
                Ok(Event::Interfaces(addresses)) if is_wanted(&addresses) => return,
                Ok(_) => {}
                Err(_) => panic!("no such addresses were told"),
            }
        }
    }

    //= V-07
    #[test]
    fn an_address_that_comes_or_goes_is_told_without_waiting_for_the_next_reading() {
        if !geteuid().is_root() {
            println!("not run: only root can make a network namespace");
            return;
        }
        let namespace = Namespace::new("addresses");
        // Only the thread of this test enters it, and the one that it starts.
        let entered = std::fs::File::open(format!("/run/netns/{}", namespace.0)).expect("made");
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(entered.as_fd(), kind).expect("entered");
        let (sender, events) = sync_channel(8);
        let notices = subscribe();
        assert!(notices.is_some());
        let interfaces = Interfaces::follow_by(notices, NEVER, sender).expect("followed");
        let has = |addresses: &[InterfaceAddress], ip: &str| {
            let ip: std::net::IpAddr = ip.parse().expect("an address");
            addresses.iter().any(|address| address.ip == ip)
        };
        assert!(!has(interfaces.addresses(), "10.9.8.7"));
        for (address, ip) in [("10.9.8.7/24", "10.9.8.7"), ("fd00::7/64", "fd00::7")] {
            namespace.address("add", address);
            next(&events, |addresses| has(addresses, ip));
            namespace.address("del", address);
            next(&events, |addresses| !has(addresses, ip));
        }
        // Its thread ends with it.
        drop(interfaces);
        while events.recv_timeout(Duration::from_secs(60)).is_ok() {}
        assert!(matches!(
            events.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Disconnected)
        ));
    }
}
