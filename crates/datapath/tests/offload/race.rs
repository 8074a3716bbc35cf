//! A line that is written while the program reads it.
//!
//! The kernel runs the program on one frame without coming back (`race.bpf.c`), millions of times a second, while this process publishes and revokes one
//! route after the other in the same line. What is relayed has to be, to the byte, what one of these routes makes of the frame when nobody writes.

use super::*;
use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;

/// Routes of one key.
const ROUTES: u8 = 8;
/// What counts the runs behind the packet: relayed, passed, wrong, and a bit for each route (`struct counts`).
const COUNTS: usize = 4;
/// How long a route stays at most, in turns of an empty loop.
const SPINS: u32 = 20;
/// How often a race that is run by hand says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// As many frames are relayed for each family as `TURNBUCKLE_RACE_FRAMES` says, or two million.
#[test]
fn a_line_that_is_written_while_packets_arrive_is_never_seen_half() {
    let wanted = std::env::var("TURNBUCKLE_RACE_FRAMES").ok();
    let wanted: Option<u64> = wanted.map(|it| it.parse().expect("a number of frames"));
    for is_v6 in [false, true] {
        let Some(mut race) = Race::of(is_v6, &[]) else {
            return;
        };
        let counts = race.run(wanted.unwrap_or(2_000_000), 1_000_000, wanted.is_some());
        println!("IPv6 {is_v6}: {counts:?}, {:?}", race.kernel.passes());
    }
}

/// The same with a program that pauses for some microseconds between two readings of a line, so that writers come in between again and again.
#[test]
fn a_line_that_is_written_while_a_slow_program_reads_it_is_never_seen_half() {
    const PAUSE: &str = "-DBETWEEN_READINGS=for (int i = 0; i < 100; i++) bpf_ktime_get_boot_ns();";
    for is_v6 in [false, true] {
        let Some(mut race) = Race::of(is_v6, &[PAUSE]) else {
            return;
        };
        // On a busy machine reader and writer seldom have a processor each; then it takes more rounds until they meet.
        let has_met = (0..200).any(|_| {
            race.run(1_000, 10_000, false);
            race.kernel.passes().changing > 0
        });
        assert!(has_met, "no line was written while it was read");
    }
}

/// A program that runs on one frame again and again.
struct Race {
    kernel: Kernel,
    frame: Vec<u8>,
    is_v6: bool,
}

/// What became of the frames.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    relayed: u64,
    passed: u64,
    wrong: u64,
    /// A bit for each route that one was relayed by.
    routes: u64,
}

impl Race {
    /// Learns what each route makes of the frame, and loads a program that knows it. `None`: something that is needed is not there.
    fn of(is_v6: bool, options: &[&str]) -> Option<Self> {
        let mut quiet = kernel(64)?;
        prepare(&quiet, is_v6);
        let frame = usable_frame(is_v6);
        let mut routes = quiet.routes();
        let mut verdict = None;
        let relayed: Vec<Vec<u8>> = (0..ROUTES)
            .map(|number| {
                let route = route(is_v6, number);
                let line = routes.publish(&route).unwrap();
                let became = quiet.run(DEVICE, &frame).unwrap();
                routes.revoke(line);
                routes.free(line);
                check(&route, number, &became.frame);
                assert_eq!(*verdict.get_or_insert(became.action), became.action);
                became.frame
            })
            .collect();
        assert_eq!(verdict, Some(Action::Send));
        let mut all = options.to_vec();
        let words = [
            format!("-DCAME={}", words(&frame)),
            format!("-DRELAYED={}", words(&relayed.concat())),
            format!("-DROUTES={ROUTES}"),
            format!("-DSOURCE={}", source(is_v6)),
            "-DVERDICT=XDP_TX".to_owned(),
        ];
        all.extend(words.iter().map(String::as_str));
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/offload/race.bpf.c");
        let object = built(program, &all)?;
        let kernel = Kernel::load_object(&object, 64, Seed(7)).unwrap();
        prepare(&kernel, is_v6);
        Some(Self {
            kernel,
            frame,
            is_v6,
        })
    }

