//! Several realms on one server, from a user database that `turnadmin` writes: what one realm's clients say is not another's.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use turnbuckle_wire::{Class, Method};

use crate::harness::{Client, REALM, Server, Site, plain};

const OTHER: &str = "crinna.org";
const ORIGIN: &[u8] = b"https://crinna.org";
const OTHER_USER: &str = "whirrun";
const PASSWORD: &str = "sword";

/// A server with a database, and the directory it is in.
struct Scene {
    folder: tempfile::TempDir,
    server: Server,
    site: Site,
}

impl Scene {
    /// Starts a relay with another realm by origin and a user there.
    fn new(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let site = Site::new();
        let database = database(folder.path());
        turnadmin(&database, &["-O", "-o", "https://Crinna.org", "-r", OTHER]);
        turnadmin(
            &database,
            &["-a", "-u", OTHER_USER, "-r", OTHER, "-p", PASSWORD],
        );
        let named = format!("--userdb={}", database.display());
        let server = Server::start(site.server(), &[&[named.as_str()], options].concat());
        Self {
            folder,
            server,
            site,
        }
    }

    fn turnadmin(&self, arguments: &[&str]) {
        turnadmin(&database(self.folder.path()), arguments);
    }

    /// Returns a client of the other realm's user.
    fn stranger(&self) -> Client {
        let mut client = Client::new(self.site.ip(3), &self.server);
        client.realm = OTHER.to_owned();
        client.origin = ORIGIN.to_vec();
        client.username = OTHER_USER.to_owned();
        client.password = PASSWORD.to_owned();
        client
    }
}

fn database(folder: &Path) -> PathBuf {
    folder.join("turndb")
}

/// Has the binary be `turnadmin`.
pub(crate) fn turnadmin(database: &Path, arguments: &[&str]) {
    let status = Command::new(env!("CARGO_BIN_EXE_turnbuckle"))
        .arg0("turnadmin")
        .args(["--userdb", database.to_str().unwrap()])
        .args(arguments)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{arguments:?}");
}

/// Tries until it is so; a change of the database takes up to a second.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

//= V-34
#[test]
fn a_spoofed_request_with_another_realm_changes_nothing_for_the_client_at_that_address() {
    let scene = Scene::new(&[]);
    let mut alice = Client::new(scene.site.ip(2), &scene.server);
    let spoofed = |alice: &mut Client| {
        // the same socket: as good as a forged source address
        let request = plain(Class::Request, Method::ALLOCATE, |writer| {
            writer.origin(ORIGIN);
        });
        let answer = alice.exchange(&request);
        assert_eq!(answer.code(), 401);
        let realm = answer.message().realm().unwrap().unwrap().to_vec();
        String::from_utf8(realm).unwrap()
    };
    assert_eq!(spoofed(&mut alice), OTHER);
    alice.allocate();
    assert_eq!(spoofed(&mut alice), REALM, "the session has its realm");
    alice.refresh(600).expect(200);
    let mut whirrun = scene.stranger();
    whirrun.allocate();
    whirrun.origin.clear();
    whirrun.refresh(600).expect(200);
}

#[test]
fn users_and_quotas_are_those_of_the_realm_that_the_origin_names() {
    let scene = Scene::new(&["--total-quota=1"]);
    scene.stranger().allocate();
    let mut second = scene.stranger();
    second.allocate_with(|_| {}).expect(486);
    // one of the first realm has nothing to do with that, and nothing here
    let mut alice = Client::new(scene.site.ip(2), &scene.server);
    alice.allocate();
    let mut nobody = scene.stranger();
    nobody.username = alice.username.clone();
    nobody.password = alice.password.clone();
    nobody.allocate_with(|_| {}).expect(401);
    let mut homeless = scene.stranger();
    homeless.realm = REALM.to_owned();
    homeless.origin.clear();
    homeless.allocate_with(|_| {}).expect(401);

    // what changes in the database changes here
    scene.turnadmin(&["-g", "-r", OTHER, "--total-quota", "2"]);
    eventually("the quota", || {
        scene.stranger().allocate_with(|_| {}).code() == 200
    });
    scene.turnadmin(&["-R", "-o", "https://crinna.org"]);
    eventually("the end of the realm", || {
        scene.stranger().allocate_with(|_| {}).code() == 401
    });
}
