//! What a journal says after it was written, cut, damaged, and begun anew.

use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use turnbuckle_engine::{
    AllocationId, Brought, CanonicalOrigin, Change, ChannelNumber, Commons, Connection, Created,
    EndCause, Ended, Engine, Family, Moved, Path, RelayProtocol, Relayed, ReservationToken,
    Reserved, Resumed, Time, Traffic, TransactionId, Transport, Usage, User, UserRecord,
};
use turnbuckle_sys::mapped::Mapped;

use super::segment::{Encoder, Recorded, Refused, decode};
use super::{Ends, Journal, LAYOUT, LEN_BITS, Memory, SECOND, Segments, Slices, word_in};
use crate::configured::configured;
use crate::control::keys::KeyRing;
use crate::process::path_of_descriptor;
use crate::random::Randomness;
use crate::survive::takeover::tests::call;
use crate::translate;

fn allocation() -> impl Strategy<Value = AllocationId> {
    any::<u64>().prop_map(AllocationId::from_u64)
}

fn time() -> impl Strategy<Value = Time> {
    any::<u64>().prop_map(Time::from_nanos)
}

fn transaction() -> impl Strategy<Value = TransactionId> {
    any::<[u8; 12]>().prop_map(TransactionId::new)
}

fn token() -> impl Strategy<Value = ReservationToken> {
    any::<[u8; 8]>().prop_map(ReservationToken)
}

fn family() -> impl Strategy<Value = Family> {
    prop_oneof![Just(Family::V4), Just(Family::V6)]
}

fn channel() -> impl Strategy<Value = ChannelNumber> {
    (0x4000..0x7FFF_u16).prop_filter_map("a channel", |number| {
        ChannelNumber::from_rfc5766(number).ok()
    })
}

fn path() -> impl Strategy<Value = Path> {
    let transport = prop_oneof![
        Just(Transport::Dtls),
        Just(Transport::Quic),
        Just(Transport::Tcp),
        Just(Transport::Tls),
        Just(Transport::Udp)
    ];
    let addresses = (any::<SocketAddr>(), any::<SocketAddr>());
    (addresses, transport, any::<(u32, u64)>()).prop_map(|((server, client), transport, it)| Path {
        server,
        client,
        transport,
        connection: Connection::new(it.0, it.1),
    })
}

fn user() -> impl Strategy<Value = Arc<User>> {
    let names = ("\\PC{0,40}", "\\PC{0,40}", "\\PC{0,40}");
    let key = option::of(any::<[u8; 20]>());
    (names, any::<(Option<u64>, u64)>(), key).prop_map(
        |((name, realm, quota_name), it, mac_key)| {
            let record = UserRecord {
                name: &name,
                realm: &realm,
                quota_name: &quota_name,
                expires_unix_s: it.0,
                lifetime_max_s: it.1,
                mac_key,
            };
            Arc::new(record.user())
        },
    )
}

fn cause() -> impl Strategy<Value = EndCause> {
    prop_oneof![
        Just(EndCause::Cancelled),
        Just(EndCause::Disconnected),
        Just(EndCause::Expired),
        Just(EndCause::Lost),
        transaction().prop_map(EndCause::Released)
    ]
}

fn usage() -> impl Strategy<Value = Usage> {
    any::<[(u64, u64); 4]>().prop_map(|all| {
        let [client_received, client_sent, peer_received, peer_sent] =
            all.map(|(datagrams, bytes)| Traffic { datagrams, bytes });
        Usage {
            client_received,
            client_sent,
            peer_received,
            peer_sent,
        }
    })
}

