//! `turnbuckle install-links`: the binary under coturn's names.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// The names under which the binary is another program.
pub(crate) const NAMES: [&str; 6] = [
    "turnserver",
    "turnadmin",
    "turnutils_uclient",
    "turnutils_peer",
    "turnutils_stunclient",
    "turnutils_natdiscovery",
];

/// Command line of `turnbuckle install-links`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Directory for the links, such as /usr/local/bin
    directory: PathBuf,
    /// Put the links in the place of what has these names already
    #[arg(long)]
    force: bool,
}

/// Makes the links and prints them.
///
/// # Errors
///
/// Something has one of the names, or the directory cannot be written to. Then nothing has changed, unless the disk failed in between.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let binary = std::env::current_exe().context("cannot find this program's own file")?;
    let directory = &arguments.directory;
    if !directory.is_dir() {
        bail!("{} is not a directory", directory.display());
    }
    let links = NAMES.map(|name| directory.join(name));
    for link in &links {
        if !arguments.force && link.symlink_metadata().is_ok() && !leads_to(link, &binary) {
            bail!(
                "{} exists and is something else; --force puts the link in its place",
                link.display()
            );
        }
    }
    for link in &links {
        place(&binary, link).with_context(|| format!("cannot make {}", link.display()))?;
        crate::print(&format!("{} -> {}\n", link.display(), binary.display()))?;
    }
    Ok(())
}

fn leads_to(link: &Path, binary: &Path) -> bool {
    fs::canonicalize(link).is_ok_and(|target| target == binary)
}

/// Makes the link under another name first, so that at no moment there is none.
fn place(binary: &Path, link: &Path) -> io::Result<()> {
    let mut name = link.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = link.with_file_name(name);
    if new.symlink_metadata().is_ok() {
        fs::remove_file(&new)?;
    }
    symlink(binary, &new)?;
    fs::rename(&new, link)
}
