//! The file that a configuration is read from, at the start and at a reload.
//!
//! Invariant: a reload takes a file only if nobody seems to be writing it. A part of a file would be a configuration too, with fewer rules.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Largest file that is read. A file that denies a million ranges has half of it.
const LEN_MAX: u64 = 64 << 20;

/// How long a file has to have been left alone before a reload takes it.
const QUIET: Duration = Duration::from_millis(250);

/// How often a reload reads a file that somebody writes to before it gives up.
const READINGS_MAX: u32 = 3;

/// What a reload has to know about the file that was read before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceFile {
    pub(crate) path: PathBuf,
    sets_something: bool,
    ends_in_newline: bool,
}

impl SourceFile {
    fn new(path: &Path, content: &[u8]) -> Self {
        let is_setting = |line: &[u8]| {
            let line = line.trim_ascii_start();
            !line.is_empty() && !line.starts_with(b"#")
        };
        Self {
            path: path.to_owned(),
            sets_something: content.split(|byte| *byte == b'\n').any(is_setting),
            ends_in_newline: content.ends_with(b"\n"),
        }
    }

    /// Reads a file for the first time.
    ///
    /// # Errors
    ///
    /// Why it cannot be read.
    pub(crate) fn read(path: &Path) -> Result<(Self, Vec<u8>), String> {
        let content = File::open(path)
            .and_then(|file| content(&file))
            .map_err(|error| format!("cannot be read: {error}"))?;
        Ok((Self::new(path, &content), content))
    }

    /// Reads the file again.
    ///
    /// # Errors
    ///
    /// Why it cannot be read, or why what was read may be a part of the file only.
    pub(crate) fn read_again(&self) -> Result<(Self, Vec<u8>), String> {
        let pause = || std::thread::sleep(QUIET);
        let content = settled(|| read_between_looks(&self.path), pause)?;
        let next = Self::new(&self.path, &content);
        if content.contains(&0) {
            return Err(
                "contains NUL bytes, so it may not have been written to its end; write it again"
                    .to_owned(),
            );
        }
        if self.sets_something && !next.sets_something {
            return Err(
                "sets nothing any more; restart the server to run it on defaults".to_owned(),
            );
        }
        if self.ends_in_newline && !next.ends_in_newline {
            return Err(
                "ended in a newline before and no longer does, so it may not have been written \
                 to its end; end its last line with a newline"
                    .to_owned(),
            );
        }
        Ok((next, content))
    }
}

/// Has a file `read` until nobody has written to it for a while, and returns what was read last.
fn settled(
    mut read: impl FnMut() -> io::Result<(Stamp, Vec<u8>)>,
    pause: impl Fn(),
) -> Result<Vec<u8>, String> {
    let mut last = None;
    for _ in 0..READINGS_MAX {
        let read = read().map_err(|error| format!("cannot be read: {error}"))?;
        // A clock that was set back makes files look new.
        let is_same = read.0.modified.is_some() && last.as_ref() == Some(&read);
        if read.0.is_quiet() || is_same {
            return Ok(read.1);
        }
        last = Some(read);
        pause();
    }
    Err(
        "is being written; reload when it is whole, or write another file beside it and rename \
         that one"
            .to_owned(),
    )
}

/// Reads a file, and says when it had last been written to; at an unknown time if it was while it was read.
fn read_between_looks(path: &Path) -> io::Result<(Stamp, Vec<u8>)> {
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let file = File::open(path)?;
    let before = Stamp::of(&file)?;
    let content = content(&file)?;
    let after = Stamp::of(&file)?;
    match before == after {
        true => Ok((after, content)),
        false => Ok((Stamp::default(), content)),
    }
}

/// What tells that a file is another one than before, or has been written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stamp {
    inode: u64,
    len: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self {
            inode: metadata.ino(),
            len: metadata.len(),
            modified: Some(metadata.modified()?),
        })
    }

    fn is_quiet(self) -> bool {
        let age = self.modified.and_then(|at| at.elapsed().ok());
        age.is_some_and(|age| age >= QUIET)
    }
}

fn content(file: &File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(LEN_MAX + 1).read_to_end(&mut content)?;
    match u64::try_from(content.len()) {
        Ok(..=LEN_MAX) => Ok(content),
        _ => Err(io::Error::other(format!(
            "it has more than {LEN_MAX} bytes, which no configuration needs"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: Option<SystemTime> = Some(SystemTime::UNIX_EPOCH);

    /// Returns what comes of readings, each the content and when it had been written, and how many were needed.
    fn after(readings: &[(&str, Option<SystemTime>)]) -> (Result<String, String>, usize) {
        let mut count = 0;
        let read = || {
            let (content, modified) = readings[count];
            count += 1;
            let stamp = Stamp {
                modified,
                ..Stamp::default()
            };
            Ok((stamp, content.as_bytes().to_vec()))
        };
        let result = settled(read, || {});
        let text = result.map(|content| String::from_utf8(content).expect("text"));
        (text, count)
    }

    #[test]
    fn a_file_is_taken_once_nobody_writes_to_it() {
        let hour = Duration::from_secs(3600);
        let later = |hours| SystemTime::now().checked_add(hour * hours);
        let whole = |content: &str, count| (Ok(content.to_owned()), count);
        assert_eq!(after(&[("a", LONG_AGO)]), whole("a", 1));
        let [now, next, last] = [1, 2, 3].map(later);
        assert_eq!(after(&[("a", now), ("a", now)]), whole("a", 2));
        let grown = [("a", now), ("ab", next), ("ab", next)];
        assert_eq!(after(&grown), whole("ab", 3));
        let in_time = [("a", now), ("ab", LONG_AGO)];
        assert_eq!(after(&in_time), whole("ab", 2));
        // It grows on, or was written to while it was read.
        let (refused, _) = after(&[("a", now), ("ab", next), ("abc", last)]);
        assert!(refused.is_err_and(|why| why.contains("is being written")));
        assert!(after(&[("a", None); 3]).0.is_err());
    }

    #[test]
    fn what_has_more_bytes_than_any_configuration_is_not_read() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("large");
        let file = File::create(&path).expect("made");
        // It takes no room on the disk.
        file.set_len(LEN_MAX + 1).expect("set");
        let refused = SourceFile::read(&path);
        assert!(refused.is_err_and(|why| why.contains("more than 67108864 bytes")));
    }
}