fn created() -> impl Strategy<Value = Change> {
    let relayed = any::<(SocketAddr, SocketAddr)>();
    let relays = vec(
        relayed.prop_map(|(local, external)| Relayed { local, external }),
        0..3,
    );
    let reserved = (token(), any::<SocketAddr>(), time());
    let reserved = reserved.prop_map(|(token, local, expires)| Reserved {
        token,
        local,
        expires,
    });
    let origin =
        "https?://[a-z]{1,40}(:[0-9]{1,4})?".prop_map(|text| CanonicalOrigin::of(text.as_bytes()));
    let brought = (option::of(token()), any::<bool>(), option::of(origin));
    let brought = brought.prop_map(|(redeemed, is_mobile, origin)| Brought {
        redeemed,
        is_mobile,
        origin: origin.flatten(),
        tunnel_to: None,
    });
    let who = (allocation(), path(), user(), transaction(), any::<bool>());
    let what = (
        relays,
        option::of((family(), any::<u16>())),
        option::of(reserved),
        brought,
    );
    let until = (any::<Option<NonZeroU32>>(), time(), time());
    (who, what, until).prop_map(|(who, what, until)| {
        let (allocation, path, user, transaction, is_tcp) = who;
        let (relays, missing_family, reservation, brought) = what;
        let protocol = match is_tcp {
            true => RelayProtocol::Tcp,
            false => RelayProtocol::Udp,
        };
        Change::Created(Box::new(Created {
            allocation,
            path,
            user,
            transaction,
            protocol,
            relays,
            missing_family,
            reservation,
            brought,
            bytes_per_s: until.0,
            created: until.1,
            expires: until.2,
        }))
    })
}

fn ended() -> impl Strategy<Value = Change> {
    let who = (allocation(), path(), user(), cause(), time(), time());
    let more = (
        transaction(),
        option::of(token()),
        option::of(path()),
        usage(),
    );
    (who, more).prop_map(|(who, more)| {
        let (allocation, path, user, cause, created, time) = who;
        let (created_by, redeemed, created_from, totals) = more;
        Change::Ended(Box::new(Ended {
            allocation,
            path,
            user,
            tunnel_to: None,
            cause,
            created,
            time,
            created_by,
            redeemed,
            created_from,
            totals,
        }))
    })
}

/// Returns a strategy that makes every change that a rebuild needs.
fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        created(),
        ended(),
        (allocation(), channel())
            .prop_map(|(allocation, number)| Change::ChannelExpired { allocation, number }),
        (allocation(), channel(), any::<SocketAddr>(), time()).prop_map(
            |(allocation, number, peer, expires)| Change::ChannelInstalled {
                allocation,
                number,
                peer,
                expires
            }
        ),
        (allocation(), family(), cause(), time()).prop_map(|(allocation, family, cause, time)| {
            Change::FamilyEnded {
                allocation,
                family,
                cause,
                time,
            }
        }),
        (allocation(), any::<SocketAddr>())
            .prop_map(|(allocation, peer)| Change::PeerClaimed { allocation, peer }),
        (allocation(), path(), time()).prop_map(|(allocation, path, time)| Change::Moved(
            Box::new(Moved {
                allocation,
                path,
                time
            })
        )),
        (allocation(), any::<IpAddr>())
            .prop_map(|(allocation, peer)| Change::PermissionExpired { allocation, peer }),
        (allocation(), any::<IpAddr>(), time()).prop_map(|(allocation, peer, expires)| {
            Change::PermissionInstalled {
                allocation,
                peer,
                expires,
                is_new: true,
            }
        }),
        (allocation(), user())
            .prop_map(|(allocation, user)| Change::Reauthorized { allocation, user }),
        (allocation(), option::of(family()), time(), usage()).prop_map(
            |(allocation, family, expires, usage)| Change::Refreshed {
                allocation,
                family,
                expires,
                usage
            }
        ),
        (allocation(), path(), transaction(), any::<u32>(), time()).prop_map(
            |(allocation, path, transaction, number, until)| Change::Resumed(Box::new(Resumed {
                allocation,
                path,
                transaction,
                number,
                until
            }))
        ),
    ]
}

fn written(changes: &[Change]) -> Vec<u8> {
    let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
    for change in changes {
        encoder.append(change, &mut bytes);
    }
    bytes
}

/// Returns what a change says, and the key of a token, which `Debug` leaves out.
fn said(change: &Change) -> (String, Option<[u8; 20]>) {
    let key = match change {
        Change::Created(created) => created.user.record().mac_key,
        Change::Ended(ended) => ended.user.record().mac_key,
        Change::Reauthorized { user, .. } => user.record().mac_key,
        _ => None,
    };
    (format!("{change:?}"), key)
}

