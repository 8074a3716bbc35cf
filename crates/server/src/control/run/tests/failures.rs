//! A shard that fails and has a journal is built anew with its calls.

use turnbuckle_engine::{AllocationId, Change, Relayed, Time};

use super::*;
use crate::survive::takeover::tests::{call, of_first_shard};

impl Call {
    /// Sends a datagram each way, with this number.
    fn send(&self, number: u8) {
        self.client_sends(number);
        let data = [number; 4];
        self.peer.send_to(&data, self.relayed).unwrap();
    }

    fn client_sends(&self, number: u8) {
        let mut bytes = ChannelData::header(channel(), 4).to_vec();
        bytes.extend([number; 4]);
        self.client.send_shared(&bytes);
    }

    /// Expects what was sent with these numbers, each way and in this order.
    fn receives(&mut self, running: &mut Running, numbers: impl Iterator<Item = u8>) {
        for number in numbers {
            let mut buffer = [0; 64];
            let len = running.until(|| self.peer.recv(&mut buffer).ok());
            assert_eq!(buffer[..len], [number; 4], "at the peer");
            let message = running.until(|| self.client.received());
            assert_eq!(message[4..8], [number; 4], "at the client");
        }
    }
}

/// Makes calls by UDP of one user, some at each of two shards.
fn calls(running: &mut Running, count: usize) -> Vec<Call> {
    let server = running.server;
    let calls = (0..count).map(|_| {
        let client = Client::by_datagrams(server, "alice");
        Call::new(running, client, true)
    });
    let calls: Vec<_> = calls.collect();
    let before = running.allocations();
    assert!(before[0] > 0 && before[1] > 0, "{before:?}");
    calls
}

/// Returns what all shards have dropped.
fn drops(counters: &[Arc<ShardCounters>]) -> u64 {
    Accounting::of(counters.iter().map(|counters| &**counters)).total_drops()
}

/// Allocates, and says with which code that ended.
fn code_of_allocation(running: &mut Running) -> u16 {
    let mut client = Client::by_datagrams(running.server, "alice");
    let answer = client.request(running, Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    });
    answer.code()
}

//= V-63
#[test]
fn a_shard_that_panics_ends_no_call_where_there_is_a_journal() {
    let mut running = Running::start_with_journals(8, &["--user-quota=24"]);
    let mut calls = calls(&mut running, 24);
    let before = running.allocations();
    for shard in [0, 1] {
        running.fail(shard);
        // The second failure has a pause, in which datagrams wait in the sockets.
        running.fail(shard);
        for number in 0..5 {
            calls.iter().for_each(|call| call.send(number));
        }
        for call in &mut calls {
            call.receives(&mut running, 0..5);
        }
    }
    assert_eq!(running.allocations(), before);
    // The unit of each call is taken, and no more: the last one is given back once.
    assert_eq!(code_of_allocation(&mut running), 486);
    for call in &mut calls {
        let answer = call.client.request(&mut running, Method::REFRESH, |_| {});
        answer.expect(200);
    }
    let answer = calls[0]
        .client
        .request(&mut running, Method::REFRESH, |writer| {
            writer.lifetime(0);
        });
    answer.expect(200);
    assert_eq!(code_of_allocation(&mut running), 200);
    let (ended, accounting, printed) = running.end();
    ended.unwrap();
    assert!(accounting.balances(), "{}", accounting.line());
    assert_eq!(accounting.shard_failures(), 4);
    let line = format!("shard 0 goes on with {} allocations", before[0]);
    assert_eq!(printed.matches(&line).count(), 2, "{printed}");
}

//= V-63
#[test]
fn what_a_shard_had_not_written_when_it_panicked_is_not_granted() {
    let mut running = Running::start_with_journals(9, &["--user-quota=2"]);
    let mut client = Client::by_datagrams(running.server, "alice");
    let (relayed, shard) = running.allocate(&mut client);
    let peer = UdpSocket::bind((running.server.ip(), 0)).unwrap();
    peer.set_nonblocking(true).unwrap();
    let to = peer.local_addr().unwrap();
    let bind = client.signed(Method::CHANNEL_BIND, |writer| {
        writer.channel_number(channel()).xor_peer_address(to);
    });
    running.fail_with(shard, || client.send_shared(&bind));
    let before = drops(&running.counters);
    client.send_channel_data(channel(), b"on a channel that nobody granted");
    peer.send_to(b"without a permission", relayed).unwrap();
    let counters = running.counters.clone();
    running.until(|| (drops(&counters) == before + 2).then_some(()));
    assert!(peer.recv(&mut [0; 64]).is_err() && client.received().is_none());
    // It was not answered, so the client repeats it.
    client.send(&bind);
    client.answer(&mut running).expect(200);
    client.send_channel_data(channel(), b"granted");
    running.until(|| peer.recv(&mut [0; 64]).ok());

    // Nor has anything ended that did not end on record.
    let end = client.signed(Method::REFRESH, |writer| {
        writer.lifetime(0);
    });
    running.fail_with(shard, || client.send_shared(&end));
    client.send_channel_data(channel(), b"it goes on");
    running.until(|| peer.recv(&mut [0; 64]).ok());
    client.send(&end);
    client.answer(&mut running).expect(200);
    let codes = [0; 3].map(|_| code_of_allocation(&mut running));
    assert_eq!(codes, [200, 200, 486]);
    let (ended, accounting, _) = running.end();
    ended.unwrap();
    assert!(accounting.balances(), "{}", accounting.line());
}

