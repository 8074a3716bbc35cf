//! V-85, and steering: which socket of a group the kernel gives a datagram to, with the program that reads connection ids.
#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use turnbuckle_quic::{Ids, Keys};
use turnbuckle_sys::steering::{Instruction, steer};

const SHARDS: usize = 4;

/// Opens sockets of one address, in the order of their numbers.
fn group() -> Vec<UdpSocket> {
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    let open = |_| {
        let flags = SocketFlags::CLOEXEC;
        let family = AddressFamily::INET;
        let socket = socket_with(family, SocketType::DGRAM, flags, None).unwrap();
        sockopt::set_socket_reuseport(&socket, true).unwrap();
        bind(&socket, &address).unwrap();
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(true).unwrap();
        address = socket.local_addr().unwrap();
        socket
    };
    (0..SHARDS).map(open).collect()
}

/// Returns the number of the socket that a datagram comes to.
fn receiver(group: &[UdpSocket], from: &UdpSocket, datagram: &[u8]) -> usize {
    from.send_to(datagram, group[0].local_addr().unwrap())
        .unwrap();
    let mut buffer = [0; 64];
    for _ in 0..1000 {
        // On loopback it has come when `send_to` returns, but for softirqs that a busy machine puts off.
        let came = group.iter().position(|socket| {
            let received = socket.recv_from(&mut buffer);
            received.is_ok_and(|(len, _)| buffer[..len] == *datagram)
        });
        match came {
            Some(number) => return number,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("it has not come: {datagram:02x?}");
}

fn steps(ids: Ids) -> Vec<Instruction> {
    let program = ids.steering(u32::try_from(SHARDS).unwrap());
    let program = program.into_iter().map(|step| Instruction {
        code: step.code,
        if_true: step.if_true,
        if_false: step.if_false,
        operand: step.operand,
    });
    program.collect()
}

fn clients() -> Vec<UdpSocket> {
    let socket = |_| UdpSocket::bind(("127.0.0.1", 0)).unwrap();
    (0..16).map(socket).collect()
}

#[test]
fn datagrams_without_an_id_go_where_they_went_without_a_program() {
    let (group, clients) = (group(), clients());
    let before: Vec<_> = clients
        .iter()
        .map(|client| receiver(&group, client, b"before"))
        .collect();
    assert!(before.iter().any(|number| *number != before[0]));
    steer(&group[0], &steps(Keys::new(&[7; 32]).ids())).unwrap();
    let ids = Keys::new(&[8; 32]).ids();
    for (client, &expected) in clients.iter().zip(&before) {
        for first in 0..=u8::MAX {
            for len in 0..18 {
                let mut datagram = vec![12; len];
                if let Some(byte) = datagram.first_mut() {
                    *byte = first;
                }
                let came = receiver(&group, client, &datagram);
                assert_eq!(came, expected, "{datagram:02x?}");
            }
            let foreign = [&[first][..], &ids.make(0, [first; 7]), &[0; 20]].concat();
            assert_eq!(receiver(&group, client, &foreign), expected);
        }
    }
}

#[test]
fn the_kernel_gives_a_datagram_to_the_shard_of_its_connection_id() {
    let (group, clients) = (group(), clients());
    let ids = Keys::new(&[7; 32]).ids();
    steer(&group[0], &steps(ids)).unwrap();
    for client in &clients {
        for shard in 0..u8::try_from(SHARDS).unwrap() {
            let id = ids.make(shard, [shard, 1, 2, 3, 4, 5, 6]);
            let short = [&[0x43][..], &id, &[0; 20]].concat();
            let long = [&[0xe0, 0, 0, 0, 1, 12][..], &id, &[0; 9]].concat();
            assert_eq!(receiver(&group, client, &short), usize::from(shard));
            assert_eq!(receiver(&group, client, &long), usize::from(shard));
        }
    }
    // The group has no such shard.
    let id = ids.make(9, [1; 7]);
    let datagram = [&[0x43][..], &id, &[0; 20]].concat();
    receiver(&group, &clients[0], &datagram);
}