proptest! {
    #[test]
    fn what_is_written_is_read(changes in vec(change(), 0..20)) {
        let bytes = written(&changes);
        let read = decode(&bytes, bytes.len()).unwrap().changes;
        prop_assert_eq!(read.len(), changes.len());
        for (read, change) in read.iter().zip(&changes) {
            prop_assert_eq!(said(read), said(change));
        }
    }

    #[test]
    fn what_was_being_written_is_cut(changes in vec(change(), 1..6), more in change()) {
        let committed = written(&changes).len();
        let mut all = changes.clone();
        all.push(more);
        let bytes = written(&all);
        for end in committed..bytes.len() {
            prop_assert_eq!(decode(&bytes[..end], committed).unwrap().changes.len(), changes.len());
        }
    }

    #[test]
    fn no_shorter_journal_is_read(changes in vec(change(), 1..4)) {
        let bytes = written(&changes);
        for end in 0..bytes.len() {
            prop_assert_eq!(decode(&bytes[..end], bytes.len()).unwrap_err(), Refused::Short);
        }
    }

    #[test]
    fn no_journal_with_another_byte_is_read(changes in vec(change(), 1..4), flip in 1..=255_u8) {
        let bytes = written(&changes);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            prop_assert!(decode(&damaged, bytes.len()).is_err());
        }
    }

    #[test]
    fn any_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..200)) {
        // Whatever a record says, it is a change or an error.
        let _ = decode(&bytes, bytes.len());
        let _ = super::record::decode(&bytes);
    }
}

#[test]
fn a_journal_without_one_of_its_records_is_refused() {
    let installed = |seconds| Change::PermissionInstalled {
        allocation: AllocationId::from_u64(7),
        peer: IpAddr::from([192, 0, 2, 1]),
        expires: Time::from_secs(seconds),
        is_new: true,
    };
    let ends: Vec<_> = (1..=3)
        .map(|count| written(&(0..count).map(installed).collect::<Vec<_>>()).len())
        .collect();
    let mut bytes = written(&[installed(0), installed(1), installed(2)]);
    bytes.drain(ends[0]..ends[1]);
    assert_eq!(decode(&bytes, bytes.len()).unwrap_err(), Refused::Sequence);
}

/// Makes an engine without allocations.
fn engine() -> Engine<Randomness> {
    let config = &configured(&[]);
    let engine = translate::engine(config, &KeyRing::new(config)).unwrap();
    let engine = Arc::new(engine);
    let commons = Commons::new(&engine);
    Engine::new(engine, commons, Randomness::of_system())
}

/// Makes segments whose word is in memory of their own.
fn segments() -> Segments {
    let memory = memfd_create("words", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 8).unwrap();
    Segments::new(Arc::new(Mapped::new(&memory, 1).unwrap()), 0).unwrap()
}

fn begin(segments: &Segments, before: &Recorded, engine: &Engine<Randomness>) -> Journal {
    begin_with(segments, before, engine, |_| 0)
}

fn begin_with(
    segments: &Segments,
    before: &Recorded,
    engine: &Engine<Randomness>,
    number: impl Fn(AllocationId) -> u64,
) -> Journal {
    let memory = Memory {
        count_max: 100,
        replay: Duration::from_secs(10),
        slices: Slices::SERVING,
    };
    Journal::begin(segments.clone(), memory, before, Time::ZERO, engine, number).unwrap()
}

fn family_ended(allocation: u64, seconds: u64) -> Change {
    Change::FamilyEnded {
        allocation: AllocationId::from_u64(allocation),
        family: Family::V4,
        cause: EndCause::Released(TransactionId::new([7; 12])),
        time: Time::from_secs(seconds),
    }
}

#[test]
fn what_is_noted_counts_when_it_is_committed() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    journal.append(&family_ended(1, 0));
    assert!(segments.read().unwrap().changes.is_empty());
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
    assert_eq!(segments.read().unwrap().changes.len(), 1);
}

