//! The XDP program against a model, by `BPF_PROG_TEST_RUN`: random routes, random frames, and frames that are nearly those of a route.
#![cfg(all(feature = "xdp", target_arch = "x86_64"))]
#![expect(clippy::unwrap_used, reason = "a test says what failed by panicking")]

#[path = "offload/model.rs"]
mod model;
#[path = "../../turnbuckle/tests/not_run/mod.rs"]
mod not_run;
#[path = "offload/object.rs"]
mod object;
#[path = "offload/race.rs"]
mod race;

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use model::{DEVICE, DEVICE_INDEX, Meter, Published, Router, pseudo_sum, sum, udp};
use object::built;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use rustix::time::{ClockId, clock_gettime};
use turnbuckle_datapath::offload::{
    Action, Beyond, FirstBytes, Hop, Kernel, Line, Listener, Mark, Route, Routes as _, Seed,
    Wanted, Way,
};

/// Loads the program, or says why the test is not run.
fn kernel(channels: u32) -> Option<Kernel> {
    let is_root = rustix::process::geteuid().is_root();
    match Kernel::load(channels, Seed(0x1234_5678_9ABC_DEF1)) {
        Ok(kernel) => Some(kernel),
        Err(error) if is_root => panic!("the kernel does not take the program: {error}"),
        Err(_) => {
            not_run::not_run("only root can load a program");
            None
        }
    }
}

/// Returns how many frames are compared: those that a script asks for, or 40,000.
fn frames() -> u64 {
    let wanted = std::env::var("TURNBUCKLE_FRAMES").ok();
    wanted.map_or(40_000, |it| it.parse().expect("a number of frames"))
}

/// Returns the time of the program's clock.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

const WAYS: [Way; 2] = [Way::Labelled, Way::Plain];
const ROUTES: usize = 12;
const FRAMES_PER_STATE: u64 = 200;

#[test]
fn the_program_does_what_the_model_does_with_every_frame() {
    let Some(mut kernel) = kernel(64) else {
        return;
    };
    let mut random = SmallRng::seed_from_u64(7);
    let mut actions = [0_u64; 4];
    for _ in 0..frames() / FRAMES_PER_STATE {
        let mut world = World::new(&mut kernel, &mut random);
        for _ in 0..FRAMES_PER_STATE {
            let frame = world.frame(&mut random);
            world.fill(&mut random);
            let action = world.run(&frame);
            actions[action as usize] += 1;
            world.compare_counts();
            world.change(&mut random);
        }
        world.end();
    }
    println!("dropped, passed, redirected, sent: {actions:?}");
    assert!(
        actions.iter().all(|&count| count * 50 > frames()),
        "{actions:?}"
    );
}

/// The program and the model in the same state.
struct World<'a> {
    kernel: &'a mut Kernel,
    router: Router,
    lines: Vec<Line>,
    /// What the program had counted before.
    passes_before: turnbuckle_datapath::offload::Passes,
}

impl<'a> World<'a> {
    fn new(kernel: &'a mut Kernel, random: &mut SmallRng) -> Self {
        let mut world = Self {
            passes_before: kernel.passes(),
            kernel,
            router: Router::default(),
            lines: Vec::new(),
        };
        for rate in [1, 1_000, 64_000, 12_500_000, u32::MAX] {
            let rate = NonZeroU32::new(rate).unwrap();
            let meter = world.kernel.routes().meters().claim(rate).unwrap();
            let model = Meter {
                rate: rate.get().into(),
                empty_at_ns: [0; 2],
                beyond: Beyond::default(),
            };
            world.router.meters.insert(meter, model);
        }
        world.listen(random);
        while world.lines.len() < ROUTES {
            let mut route = route(random);
            let meters: Vec<_> = world.router.meters.keys().copied().collect();
            route.meter = meters.choose(random).copied().filter(|_| random.random());
            world.publish(route, random);
        }
        world
    }

