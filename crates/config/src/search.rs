//! The places where coturn looks for a file.

use std::path::{Path, PathBuf};

/// Where coturn looks for a file that is named without its directory, in its order.
const PLACES: [&str; 14] = [
    "./",
    "./turnserver/",
    "./coturn/",
    "./etc/",
    "./etc/turnserver/",
    "./etc/coturn/",
    "../etc/",
    "../etc/turnserver/",
    "../etc/coturn/",
    "/etc/",
    "/etc/turnserver/",
    "/etc/coturn/",
    "/usr/local/etc/",
    "/usr/local/etc/turnserver/",
];

/// Returns the first file of this name that can be read.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let is_file = |path: &PathBuf| std::fs::File::open(path).is_ok();
    if let Some(rest) = name.strip_prefix("~/") {
        let home = std::env::var_os("HOME")?;
        return Some(Path::new(&home).join(rest)).filter(is_file);
    }
    if name.starts_with('/') {
        return Some(PathBuf::from(name)).filter(is_file);
    }
    PLACES
        .iter()
        .chain(&["/usr/local/etc/coturn/"])
        .map(|place| Path::new(place).join(name))
        .find(is_file)
}