//= V-63
#[test]
fn before_repeated_panics_end_the_process_a_shard_goes_on_once_without_its_calls() {
    let mut running = Running::start_with_journals(6, &[]);
    let mut calls = calls(&mut running, 12);
    for _ in 0..3 {
        running.fail(0);
    }
    for call in &mut calls {
        call.goes_on(&mut running);
    }
    running.fail(0);
    for call in &mut calls {
        if call.shard == 0 {
            let answer = call.client.request(&mut running, Method::REFRESH, |_| {});
            answer.expect(437);
        } else {
            call.goes_on(&mut running);
        }
    }
    running.fail(0);
    let (ended, accounting, printed) = running.end();
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("shard 0 failed again and again"), "{error}");
    assert!(accounting.balances(), "{}", accounting.line());
    assert_eq!(
        printed.matches("goes on without its calls").count(),
        1,
        "{printed}"
    );
}

/// Makes a mobile client that has moved to the other shard, with a channel to its peer.
fn moved(running: &mut Running) -> (Call, usize) {
    let mut client = Client::by_datagrams(running.server, "alice");
    let before = running.allocations();
    let answer = client.allocate(running);
    let counters = running.counters.clone();
    let home = running
        .until(|| (0..2).find(|&shard| counters[shard].engine.allocations.get() > before[shard]));
    let mut ticket = answer.ticket();
    let peer = UdpSocket::bind((running.server.ip(), 0)).unwrap();
    peer.set_nonblocking(true).unwrap();
    client.bind_channel(running, channel(), peer.local_addr().unwrap());
    loop {
        let handed = counters[home].across.handed_in.get();
        let mut client = Client::by_datagrams(running.server, "alice");
        let resumed = client.resume(running, &ticket).expect(200);
        ticket = resumed.ticket();
        if counters[home].across.handed_in.get() == handed {
            continue; // the kernel gave it to the same shard
        }
        let mut call = Call {
            client,
            peer,
            relayed: answer.relayed(),
            shard: 1 - home,
            is_datagrams: true,
        };
        call.goes_on(running);
        return (call, home);
    }
}

//= V-30
#[test]
fn a_client_that_has_moved_is_found_whichever_of_its_two_shards_panics() {
    let mut running = Running::start_with_journals(7, &["--mobility"]);
    let (mut call, home) = moved(&mut running);
    for shard in [home, 1 - home, home] {
        running.fail(shard);
        // What comes before the shards have told each other is lost, as in any handover.
        let mut tries = 0;
        loop {
            call.client_sends(9);
            let deadline = Instant::now() + Duration::from_millis(200);
            let mut buffer = [0; 64];
            let arrived = loop {
                if call.peer.recv(&mut buffer).is_ok() {
                    break true;
                }
                if Instant::now() > deadline {
                    break false;
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            if arrived {
                break;
            }
            tries += 1;
            assert!(
                tries < 50,
                "shard {shard} failed, and the client is not found"
            );
        }
        call.peer.send_to(b"back", call.relayed).unwrap();
        let message = running.until(|| call.client.received());
        assert_eq!(&message[4..8], b"back");
        while call.peer.recv(&mut [0; 64]).is_ok() {}
    }
    // Once it has ended, nobody hands its messages on.
    let answer = call
        .client
        .request(&mut running, Method::REFRESH, |writer| {
            writer.lifetime(0);
        });
    answer.expect(200);
    let (ended, accounting, _) = running.end();
    ended.unwrap();
    assert!(accounting.balances(), "{}", accounting.line());
}

#[test]
fn calls_that_are_taken_over_go_on_at_an_address_that_is_not_in_the_configuration() {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let local = SocketAddr::from(([127, 128 | high & 63, middle, low], 30_007));
    let relay = UdpSocket::bind(local).unwrap();
    relay.set_nonblocking(true).unwrap();
    let relayed = relay.local_addr().unwrap();
    let ip = relayed.ip();
    let [client, peer] = [0; 2].map(|_| UdpSocket::bind((ip, 0)).unwrap());
    client.set_nonblocking(true).unwrap();
    let from = client.local_addr().unwrap();
    let mut running = Running::start_with(15, &[], |config| {
        let created = call(
            7,
            [from, config.addresses.listeners[0]],
            Relayed {
                local: relayed,
                external: relayed,
            },
        );
        let permission = Change::PermissionInstalled {
            allocation: AllocationId::from_u64(7),
            peer: ip,
            expires: Time::from_secs(1 << 32),
            is_new: true,
        };
        let socket = |_| relay.try_clone().unwrap().into();
        let takeover = of_first_shard(vec![created, permission], socket);
        Some(Survival::alone(config).with(takeover))
    });
    drop(relay);
    let goes_on = |running: &mut Running| {
        peer.send_to(b"data", relayed).unwrap();
        let mut buffer = [0; 256];
        let len = running.until(|| client.recv(&mut buffer).ok());
        assert!(buffer[..len].windows(4).any(|it| it == b"data"));
    };
    goes_on(&mut running);
    running.fail(0);
    goes_on(&mut running);
    // New ones begin at the address that the configuration has.
    for _ in 0..4 {
        let mut client = Client::by_datagrams(running.server, "alice");
        let (relayed, _) = running.allocate(&mut client);
        assert_eq!(relayed.ip(), running.server.ip());
    }
    let (ended, accounting, _) = running.end();
    ended.unwrap();
    assert!(accounting.balances(), "{}", accounting.line());
}