    /// Makes most of the addresses where frames come listeners, each with first bytes of its own.
    fn listen(&mut self, random: &mut SmallRng) {
        for place in 0..2 * HOSTS * PORTS.len() {
            let last = place / 2 % HOSTS;
            let ip = host(place % 2 == 1, 2, u8::try_from(last).unwrap() + 1);
            let address = SocketAddr::new(ip, PORTS[place / 2 / HOSTS]);
            let first_bytes: FirstBytes = match random.random_range(0..3) {
                0 => (0..=3).chain(20..=127).collect(),
                1 => (0..=255).collect(),
                _ => (0..=255).filter(|_| random.random()).collect(),
            };
            let mark = Mark {
                first_bytes_below: *[4, 64, 255].choose(random).unwrap(),
                header_len: 20,
                bytes: MARK,
            };
            let listener = Listener {
                address,
                first_bytes,
                mark: random.random::<bool>().then_some(mark),
            };
            assert!(self.kernel.routes().screen().set(&listener));
            self.router.listeners.push(listener);
        }
    }

    /// Sets a bucket now and then, so that it is as full as others have made it.
    fn fill(&mut self, random: &mut SmallRng) {
        const MS: u64 = 1_000_000;
        let meters = self.kernel.routes().meters();
        for (&meter, model) in &mut self.router.meters {
            for way in WAYS {
                if random.random_ratio(1, 4) {
                    let more = *[0, 1, 300 * MS, 900 * MS, 999 * MS, 1000 * MS, 1400 * MS]
                        .choose(random)
                        .unwrap();
                    let empty_at_ns = now_ns() + more;
                    model.empty_at_ns[way as usize] = empty_at_ns;
                    meters
                        .bucket(meter, way)
                        .store(empty_at_ns, Ordering::Relaxed);
                }
            }
        }
    }

    /// Has both handle a frame. The program reads its clock between two readings of ours: it has to do what the model does at one of them.
    fn run(&mut self, frame: &[u8]) -> Action {
        let before = now_ns();
        let verdict = self.kernel.run(DEVICE, frame).unwrap();
        let after = now_ns();
        let found = (verdict.action, verdict.frame);
        let (mut early, mut late) = (self.router.clone(), self.router.clone());
        let expected = early.handle(before, frame);
        self.router = if found == expected {
            let _ = late.handle(after, frame);
            early.clone()
        } else if found == late.handle(after, frame) {
            late.clone()
        } else {
            panic!(
                "{frame:02x?}\nbecame\n{found:02x?}\ninstead of\n{expected:02x?}\nwith {:?}",
                self.router
            );
        };
        let meters = self.kernel.routes().meters();
        for (meter, model) in &mut self.router.meters {
            for way in WAYS {
                let found = meters.bucket(*meter, way).load(Ordering::Relaxed);
                let at = |router: &Router| router.meters[meter].empty_at_ns[way as usize];
                let expected = at(&early)..=at(&late);
                assert!(expected.contains(&found), "{found} is not in {expected:?}");
                model.empty_at_ns[way as usize] = found;
            }
        }
        found.0
    }

    fn publish(&mut self, route: Route, random: &mut SmallRng) {
        let key = |it: &Route| (it.from, it.to, it.label);
        let mut live = self.router.routes.iter().filter(|it| it.is_live);
        if live.any(|it| key(&it.route) == key(&route)) {
            return; // No two flows have one key.
        }
        let line = self.kernel.routes().publish(&route).unwrap();
        self.lines.push(line);
        self.router.routes.push(Published {
            route,
            is_live: true,
            has_expired: route.expires_ns != u64::MAX,
            carried: Default::default(),
        });
        let (from, to) = (route.new_from.ip(), route.new_to.ip());
        let hop = random.random_ratio(9, 10).then(|| Hop {
            device: DEVICE_INDEX + u32::from(random.random_ratio(1, 3)),
            mtu: *[1500, 1500, 9000, 600].choose(random).unwrap(),
            to: [2, 0, 0, 0, 1, random.random()],
            from: [2, 0, 0, 0, 2, random.random()],
        });
        self.kernel.hops().set(Wanted { from, to }, hop);
        match hop {
            Some(hop) => self.router.hops.insert((from, to), hop),
            None => self.router.hops.remove(&(from, to)),
        };
    }

