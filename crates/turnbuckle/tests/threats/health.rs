//! Health: what a load balancer, an operator and the service manager are told of a relay of which a thread hangs, or whose certificate is of no use.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::control::{Ran, ctl};
use crate::harness::{Authority, Client, Key, Site};
use crate::metrics::Watched;
use crate::not_run::not_run;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A thread of a relay that makes no step. It goes on when this is dropped.
struct Held(Pid);

impl Held {
    /// Holds a thread by its name; `None` where the machine does not let one process hold a thread of another.
    fn thread(process: u32, name: &str) -> Option<Self> {
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let mut threads = threads.map(|thread| thread.unwrap());
        let named = |file: &Path| fs::read_to_string(file).is_ok_and(|found| found.trim() == name);
        let found = threads.find(|thread| named(&thread.path().join("comm")));
        let found = found.unwrap_or_else(|| panic!("no thread {name}"));
        let thread = Pid::from_raw(found.file_name().to_str().unwrap().parse().unwrap());
        match ptrace::seize(thread, ptrace::Options::empty()) {
            Err(Errno::EPERM) => return None,
            seized => seized.unwrap(),
        }
        ptrace::interrupt(thread).unwrap();
        waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        Some(Self(thread))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let released = ptrace::detach(self.0, None);
        // A process that has ended has no thread to let go.
        assert!(
            matches!(released, Ok(()) | Err(Errno::ESRCH)),
            "{released:?}"
        );
    }
}

/// What a service manager is told. It is heard at once: whoever tells it something waits while its socket is full.
struct Manager {
    heard: Receiver<String>,
    socket: PathBuf,
}

impl Manager {
    fn at(socket: PathBuf) -> Self {
        let told = UnixDatagram::bind(&socket).unwrap();
        let (sender, heard) = channel();
        thread::spawn(move || {
            let mut state = [0; 64];
            while let Ok(len) = told.recv(&mut state) {
                let text = String::from_utf8_lossy(&state[..len]).into_owned();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        Self { heard, socket }
    }

    fn next(&self) -> String {
        self.heard.recv_timeout(TIMEOUT).unwrap()
    }

    /// Returns everything that it was told before now and that nobody has asked for yet.
    fn so_far(&self) -> Vec<String> {
        let own = UnixDatagram::unbound().unwrap();
        own.send_to(b"now", &self.socket).unwrap();
        let heard = std::iter::repeat_with(|| self.next());
        heard.take_while(|text| text != "now").collect()
    }
}

#[test]
fn while_a_shard_hangs_the_relay_is_not_called_alive_and_the_other_shard_serves() {
    let site = Site::new();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let manager = Manager::at(directory.path().join("notify"));
    let socket = path("control.sock");
    let key = format!("--control-socket={socket}");
    let environment = [
        ("NOTIFY_SOCKET", &*path("notify")),
        ("WATCHDOG_USEC", "200000"),
    ];
    let watched = Watched::start_in(site, &[&key], &environment);
    let health = || ctl(Path::new(&socket), &["health", "--json"]);
    // One client of each of the two shards: the kernel deals them out.
    let mut clients: [Option<Client>; 2] = [None, None];
    for host in 2..100 {
        let mut client = Client::new(site.ip(host), &watched.server);
        client.allocate();
        let address = format!("--client={}", site.ip(host));
        let listed = ctl(Path::new(&socket), &["sessions", "--json", &address]).expect(0);
        // The shard is in front of the last fifteen digits.
        let number = listed.json()[0]["session"].as_str().unwrap().to_owned();
        let shard: usize = number[..3].parse().unwrap();
        clients[shard].get_or_insert(client);
        if clients.iter().all(Option::is_some) {
            break;
        }
    }
    let [mut served, mut hung] = clients.map(|client| client.expect("one of each shard"));
    assert_eq!(manager.next(), "READY=1");
    assert_eq!(manager.next(), "WATCHDOG=1");
    assert_eq!(watched.get("/livez", "").1, "ok");
    let Some(held) = Held::thread(watched.server.id(), "shard-1") else {
        return not_run("no process may hold a thread of another here");
    };
    let says_so = |path: &str| {
        let (head, body) = watched.get(path, "");
        assert!(head.starts_with("HTTP/1.1 503 "), "{path}: {head}");
        assert_eq!(body, "shard 1 does not answer", "{path}");
    };
    says_so("/livez");
    // Whatever was asked before it hung has been answered by now.
    manager.so_far();
    says_so("/readyz");
    let found = health().expect(1).json();
    assert_eq!(found[0]["live"], false);
    assert_eq!(found[0]["silent_shards"], serde_json::json!([1]));
    served.refresh(600).expect(200);
    says_so("/livez");
    assert_eq!(manager.so_far(), [""; 0], "it is fed while a shard hangs");
    drop(held);
    let begin = Instant::now();
    while !watched.get("/livez", "").0.starts_with("HTTP/1.1 200 ") {
        assert!(begin.elapsed() < TIMEOUT, "it is not alive again");
    }
    assert!(watched.get("/readyz", "").0.starts_with("HTTP/1.1 200 "));
    let found: Ran = health().expect(0);
    assert_eq!(found.json()[0]["silent_shards"], serde_json::json!([]));
    manager.so_far();
    assert_eq!(manager.next(), "WATCHDOG=1");
    hung.refresh(600).expect(200);
}

#[test]
fn a_relay_whose_certificate_no_client_accepts_is_alive_and_not_ready_until_it_has_another() {
    let site = Site::new();
    let authority = Authority::new();
    let write = |years: std::ops::Range<i32>| {
        let (chain, key) = authority.issue_for(Key::P256, years);
        let option = |name: &str, file: &str, content: &str| {
            format!("--{name}={}", authority.write(file, content).display())
        };
        [
            option("cert", "chain.pem", &chain),
            option("pkey", "key.pem", &key),
        ]
    };
    let options = write(2000..2001);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let key = format!("--control-socket={}", socket.display());
    let options = options.each_ref().map(String::as_str);
    let watched = Watched::start(site, &[&options[..], &[&key]].concat());
    let is_not_ready = |why: &str| {
        let (head, body) = watched.get("/readyz", "");
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert!(body.starts_with("the certificate "), "{body}");
        assert!(body.contains(&format!("chain.pem {why}")), "{body}");
    };
    is_not_ready("has expired: ");
    let found = ctl(&socket, &["health", "--json"]).expect(1).json();
    assert_eq!(found[0]["live"], true);
    assert!(
        found[0]["faults"][0]
            .as_str()
            .unwrap()
            .contains("has expired")
    );
    assert_eq!(watched.get("/livez", "").1, "ok");
    write(4000..4001);
    is_not_ready("is not valid before ");
    // A renewal counts at once, and what is only half written leaves the one before it in use.
    write(2000..4001);
    assert_eq!(watched.get("/readyz", "").1, "ok");
    authority.write("chain.pem", "half a file");
    assert_eq!(watched.get("/readyz", "").1, "ok");
    drop(watched);
    // Where nobody is shown a certificate, nobody minds.
    write(2000..2001);
    let plain = [&options[..], &["--no-tls"]].concat();
    let watched = Watched::start(Site::new(), &plain);
    assert_eq!(watched.get("/readyz", "").1, "ok");
}
