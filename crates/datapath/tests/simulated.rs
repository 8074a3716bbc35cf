//! A handler driven by something that has no descriptors: what a data path gives it can be made, what it queues can be taken, and what it
//! opens can be pretended.
#![expect(clippy::unwrap_used, reason = "handlers of tests")]

use std::io;
use std::net::SocketAddr;

use turnbuckle_datapath::{
    Accepted, Admission, Bind, Content, DatagramHandler, DetachedStream, EndpointId, EndpointKind,
    Handler, HeldSocket, Listen, Memory, Received, Run, SendQueue, Sockets, StreamChange,
    StreamHandler, StreamId, StreamInput, StreamListenerId, Taken, TurnHandler, Waker,
};

const CLIENTS: EndpointId = EndpointId::from_u32(1);
const STREAM: StreamId = StreamId::from_u32(5);

fn address(host: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, host], 3478))
}

/// A data path that is pretended: what came in this turn, and the sockets that are open.
#[derive(Default)]
struct Pretended {
    slots: Vec<Vec<u8>>,
    read: Vec<u8>,
    bound: Vec<Bind>,
    closed: Vec<EndpointId>,
}

impl<'a> Memory<'a> for &'a Pretended {
    fn slot(self, slot: u32) -> &'a [u8] {
        &self.slots[slot as usize]
    }

    fn streams(self) -> &'a [u8] {
        &self.read
    }
}

impl Sockets for Pretended {
    fn bind(&mut self, bind: Bind) -> io::Result<EndpointId> {
        self.bound.push(bind);
        match self.bound.len() {
            1 => Err(io::ErrorKind::AddrInUse.into()),
            _ => Ok(EndpointId::from_u32(2)),
        }
    }

    fn hold(&mut self, address: SocketAddr) -> io::Result<HeldSocket> {
        Ok(HeldSocket::new(address))
    }

    fn bind_held(&mut self, held: HeldSocket, token: u64) -> io::Result<EndpointId> {
        let address = held.into_inner().ok_or(io::ErrorKind::InvalidInput)?;
        let kind = EndpointKind::Relay;
        self.bind(Bind {
            address,
            kind,
            token,
        })
    }

    fn local_addr(&self, _: EndpointId) -> Option<SocketAddr> {
        None
    }

    fn forbid_fragments(&mut self, _: EndpointId) {}

    fn close(&mut self, endpoint: EndpointId) {
        self.closed.push(endpoint);
    }

    fn listen_for_peers(&mut self, _: Listen) -> io::Result<StreamListenerId> {
        Ok(StreamListenerId::from_u32(0))
    }

    fn close_listener(&mut self, _: StreamListenerId) {}

    fn connect(&mut self, _: SocketAddr, _: SocketAddr) -> io::Result<StreamId> {
        Err(io::ErrorKind::NetworkUnreachable.into())
    }

    fn detach(&mut self, stream: StreamId) -> Option<DetachedStream> {
        Some(DetachedStream::new(stream))
    }

    fn adopt(&mut self, stream: DetachedStream) -> io::Result<StreamId> {
        stream
            .into_inner()
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

/// A protocol of every kind of thing that a handler does.
#[derive(Default)]
struct Everything {
    relay: Option<EndpointId>,
    has_announced: bool,
}

impl TurnHandler for Everything {
    fn turn_ended(&mut self, tx: &mut SendQueue, sockets: &mut impl Sockets) {
        let bind = |token| Bind {
            address: address(1),
            kind: EndpointKind::Relay,
            token,
        };
        assert!(sockets.bind(bind(1)).is_err(), "a port that others have");
        let held = sockets.hold(address(9)).unwrap();
        let relay = sockets.bind_held(held, 2).unwrap();
        tx.send(relay, address(3), b"abcde", 2);
        let detached = sockets.detach(STREAM).unwrap();
        assert_eq!(sockets.adopt(detached).unwrap(), STREAM);
        sockets.close(relay);
        self.relay = Some(relay);
    }

    fn before_flush(&mut self) {
        self.has_announced = true;
    }
}

impl DatagramHandler for Everything {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        assert_eq!(message.segment_count(), 2);
        let run = Run {
            start: 1,
            stride: 4,
            len: 3,
            last_len: 2,
            count: 2,
        };
        tx.forward(message.endpoint, address(2), message, run, b"head", 1);
        tx.stream_forward(STREAM, message, Run::single(0, 4), &[], 0);
        tx.reply(message.endpoint, message.remote, b"answer");
    }
}

impl StreamHandler for Everything {
    fn accepted(&mut self, stream: StreamId, _: &Accepted, tx: &mut SendQueue) -> Admission {
        tx.seal_stream(stream);
        Admission::Stranger
    }

