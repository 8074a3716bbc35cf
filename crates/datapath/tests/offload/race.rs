//! A line that is written while the program reads it.

use super::*;

/// Routes of one key, one after the other in the same line: what leaves is of one of them.
#[test]
fn a_line_that_is_written_while_packets_arrive_is_never_seen_half() {
    if let Some(mut kernel) = kernel(64) {
        for is_v6 in [false, true] {
            race(&mut kernel, is_v6, &Length::of_environment());
        }
        println!("{:?}", kernel.passes());
    }
}

/// The same with a program that pauses for some microseconds between two readings of a line, so that writers come in between again and again.
#[test]
fn a_line_that_is_written_while_a_slow_program_reads_it_is_never_seen_half() {
    const PAUSE: &str = "-DBETWEEN_READINGS=for (int i = 0; i < 100; i++) bpf_ktime_get_boot_ns();";
    if kernel(1).is_none() {
        return;
    }
    let Some(object) = built(&[PAUSE]) else {
        return;
    };
    let mut kernel = Kernel::load_object(&object, 64, Seed(7)).unwrap();
    // On a busy machine reader and writer seldom have a processor each; then it takes more rounds until they meet.
    for _ in 0..200 {
        for is_v6 in [false, true] {
            race(&mut kernel, is_v6, &Length::frames(1_000));
        }
        if kernel.passes().changing > 0 {
            return;
        }
    }
    panic!("no line was written while it was read");
}

#[expect(
    clippy::print_stdout,
    reason = "who runs it by hand sees how far it is"
)]
fn race(kernel: &mut Kernel, is_v6: bool, length: &Length) {
    let at = |net: u8, last: u8, port: u16| SocketAddr::new(host(is_v6, net, last), port);
    let (from, to) = (at(1, 1, 5000), at(2, 1, 3478));
    let of = |last: u8| Route {
        from,
        to,
        label: Some(0x4000),
        new_from: at(2, last, 1000 + u16::from(last)),
        new_to: at(3, last, 2000 + u16::from(last)),
        new_label: None,
        expires_ns: u64::MAX,
        meter: None,
    };
    // Where the UDP header is, the last bytes of the addresses before it, and what a frame has that is relayed.
    let udp = if is_v6 { 54 } else { 34 };
    let (source, destination) = if is_v6 { (37, 53) } else { (29, 33) };
    let hops = if is_v6 { 21 } else { 22 };
    let mut random = SmallRng::seed_from_u64(9);
    let payload = [0x40, 0, 0, 4, 1, 2, 3, 4];
    let pseudo = pseudo_sum(from, to, 8 + payload.len()).to_be_bytes();
    let frame = loop {
        let frame = frame(from, to, &payload, &mut random);
        let check = &frame[udp + 6..udp + 8];
        let is_whole = is_v6 || frame[20] & 0xBF == 0;
        if frame[hops] > 2 && is_whole && check != [0, 0] && check != pseudo {
            break frame;
        }
    };
    let mut routes = kernel.routes();
    for last in 0..8 {
        let wanted = Wanted {
            from: of(last).new_from.ip(),
            to: of(last).new_to.ip(),
        };
        // Taken for good, so that the next hops stay known while lines come and go.
        routes.publish(&Route {
            label: Some(0x4100 + u16::from(last)),
            ..of(last)
        });
        let hop = Hop {
            device: DEVICE_INDEX,
            mtu: 1500,
            to: [2, 0, 0, 0, 1, last],
            from: [2, 0, 0, 0, 2, last],
        };
        kernel.hops().set(wanted, Some(hop));
    }
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let mut relayed = 0_u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut routes = routes.clone();
            for last in (0..8).cycle() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                if let Some(line) = routes.publish(&of(last)) {
                    routes.revoke(line);
                    routes.free(line);
                }
            }
        });
        // Also when a frame is wrong, so that the writer ends.
        let _over = Over(&is_over);
        let mut passed = 0_u64;
        let begun = Instant::now();
        let mut next_line = PROGRESS;
        while relayed < length.frames && length.time.is_none_or(|time| begun.elapsed() < time) {
            if length.is_by_hand && begun.elapsed() >= next_line {
                next_line += PROGRESS;
                println!("{relayed} relayed, {passed} passed, {:?}", begun.elapsed());
            }
            let verdict = kernel.run(DEVICE, &frame).unwrap();
            if verdict.action == Action::Pass {
                assert_eq!(verdict.frame, frame);
                passed += 1;
                assert!(
                    passed
                        < length
                            .frames
                            .saturating_mul(1_000)
                            .saturating_add(1_000_000),
                    "{relayed} were relayed"
                );
                if passed.is_multiple_of(64) {
                    // On a busy machine the writer has no processor for some time.
                    std::thread::yield_now();
                }
                continue;
            }
            relayed += 1;
            let it = &verdict.frame;
            let last = it[source];
            assert_eq!(
                &it[..12],
                [[2, 0, 0, 0, 1, last], [2, 0, 0, 0, 2, last]].concat()
            );
            let wanted = of(last);
            let is_its = |at: usize, ip: IpAddr| match ip {
                IpAddr::V4(ip) => it[at - 3..=at] == ip.octets(),
                IpAddr::V6(ip) => it[at - 15..=at] == ip.octets(),
            };
            assert!(is_its(source, wanted.new_from.ip()), "{it:02x?}");
            assert!(is_its(destination, wanted.new_to.ip()), "{it:02x?}");
            let ports = [wanted.new_from.port(), wanted.new_to.port()];
            assert_eq!(&it[udp..udp + 4], ports.map(u16::to_be_bytes).concat());
        }
    });
    assert!(relayed > 0, "nothing was relayed");
    if length.is_by_hand {
        println!("IPv6 {is_v6}: {relayed} relayed, none wrongly");
    }
}

/// Says that something is over when it is dropped.
struct Over<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How often a race that is run by hand says how far it is.
const PROGRESS: Duration = Duration::from_secs(10);

/// How long the race is, for each family.
struct Length {
    /// Frames that are relayed.
    frames: u64,
    /// Not longer than this, if it is given.
    time: Option<Duration>,
    /// Somebody waits for it.
    is_by_hand: bool,
}

impl Length {
    fn frames(frames: u64) -> Self {
        Self {
            frames,
            time: None,
            is_by_hand: false,
        }
    }

    /// Returns the length that is asked for: `TURNBUCKLE_RACE_FRAMES` in frames, `TURNBUCKLE_RACE_SECONDS` in time, the shorter one if both are given.
    fn of_environment() -> Self {
        let number = |name| {
            let text = std::env::var(name).ok();
            text.map(|it| it.parse::<u64>().expect("a number"))
        };
        let frames = number("TURNBUCKLE_RACE_FRAMES");
        let seconds = number("TURNBUCKLE_RACE_SECONDS");
        let most = seconds.map_or(50_000, |_| u64::MAX);
        Self {
            frames: frames.unwrap_or(most),
            time: seconds.map(Duration::from_secs),
            is_by_hand: frames.or(seconds).is_some(),
        }
    }
}
