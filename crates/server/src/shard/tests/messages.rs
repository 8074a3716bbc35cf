//! A connection has a bounded number of messages in a turn.

use std::io::Write as _;

use super::several::Several;

/// What `front/stream/messages.rs` handles of one connection in a turn.
const MESSAGES_PER_TURN: u64 = 512;

#[test]
fn a_turn_handles_a_bounded_number_of_messages_of_a_connection_and_the_next_ones_the_rest() {
    const SENT: u64 = 2000;
    let mut shards = Several::start(1, &[]);
    let mut stream = shards.stream(0);
    // Empty channel messages: as many as bytes can hold. They come as one train.
    let empty = [0x40, 0, 0, 0];
    stream.write_all(&empty.repeat(2000)).unwrap();
    let mut before = 0;
    let mut turns = 0;
    shards.turn_shard_until(0, |shards| shards.client_in(0) > 0);
    while before < SENT {
        let handled = shards.client_in(0);
        assert!(handled - before <= MESSAGES_PER_TURN, "{before} {handled}");
        before = handled;
        turns += 1;
        assert!(turns < 100, "the rest never came: {handled}");
        shards.turn_shard(0);
    }
    assert!(turns >= 4, "{turns}");
}
