//! Relaying allocates nothing once warm.

mod common;

use std::net::SocketAddr;

use common::{BACKENDS, LISTENER, Source, bind, datapath, loopback, socket};
use turnbuckle_datapath::{
    DatagramHandler, EndpointId, EndpointKind, Received, Run, SendQueue, StreamHandler, TurnHandler,
};

/// Strips a header towards one peer, adds one towards another, and answers the sender.
struct Relay {
    relays: [EndpointId; 2],
    peers: [SocketAddr; 2],
}

impl TurnHandler for Relay {}

impl DatagramHandler for Relay {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let segment = message.segment;
        let count = message.segment_count();
        let all = Run {
            start: 0,
            stride: segment,
            len: segment,
            last_len: segment,
            count,
        };
        let stripped = Run {
            start: 4,
            len: segment - 4,
            last_len: segment - 4,
            ..all
        };
        tx.forward(self.relays[0], self.peers[0], message, stripped, &[], 0);
        tx.forward(self.relays[1], self.peers[1], message, all, &[0x40; 36], 1);
        tx.reply(message.endpoint, message.remote, b"control");
    }
}

impl StreamHandler for Relay {}

#[test]
fn relaying_allocates_nothing_once_warm() {
    for backend in BACKENDS {
        let mut datapath = datapath(backend);
        let (_, entrance) = bind(&mut datapath, LISTENER, loopback(false));
        let peers = [socket(loopback(false)), socket(loopback(false))];
        let mut relay = Relay {
            relays: [(); 2].map(|()| bind(&mut datapath, EndpointKind::Relay, loopback(false)).0),
            peers: peers.each_ref().map(|peer| peer.local_addr().unwrap()),
        };
        let mut sources = [Source::new(false), Source::new(false)];
        let bytes = [7; 1200 * 16];
        let mut round = || {
            for (source, segment) in sources.iter_mut().zip([1200, 200]) {
                source.send(entrance, &bytes[..segment * 16], segment);
            }
            let target = datapath.counters().receive.datagrams.get() + 32;
            common::receive(&mut datapath, &mut relay, target);
            let mut buffer = [0; 1500];
            for peer in &peers {
                for _ in 0..32 {
                    peer.recv(&mut buffer).unwrap();
                }
            }
        };
        for _ in 0..20 {
            round();
        }
        let measured = allocation_counter::measure(|| {
            for _ in 0..100 {
                round();
            }
        });
        assert_eq!(measured.count_total, 0, "{backend}: {measured:?}");
        // The counter does count on this thread.
        assert_eq!(
            allocation_counter::measure(|| drop(std::hint::black_box(Box::new(1)))).count_total,
            1
        );
    }
}
