//! How much strangers can have written, and what they can have written.

use turnbuckle_engine::{AllocationId, ClientTuple, Connection, Endpoint, Moved, Resumed};
use turnbuckle_wire::{Class, IntegrityKey, MessageWriter, TransactionId};

use super::*;

const EVERYTHING: Lines = Lines {
    sessions: true,
    binding: true,
};

fn client(port: u16) -> ClientTuple {
    ClientTuple::udp(Endpoint(0), SocketAddr::from(([198, 51, 100, 7], port)))
}

fn path(port: u16) -> Path {
    Path {
        server: SocketAddr::from(([192, 0, 2, 1], 3478)),
        client: client(port).remote,
        transport: Transport::Udp,
    }
}

fn recorded(port: u16) -> turnbuckle_engine::Path {
    let path = path(port);
    turnbuckle_engine::Path {
        server: path.server,
        client: path.client,
        transport: path.transport,
        connection: Connection::default(),
    }
}

fn message(class: Class, error: Option<u16>, realm: &str, user: &str) -> Vec<u8> {
    let mut bytes = vec![0; 1232];
    let transaction = TransactionId::new([1; 12]);
    let mut writer = MessageWriter::new(&mut bytes, class, Method::ALLOCATE, transaction);
    if let Some(code) = error {
        writer.error_code(code, "");
    }
    if !realm.is_empty() {
        writer.realm(realm.as_bytes());
    }
    if !user.is_empty() {
        writer.username(user.as_bytes());
        writer.integrity(&IntegrityKey::sha1(&[0; 16]));
    }
    let len = writer.finish().expect("it fits");
    bytes.truncate(len);
    bytes
}

fn refused(sessions: &mut Sessions, port: u16, user: &str, now: Time) -> Vec<String> {
    let answer = message(Class::Error, Some(401), "crinna.org", "");
    let answer = Answer::of(client(port), &answer).expect("one");
    let asked = Asked::of(&message(Class::Request, None, "forged.org", user), &answer);
    sessions.answered(path(port), &answer, &asked, None, None, now)
}

/// 200,000 requests in ten seconds, from 50,000 ports, with names and without.
#[test]
fn strangers_fill_the_log_with_less_than_10_kilobytes_a_second() {
    //= V-50
    for shards in [1, 4] {
        let mut all: Vec<_> = (0..shards)
            .map(|shard| {
                Sessions::new(
                    EVERYTHING,
                    shard,
                    shards,
                    "example.org",
                    SessionNumbers::after(0),
                )
            })
            .collect();
        let mut bytes = 0;
        for number in 0..200_000_u64 {
            let now = Time::from_nanos(1_000_000_000_000 + number * 50_000);
            let port = u16::try_from(number % 50_000 + 1).expect("a port");
            let user = if number % 2 == 0 { "someone" } else { "" };
            let sessions = &mut all[usize::from(port) % shards];
            let mut lines = refused(sessions, port, user, now);
            lines.extend(sessions.connected(path(port).client, now));
            lines.extend(sessions.disconnected(path(port), true, now));
            lines.extend(sessions.expired(now));
            bytes += lines.iter().map(|line| line.len() + 36).sum::<usize>();
        }
        assert!(
            bytes / 10 < 10_000,
            "{shards} shards: {} bytes/s",
            bytes / 10
        );
        assert!(
            bytes / 10 > 1_000,
            "{shards} shards: {} bytes/s",
            bytes / 10
        );
    }
}

#[test]
fn what_was_left_out_is_counted() {
    let mut sessions = Sessions::new(EVERYTHING, 0, 1, "example.org", SessionNumbers::after(0));
    for _ in 0..1_000 {
        refused(&mut sessions, 1, "", Time::from_secs(1));
    }
    let lines = refused(&mut sessions, 1, "", Time::from_secs(100));
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].ends_with(": 968 lines before this one were left out"),
        "{lines:?}"
    );
}

#[test]
fn a_name_cannot_forge_a_line_or_push_the_end_out_of_it() {
    //= V-73
    let mut sessions = Sessions::new(EVERYTHING, 0, 1, "example.org", SessionNumbers::after(0));
    let name = format!(
        "x\r\n2026-01-01 INFO session 1> realm <{}",
        "\u{1b}[2K".repeat(80)
    );
    let mut lines = refused(&mut sessions, 1, &name, Time::from_secs(1));
    lines.extend(sessions.expired(Time::from_secs(100)));
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines {
        assert!(
            line.bytes().all(|byte| (0x20..0x7f).contains(&byte)),
            "{line}"
        );
        assert!(line.len() < 900, "{line}");
        assert!(line.matches('>').count() <= 3, "{line}");
    }
    assert!(
        lines[2].ends_with(
            "remote 198.51.100.7:1, reason: allocation watchdog determined stale session state"
        ),
        "{lines:?}"
    );
}

#[test]
fn a_refusal_stands_under_the_realm_that_was_asked_for() {
    let mut sessions = Sessions::new(EVERYTHING, 0, 1, "example.org", SessionNumbers::after(0));
    let now = Time::from_secs(1);
    let mut lines = refused(&mut sessions, 1, "alice", now);
    lines.extend(sessions.disconnected(path(1), true, now));
    let told: Vec<_> = lines.iter().filter(|line| line.contains("realm")).collect();
    assert_eq!(told.len(), 2, "{lines:?}");
    for line in told {
        assert!(line.contains("realm <crinna.org>"), "{line}");
    }
    // One that has proved who it is says itself which realm it is in.
    let answer = message(Class::Error, Some(486), "", "alice");
    let answer = Answer::of(client(2), &answer).expect("one");
    let asked = message(Class::Request, None, "crinna.org", "alice");
    let asked = Asked::of(&asked, &answer);
    let lines = sessions.answered(path(2), &answer, &asked, None, None, now);
    assert!(
        lines[0].contains("realm <crinna.org> user <alice>"),
        "{lines:?}"
    );
}

