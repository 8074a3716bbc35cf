//! Lines with levels and times, files that roll over, records for programs, outputs that block.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::*;
use crate::config::{Form, LogFormat, Timestamps};

fn settings(folder: &Path) -> Settings {
    Settings {
        sessions: false,
        requests: false,
        binding: false,
        statistics_interval: Duration::from_secs(10),
        statistics_file: None,
        to_stdout: false,
        file: Some(folder.join("turn.log")),
        usual_file: false,
        is_dated: false,
        syslog: crate::config::Syslog::default(),
        level_min: Level::Debug,
        form: Form::default(),
    }
}

/// Returns an entry of now.
pub(super) fn entry(message: &str) -> Arc<Entry> {
    Arc::new(Entry {
        level: Level::Info,
        message: message.to_owned(),
        time: Timestamp::now(),
        elapsed: Duration::ZERO,
        session: None,
    })
}

fn written(settings: &Settings, lines: &str) -> String {
    let mut sink = Sink::open(settings, &Process::default(), Persona::Turnserver).expect("opened");
    write!(sink, "{lines}").expect("written");
    sink.flush().expect("written");
    std::fs::read_to_string(sink.path().expect("a file")).expect("read")
}

#[test]
fn lines_are_written_as_they_are_where_no_time_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let text = written(
        &settings(folder.path()),
        "one\nwarning: two\nnot yet a line",
    );
    assert_eq!(text, "one\nwarning: two\n");
}

#[test]
fn a_record_has_time_level_and_message_and_those_below_the_level_are_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    settings.form.timestamps = Timestamps::Format("%Y|%f".into());
    let text = written(&settings, "one\nwarning: two\nerror: three\n");
    let lines: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .collect();
    assert_eq!(
        lines.iter().map(|line| line.1).collect::<Vec<_>>(),
        ["INFO one", "WARNING two", "ERROR three"]
    );
    for (time, _) in lines {
        let (year, milliseconds) = time.split_once('|').expect("both");
        assert!(
            year.parse::<u32>().unwrap() > 2000 && milliseconds.len() == 3,
            "{time}"
        );
    }
    settings.form.timestamps = Timestamps::Elapsed;
    settings.level_min = Level::Warning;
    std::fs::remove_file(folder.path().join("turn.log")).unwrap();
    assert_eq!(
        written(&settings, "one\nwarning: two\n"),
        "0: WARNING two\n"
    );
}

#[test]
fn a_record_ends_after_1024_bytes_between_two_characters() {
    let folder = tempfile::tempdir().unwrap();
    let text = written(
        &settings(folder.path()),
        &format!("x{}\n", "é".repeat(2000)),
    );
    assert_eq!(text.len(), 1024, "1023 bytes and the end of the line");
}

#[test]
fn a_dated_file_has_the_day_before_its_extension() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = settings(folder.path());
    settings.is_dated = true;
    written(&settings, "one\n");
    let date = jiff::Zoned::now().date();
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    };
    assert_eq!(names(folder.path()), [format!("turn_{date}.log")]);
}

#[test]
fn a_file_that_was_moved_away_is_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut sink = Sink::open(
        &settings(folder.path()),
        &Process::default(),
        Persona::Turnserver,
    )
    .unwrap();
    let (path, moved) = (
        folder.path().join("turn.log"),
        folder.path().join("turn.log.1"),
    );
    writeln!(sink, "one").unwrap();
    sink.flush().unwrap();
    std::fs::rename(&path, &moved).unwrap();
    writeln!(sink, "two").unwrap();
    sink.flush().unwrap();
    assert_eq!(std::fs::read_to_string(moved).unwrap(), "one\n");
    assert_eq!(std::fs::read_to_string(path).unwrap(), "two\n");
}

#[test]
fn a_file_that_was_named_and_cannot_be_opened_is_an_error() {
    let mut settings = settings(Path::new("/nonexistent"));
    assert!(Sink::open(&settings, &Process::default(), Persona::Turnserver).is_err());
    settings.file = None;
    assert!(
        Sink::open(&settings, &Process::default(), Persona::Turnserver)
            .unwrap()
            .path()
            .is_none()
    );
}

/// Names that try to end a value, a field, a record or a line, to begin others, and to move a cursor.
const HOSTILE: [&str; 7] = [
    "a\r\n<30>1 - - - - - forged",
    "a\",\"level\":\"error\",\"x\":\"",
    "a\"] [forged@1 user=\"b\\",
    "a\nPRIORITY=0\nMESSAGE=forged",
    "a\nTURN_USER\n\u{5}\0\0\0\0\0\0\0",
    "a\u{1b}]0;title\u{7}\u{9b}2J\u{202e}\u{2028}\u{85}",
    "zo\u{eb}\u{1f600}\\'<b>",
];