    fn stream_received(&mut self, input: &mut StreamInput<'_>, tx: &mut SendQueue) -> Taken {
        assert!(input.is_stranger);
        tx.prove_stream(input.stream);
        tx.stream_reply(input.stream, b"welcome");
        input.skip(1);
        tx.forward(CLIENTS, address(4), input, Run::single(0, 2), &[], 0);
        input.await_len(100);
        Taken::AllBut([2..3, 0..0])
    }
}

/// Makes one turn of what came, and returns the queue before it is emptied.
fn turn(pretended: &mut Pretended, handler: &mut impl Handler) -> SendQueue {
    let mut queue = SendQueue::new(64);
    handler.turn_started();
    let segment = 4;
    let source = (CLIENTS, 0);
    let message = Received::new(source, address(7), &pretended.slots[0], segment, 0);
    handler.received(&message, &mut queue);
    let accepted = Accepted {
        token: 0,
        remote: address(8),
    };
    let admission = handler.accepted(STREAM, &accepted, &mut queue);
    assert_eq!(admission, Admission::Stranger);
    let base = 2;
    let mut input = StreamInput::new(STREAM, true, 0, &mut pretended.read[base..], 2);
    let taken = handler.stream_received(&mut input, &mut queue);
    assert_eq!(taken, Taken::AllBut([2..3, 0..0]));
    assert_eq!((input.awaited_len(), input.is_cut()), (100, false));
    handler.turn_ended(&mut queue, pretended);
    handler.before_flush();
    queue
}

#[test]
fn a_handler_can_be_driven_without_descriptors_and_what_it_queued_can_be_read() {
    let mut pretended = Pretended {
        slots: vec![b"-abc-de".to_vec()],
        read: b"..!xyz".to_vec(),
        ..Pretended::default()
    };
    let mut everything = Everything::default();
    let mut queue = turn(&mut pretended, &mut everything);
    assert!(everything.has_announced);
    let relay = everything.relay.unwrap();
    let datagrams: Vec<_> = queue
        .datagrams(&pretended)
        .map(|it| (it.endpoint, it.to, it.parts.concat()))
        .collect();
    let expected = [
        (CLIENTS, address(2), b"headabc\0".to_vec()),
        (CLIENTS, address(2), b"headde\0".to_vec()),
        (CLIENTS, address(7), b"answer".to_vec()),
        (CLIENTS, address(4), b"xy".to_vec()),
        (relay, address(3), b"ab".to_vec()),
        (relay, address(3), b"cd".to_vec()),
        (relay, address(3), b"e".to_vec()),
    ];
    assert_eq!(datagrams, expected);
    let touched = queue.touched_streams();
    assert_eq!((touched.len(), touched[0].stream), (1, STREAM));
    let messages: Vec<_> = queue
        .stream_messages(&touched[0], &pretended)
        .map(|it| (it.content, it.parts.concat()))
        .collect();
    let expected = [
        (Content::Media, b"-abc".to_vec()),
        (Content::Control, b"welcome".to_vec()),
    ];
    assert_eq!(messages, expected);
    let changes = [(STREAM, StreamChange::Seal), (STREAM, StreamChange::Prove)];
    assert_eq!(queue.stream_changes(), changes);
    assert_eq!(pretended.closed, [relay]);
    queue.clear();
    assert!(queue.is_empty());
    assert_eq!(queue.datagrams(&pretended).count(), 0);
}

#[test]
fn a_wake_up_is_noted_where_nobody_waits() {
    let waker = Waker::flag();
    assert!(!waker.was_woken());
    let other = waker.clone();
    other.wake();
    other.wake();
    assert!(waker.was_woken());
    assert!(!waker.was_woken());
}