#[test]
fn without_verbose_only_what_went_wrong_is_said() {
    let quiet = Lines {
        sessions: false,
        binding: false,
    };
    let mut sessions = Sessions::new(quiet, 0, 1, "example.org", SessionNumbers::after(0));
    let now = Time::from_secs(1);
    // The first challenge of all, and no further one.
    assert_eq!(refused(&mut sessions, 1, "", now), [CHALLENGE]);
    assert!(refused(&mut sessions, 1, "", now).is_empty());
    assert_eq!(
        refused(&mut sessions, 1, "alice", now),
        [
            "error: session 000000000000000001: check_stun_auth: user alice credentials are incorrect"
        ]
    );
    assert_eq!(sessions.next_timeout(), None);
}

#[test]
fn a_source_is_named_once_in_a_window_for_challenges_and_once_for_other_responses() {
    //= V-50
    let mut sessions = Sessions::new(EVERYTHING, 0, 1, "example.org", SessionNumbers::after(0));
    let source = client(1).remote.ip();
    let mut told = Vec::new();
    for number in 0..30_000_u64 {
        let now = Time::from_nanos(1_000_000_000_000 + number * 100_000);
        for code in [401, 438, 400] {
            told.extend(sessions.suppressed(source, code, now));
        }
    }
    let ends = "suppressing responses for this window";
    let of = |what: &str| {
        let line = format!("{what}, {ends}");
        told.iter().filter(|told| **told == line).count()
    };
    let of_challenges = of("401 rate-limit exceeded from 198.51.100.7");
    let of_others = of("unauthorized-response rate-limit exceeded from 198.51.100.7 (error 438)");
    // Three seconds.
    assert_eq!((of_challenges, of_others, told.len()), (3, 3, 6));
}

#[test]
fn sources_without_number_are_named_at_the_pace_of_all_lines_about_strangers() {
    //= V-50
    let mut sessions = Sessions::new(EVERYTHING, 0, 1, "example.org", SessionNumbers::after(0));
    let mut count = 0;
    for number in 0..100_000_u32 {
        let now = Time::from_nanos(1_000_000_000_000 + u64::from(number) * 100_000);
        let source = IpAddr::from(number.to_be_bytes());
        count += u64::from(sessions.suppressed(source, 401, now).is_some());
    }
    // Ten seconds.
    assert!(count <= STRANGER_LINES_PER_S * 11, "{count}");
}

#[test]
fn a_resume_that_takes_the_place_of_another_and_the_end_of_moving_are_told() {
    let silent = Lines {
        sessions: false,
        binding: false,
    };
    let mut sessions = Sessions::new(silent, 0, 1, "example.org", SessionNumbers::after(0));
    let now = Time::from_secs(1_000);
    let allocation = AllocationId::from_u64(1);
    let transaction = TransactionId::new([1; 12]);
    let session = LoggedSession {
        number: 1,
        path: path(1),
        realm: "example.org".to_owned(),
        user: "alice".to_owned(),
        origin: String::new(),
        seal: None,
        peers: BTreeSet::new(),
        is_broken: false,
        reported: Usage::default(),
        requests: REQUESTS,
        resumed: None,
    };
    sessions.by_allocation.insert(allocation.to_u64(), session);
    let mut resume = |port: u16| {
        let resumed = Resumed {
            allocation,
            path: recorded(port),
            transaction,
            number: port.into(),
            until: now,
        };
        sessions.changed(&Change::Resumed(Box::new(resumed)), 1, now)
    };
    assert!(resume(2).is_empty());
    let title = "session 000000000000000001";
    let line = format!("{title}: remote 198.51.100.7:2 superseded by newer mobility resume");
    assert_eq!(resume(3), [line]);
    let moved = Moved {
        allocation,
        path: recorded(3),
        time: now,
    };
    let line = format!("{title}: mobility handoff completed, remote 198.51.100.7:3");
    assert_eq!(
        sessions.changed(&Change::Moved(Box::new(moved)), 1, now),
        [line]
    );
}

#[test]
fn what_is_refused_on_a_shared_relay_socket_has_coturns_words() {
    let mut sessions = Sessions::new(EVERYTHING, 0, 1, "example.org", SessionNumbers::after(0));
    let now = Time::from_secs(1);
    let reached = Change::PeerLimitReached {
        allocation: AllocationId::from_u64(7),
        peer: SocketAddr::from(([192, 0, 2, 9], 7000)),
        limit: 256,
    };
    assert_eq!(
        sessions.changed(&reached, 1, now),
        [
            "warning: multiplex-peer: allocation reached its 256 peer-endpoint limit (at 192.0.2.9:7000); further endpoints are rejected"
        ]
    );
    let said = "EVEN-PORT is not supported with multiplex-peer";
    let mut bytes = vec![0; 1232];
    let transaction = TransactionId::new([1; 12]);
    let mut writer = MessageWriter::new(&mut bytes, Class::Error, Method::ALLOCATE, transaction);
    writer.error_code(508, said);
    writer.integrity(&IntegrityKey::sha1(&[0; 16]));
    let len = writer.finish().expect("it fits");
    let answer = Answer::of(client(1), &bytes[..len]).expect("one");
    let asked = Asked::of(&message(Class::Request, None, "", "alice"), &answer);
    let lines = sessions.answered(path(1), &answer, &asked, None, None, now);
    let end = format!("incoming packet ALLOCATE processed, error 508: {said}");
    assert!(lines.iter().any(|line| line.ends_with(&end)), "{lines:?}");
}
