//! The program: loaded with its maps, and attached to devices.
//!
//! It is part of the binary (`bpf/turn.bpf.o`), so a machine needs no compiler. It goes when the last process goes that has a descriptor of
//! its links ([`super::Attachment`]): nothing else holds it.
//! After the devices are attached no system call is needed any more, so privileges can be given up.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::attachment::Attachment;
use super::line::Fields;
use super::meters::{Meters, Way};
use super::nexthop::{Hops, Wanted};
use super::routes::{Beyond, Carried, Line, Route, Routes};
use super::screen::{Refused, Screen};
use super::table::Table;

#[cfg(all(feature = "xdp", target_arch = "x86_64"))]
pub use self::loaded::Kernel;
#[cfg(not(all(feature = "xdp", target_arch = "x86_64")))]
pub use self::missing::Kernel;

/// How a program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// In the driver.
    Native,
    /// In the network stack, for any driver.
    Generic,
}

/// Words of the counts of a processor (`struct passes`).
#[cfg(any(test, all(feature = "xdp", target_arch = "x86_64")))]
pub(super) const PASSES_WORDS: usize = 8;

/// Packets of published routes that were left to user space, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passes {
    /// The route had expired.
    pub expired: u64,
    /// The route or its meter was being written.
    pub changing: u64,
    /// The next hop was not known.
    pub next_hop: u64,
    /// The packet would have been larger than the MTU.
    pub too_large: u64,
    /// The checksum was left to a device.
    pub checksum: u64,
    /// The driver leaves no room before the packet.
    pub headroom: u64,
    /// Other bytes than zeros followed the message.
    pub padding: u64,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    Drop,
    /// It goes to the sockets.
    Pass,
    /// It leaves by another device than it came by.
    Redirect,
    /// It leaves by the device that it came by.
    Send,
}

/// What the program did with one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What becomes of it.
    pub action: Action,
    /// The frame afterwards.
    pub frame: Vec<u8>,
}

/// Publishes routes to the kernel.
#[derive(Clone, Debug)]
pub struct KernelRoutes {
    v4: Arc<Table>,
    v6: Arc<Table>,
    hops: Arc<Hops>,
    meters: Arc<Meters>,
    screen: Arc<Screen>,
}

impl KernelRoutes {
    /// Returns the meters that routes are charged to.
    pub fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters)
    }

    /// Returns where datagrams of clients come.
    pub fn screen(&self) -> &Screen {
        &self.screen
    }

    fn table(&self, line: Line) -> &Table {
        if line.is_v6 { &self.v6 } else { &self.v4 }
    }
}

impl Routes for KernelRoutes {
    fn publish(&mut self, route: &Route) -> Option<Line> {
        let is_usable = |address: SocketAddr| !address.ip().is_unspecified() && address.port() != 0;
        let addresses = [route.from, route.to, route.new_from, route.new_to];
        if !addresses.into_iter().all(is_usable) {
            return None;
        }
        let hop = self.hops.claim(Wanted {
            from: route.new_from.ip(),
            to: route.new_to.ip(),
        })?;
        // Held before the program can charge it.
        if let Some(meter) = route.meter {
            self.meters.hold(meter);
        }
        let published = Fields::of(route, hop).and_then(|fields| {
            let is_v6 = fields.is_v6;
            let table = if is_v6 { &self.v6 } else { &self.v4 };
            let index = table.publish(&fields, route.expires_ns, route.meter)?;
            Some(Line { is_v6, index })
        });
        if published.is_none() {
            self.hops.release(hop);
            if let Some(meter) = route.meter {
                self.meters.release(meter);
            }
        }
        published
    }

    fn set_expiry(&mut self, line: Line, expires_ns: u64) {
        self.table(line).set_expiry(line.index, expires_ns);
    }

    fn revoke(&mut self, line: Line) {
        self.table(line).revoke(line.index);
    }

    fn carried(&self, line: Line) -> Carried {
        self.table(line).carried(line.index)
    }

    fn take_beyond(&mut self, meter: NonZeroU32) -> Beyond {
        let take = |way: Way| {
            let (datagrams, bytes) = self.meters.take_beyond(meter, way);
            Carried { datagrams, bytes }
        };
        Beyond {
            labelled: take(Way::Labelled),
            plain: take(Way::Plain),
        }
    }