    /// Ends a route now and then, lets it expire, or gives it another time.
    fn change(&mut self, random: &mut SmallRng) {
        if random.random_ratio(9, 10) {
            return;
        }
        let index = random.random_range(0..self.lines.len());
        let published = &mut self.router.routes[index];
        if !published.is_live {
            return;
        }
        let mut routes = self.kernel.routes();
        match random.random_range(0..3) {
            0 => {
                published.is_live = false;
                routes.revoke(self.lines[index]);
                let again = published.route;
                self.publish(again, random);
            }
            1 => {
                published.has_expired = true;
                routes.set_expiry(self.lines[index], 1);
            }
            _ => {
                published.has_expired = false;
                routes.set_expiry(self.lines[index], u64::MAX);
            }
        }
    }

    fn compare_counts(&mut self) {
        let mut routes = self.kernel.routes();
        for (&meter, model) in &mut self.router.meters {
            let expected = std::mem::take(&mut model.beyond);
            assert_eq!(routes.take_beyond(meter), expected);
        }
        for (published, &line) in self.router.routes.iter().zip(&self.lines) {
            assert_eq!(routes.carried(line), published.carried);
        }
        let expected = std::mem::take(&mut self.router.refused);
        assert_eq!(routes.take_refused(), expected);
    }

    fn end(self) {
        let (now, before) = (self.kernel.passes(), self.passes_before);
        let expected = self.router.passes;
        assert_eq!(now.expired - before.expired, expected.expired);
        assert_eq!(now.next_hop - before.next_hop, expected.next_hop);
        assert_eq!(now.too_large - before.too_large, expected.too_large);
        assert_eq!(now.checksum - before.checksum, expected.checksum);
        assert_eq!(now.padding - before.padding, expected.padding);
        assert_eq!((now.changing, now.headroom), (0, 0));
        let mut routes = self.kernel.routes();
        for line in self.lines {
            routes.revoke(line);
            routes.free(line);
        }
        for &meter in self.router.meters.keys() {
            routes.meters().release(meter);
        }
    }

    /// Returns a frame of a route, a frame that is nearly one, or noise.
    fn frame(&self, random: &mut SmallRng) -> Vec<u8> {
        if random.random_ratio(1, 50) {
            let mut noise = vec![0; random.random_range(14..200)];
            random.fill_bytes(&mut noise);
            noise[..6].copy_from_slice(&DEVICE);
            noise[12..14].copy_from_slice(&[8, 0]);
            return noise;
        }
        if random.random_ratio(1, 6) {
            // To a listener, of no route.
            let to = self.router.listeners.choose(random).unwrap().address;
            let from = SocketAddr::new(host(to.is_ipv6(), 4, 1), 5000);
            let len: usize = random.random_range(0..32);
            let mut payload = vec![0; len];
            random.fill_bytes(&mut payload);
            let follow = u8::try_from(len.saturating_sub(20)).unwrap();
            if let [first, _, high, low, a, b, c, d, ..] = &mut payload[..]
                && random.random()
            {
                *first %= 5;
                (*high, *low) = (0, follow ^ u8::from(random.random_ratio(1, 8)));
                [*a, *b, *c, *d] = MARK;
            }
            return frame(from, to, &payload, random);
        }
        let route = self.router.routes.choose(random).unwrap().route;
        let len = match random.random_range(0..4) {
            0 => random.random_range(0..8),
            1 => random.random_range(0..1473),
            2 => random.random_range(560..600),
            _ => random.random_range(1440..1473),
        };
        let mut payload = vec![0; len];
        random.fill_bytes(&mut payload);
        if let Some(label) = route.label {
            let len = u16::try_from(len).unwrap();
            let header = [label.to_be_bytes(), len.to_be_bytes()].concat();
            payload = [header, payload].concat();
            if random.random_ratio(1, 4) {
                payload.resize(payload.len() + random.random_range(1..5), 0);
            }
            if random.random_ratio(1, 20) {
                let at = random.random_range(0..payload.len());
                payload[at] ^= 1 << random.random_range(0..8);
            }
        } else if random.random_ratio(1, 10) && len > 3 {
            let header = (u16::try_from(len - 4).unwrap()).to_be_bytes();
            payload[..4].copy_from_slice(&[0x40, 0, header[0], header[1]]);
        }
        let mut frame = frame(route.from, route.to, &payload, random);
        if random.random_ratio(1, 6) {
            let at = random.random_range(0..frame.len().min(70));
            frame[at] ^= 1 << random.random_range(0..8);
        }
        if random.random_ratio(1, 30) {
            frame.truncate(random.random_range(14..=frame.len()));
        }
        if random.random_ratio(1, 30) {
            frame.resize(frame.len() + random.random_range(1..20), 0x55);
        }
        frame
    }
}

