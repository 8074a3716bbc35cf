//! Objects that are built for a test or a bench.

use crate::not_run;

/// Builds an object from a source with further options of the compiler, or says why the test is not run.
pub(crate) fn built(source: &str, options: &[&str]) -> Option<Vec<u8>> {
    let has_clang = std::process::Command::new("clang-14")
        .arg("--version")
        .output();
    if has_clang.is_err() {
        not_run::not_run("there is no clang-14 (scripts/setup test)");
        return None;
    }
    let object = tempfile::NamedTempFile::new().unwrap();
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/build");
    let mut build = std::process::Command::new(build);
    let status = build.arg(object.path()).arg(source).args(options).status();
    assert!(status.unwrap().success());
    Some(std::fs::read(object.path()).unwrap())
}