    fn take_refused(&mut self) -> Refused {
        self.screen.take_refused()
    }

    fn free(&mut self, line: Line) {
        let table = self.table(line);
        let (hop, meter) = (table.hop(line.index), table.meter(line.index));
        table.free(line.index);
        self.hops.release(hop);
        if let Some(meter) = meter {
            self.meters.release(meter);
        }
    }
}

#[cfg(all(feature = "xdp", target_arch = "x86_64"))]
mod loaded {
    use std::io;
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use aya::maps::Map;
    use aya::programs::{TestRun as _, TestRunOptions, Xdp, XdpMode};
    use aya::{Ebpf, EbpfLoader};
    use turnbuckle_sys::mapped::Mapped;

    use super::{
        Action, Attach, Attachment, Hops, KernelRoutes, Meters, PASSES_WORDS, Passes, Screen,
        Table, Verdict,
    };
    use crate::offload::hash::{BUCKET, Seed};

    static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/turn.bpf.o");

    /// Entries of the map of devices: an interface with a larger index cannot be served.
    const DEVICES: usize = 1 << 16;
    /// Entries of the map of counts.
    const PROCESSORS: usize = 1024;
    /// Verdicts (`enum xdp_action`).
    const XDP_DROP: u32 = 1;
    const XDP_PASS: u32 = 2;
    const XDP_TX: u32 = 3;
    const XDP_REDIRECT: u32 = 4;

    /// The loaded program.
    #[derive(Debug)]
    pub struct Kernel {
        program: Ebpf,
        routes: KernelRoutes,
        devices: Mapped,
        passed: Mapped,
        /// Links that another program had before this one.
        replaced: Vec<Attachment>,
    }

    impl Kernel {
        /// Loads the program with room for `channels` channels of each family, and as many meters.
        ///
        /// # Errors
        ///
        /// The kernel does not take it, in words: it is too old, or the process may not.
        pub fn load(channels: u32, seed: Seed) -> io::Result<Self> {
            Self::load_object(OBJECT, channels, seed)
        }

        /// Loads another object in the program's place: the same source, built in another way for a test.
        ///
        /// # Errors
        ///
        /// As for [`Self::load`].
        pub fn load_object(object: &[u8], channels: u32, seed: Seed) -> io::Result<Self> {
            // Two lines for each channel, and as much again, so that a bucket is hardly ever full.
            let buckets = (channels.max(1) as usize * 4 / BUCKET).next_power_of_two();
            let entries = u32::try_from(buckets).map_err(io::Error::other)?;
            let mask = entries - 1;
            let program = EbpfLoader::new()
                .override_global("seed", &seed.0, true)
                .override_global("mask4", &mask, true)
                .override_global("mask6", &mask, true)
                .map_max_entries("lines4", entries)
                .map_max_entries("lines6", entries)
                .map_max_entries("meters", channels.saturating_add(1))
                .load(object)
                .map_err(in_words)?;
            let map = |name: &str, words: usize| {
                let Some(Map::Array(map)) = program.map(name) else {
                    return Err(io::Error::other(format!("the program has no map {name}")));
                };
                Mapped::new(map.fd().as_fd(), words)
            };
            let table = |name: &str, is_v6: bool| {
                let memory = map(name, Table::words(is_v6, buckets))?;
                io::Result::Ok(Arc::new(Table::new(memory, is_v6, buckets, seed)))
            };
            let routes = KernelRoutes {
                v4: table("lines4", false)?,
                v6: table("lines6", true)?,
                hops: Arc::new(Hops::new(map("hops", Hops::words())?)?),
                meters: Arc::new(Meters::new(map("meters", Meters::words(channels))?)),
                screen: Arc::new(Screen::new(
                    map("listening", Screen::words())?,
                    map("refusals", Screen::refused_words())?,
                    seed,
                )),
            };
            let (devices, passed) = (
                map("devices", DEVICES)?,
                map("passed", PROCESSORS * PASSES_WORDS)?,
            );
            let mut kernel = Self {
                program,
                routes,
                devices,
                passed,
                replaced: Vec::new(),
            };
            let program = kernel.xdp()?;
            program.load().map_err(in_words)?;
            // Interpreted, it would cost more than user space does.
            if program.info().map_err(in_words)?.size_jitted() == 0 {
                let why = "its compiler is off (net.core.bpf_jit_enable)";
                return Err(io::Error::other(why));
            }
            Ok(kernel)
        }