/// Hosts of a network, and their ports.
const HOSTS: usize = 3;
const PORTS: [u16; 4] = [3478, 5000, 49152, 65535];
/// What some datagrams have at offset 4.
const MARK: [u8; 4] = [0x21, 0x12, 0xA4, 0x42];

fn host(is_v6: bool, net: u8, last: u8) -> IpAddr {
    match is_v6 {
        false => [10, net, 0, last].into(),
        true => [0xfd00, net.into(), 0, 0, 0, 0x1234, 0xFFFF, last.into()].into(),
    }
}

/// Returns a route between addresses of a small world.
fn route(random: &mut SmallRng) -> Route {
    let is_v6 = random.random();
    let mut address = |net| {
        let last = random.random_range(1..=HOSTS);
        let ip = host(is_v6, net, u8::try_from(last).unwrap());
        SocketAddr::new(ip, *PORTS.choose(random).unwrap())
    };
    let (from, to, new_from, new_to) = (address(1), address(2), address(2), address(3));
    let label = Some(random.random_range(0x4000..0x4003));
    let is_from_client = random.random();
    Route {
        from,
        to,
        label: if is_from_client { label } else { None },
        new_from,
        new_to,
        new_label: if is_from_client { None } else { label },
        expires_ns: if random.random_ratio(1, 20) {
            1
        } else {
            u64::MAX
        },
        meter: None,
    }
}

/// Returns a frame with a datagram, whose headers have any values that a sender may choose.
fn frame(from: SocketAddr, to: SocketAddr, payload: &[u8], random: &mut SmallRng) -> Vec<u8> {
    let mut udp = udp(from, to, payload);
    let pseudo = pseudo_sum(from, to, udp.len());
    let check = match random.random_range(0..20) {
        0 => 0,
        1 => pseudo,
        2 => random.random(),
        _ => {
            let sum = u32::from(pseudo) + u32::from(sum(&udp));
            match !u16::try_from((sum & 0xFFFF) + (sum >> 16)).unwrap() {
                0 => 0xFFFF,
                check => check,
            }
        }
    };
    udp[6..8].copy_from_slice(&check.to_be_bytes());
    let hops = *[0, 1, 2, 64, 64, 64, 64, 255].choose(random).unwrap();
    let mut frame = [DEVICE, [2, 0, 0, 0, 9, 9]].concat();
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let len = u16::try_from(20 + udp.len()).unwrap().to_be_bytes();
            let flags = *[0x40, 0x40, 0x40, 0, 0, 0x20, 0x80].choose(random).unwrap();
            let mut header = vec![0x45, random.random(), len[0], len[1]];
            header.extend([random.random(), random.random(), flags, 0, hops, 17, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let check = !sum(&header);
            header[10..12].copy_from_slice(&check.to_be_bytes());
            frame.extend([8, 0]);
            frame.extend(header);
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let len = u16::try_from(udp.len()).unwrap().to_be_bytes();
            frame.extend([0x86, 0xDD, 0x60 | random.random::<u8>() >> 4]);
            frame.extend(random.random::<[u8; 3]>());
            frame.extend([len[0], len[1], 17, hops]);
            frame.extend(from.octets());
            frame.extend(to.octets());
        }
        _ => panic!("a route has one family"),
    }
    frame.extend(udp);
    frame
}

