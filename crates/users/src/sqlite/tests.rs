//! The file: made, opened, watched.

use super::*;

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("turndb");
    (folder, path)
}

#[test]
fn a_new_file_has_coturns_tables_with_their_columns_and_keys() {
    let (_folder, path) = scratch();
    let database = Sqlite::open(&path, true).unwrap();
    // What Debian's turnadmin 4.6.1 makes: name, type, default, place in the primary key.
    let expected = [
        (
            "turnusers_lt",
            "realm varchar(127) '' 1,name varchar(512)  2,hmackey char(128)  0",
        ),
        (
            "turn_secret",
            "realm varchar(127) '' 1,value varchar(127)  2",
        ),
        (
            "allowed_peer_ip",
            "realm varchar(127) '' 1,ip_range varchar(256)  2",
        ),
        (
            "denied_peer_ip",
            "realm varchar(127) '' 1,ip_range varchar(256)  2",
        ),
        (
            "turn_origin_to_realm",
            "origin varchar(127)  1,realm varchar(127)  0",
        ),
        (
            "turn_realm_option",
            "realm varchar(127) '' 1,opt varchar(32)  2,value varchar(128)  0",
        ),
        (
            "oauth_key",
            "kid varchar(128)  1,ikm_key varchar(256)  0,timestamp bigint 0 0,lifetime INTEGER 0 0,as_rs_alg varchar(64) '' 0,realm varchar(127) '' 0",
        ),
        (
            "admin_user",
            "name varchar(32)  1,realm varchar(127)  0,password varchar(127)  0",
        ),
    ];
    for (table, expected) in expected {
        let columns = database
            .rows(&format!("pragma table_info({table})"), [], |row| {
                Ok(format!(
                    "{} {} {} {}",
                    text(row, 1)?,
                    text(row, 2)?,
                    text(row, 4)?,
                    text(row, 5)?
                ))
            })
            .unwrap();
        assert_eq!(columns.join(","), expected, "{table}");
    }
}

#[test]
fn a_new_file_is_of_the_folders_owner_and_nobody_else_reads_it() {
    use std::os::unix::fs::{PermissionsExt as _, chown};

    let (folder, path) = scratch();
    // Only root may give it away; others have their own.
    let _ = chown(folder.path(), Some(65_534), Some(65_534));
    let expected = metadata(folder.path()).unwrap();
    drop(Sqlite::open(&path, true).unwrap());
    let made = metadata(&path).unwrap();
    assert_eq!(made.permissions().mode() & 0o777, 0o640);
    assert_eq!((made.uid(), made.gid()), (expected.uid(), expected.gid()));
}

#[test]
fn rows_that_are_there_stay_and_missing_tables_are_made() {
    let (_folder, path) = scratch();
    let other = rusqlite::Connection::open(&path).unwrap();
    other
        .execute_batch("create table turn_secret (value varchar(127) primary key, realm varchar(127)); insert into turn_secret values('north','r');")
        .unwrap();
    let database = Sqlite::open(&path, true).unwrap();
    let rows = database.rows("select realm,value from turn_secret", [], |row| {
        Ok((text(row, 0)?, text(row, 1)?))
    });
    assert_eq!(rows.unwrap(), [("r".to_owned(), "north".to_owned())]);
    assert!(
        database
            .rows("select name from turnusers_lt", [], |row| text(row, 0))
            .unwrap()
            .is_empty()
    );
}

#[test]
fn a_commit_of_another_program_and_another_file_show_in_the_version() {
    let (_folder, path) = scratch();
    let database = Sqlite::open(&path, true).unwrap();
    let first = database.version().unwrap();
    assert_eq!(database.version().unwrap(), first);
    let other = Sqlite::open(&path, true).unwrap();
    other
        .connection
        .execute_batch("insert into turn_secret values('r','north')")
        .unwrap();
    let second = database.version().unwrap();
    assert_ne!(second, first);
    assert!(!database.is_replaced(&second));

    let replacement = path.with_file_name("replacement");
    drop(Sqlite::open(&replacement, true).unwrap());
    std::fs::rename(&replacement, &path).unwrap();
    let third = database.version().unwrap();
    assert!(database.is_replaced(&third));
    std::fs::remove_file(&path).unwrap();
    let error = database.version().expect_err("no file").to_string();
    assert!(error.contains("turndb: No such file"), "{error}");
}

#[test]
fn what_is_no_database_is_refused_with_its_name() {
    let (_folder, path) = scratch();
    std::fs::write(&path, "listening-port=3478\n".repeat(100)).unwrap();
    let error = Sqlite::open(&path, true)
        .err()
        .expect("refused")
        .to_string();
    assert!(error.contains("turndb: file is not a database"), "{error}");
    let error = Sqlite::open(Path::new("/nonexistent/turndb"), true)
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("/nonexistent/turndb: unable to open database file"),
        "{error}"
    );
}

#[test]
fn columns_are_read_as_text_whatever_they_were_written_as() {
    let (_folder, path) = scratch();
    let database = Sqlite::open(&path, true).unwrap();
    database
        .connection
        .execute_batch("insert into turn_realm_option values('r','a',5),('r','b',x'3136'),('r','c',null),('r','d','seven')")
        .unwrap();
    let values = database
        .rows(
            "select value from turn_realm_option order by opt",
            [],
            |row| text(row, 0),
        )
        .unwrap();
    assert_eq!(values, ["5", "16", "", "seven"]);
}