fn of_session(user: &str) -> Arc<Entry> {
    let session = Summary::of_user(user);
    Arc::new(Entry {
        level: Level::Info,
        message: session.message(),
        time: Timestamp::now(),
        elapsed: Duration::ZERO,
        session: Some(session),
    })
}

fn record(format: LogFormat, entry: &Entry) -> String {
    let form = Form {
        format,
        timestamps: Timestamps::None,
    };
    let format = Format::new(&form, Header::new(3, "turnbuckle"));
    format.record(entry).expect("a record")
}

fn is_one_printable_line(record: &str) -> bool {
    record
        .chars()
        .all(|character| !character.is_control() && !('\u{2028}'..='\u{202e}').contains(&character))
}

//= V-73
#[test]
fn a_name_stays_in_its_member_of_the_json_and_comes_out_as_it_was() {
    for user in HOSTILE {
        let line = record(LogFormat::Json, &of_session(user));
        assert!(is_one_printable_line(&line), "{line:?}");
        let object: serde_json::Value = serde_json::from_str(&line).expect("an object");
        assert_eq!(object["user"], user, "{line}");
        assert_eq!(object["level"], "info");
        assert_eq!(object["event"], "session_ended");
        assert_eq!(object["transport"], "TLS");
        assert_eq!(object["relay"], "192.0.2.1:50000");
        assert_eq!(object["reason"], "expired");
        assert_eq!(object["duration_ms"], 1_500);
        assert_eq!(object["client_in"], 1);
        assert_eq!(object["peer_out_bytes"], 400);
        assert_eq!(object.as_object().map(serde_json::Map::len), Some(21));
    }
    let line = record(LogFormat::Json, &entry("a \"quoted\" word"));
    let object: serde_json::Value = serde_json::from_str(&line).expect("an object");
    assert_eq!(object["message"], "a \"quoted\" word");
    assert!(
        object["time"]
            .as_str()
            .unwrap()
            .parse::<Timestamp>()
            .is_ok()
    );
}

/// Returns the header's fields, the parameters of the one element, and the message, by the grammar of RFC 5424 §6.
fn parse_rfc5424(record: &str) -> (Vec<&str>, BTreeMap<String, String>, &str) {
    let mut rest = record;
    let header: Vec<&str> = (0..6)
        .map(|_| {
            let (field, after) = rest.split_once(' ').expect("a field");
            rest = after;
            field
        })
        .collect();
    let mut parameters = BTreeMap::new();
    if let Some(after) = rest.strip_prefix("- ") {
        return (header, parameters, after);
    }
    rest = rest.strip_prefix("[session@32473").expect("an element");
    while let Some(after) = rest.strip_prefix(' ') {
        let (name, after) = after.split_once("=\"").expect("a parameter");
        let (mut value, mut characters) = (String::new(), after.char_indices());
        let end = loop {
            match characters.next().expect("the end of the value") {
                (end, '"') => break end,
                (_, ']') => panic!("a bracket that is not escaped in {record}"),
                (_, '\\') => value.push(characters.next().expect("an escaped character").1),
                (_, character) => value.push(character),
            }
        };
        parameters.insert(name.to_owned(), value);
        rest = &after[end + 1..];
    }
    (
        header,
        parameters,
        rest.strip_prefix("] ").expect("the end"),
    )
}

//= V-73
#[test]
fn a_name_stays_in_its_parameter_of_the_structured_data() {
    for user in HOSTILE {
        let line = record(LogFormat::Rfc5424, &of_session(user));
        assert!(is_one_printable_line(&line), "{line:?}");
        let (header, parameters, message) = parse_rfc5424(&line);
        assert_eq!(
            (header[0], header[3], header[5]),
            ("<30>1", "turnbuckle", "SESSION")
        );
        assert_eq!(parameters.len(), 17);
        assert_eq!(
            parameters["user"],
            crate::log::text::printable(user),
            "{line}"
        );
        assert_eq!(parameters["client_out"], "2");
        assert_eq!(
            message,
            "session 000000000000000007: ended, reason: expired"
        );
    }
    let line = record(LogFormat::Rfc5424, &entry("a line"));
    let (header, parameters, message) = parse_rfc5424(&line);
    assert!(header[1].parse::<Timestamp>().is_ok(), "{line}");
    assert_eq!((header[5], parameters.len(), message), ("-", 0, "a line"));
}