#[test]
fn a_journal_that_is_begun_anew_has_the_ends_that_are_not_old() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    let refreshed = Change::Refreshed {
        allocation: AllocationId::from_u64(1),
        family: None,
        expires: Time::ZERO,
        usage: Usage::default(),
    };
    journal.append(&family_ended(1, 0));
    for _ in 0..20_000 {
        journal.append(&refreshed);
    }
    for allocation in 2..=200 {
        journal.append(&family_ended(allocation, 15));
    }
    let now = Time::from_secs(20);
    journal.commit(now, &engine, |_| 0).unwrap();
    let last = family_ended(201, 20);
    while journal.next.is_some() {
        journal.commit(now, &engine, |_| 0).unwrap();
    }
    journal.append(&last);
    journal.commit(now, &engine, |_| 0).unwrap();
    let read: Vec<_> = segments.read().unwrap().changes.iter().map(said).collect();
    let expected: Vec<_> = (101..=200)
        .map(|allocation| family_ended(allocation, 15))
        .chain([last])
        .map(|change| said(&change))
        .collect();
    assert_eq!(read, expected);
    // And so has the journal of the process that follows.
    let before = segments.read().unwrap();
    drop(begin(&segments, &before, &engine));
    let ends: Vec<_> = segments.read().unwrap().changes.iter().map(said).collect();
    assert_eq!(ends, expected[1..]);
}

