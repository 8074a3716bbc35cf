//! Where servers have their files.

use std::path::{Path, PathBuf};

use anyhow::Result;

/// A directory for files of the servers; gone when dropped.
#[derive(Debug)]
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// Returns where this process has its directory.
    pub(crate) fn place() -> PathBuf {
        std::env::temp_dir().join(format!("turnbuckle-lab-{}", std::process::id()))
    }

    pub(crate) fn new() -> Result<Self> {
        let path = Self::place();
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
