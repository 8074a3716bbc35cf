use super::*;

/// A small generator, so that the tests are the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).unwrap()).unwrap()
    }
}

fn pools(range: RangeInclusive<u16>) -> Arc<PortPools> {
    let address = RelayAddress {
        local: "192.0.2.1".parse().unwrap(),
        external: None,
    };
    PortPools::new(&[address], &range)
}

fn counts(pools: &PortPools) -> PortCounts {
    pools.counts().next().unwrap().1
}

//= V-44
#[test]
fn a_million_random_operations_lose_no_port() {
    let pools = pools(50_001..=50_300);
    let mut numbers = Numbers(1);
    let mut leases: Vec<PortLease> = Vec::new();
    for _ in 0..1_000_000 {
        let kind = match numbers.below(8) {
            0..2 => Some(PortKind::Any),
            2 => Some(PortKind::Even),
            3 => Some(PortKind::EvenPair),
            _ => None,
        };
        match kind {
            Some(kind) => {
                if let Some((lease, sibling)) = pools.lease(Family::V4, kind, numbers.next()) {
                    assert!((50_001..=50_300).contains(&lease.port));
                    leases.push(lease);
                    leases.extend(sibling);
                }
            }
            None if leases.is_empty() => {}
            None => drop(leases.swap_remove(numbers.below(leases.len()))),
        }
        let counts = counts(&pools);
        assert_eq!(counts.free + counts.leased, counts.size);
        assert_eq!(counts.leased as usize, leases.len());
    }
    drop(leases);
    assert_eq!(
        counts(&pools),
        PortCounts {
            size: 300,
            free: 300,
            leased: 0
        }
    );
}

//= V-44
#[test]
fn every_port_of_the_range_can_be_leased_at_once() {
    let pools = pools(65_000..=65_535);
    let mut numbers = Numbers(2);
    let mut leases = Vec::new();
    while let Some((lease, _)) = pools.lease(Family::V4, PortKind::Any, numbers.next()) {
        leases.push(lease);
    }
    let mut ports: Vec<u16> = leases.iter().map(|lease| lease.port).collect();
    ports.sort_unstable();
    assert_eq!(ports, (65_000..=65_535).collect::<Vec<u16>>());
}

//= TURN-041
//= V-44
#[test]
fn an_even_port_leaves_its_sibling_free() {
    let pools = pools(50_000..=50_001);
    let (even, sibling) = pools.lease(Family::V4, PortKind::Even, 7).unwrap();
    assert_eq!((even.port, sibling.is_none()), (50_000, true));
    let (odd, _) = pools.lease(Family::V4, PortKind::Any, 7).unwrap();
    assert_eq!(odd.port, 50_001);
    drop((even, odd));
    assert_eq!(counts(&pools).free, 2);
}

//= TURN-042
#[test]
fn an_even_pair_leases_both_ports() {
    let pools = pools(50_001..=50_005);
    let mut pairs = Vec::new();
    while let Some((even, odd)) = pools.lease(Family::V4, PortKind::EvenPair, 3) {
        pairs.push((even, odd.unwrap()));
    }
    let mut ports: Vec<_> = pairs
        .iter()
        .map(|(even, odd)| (even.port, odd.port))
        .collect();
    ports.sort_unstable();
    assert_eq!(ports, [(50_002, 50_003), (50_004, 50_005)]);
    assert_eq!(counts(&pools).free, 1);
}

//= TURN-045
//= V-20
#[test]
fn ports_are_chosen_uniformly_among_the_free_ones() {
    let pools = pools(50_000..=50_063);
    let held: Vec<_> = (0..32)
        .map(|n| pools.lease_exact(format!("192.0.2.1:{}", 50_000 + n).parse().unwrap()))
        .collect();
    assert!(held.iter().all(Option::is_some));
    let mut numbers = Numbers(3);
    let mut seen = [0_u32; 32];
    for _ in 0..32_000 {
        let (lease, _) = pools
            .lease(Family::V4, PortKind::Any, numbers.next())
            .unwrap();
        seen[usize::from(lease.port - 50_032)] += 1;
    }
    // chi-square with 31 degrees of freedom: 61 is exceeded once in a thousand
    let chi_square: f64 = seen
        .iter()
        .map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0)
        .sum();
    assert!(chi_square < 61.0, "{chi_square}");
}

#[test]
fn leases_come_from_the_family_asked_for() {
    let addresses = ["192.0.2.1", "2001:db8::1", "192.0.2.2"].map(|local| RelayAddress {
        local: local.parse().unwrap(),
        external: None,
    });
    let pools = PortPools::new(&addresses, &(50_000..=50_009));
    let mut numbers = Numbers(4);
    let mut v4 = Vec::new();
    while let Some((lease, _)) = pools.lease(Family::V4, PortKind::Any, numbers.next()) {
        assert_eq!(lease.family(), Family::V4);
        v4.push(lease);
    }
    assert_eq!(v4.len(), 20, "both addresses of the family are used up");
    let (v6, _) = pools.lease(Family::V6, PortKind::Any, 0).unwrap();
    assert_eq!(v6.local().ip(), addresses[1].local);
}