        /// Attaches the program to the device with this index and link-layer address. It relays what is addressed to that from here on.
        ///
        /// # Errors
        ///
        /// The driver does not take it, or the device has a program already; in words.
        pub fn attach(&mut self, device: u32, address: [u8; 6], attach: Attach) -> io::Result<()> {
            let mode = match attach {
                Attach::Native => XdpMode::Driver,
                Attach::Generic => XdpMode::Skb,
            };
            self.serve(device, Some(address))?;
            if let Err(error) = self.xdp()?.attach_to_if_index(device, mode) {
                self.serve(device, None)?;
                return Err(in_words(error));
            }
            Ok(())
        }

        /// Has the device of `attachment`, which has this link-layer address, run this program in place of the one that it runs. There is no
        /// moment without a program.
        ///
        /// # Errors
        ///
        /// The kernel does not replace it, in words. Then the device has none any more, unless another process has the link too.
        pub fn replace(&mut self, attachment: Attachment, address: [u8; 6]) -> io::Result<()> {
            let device = attachment.device();
            self.serve(device, Some(address))?;
            let program = self.xdp()?.fd().map_err(in_words)?;
            // guard: offload-replaced
            if let Err(error) = attachment.run(program.as_fd()) {
                self.serve(device, None)?;
                return Err(error);
            }
            self.replaced.push(attachment);
            Ok(())
        }

        /// Has the program relay what comes by a device and is addressed to this link-layer address, or nothing.
        fn serve(&self, device: u32, address: Option<[u8; 6]>) -> io::Result<()> {
            let word = self.devices.words().get(device as usize);
            let word = word.ok_or_else(|| io::Error::other("its index is beyond 65535"))?;
            let value = address.map_or(0, |[a, b, c, d, e, f]| {
                u64::from_le_bytes([a, b, c, d, e, f, 1, 0])
            });
            word.store(value, Ordering::Release);
            Ok(())
        }

        /// Runs the program on a frame as if it had come by the device with index 1, without sending anything.
        ///
        /// # Errors
        ///
        /// The kernel does not run it.
        pub fn run(&mut self, address: [u8; 6], frame: &[u8]) -> io::Result<Verdict> {
            self.run_behind(address, &[], frame)
        }

        /// Runs the program so often on a frame, each time on what it has made of it before. Returns how long one run took on average.
        ///
        /// # Errors
        ///
        /// The kernel does not run it.
        pub fn run_repeatedly(
            &mut self,
            address: [u8; 6],
            frame: &[u8],
            times: u32,
        ) -> io::Result<(Duration, Verdict)> {
            self.run_times(address, &[], frame, times)
        }

        /// Does the same as [`Self::run`], with bytes of the driver's own before the frame (`data_meta`), which take the room that a header would need.
        ///
        /// # Errors
        ///
        /// The kernel does not run it, or does not take so many bytes.
        pub fn run_behind(
            &mut self,
            address: [u8; 6],
            meta: &[u8],
            frame: &[u8],
        ) -> io::Result<Verdict> {
            self.run_times(address, meta, frame, 1)
                .map(|(_, verdict)| verdict)
        }

        fn run_times(
            &mut self,
            address: [u8; 6],
            meta: &[u8],
            frame: &[u8],
            times: u32,
        ) -> io::Result<(Duration, Verdict)> {
            let [a, b, c, d, e, f] = address;
            let word = u64::from_le_bytes([a, b, c, d, e, f, 1, 0]);
            self.devices.words()[1].store(word, Ordering::Release);
            let data = [meta, frame].concat();
            // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
            let offsets = [meta.len(), data.len(), 0, 0, 0, 0];
            let context = offsets.map(|it| u32::try_from(it).unwrap_or(u32::MAX).to_ne_bytes());
            let mut out = vec![0; data.len() + 256];
            let mut options = TestRunOptions::new();
            options.repeat = times;
            options.data_in = Some(&data);
            options.data_out = Some(&mut out);
            if !meta.is_empty() {
                options.ctx_in = Some(context.as_flattened());
            }
            let result = self.xdp()?.test_run(options).map_err(in_words)?;
            out.truncate(result.data_size_out as usize);
            out.drain(..meta.len().min(out.len()));
            let action = match result.return_value {
                XDP_DROP => Action::Drop,
                XDP_PASS => Action::Pass,
                XDP_TX => Action::Send,
                XDP_REDIRECT => Action::Redirect,
                other => return Err(io::Error::other(format!("it says {other}"))),
            };
            Ok((result.duration, Verdict { action, frame: out }))
        }

