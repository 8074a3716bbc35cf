use super::*;
use crate::views::Received;

const SEGMENTS: u16 = 64;

fn endpoint(number: u32) -> EndpointId {
    EndpointId::from_u32(number)
}

fn peer(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn message(bytes: &[u8], slot: u32) -> Received<'_> {
    Received {
        endpoint: endpoint(0),
        token: 0,
        remote: peer(9),
        bytes,
        segment: bytes.len(),
        slot,
    }
}

/// Returns what an endpoint would send: for each train the sizes of its datagrams.
fn sizes(queue: &SendQueue, from: EndpointId) -> Vec<(u16, Vec<usize>)> {
    let touched = queue
        .touched()
        .iter()
        .find(|touched| touched.endpoint == from)
        .unwrap();
    let datagrams = |train: &Train| {
        queue
            .runs(train)
            .flat_map(|run| {
                let extra = queue.prefix(run).len() + usize::from(run.trailer);
                (0..run.count).map(move |index| run.payload(index).1 + extra)
            })
            .collect()
    };
    queue
        .trains(touched)
        .map(|(_, train)| (train.to.port(), datagrams(train)))
        .collect()
}

fn run(len: usize, count: usize) -> Run {
    Run {
        start: 0,
        stride: len,
        len,
        last_len: len,
        count,
    }
}

#[test]
fn runs_of_one_flow_and_size_share_a_train_across_messages_and_other_flows() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    for slot in 0..3 {
        for port in [1, 2] {
            queue.forward(
                endpoint(1),
                peer(port),
                &message(&bytes, slot),
                run(100, 2),
                &[],
                0,
            );
        }
    }
    assert_eq!(
        sizes(&queue, endpoint(1)),
        [(1, vec![100; 6]), (2, vec![100; 6])]
    );
}

#[test]
fn another_size_begins_another_train_and_the_order_stays() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    for len in [100, 100, 200, 100, 50, 100] {
        queue.forward(
            endpoint(1),
            peer(1),
            &message(&bytes, 0),
            Run::single(0, len),
            &[],
            0,
        );
    }
    let trains = [vec![100, 100], vec![200, 100], vec![100]];
    // 200, 100: the shorter one ends its train; so does 50.
    assert_eq!(
        sizes(&queue, endpoint(1)),
        [
            (1, trains[0].clone()),
            (1, trains[1].clone()),
            (1, vec![50]),
            (1, vec![100])
        ]
    );
}

#[test]
fn a_shorter_last_datagram_closes_the_train() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    let short = Run {
        last_len: 30,
        ..run(100, 3)
    };
    queue.forward(endpoint(1), peer(1), &message(&bytes, 0), short, &[], 0);
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        Run::single(0, 30),
        &[],
        0,
    );
    assert_eq!(
        sizes(&queue, endpoint(1)),
        [(1, vec![100, 100, 30]), (1, vec![30])]
    );
}

#[test]
fn a_train_has_no_more_segments_than_the_kernel_takes() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 10 * 100];
    for slot in 0..13 {
        queue.forward(
            endpoint(1),
            peer(1),
            &message(&bytes, slot),
            run(10, 100),
            &[],
            0,
        );
    }
    let counts: Vec<_> = sizes(&queue, endpoint(1))
        .iter()
        .map(|(_, sizes)| sizes.len())
        .collect();
    assert_eq!(counts.iter().sum::<usize>(), 1300);
    assert!(counts.iter().all(|count| *count <= 64));
    assert_eq!(counts[..20], [64; 20]);
}

#[test]
fn a_train_has_no_more_bytes_than_udp_takes() {
    let mut queue = SendQueue::new(128);
    let bytes = vec![0; 65_000];
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        run(1300, 50),
        &[],
        0,
    );
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 1),
        run(1300, 50),
        &[],
        0,
    );
    let counts: Vec<_> = sizes(&queue, endpoint(1))
        .iter()
        .map(|(_, sizes)| sizes.len())
        .collect();
    assert_eq!(counts, [50, 50]);
    // A prefix counts: 1,304 x 50 fits, x 51 does not.
    queue.clear();
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        run(1300, 50),
        &[1, 2, 3, 4],
        0,
    );
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 1),
        Run::single(0, 1300),
        &[1, 2, 3, 4],
        0,
    );
    let counts: Vec<_> = sizes(&queue, endpoint(1))
        .iter()
        .map(|(_, sizes)| sizes.len())
        .collect();
    assert_eq!(counts, [50, 1]);
}

