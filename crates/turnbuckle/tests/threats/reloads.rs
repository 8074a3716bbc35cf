//! Reloads of files that cannot be read whole: nothing changes, under either name of the program.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::unistd::geteuid;

use crate::control::Steered;
use crate::harness::{Client, Site, peer_socket};

/// What becomes of the file before a reload, and a part of what the reload says.
type Damage = (&'static str, fn(&Path, &str), &'static str);

const DAMAGES: [Damage; 7] = [
    (
        "missing",
        |file, _| fs::remove_file(file).unwrap(),
        "No such file",
    ),
    (
        "empty",
        |file, _| fs::write(file, "").unwrap(),
        "sets nothing any more",
    ),
    (
        "left without its lines",
        |file, _| fs::write(file, "# to be written\n\n").unwrap(),
        "sets nothing any more",
    ),
    (
        "a directory",
        |file, _| {
            fs::remove_file(file).unwrap();
            fs::create_dir(file).unwrap();
        },
        "no regular file",
    ),
    (
        "unreadable",
        |file, _| fs::set_permissions(file, fs::Permissions::from_mode(0o0)).unwrap(),
        "Permission denied",
    ),
    // What is left is a configuration too, in which the last line denies another address.
    (
        "half-written",
        |file, whole| fs::write(file, &whole[..whole.len() - 2]).unwrap(),
        "ended in a newline before",
    ),
    (
        "half-written before a crash of the machine",
        |file, whole| {
            let zeros = "\0".repeat(whole.len() / 2);
            fs::write(file, format!("user-quota=7\n# {zeros}\n")).unwrap();
        },
        "NUL bytes",
    ),
];

#[test]
fn a_reload_of_a_damaged_file_changes_nothing() {
    // Files are closed to root alone in vain, and nobody else can become `nobody`.
    let is_root = geteuid().is_root();
    for name in ["turnbuckle", "turnserver"] {
        let site = Site::new();
        let [denied, open] = [20, 21].map(|host| peer_socket(site.ip(host)).local_addr().unwrap());
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = directory.path().join("relay.conf");
        let deny = |peer: std::net::SocketAddr| format!("denied-peer-ip={}\n", peer.ip());
        let whole = format!("user-quota=9\n{}", deny(denied));
        fs::write(&file, &whole).unwrap();
        let config = format!("--config={}", file.display());
        let mut options = vec!["--allow-loopback-peers", &config];
        if is_root {
            options.extend(["--proc-user=nobody", "--proc-group=nogroup"]);
        }
        let steered = Steered::start_as(name, site, &options);
        let mut client = Client::new(site.ip(2), &steered.server);
        client.allocate();
        let mut judge = |expected: [u16; 2], when: &str| {
            let codes = [denied, open].map(|peer| client.create_permission(&[peer]).code());
            assert_eq!(codes, expected, "{name}: {when}");
        };
        judge([403, 200], "before a reload");
        for (what, damage, expected) in DAMAGES {
            if what == "unreadable" && !is_root {
                continue;
            }
            damage(&file, &whole);
            for command in [&["reload"][..], &["reload", "--dry-run"]] {
                let refused = steered.ctl(command).expect(1);
                let text = refused.out + &refused.error;
                let place = file.display().to_string();
                assert!(
                    text.contains(&place) && text.contains(expected),
                    "{name}: {what}: {text}"
                );
            }
            judge([403, 200], what);
            let _ = fs::remove_dir(&file);
            fs::write(&file, &whole).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        }
        steered.ctl(&["reload"]).expect(0);
        judge([403, 200], "the file is whole again");
        // As large as that, it is read.
        let comment = format!("# {}\n", "-".repeat(1_000));
        let large = whole + &comment.repeat(5_300) + &deny(open);
        assert!(large.len() > 5 << 20);
        fs::write(&file, large).unwrap();
        steered.ctl(&["reload"]).expect(0);
        judge([403, 403], "more than 5 MiB");
    }
}