        /// Returns what routes are published with.
        pub fn routes(&self) -> KernelRoutes {
            self.routes.clone()
        }

        /// Returns the next hops of published routes.
        pub fn hops(&self) -> Arc<Hops> {
            Arc::clone(&self.routes.hops)
        }

        /// Returns how many packets of published routes were left to user space.
        pub fn passes(&self) -> Passes {
            let words = self.passed.words();
            let sum = |at: usize| {
                let counts = words.iter().skip(at).step_by(PASSES_WORDS);
                counts.map(|it| it.load(Ordering::Relaxed)).sum()
            };
            Passes {
                expired: sum(0),
                changing: sum(1),
                next_hop: sum(2),
                too_large: sum(3),
                checksum: sum(4),
                headroom: sum(5),
                padding: sum(6),
            }
        }

        fn xdp(&mut self) -> io::Result<&mut Xdp> {
            let program = self.program.program_mut("turn");
            let program = program.ok_or_else(|| io::Error::other("the object has no program"))?;
            program.try_into().map_err(in_words)
        }
    }

    /// Returns an error with all of its causes.
    fn in_words(error: impl std::error::Error) -> io::Error {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            if !words.contains(&more) {
                words = format!("{words}: {more}");
            }
            cause = error.source();
        }
        io::Error::other(words)
    }
}

#[cfg(not(all(feature = "xdp", target_arch = "x86_64")))]
mod missing {
    use std::convert::Infallible;
    use std::io;
    use std::sync::Arc;

    use super::{Attach, Attachment, Hops, KernelRoutes, Passes, Verdict};
    use crate::offload::hash::Seed;

    /// A program that this build does not have.
    #[derive(Debug)]
    pub struct Kernel(Infallible);

    impl Kernel {
        /// Loads nothing.
        ///
        /// # Errors
        ///
        /// Always.
        pub fn load(_: u32, _: Seed) -> io::Result<Self> {
            Err(io::Error::other(
                "this build is without it: it needs x86-64 and the feature `xdp`",
            ))
        }

        /// Loads nothing.
        ///
        /// # Errors
        ///
        /// Always.
        pub fn load_object(_: &[u8], channels: u32, seed: Seed) -> io::Result<Self> {
            Self::load(channels, seed)
        }

        /// Does nothing: without a program it cannot be called.
        ///
        /// # Errors
        ///
        /// None.
        pub fn attach(&mut self, _: u32, _: [u8; 6], _: Attach) -> io::Result<()> {
            match self.0 {}
        }

        /// Does nothing: without a program it cannot be called.
        ///
        /// # Errors
        ///
        /// None.
        pub fn replace(&mut self, _: Attachment, _: [u8; 6]) -> io::Result<()> {
            match self.0 {}
        }

        /// Does nothing: without a program it cannot be called.
        ///
        /// # Errors
        ///
        /// None.
        pub fn run(&mut self, _: [u8; 6], _: &[u8]) -> io::Result<Verdict> {
            match self.0 {}
        }

        /// Does nothing: without a program it cannot be called.
        ///
        /// # Errors
        ///
        /// None.
        pub fn run_repeatedly(
            &mut self,
            _: [u8; 6],
            _: &[u8],
            _: u32,
        ) -> io::Result<(std::time::Duration, Verdict)> {
            match self.0 {}
        }

        /// Does nothing: without a program it cannot be called.
        ///
        /// # Errors
        ///
        /// None.
        pub fn run_behind(&mut self, _: [u8; 6], _: &[u8], _: &[u8]) -> io::Result<Verdict> {
            match self.0 {}
        }

        /// Returns nothing: without a program it cannot be called.
        pub fn routes(&self) -> KernelRoutes {
            match self.0 {}
        }

        /// Returns nothing: without a program it cannot be called.
        pub fn hops(&self) -> Arc<Hops> {
            match self.0 {}
        }

        /// Returns nothing: without a program it cannot be called.
        pub fn passes(&self) -> Passes {
            match self.0 {}
        }
    }
}