    /// Writes the line until so many frames were relayed, `runs` in one call of the kernel, and each route was seen.
    #[expect(clippy::print_stdout, reason = "a run by hand shows how far it is")]
    fn run(&mut self, frames: u64, runs: u32, is_by_hand: bool) -> Counts {
        let is_over = AtomicBool::new(false);
        let mut routes = self.kernel.routes();
        let is_v6 = self.is_v6;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = SmallRng::seed_from_u64(10);
                for number in (0..ROUTES).cycle() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Some(line) = routes.publish(&route(is_v6, number)) {
                        // As long as it takes to relay a few frames, so that not nearly all are passed.
                        for _ in 0..random.random_range(0..SPINS) {
                            std::hint::spin_loop();
                        }
                        routes.revoke(line);
                        routes.free(line);
                    }
                }
            });
            // Also when a frame is wrong, so that the writer ends.
            let _over = Over(&is_over);
            let mut counts = Counts::default();
            let begun = Instant::now();
            let mut next_line = PROGRESS;
            while counts.relayed < frames || counts.routes + 1 != 1 << ROUTES {
                counts.add(&self.kernel_runs(runs));
                assert_eq!(counts.wrong, 0, "{counts:?}");
                let most = frames.saturating_mul(1_000).saturating_add(1_000_000_000);
                assert!(counts.passed < most, "{counts:?}");
                if is_by_hand && begun.elapsed() >= next_line {
                    next_line += PROGRESS;
                    println!("IPv6 {is_v6}: {counts:?}, {:?}", begun.elapsed());
                }
            }
            counts
        })
    }

    /// Has the kernel run the program so many times.
    fn kernel_runs(&mut self, runs: u32) -> Counts {
        let mut frame = self.frame.clone();
        let packet_len = frame.len();
        frame.resize(packet_len + 8 * COUNTS, 0);
        let (_, verdict) = self.kernel.run_repeatedly(DEVICE, &frame, runs).unwrap();
        assert_eq!(verdict.action, Action::Pass, "{:02x?}", verdict.frame);
        assert_eq!(verdict.frame.len(), frame.len());
        let (packet, counts) = verdict.frame.split_at(packet_len);
        let (counts, _) = counts.as_chunks::<8>();
        let [relayed, passed, wrong, routes] = <[[u8; 8]; COUNTS]>::try_from(counts)
            .unwrap()
            .map(u64::from_le_bytes);
        assert_eq!(relayed + passed, runs.into());
        assert!(wrong > 0 || packet == self.frame);
        Counts {
            relayed,
            passed,
            wrong,
            routes,
        }
    }
}

impl Counts {
    fn add(&mut self, other: &Self) {
        self.relayed += other.relayed;
        self.passed += other.passed;
        self.wrong += other.wrong;
        self.routes |= other.routes;
    }
}

/// Returns the route with this number: all have the same key.
fn route(is_v6: bool, number: u8) -> Route {
    let at = |net: u8, last: u8, port: u16| SocketAddr::new(host(is_v6, net, last), port);
    Route {
        from: at(1, 1, 5000),
        to: at(2, 1, 3478),
        label: Some(0x4000),
        new_from: at(2, number, 1000 + u16::from(number)),
        new_to: at(3, number, 2000 + u16::from(number)),
        new_label: None,
        expires_ns: u64::MAX,
        meter: None,
    }
}

/// Publishes routes that keep the next hops known while lines come and go.
fn prepare(kernel: &Kernel, is_v6: bool) {
    let mut routes = kernel.routes();
    for number in 0..ROUTES {
        let it = route(is_v6, number);
        let kept = Route {
            label: Some(0x4100 + u16::from(number)),
            ..it
        };
        routes.publish(&kept).unwrap();
        let wanted = Wanted {
            from: it.new_from.ip(),
            to: it.new_to.ip(),
        };
        let hop = Hop {
            device: DEVICE_INDEX,
            mtu: 1500,
            to: [2, 0, 0, 0, 1, number],
            from: [2, 0, 0, 0, 2, number],
        };
        kernel.hops().set(wanted, Some(hop));
    }
}

/// Returns a frame that the program relays, and which leaves with nothing that is counted (RFC 6864: what may be fragmented has a number of its own).
fn usable_frame(is_v6: bool) -> Vec<u8> {
    let Route { from, to, .. } = route(is_v6, 0);
    let payload = [0x40, 0, 0, 4, 1, 2, 3, 4];
    let pseudo = pseudo_sum(from, to, 8 + payload.len()).to_be_bytes();
    let (hops, udp) = if is_v6 { (21, 54) } else { (22, 34) };
    let mut random = SmallRng::seed_from_u64(9);
    loop {
        let frame = frame(from, to, &payload, &mut random);
        let check = &frame[udp + 6..udp + 8];
        let is_whole = is_v6 || frame[20] == 0x40;
        if frame[hops] > 2 && is_whole && check != [0, 0] && check != pseudo {
            return frame;
        }
    }
}

/// Returns where the last byte of a frame's source is.
fn source(is_v6: bool) -> usize {
    if is_v6 { 37 } else { 29 }
}

/// Checks that a frame has gone the way of a route.
fn check(route: &Route, number: u8, frame: &[u8]) {
    let is_v6 = route.from.is_ipv6();
    let macs = [[2, 0, 0, 0, 1, number], [2, 0, 0, 0, 2, number]];
    assert_eq!(frame[..12], macs.concat());
    assert_eq!(frame[source(is_v6)], number);
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let addresses = [octets(route.new_from.ip()), octets(route.new_to.ip())].concat();
    let (at, udp) = if is_v6 { (22, 54) } else { (26, 34) };
    assert_eq!(frame[at..udp], addresses);
    let ports = [route.new_from.port(), route.new_to.port()];
    assert_eq!(frame[udp..udp + 4], ports.map(u16::to_be_bytes).concat());
    assert_eq!(frame[udp + 8..], [1, 2, 3, 4]);
}

/// Returns bytes as the 16-bit words that they are in memory, as C writes them.
fn words(bytes: &[u8]) -> String {
    let (words, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty());
    words.iter().fold(String::new(), |mut text, &word| {
        write!(text, "{:#x},", u16::from_ne_bytes(word)).unwrap();
        text
    })
}

/// Says that something is over when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
