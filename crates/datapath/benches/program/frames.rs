//! What a frame costs that goes through a device: a veth pair, with a generator at one end and the program at the other.
//!
//! All of it runs on one processor, in the thread that has the kernel make frames (`BPF_F_TEST_XDP_LIVE_FRAMES`, Linux 5.18) or in its `ksoftirqd`: making a
//! frame, the ring of the device, its NAPI, the program, sending back, and a sink that drops. Beside the program stand the least that can be at its place:
//! one that drops each frame, and one that reflects it.

use std::path::Path;
use std::process::Command;

use aya::maps::Array;
use aya::programs::{TestRun as _, TestRunAttrs, TestRunOptions, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{CpuSet, sched_setaffinity};
use turnbuckle_datapath::offload::{Attach, Kernel, Seed};

use crate::flows::Flows;
use crate::model::DEVICE;
use crate::object::built;

/// Frames of one call of the kernel, which takes some 24 ms besides.
const FRAMES: u32 = 1_000_000;
/// Frames that the generator makes before devices are served.
const BATCH: u32 = 64;
/// Calls that are measured, and one before them.
pub(crate) const ROUNDS: usize = 9;
/// The processor that all of it runs on.
const PROCESSOR: usize = 0;
/// What is at the other end of each pair, whose devices are `tb-NAME-0` and `tb-NAME-1`.
const ENDS: [&str; 3] = ["drop", "reflect", "turn"];

/// Three pairs of devices with their programs.
pub(crate) struct Cables {
    programs: Ebpf,
    frame: Vec<u8>,
    _kernel: Kernel,
}

impl Cables {
    /// Makes the devices in this network namespace, and publishes channels. `None`: something that is needed is not there, and was said.
    pub(crate) fn lay(flows: u32, is_v6: bool) -> Option<Self> {
        let mut own = CpuSet::new();
        own.set(PROCESSOR);
        sched_setaffinity(None, &own).unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/program/frames.bpf.c");
        let object = built(source, &[])?;
        let mut programs = EbpfLoader::new()
            .override_global("flows", &flows, true)
            .override_global("is_v6", &u32::from(is_v6), true)
            .load(&object)
            .unwrap();
        let mut kernel = Kernel::load(flows, Seed(7)).unwrap();
        for name in ["generate", "sink", "drop", "reflect"] {
            xdp(&mut programs, name).load().unwrap();
        }
        for end in ENDS {
            let (near, far) = (format!("tb-{end}-0"), format!("tb-{end}-1"));
            ip(&format!("link add {near} type veth peer name {far}"));
            xdp(&mut programs, "sink")
                .attach(&near, XdpMode::Driver)
                .unwrap();
            if end == "turn" {
                let index = index(&far);
                kernel.attach(index, DEVICE, Attach::Native).unwrap();
                Flows::publish(&kernel, flows, is_v6, index);
            } else {
                xdp(&mut programs, end)
                    .attach(&far, XdpMode::Driver)
                    .unwrap();
            }
            for device in [near, far] {
                std::fs::write(
                    format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"),
                    "1",
                )
                .unwrap();
                ip(&format!("link set {device} up"));
            }
        }
        let len = if is_v6 { 40 } else { 20 } + 14 + 8 + 4 + 160;
        Some(Self {
            programs,
            frame: vec![0; len],
            _kernel: kernel,
        })
    }

    /// Returns what a frame costs in nanoseconds, by what is at the other end: the median, the least and the most of the rounds. With each goes which part
    /// of the frames came back.
    pub(crate) fn measure(mut self) -> [(&'static str, [f64; 3], f64); 3] {
        let mut costs: [Vec<f64>; 3] = Default::default();
        let mut arrived = [0; 3];
        for round in 0..=ROUNDS {
            for (place, end) in ENDS.into_iter().enumerate() {
                let (cost, count) = self.send(&format!("tb-{end}-0"));
                if round > 0 {
                    costs[place].push(cost);
                    arrived[place] += count;
                }
            }
        }
        std::array::from_fn(|place| {
            let costs = &mut costs[place];
            costs.sort_by(f64::total_cmp);
            let part = arrived[place] as f64 / (ROUNDS * FRAMES as usize) as f64;
            (
                ENDS[place],
                [costs[ROUNDS / 2], costs[0], costs[ROUNDS - 1]],
                part,
            )
        })
    }

    /// Sends frames out of a device. Returns what one costs, and how many came back.
    fn send(&mut self, device: &str) -> (f64, u64) {
        let before = (busy_ns(), self.sunk());
        // `struct xdp_md`: data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
        let len = u32::try_from(self.frame.len()).unwrap();
        let context = [0, len, 0, index(device), 0, 0].map(u32::to_ne_bytes);
        let mut options = TestRunOptions::new();
        options.repeat = FRAMES;
        options.data_in = Some(&self.frame);
        options.ctx_in = Some(context.as_flattened());
        options.attrs = TestRunAttrs::new().xdp_live_frames(BATCH);
        xdp(&mut self.programs, "generate")
            .test_run(options)
            .unwrap();
        let cost = (busy_ns() - before.0) as f64 / f64::from(FRAMES);
        (cost, self.sunk() - before.1)
    }

    fn sunk(&self) -> u64 {
        let map = self.programs.map("sunk").unwrap();
        Array::<_, u64>::try_from(map).unwrap().get(&0, 0).unwrap()
    }
}

impl Drop for Cables {
    fn drop(&mut self) {
        for end in ENDS {
            ip(&format!("link del tb-{end}-0"));
        }
    }
}

fn xdp<'a>(programs: &'a mut Ebpf, name: &str) -> &'a mut Xdp {
    programs.program_mut(name).unwrap().try_into().unwrap()
}

fn index(device: &str) -> u32 {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    name_to_index(&socket, device).unwrap()
}

/// Returns how long this thread and the kernel's own for interrupts had the processor, in nanoseconds (`/proc/PID/schedstat`).
fn busy_ns() -> u64 {
    let of = |place: &Path| -> u64 {
        let words = std::fs::read_to_string(place.join("schedstat")).unwrap();
        words.split(' ').next().unwrap().parse().unwrap()
    };
    let name = format!("ksoftirqd/{PROCESSOR}\n");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut processes = processes.map(|it| it.path());
    let kernel =
        processes.find(|it| std::fs::read_to_string(it.join("comm")).is_ok_and(|it| it == name));
    of(Path::new("/proc/thread-self")) + of(&kernel.unwrap())
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.unwrap().success(), "ip {words}");
}