#[test]
fn a_mapped_address_is_what_peers_see() {
    let address = RelayAddress {
        local: "10.0.0.1".parse().unwrap(),
        external: Some("192.0.2.9".parse().unwrap()),
    };
    let pools = PortPools::new(&[address], &(50_000..=50_000));
    let (lease, _) = pools.lease(Family::V4, PortKind::Any, 0).unwrap();
    assert_eq!(lease.local().to_string(), "10.0.0.1:50000");
    assert_eq!(lease.external().to_string(), "192.0.2.9:50000");
}

//= V-07
#[test]
fn a_port_is_known_to_be_open_from_when_it_is_until_the_lease_ends() {
    let pools = pools(50_001..=50_010);
    let at = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
    let (lease, _) = pools.lease(Family::V4, PortKind::Any, 7).unwrap();
    let port = lease.local().port();
    let is_open = |ip, port| pools.is_open(at(ip, port), RelayProtocol::Udp);
    assert!(!is_open("192.0.2.1", port), "nobody has the socket yet");
    lease.open();
    for other in 49_990..50_020 {
        assert_eq!(is_open("192.0.2.1", other), other == port);
        assert!(!is_open("192.0.2.2", other));
    }
    drop(lease);
    assert!(!is_open("192.0.2.1", port));
}

#[test]
fn an_exact_port_is_leased_once() {
    let pools = pools(50_000..=50_001);
    let local = "192.0.2.1:50001".parse().unwrap();
    let lease = pools.lease_exact(local);
    assert!(lease.is_some());
    assert!(pools.lease_exact(local).is_none());
    assert!(
        pools
            .lease_exact("192.0.2.1:49999".parse().unwrap())
            .is_none()
    );
    assert!(
        pools
            .lease_exact("192.0.2.1:50002".parse().unwrap())
            .is_none()
    );
    assert!(
        pools
            .lease_exact("192.0.2.2:50000".parse().unwrap())
            .is_none()
    );
}

#[test]
fn an_empty_pool_leases_nothing() {
    let none = PortPools::new(&[], &(50_000..=50_001));
    assert!(none.lease(Family::V4, PortKind::Any, 9).is_none());
    #[expect(clippy::reversed_empty_ranges, reason = "the empty range is the point")]
    let empty = pools(50_001..=50_000);
    assert!(empty.lease(Family::V4, PortKind::Any, 9).is_none());
}

//= V-07
#[test]
fn a_port_is_open_for_one_protocol_at_a_time() {
    let pools = pools(50_000..=50_000);
    let local = SocketAddr::from(([192, 0, 2, 1], 50_000));
    let is_open = |protocol| pools.is_open(local, protocol);
    for (leased, other) in [
        (RelayProtocol::Tcp, RelayProtocol::Udp),
        (RelayProtocol::Udp, RelayProtocol::Tcp),
    ] {
        let (lease, _) = pools.lease(Family::V4, PortKind::Any, 7).unwrap();
        let lease = lease.of(leased);
        assert_eq!(lease.protocol(), leased);
        lease.open();
        assert!(is_open(leased) && !is_open(other));
        drop(lease);
        assert!(!is_open(leased) && !is_open(other));
    }
}

#[test]
fn addresses_that_come_later_are_leased_from_and_those_that_went_no_more() {
    let relay = |text: &str| RelayAddress {
        local: text.parse().unwrap(),
        external: None,
    };
    let pools = PortPools::new(&[relay("127.0.0.1")], &(50_000..=50_001));
    let lease = |family| pools.lease(family, PortKind::Any, 7);
    let (first, _) = lease(Family::V4).unwrap();
    assert!(!pools.supports(Family::V6));
    pools.set(&[relay("10.0.0.1"), relay("2001:db8::1")]);
    assert!(pools.supports(Family::V6));
    let (second, _) = lease(Family::V4).unwrap();
    let (third, _) = lease(Family::V4).unwrap();
    assert!(
        lease(Family::V4).is_none(),
        "127.0.0.1 has a port left, and is no relay address any more"
    );
    let locals = [&first, &second, &third].map(|lease| lease.local().ip().to_string());
    assert_eq!(locals, ["127.0.0.1", "10.0.0.1", "10.0.0.1"]);
    drop((first, second));
    // It comes back, with the ports that nobody has any more.
    pools.set(&[relay("127.0.0.1"), relay("10.0.0.1")]);
    assert!(!pools.supports(Family::V6));
    let free: u32 = pools.counts().map(|(_, counts)| counts.free).sum();
    assert_eq!((pools.counts().count(), free), (3, 5));
}