/// Returns the fields of a datagram of the journal's own protocol.
fn parse_journal(mut datagram: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    while !datagram.is_empty() {
        let end = datagram
            .iter()
            .position(|&byte| byte == b'=' || byte == b'\n');
        let (name, rest) = datagram.split_at(end.expect("the end of a name"));
        let (value, rest) = match rest[0] {
            b'=' => {
                let end = rest.iter().position(|&byte| byte == b'\n').expect("a line");
                (&rest[1..end], &rest[end..])
            }
            _ => {
                let (len, rest) = rest[1..].split_first_chunk().expect("a length");
                rest.split_at(usize::try_from(u64::from_le_bytes(*len)).unwrap())
            }
        };
        assert_eq!(rest[0], b'\n');
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        fields.push((text(name), text(value)));
        datagram = &rest[1..];
    }
    fields
}

//= V-73
#[test]
fn a_name_stays_in_its_field_of_the_journal_and_comes_out_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let listener = UnixDatagram::bind(&path).unwrap();
    let mut journal = Journal::new(&path, Header::new(3, "turnbuckle"));
    for user in HOSTILE {
        journal.send(&of_session(user)).unwrap();
        let mut datagram = [0; 4096];
        let len = listener.recv(&mut datagram).unwrap();
        let fields = parse_journal(&datagram[..len]);
        let values = |wanted: &str| -> Vec<&str> {
            let found = fields.iter().filter(|(name, _)| name == wanted);
            found.map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!(fields.len(), 4 + 17);
        assert_eq!(values("PRIORITY"), ["6"]);
        assert_eq!(values("TURN_USER"), [user]);
        assert_eq!(values("TURN_CLIENT"), ["198.51.100.7:4000"]);
        let message = "session 000000000000000007: ended, reason: expired";
        assert_eq!(values("MESSAGE"), [message]);
    }
}

#[test]
fn text_has_no_summaries() {
    let format = Format::new(&Form::default(), Header::new(3, "turnbuckle"));
    assert_eq!(format.record(&of_session("alice")), None);
}

#[test]
fn syslog_gets_priority_program_and_process_before_the_line_in_each_form() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("syslog");
    let header = Header::new(16, "turnserver");
    let line = |format: LogFormat| {
        // A daemon that is started again is found again.
        let _ = std::fs::remove_file(&path);
        let daemon = UnixDatagram::bind(&path).unwrap();
        let form = Form {
            format,
            timestamps: Timestamps::None,
        };
        let mut syslog = Syslog::new(&path, header.clone(), Format::new(&form, header.clone()));
        syslog.send(&entry("a line")).unwrap();
        let mut datagram = [0; 1024];
        let len = daemon.recv(&mut datagram).unwrap();
        String::from_utf8(datagram[..len].to_vec()).unwrap()
    };
    let pid = std::process::id();
    let beginning = format!("<134>turnserver[{pid}]: ");
    assert_eq!(line(LogFormat::Coturn), format!("{beginning}a line"));
    let json = line(LogFormat::Json);
    assert!(
        json.starts_with(&format!("{beginning}{{\"time\":")),
        "{json}"
    );
    let whole = line(LogFormat::Rfc5424);
    assert!(
        whole.starts_with("<134>1 2") && whole.ends_with(" - - a line"),
        "{whole}"
    );
}

#[test]
fn a_syslog_that_reads_nothing_holds_nobody_up_and_what_finds_no_room_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("syslog");
    let daemon = UnixDatagram::bind(&path).unwrap();
    // What others have sent fills its queue, so nothing of what follows is taken before it reads.
    let mut filled = 0;
    loop {
        let other = UnixDatagram::unbound().unwrap();
        other.set_nonblocking(true).unwrap();
        let sent = std::iter::from_fn(|| other.send_to(b"another's", &path).ok()).count();
        if sent == 0 {
            break;
        }
        filled += sent;
    }
    let header = Header::new(3, "turnserver");
    let format = Format::new(&Form::default(), header.clone());
    let mut syslog = Syslog::new(&path, header, format);
    let lost = Arc::default();
    let outlet = Outlet::start("test", &lost, move |entry| syslog.send(entry)).unwrap();
    let count: usize = 3_000;
    for number in 0..count {
        outlet.put(&entry(&format!("line {number}")));
    }
    let lost = || usize::try_from(lost.load(Ordering::Relaxed)).unwrap();
    assert!(lost() > 0, "the socket has taken {count} lines");
    // It reads again: what waited arrives in its order, and the number of what was lost.
    let mut datagram = [0; 1024];
    for _ in 0..filled {
        assert_eq!(daemon.recv(&mut datagram).unwrap(), b"another's".len());
    }
    let mut next = || {
        let len = daemon.recv(&mut datagram).unwrap();
        let text = String::from_utf8(datagram[..len].to_vec()).unwrap();
        text.split_once(": ").expect("a line").1.to_owned()
    };
    for number in 0..count - lost() {
        assert_eq!(next(), format!("line {number}"));
    }
    outlet.put(&entry("after"));
    let notice = format!("{} lines before the next one were lost", lost());
    assert_eq!([next(), next()], [notice, "after".to_owned()]);
}
