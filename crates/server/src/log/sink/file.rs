//! Writes a log file. A new file is opened each day, and when the present one was moved or removed.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Zoned;

use super::entry::Entry;
use super::format::Format;
use super::outlet::Outlet;
use crate::links;

/// User and group that a file is for.
pub(super) type Owner = (u32, u32);

/// The path of a log file, before the date is put into it.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) base: PathBuf,
    pub(super) is_dated: bool,
}

impl Place {
    /// Returns the path of today's file, with the date before the extension if the file is dated.
    pub(super) fn current(&self) -> PathBuf {
        if !self.is_dated {
            return self.base.clone();
        }
        let stem = self.base.file_stem().unwrap_or_default().to_string_lossy();
        let extension = match self.base.extension() {
            Some(extension) => extension.to_string_lossy(),
            None => "log".into(),
        };
        let date = Zoned::now().date();
        self.base
            .with_file_name(format!("{stem}_{date}.{extension}"))
    }
}

/// A log file that is open.
pub(super) struct LogFile {
    place: Place,
    owner: Option<Owner>,
    path: PathBuf,
    file: File,
    /// The next file could not be opened, and this has been logged.
    is_stuck: bool,
    /// The last record may have been written in part, because the disk is full for example.
    is_torn: bool,
}

impl LogFile {
    /// Opens the file of today, which is given to `owner`.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
    pub(super) fn open(place: Place, owner: Option<Owner>) -> io::Result<Self> {
        let path = place.current();
        let file = open(&path, owner)?;
        Ok(Self {
            place,
            owner,
            path,
            file,
            is_stuck: false,
            is_torn: false,
        })
    }

    /// Opens it in the first of coturn's directories that can be written to.
    pub(super) fn usual(is_dated: bool, owner: Option<Owner>) -> Option<Self> {
        let name = match is_dated {
            true => format!("turn_{}.log", std::process::id()),
            false => "turn.log".to_owned(),
        };
        let directories = ["/var/log/turnserver", "/var/log", "/var/tmp", "/tmp", "."];
        directories.into_iter().find_map(|directory| {
            let base = Path::new(directory).join(&name);
            Self::open(Place { base, is_dated }, owner).ok()
        })
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Writes an entry to the file of today. If it cannot be opened, the previous file is used. A line in that file and in `other` reports this.
    ///
    /// # Errors
    ///
    /// The record cannot be written, for example because the disk is full.
    pub(super) fn write(
        &mut self,
        entry: &Entry,
        format: &Format,
        other: Option<&Outlet>,
    ) -> io::Result<()> {
        match self.follow() {
            Ok(()) => self.is_stuck = false,
            Err(_) if self.is_stuck => {}
            Err(error) => {
                self.is_stuck = true;
                let notice = entry.warning(format!(
                    "Cannot open log file for writing: {}: {error}; lines go on to the file before it",
                    self.place.current().display()
                ));
                if let Some(record) = format.record(&notice) {
                    self.append(&record)?;
                }
                if let Some(other) = other {
                    other.put(&Arc::new(notice));
                }
            }
        }
        match format.record(entry) {
            Some(record) => self.append(&record),
            None => Ok(()),
        }
    }

    /// Appends one line. What a failure has left of the line before is ended first.
    fn append(&mut self, record: &str) -> io::Result<()> {
        let begin = match self.is_torn {
            true => "\n",
            false => "",
        };
        self.is_torn = true;
        self.file
            .write_all(format!("{begin}{record}\n").as_bytes())?;
        self.is_torn = false;
        Ok(())
    }

    /// Opens the file of today unless it is open already; again if it has been moved away or removed.
    fn follow(&mut self) -> io::Result<()> {
        let path = self.place.current();
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let now = std::fs::metadata(&path).map(identity).ok();
        let is_same =
            self.path == path && now.is_some() && now == self.file.metadata().map(identity).ok();
        if !is_same {
            self.file = open(&path, self.owner)?;
            self.path = path;
        }
        Ok(())
    }
}

fn open(path: &Path, owner: Option<Owner>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o640);
    let file = links::open(&options, path)?;
    if let Some((user, group)) = owner
        && file.metadata()?.is_file()
    {
        // The kernel refuses this unless the process is root. In that case the process owns the file already.
        let _ = fchown(&file, Some(user), Some(group));
    }
    Ok(file)
}