#[test]
fn empty_datagrams_travel_alone_and_in_order() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    for run in [
        Run::single(0, 100),
        Run::single(0, 0),
        Run::single(0, 0),
        Run::single(0, 100),
        Run {
            last_len: 0,
            ..run(100, 3)
        },
    ] {
        queue.forward(endpoint(1), peer(1), &message(&bytes, 0), run, &[], 0);
    }
    let expected = [vec![100], vec![0], vec![0], vec![100, 100, 100], vec![0]];
    assert_eq!(sizes(&queue, endpoint(1)), expected.map(|sizes| (1, sizes)));
    // With a prefix nothing is empty on the wire.
    queue.clear();
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        Run {
            last_len: 0,
            ..run(100, 3)
        },
        &[1, 2, 3, 4],
        0,
    );
    assert_eq!(sizes(&queue, endpoint(1)), [(1, vec![104, 104, 4])]);
}

#[test]
fn replies_do_not_divide_trains() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        run(100, 2),
        &[],
        0,
    );
    queue.reply(endpoint(1), peer(1), b"answer");
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 1),
        run(100, 2),
        &[],
        0,
    );
    assert_eq!(
        sizes(&queue, endpoint(1)),
        [(1, vec![100; 4]), (1, vec![6])]
    );
    let touched = queue.touched()[0];
    let (_, answer) = queue.trains(&touched).nth(1).unwrap();
    let run = queue.runs(answer).next().unwrap();
    let (start, len) = run.payload(0);
    assert_eq!(
        (run.source, &queue.arena[start..start + len]),
        (Source::Arena, &b"answer"[..])
    );
}

#[test]
fn a_datagram_that_must_not_be_fragmented_keeps_its_place_in_the_flow() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        run(100, 2),
        &[],
        0,
    );
    queue.forward_unfragmented(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        Run::single(0, 100),
    );
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&bytes, 0),
        run(100, 2),
        &[],
        0,
    );
    assert_eq!(
        sizes(&queue, endpoint(1)),
        [(1, vec![100; 2]), (1, vec![100]), (1, vec![100; 2])]
    );
}

#[test]
fn equal_prefixes_in_a_row_are_stored_once() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    for prefix in [[1; 4], [1; 4], [2; 4], [2; 4]] {
        queue.forward(
            endpoint(1),
            peer(1),
            &message(&bytes, 0),
            run(100, 2),
            &prefix,
            1,
        );
    }
    assert_eq!(queue.arena.len(), 8);
    let touched = queue.touched()[0];
    let (_, train) = queue.trains(&touched).next().unwrap();
    let prefixes: Vec<_> = queue.runs(train).map(|run| queue.prefix(run)[0]).collect();
    assert_eq!(prefixes, [1, 1, 2, 2]);
}

#[test]
fn order_holds_when_flows_push_each_other_out_of_the_table() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    // Three rounds over many more flows than the table has places.
    for round in 0..3 {
        for port in 0..4 * 1024 {
            queue.forward(
                endpoint(1),
                peer(port),
                &message(&bytes, round),
                Run::single(round as usize, 100),
                &[],
                0,
            );
        }
    }
    let touched = queue.touched()[0];
    let mut slots_by_port = vec![Vec::new(); 4 * 1024];
    for (_, train) in queue.trains(&touched) {
        for run in queue.runs(train) {
            slots_by_port[usize::from(train.to.port())].push(run.start);
        }
    }
    assert!(slots_by_port.iter().all(|order| *order == [0, 1, 2]));
}

