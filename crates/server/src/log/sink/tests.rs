//! Lines with levels and times, files that roll over.

use super::*;

fn settings(folder: &std::path::Path) -> Settings {
    Settings {
        sessions: false,
        requests: false,
        binding: false,
        statistics_interval: std::time::Duration::from_secs(10),
        statistics_file: None,
        to_stdout: false,
        file: Some(folder.join("turn.log")),
        usual_file: false,
        is_dated: false,
        syslog: crate::config::Syslog::default(),
        level_min: Level::Debug,
        timestamps: Timestamps::None,
    }
}

fn written(settings: &Settings, lines: &str) -> String {
    let mut sink = Sink::open(settings, &Process::default()).expect("opened");
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
    settings.timestamps = Timestamps::Format("%Y|%f".into());
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
    settings.timestamps = Timestamps::Elapsed;
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
    let date = Zoned::now().date();
    let names = |folder: &std::path::Path| -> Vec<String> {
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
    let mut sink = Sink::open(&settings(folder.path()), &Process::default()).unwrap();
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
    let mut settings = settings(std::path::Path::new("/nonexistent"));
    assert!(Sink::open(&settings, &Process::default()).is_err());
    settings.file = None;
    assert!(
        Sink::open(&settings, &Process::default())
            .unwrap()
            .path()
            .is_none()
    );
}