/// Publishes a route to a client and returns it, with a frame that it relays.
fn publish_one(kernel: &Kernel, expires_ns: u64, meter: Option<NonZeroU32>) -> (Line, Vec<u8>) {
    let address = |text: &str| -> SocketAddr { text.parse().unwrap() };
    let (peer, relay) = (address("10.1.0.1:5000"), address("10.2.0.1:49152"));
    let route = Route {
        from: peer,
        to: relay,
        label: None,
        new_from: address("10.2.0.1:3478"),
        new_to: address("10.3.0.1:6000"),
        new_label: Some(0x4000),
        expires_ns,
        meter,
    };
    let line = kernel.routes().publish(&route).unwrap();
    let hop = Hop {
        device: DEVICE_INDEX,
        mtu: 1500,
        to: [2, 0, 0, 0, 1, 1],
        from: [2, 0, 0, 0, 2, 1],
    };
    let (from, to) = (route.new_from.ip(), route.new_to.ip());
    kernel.hops().set(Wanted { from, to }, Some(hop));
    let mut random = SmallRng::seed_from_u64(11);
    let frame = loop {
        let frame = frame(peer, relay, &[7; 100], &mut random);
        if frame[22] > 1 && frame[20] & 0xBF == 0 && frame[40..42] != [0, 0] {
            break frame;
        }
    };
    (line, frame)
}

/// A clock that is read for less time stands still for milliseconds.
#[test]
fn a_route_ends_at_its_time_and_not_a_tick_of_the_clock_later() {
    if kernel(64).is_none() {
        return;
    }
    let Some(object) = built(PROGRAM, &[]) else {
        return;
    };
    let mut kernel = Kernel::load_object(&object, 64, Seed(7)).unwrap();
    let (line, frame) = publish_one(&kernel, u64::MAX, None);
    let mut routes = kernel.routes();
    for more_ns in 1..=20 {
        let end_ns = now_ns() + 300_000 + 137_000 * more_ns;
        routes.set_expiry(line, end_ns);
        let mut relayed_ns = 0;
        loop {
            let before = now_ns();
            let action = kernel.run(DEVICE, &frame).unwrap().action;
            if action == Action::Pass {
                assert!(now_ns() >= end_ns, "too early");
                break;
            }
            assert_eq!(action, Action::Send);
            relayed_ns = before;
        }
        assert!(relayed_ns < end_ns, "{} ns later", relayed_ns - end_ns);
    }
    assert_eq!(kernel.passes().expired, 20);
}

/// A driver that leaves no room before the packet: what would grow is passed as it came, and charged to nobody.
#[test]
fn where_there_is_no_room_for_a_header_the_packet_is_passed_unchanged_and_not_charged() {
    let Some(mut kernel) = kernel(64) else {
        return;
    };
    let meter = kernel
        .routes()
        .meters()
        .claim(NonZeroU32::new(64_000).unwrap());
    let (line, frame) = publish_one(&kernel, u64::MAX, meter);
    let routes = kernel.routes();
    let bucket = |kernel: &Kernel| {
        let meters = kernel.routes().meters();
        meters
            .bucket(meter.unwrap(), Way::Plain)
            .load(Ordering::Relaxed)
    };
    // The most that a driver may have of its own: of 256 bytes before the packet nothing is left.
    let full = kernel.run_behind(DEVICE, &[0; 216], &frame);
    let Ok(full) = full else {
        not_run::not_run("this kernel takes no more than 32 bytes before a frame");
        return;
    };
    assert_eq!((full.action, full.frame), (Action::Pass, frame.clone()));
    assert_eq!(
        (kernel.passes().headroom, routes.carried(line).datagrams),
        (1, 0)
    );
    let uncharged = bucket(&kernel);
    assert!(uncharged <= now_ns(), "{uncharged} is in the future");
    let roomy = kernel.run(DEVICE, &frame).unwrap();
    assert_eq!(roomy.frame.len(), frame.len() + 4);
    assert!(bucket(&kernel) > uncharged);
    assert_eq!(
        (kernel.passes().headroom, routes.carried(line).datagrams),
        (1, 1)
    );
}

#[test]
fn the_object_is_what_the_source_makes() {
    let Some(built) = built(PROGRAM, &[]) else {
        return;
    };
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/turn.bpf.o");
    assert!(
        std::fs::read(committed).unwrap() == built,
        "crates/datapath/bpf/build crates/datapath/bpf/turn.bpf.o was not run"
    );
}

/// The source of the program.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/turn.bpf.c");