#[test]
fn a_new_turn_forgets_everything_even_when_the_turn_count_wraps() {
    let mut queue = SendQueue::new(SEGMENTS);
    let bytes = [0; 1000];
    for from in [1, 2] {
        queue.forward(
            endpoint(from),
            peer(1),
            &message(&bytes, 0),
            run(100, 2),
            &[],
            0,
        );
    }
    // Four thousand million turns later the number of that turn comes round again.
    queue.stamp = u32::MAX;
    queue.clear();
    assert!(queue.is_empty());
    queue.forward(
        endpoint(2),
        peer(1),
        &message(&bytes, 0),
        run(100, 2),
        &[],
        0,
    );
    assert_eq!(queue.touched().len(), 1);
    assert_eq!(sizes(&queue, endpoint(2)), [(1, vec![100; 2])]);
}

#[test]
#[should_panic(expected = "beyond its message")]
fn a_run_outside_its_message_is_refused() {
    let mut queue = SendQueue::new(SEGMENTS);
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&[0; 299], 0),
        run(100, 3),
        &[],
        0,
    );
}

#[test]
#[should_panic(expected = "never longer")]
fn a_longer_last_datagram_is_refused() {
    let mut queue = SendQueue::new(SEGMENTS);
    queue.forward(
        endpoint(1),
        peer(1),
        &message(&[0; 1000], 0),
        Run {
            last_len: 101,
            ..run(100, 3)
        },
        &[],
        0,
    );
}

#[test]
fn owned_buffers_form_trains_and_are_lent_again() {
    let mut queue = SendQueue::new(SEGMENTS);
    for (fill, len) in [(1, 3000), (2, 1500)] {
        let mut buffer = queue.take_buffer();
        assert!(buffer.is_empty());
        buffer.resize(len, fill);
        queue.send_owned(endpoint(1), peer(7), buffer, 1000);
    }
    assert_eq!(
        sizes(&queue, endpoint(1)),
        [(7, vec![1000, 1000, 1000, 1000, 500])]
    );
    let sent: Vec<u8> = queue
        .datagrams(NoMemory)
        .flat_map(|datagram| datagram.parts.concat())
        .collect();
    assert_eq!(sent, [vec![1; 3000], vec![2; 1500]].concat());
    queue.clear();
    let again = queue.take_buffer();
    assert!(again.is_empty() && again.capacity() >= 1500);
    queue.send_owned(endpoint(1), peer(7), again, 1000);
    assert!(queue.is_empty(), "an empty buffer sends nothing");
    assert!(queue.take_buffer().capacity() >= 1500, "and is kept");
}

#[test]
fn what_must_not_be_fragmented_forms_trains_of_its_own() {
    let mut queue = SendQueue::new(SEGMENTS);
    queue.send_owned(endpoint(1), peer(7), vec![1; 2000], 1000);
    queue.send_owned_unfragmented(endpoint(1), peer(7), vec![2; 3000], 1000);
    queue.send_owned(endpoint(1), peer(7), vec![3; 2000], 1000);
    // More than a train takes, into equal parts.
    let two_trains = usize::from(SEGMENTS) * 2;
    queue.send_owned_unfragmented(endpoint(1), peer(7), vec![4; two_trains * 10], 10);
    let expected = [
        vec![1000; 2],
        vec![1000; 3],
        vec![1000; 2],
        vec![10; usize::from(SEGMENTS)],
        vec![10; usize::from(SEGMENTS)],
    ];
    assert_eq!(sizes(&queue, endpoint(1)), expected.map(|sizes| (7, sizes)));
    let marked: Vec<_> = queue
        .datagrams(NoMemory)
        .map(|datagram| (datagram.parts.concat()[0], datagram.dont_fragment))
        .collect();
    for (fill, dont_fragment) in marked {
        assert_eq!(dont_fragment, fill % 2 == 0, "{fill}");
    }
}

#[test]
fn a_buffer_that_has_grown_too_large_is_not_kept() {
    let mut queue = SendQueue::new(SEGMENTS);
    queue.send_owned(endpoint(1), peer(7), vec![0; 300_000], 1200);
    queue.clear();
    assert_eq!(queue.take_buffer().capacity(), 0);
}

/// No received bytes.
#[derive(Clone, Copy)]
struct NoMemory;

impl<'a> Memory<'a> for NoMemory {
    fn slot(self, _: u32) -> &'a [u8] {
        &[]
    }

    fn streams(self) -> &'a [u8] {
        &[]
    }
}