#[test]
fn a_journal_that_was_given_up_is_not_read() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    segments.give_up();
    journal.append(&family_ended(1, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
    assert!(segments.read().is_err());
}

#[test]
fn a_journal_that_cannot_be_written_is_not_used_again() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    journal.append(&family_ended(1, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
    journal.segments = read_only(&segments);
    journal.append(&family_ended(2, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap_err();
    assert_eq!(segments.read().unwrap_err(), "it could not be written");
    // It says so once. What comes later is not on record, also where it could be written again: what was lost is not.
    journal.segments = segments.clone();
    journal.append(&family_ended(3, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
    assert_eq!(segments.read().unwrap_err(), "it could not be written");
}

#[test]
fn a_journal_that_cannot_be_written_keeps_nothing() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    journal.append(&family_ended(0, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
    journal.segments = read_only(&segments);
    journal.append(&family_ended(1, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap_err();
    assert_empty(&journal);
    for seconds in 2..10_000 {
        let now = Time::from_secs(seconds);
        journal.commit(now, &engine, |_| 0).unwrap();
        journal.append(&family_ended(seconds, seconds));
    }
    assert_empty(&journal);
}

fn assert_empty(journal: &Journal) {
    let Ends {
        allocations,
        families,
        ..
    } = &journal.ends;
    assert_eq!((allocations.len(), families.len()), (0, 0), "ends");
    assert_eq!(journal.current.bytes.capacity(), 0, "records");
    assert!(journal.next.is_none());
}

#[test]
fn a_journal_that_cannot_be_begun_leaves_what_was_on_record() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    journal.append(&family_ended(1, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
    let memory = journal.ends.memory;
    let begun = Journal::begin(
        read_only(&segments),
        memory,
        &Recorded::default(),
        Time::ZERO,
        &engine,
        |_| 0,
    );
    begun.unwrap_err();
    assert_eq!(segments.read().unwrap().changes.len(), 1);
}

/// Returns segments like these that cannot be written.
fn read_only(segments: &Segments) -> Segments {
    let files = segments.files.each_ref();
    let files = files.map(|file| File::open(path_of_descriptor(file.as_raw_fd())).unwrap());
    Segments::of_other(files, Arc::clone(&segments.words), segments.index)
}

#[test]
fn a_journal_of_another_layout_is_not_read() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    journal.append(&family_ended(1, 0));
    journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
    let word = segments.word();
    let (is_second, len) = (word & SECOND != 0, word & ((1 << LEN_BITS) - 1));
    assert_eq!(word, word_in(LAYOUT, is_second, len));
    for layout in [LAYOUT - 1, LAYOUT + 1, LAYOUT + 2, u64::MAX] {
        segments.set_word(word_in(layout, is_second, len));
        let why = segments.read().unwrap_err();
        assert!(why.ends_with("is not one of this program"), "{why}");
    }
    segments.set_word(word);
    assert_eq!(segments.read().unwrap().changes.len(), 1);
}

#[test]
fn a_word_with_another_bit_or_without_a_checksum_is_not_believed() {
    let (segments, engine) = (segments(), engine());
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    for seconds in 0..40 {
        journal.append(&family_ended(1, seconds));
        journal.commit(Time::ZERO, &engine, |_| 0).unwrap();
        let word = segments.word();
        for bit in 0..u64::BITS {
            segments.set_word(word ^ 1 << bit);
            let read = segments.read().map(|read| read.changes.len());
            assert!(read.is_err(), "bit {bit} after {seconds} s: {read:?}");
        }
        segments.set_word(word & (SECOND | ((1 << LEN_BITS) - 1)));
        assert!(segments.read().is_err(), "a word without a checksum");
        segments.set_word(word);
    }
    assert_eq!(segments.read().unwrap().changes.len(), 40);
}

/// Returns what the last record about an allocation says that it has relayed to its peers.
fn relayed(segments: &Segments) -> u64 {
    let changes = segments.read().unwrap().changes;
    let mut usages = changes.iter().filter_map(|change| match change {
        Change::Refreshed { usage, .. } => Some(usage.peer_sent.datagrams),
        _ => None,
    });
    usages.next_back().expect("a refresh")
}

/// Makes an engine with one call.
fn engine_with_a_call() -> (Engine<Randomness>, AllocationId) {
    let config = configured(&["--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1"]);
    let [client, listener, local] =
        ["203.0.113.7:5000", "127.0.0.1:3478", "127.0.0.1:50000"].map(|it| it.parse().unwrap());
    let external = local;
    let call = call(7, [client, listener], Relayed { local, external });
    let config = Arc::new(translate::engine(&config, &KeyRing::new(&config)).unwrap());
    let now = turnbuckle_engine::Now {
        time: Time::ZERO,
        unix_s: 0,
    };
    let engine = Engine::rebuild(
        Arc::clone(&config),
        Commons::new(&config),
        Randomness::of_system(),
        now,
        [(turnbuckle_engine::Endpoint(1), listener)],
        [call.clone()],
        |_| Some(turnbuckle_engine::Endpoint(2)),
    );
    (engine, call.allocation())
}

#[test]
fn what_a_call_has_relayed_is_on_record_soon_and_exact_when_it_is_handed_over() {
    let (mut engine, call) = engine_with_a_call();
    let segments = segments();
    let mut journal = begin(&segments, &Recorded::default(), &engine);
    let relay = |engine: &mut Engine<Randomness>, count| {
        let datagrams = Traffic {
            datagrams: count,
            bytes: 100 * count,
        };
        let traffic = turnbuckle_engine::Unasked {
            to_peers: datagrams,
            ..Default::default()
        };
        engine.absorb(call, &traffic);
    };
    relay(&mut engine, 5);
    journal.commit(Time::from_secs(9), &engine, |_| 0).unwrap();
    assert_eq!(relayed(&segments), 0);
    journal.commit(Time::from_secs(10), &engine, |_| 0).unwrap();
    assert_eq!(relayed(&segments), 5);
    relay(&mut engine, 3);
    journal.seal(Time::from_secs(11), &engine).unwrap();
    assert_eq!(relayed(&segments), 8);
}

#[test]
fn sessions_keep_their_numbers_and_the_highest_is_known_when_it_has_ended() {
    let (segments, (engine, call)) = (segments(), engine_with_a_call());
    let number = |allocation| if allocation == call { 17 } else { 0 };
    let ended = AllocationId::from_u64(8);
    let mut before = Recorded::default();
    for life in 0..3 {
        let mut journal = begin_with(&segments, &before, &engine, number);
        if life == 0 {
            journal.append_number(ended, 99);
            journal.append_number(AllocationId::from_u64(9), 98);
        }
        journal.commit(Time::ZERO, &engine, number).unwrap();
        before = segments.read().unwrap();
        assert_eq!(before.numbers.of(call), Some(17));
        assert_eq!(before.numbers.highest, Some((ended, 99)));
    }
}
