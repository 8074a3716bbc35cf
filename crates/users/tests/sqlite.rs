//! What the tests of every database ask, of a file.

#[path = "support/texts.rs"]
mod texts;

use turnbuckle_users::{Connection, Source};

#[test]
fn a_text_is_a_value_whatever_it_holds() {
    // Where there is a file system without a disk, because each of the changes waits for that.
    let memory = std::path::Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let folder = folder.expect("a directory");
    let path = folder.path().join("turndb");
    let source = Source::Sqlite(path.clone());
    drop(Connection::open(&source).expect("made"));
    let file = rusqlite::Connection::open(&path).expect("a file");
    for row in texts::OTHER_ROWS {
        file.execute(row, []).expect("written");
    }
    texts::are_values(&source, 10_000);
}
