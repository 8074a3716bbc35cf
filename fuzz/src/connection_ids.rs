//! Properties of the connection ids of QUIC, by which datagrams on a shared port are told apart.

use turnbuckle_quic::{CONNECTION_ID_LEN, Ids, Keys};

/// Checks that a slow reading of RFC 8999 agrees on whose datagram it is, whatever arrives; and that an id of a shard is found where a header has it, if all of
/// it is there.
pub fn connection_ids(bytes: &[u8]) {
    let ids = Keys::new(&[7; 32]).ids();
    assert_eq!(ids.shard_of_datagram(bytes), read_slowly(&ids, bytes));
    let Some((&[shard, ref random @ ..], rest)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let id = ids.make(shard, *random);
    assert_eq!(ids.shard_of(&id), Some(shard));
    let Some((&first, rest)) = rest.split_first() else {
        return;
    };
    let mut datagram = vec![first];
    if first & 0x80 != 0 {
        datagram.extend([0, 0, 0, 1, 12]);
    }
    datagram.extend(id);
    let head_len = datagram.len();
    datagram.extend(rest);
    assert_eq!(ids.shard_of_datagram(&datagram), Some(shard));
    assert_eq!(read_slowly(&ids, &datagram), Some(shard));
    for len in 0..head_len {
        assert_eq!(ids.shard_of_datagram(&datagram[..len]), None, "{len} bytes");
    }
}

/// Finds whose a datagram is by RFC 8999 §5.1 and §5.2, word by word: in a long header the version has four bytes, and then a byte says how long the id is.
fn read_slowly(ids: &Ids, datagram: &[u8]) -> Option<u8> {
    let mut bytes = datagram.iter().copied();
    let is_long = bytes.next()? >= 0x80;
    let len = match is_long {
        true => usize::from(bytes.nth(4)?),
        false => CONNECTION_ID_LEN,
    };
    let id: Vec<u8> = bytes.take(len).collect();
    (id.len() == CONNECTION_ID_LEN && len == CONNECTION_ID_LEN)
        .then(|| ids.shard_of(&id))
        .flatten()
}
