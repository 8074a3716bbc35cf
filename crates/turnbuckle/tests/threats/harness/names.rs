//! A name server of a test's own, and a view of the file system in which it is the one that resolvers ask. In a network namespace, as root.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

/// Where it listens.
const ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 53);
/// How long a resolver waits for an answer, in seconds: longer than a relay does.
const PATIENCE: u32 = 30;
/// How often it looks whether it is to end.
const TICK: Duration = Duration::from_millis(20);
const HEADER_LEN: usize = 12;
const TYPE_A: [u8; 2] = [0, 1];

/// What a name has.
pub(crate) enum Record {
    /// One list of addresses for each question, and then the last one again.
    Addresses(Vec<Vec<Ipv4Addr>>),
    /// No question about it is answered.
    Silence,
}

/// Answers until it is dropped.
pub(crate) struct NameServer {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// Held, because it is what resolvers read.
    _configuration: tempfile::NamedTempFile,
}

impl NameServer {
    /// Answers in the calling thread's network namespace. From now on the thread, and what it starts, ask it for names.
    pub(crate) fn start(records: impl IntoIterator<Item = (&'static str, Record)>) -> Self {
        let socket = UdpSocket::bind(ADDRESS).expect("root may, and nobody else does here");
        socket.set_read_timeout(Some(TICK)).expect("a timeout");
        let mut configuration = tempfile::NamedTempFile::new().expect("a file");
        let (address, _) = ADDRESS;
        writeln!(
            configuration,
            "nameserver {address}\noptions timeout:{PATIENCE} attempts:1"
        )
        .expect("room");
        unshare(CloneFlags::CLONE_NEWNS).expect("root may");
        mount(&["--make-rprivate", "/"]);
        let path = configuration.path().to_str().expect("of letters");
        mount(&["--bind", path, "/etc/resolv.conf"]);
        let mut records: BTreeMap<&str, Record> = records.into_iter().collect();
        let is_over = Arc::<AtomicBool>::default();
        let until = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while !until.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                if let Some(answer) = answer(&buffer[..len], &mut records) {
                    // Who has gone meanwhile needs no answer.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self {
            is_over,
            thread: Some(thread),
            _configuration: configuration,
        }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of it has been printed.
            let _ = thread.join();
        }
    }
}

fn mount(arguments: &[&str]) {
    let status = Command::new("mount").args(arguments).status();
    let status = status.expect("mount of util-linux is installed");
    assert!(status.success(), "mount {arguments:?}: {status}");
}

/// Answers a question (RFC 1035 §4.1): with addresses of IPv4, with none of other types, or that there is no such name.
fn answer(query: &[u8], records: &mut BTreeMap<&str, Record>) -> Option<Vec<u8>> {
    let (header, rest) = query.split_at_checked(HEADER_LEN)?;
    let mut labels = Vec::new();
    let mut name_len = 1;
    while let Some(&len) = rest.get(name_len - 1).filter(|len| **len > 0) {
        let label = rest.get(name_len..name_len + usize::from(len))?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        name_len += 1 + usize::from(len);
    }
    let question = rest.get(..name_len + 4)?;
    let is_v4 = question.get(name_len..name_len + 2)? == TYPE_A;
    let record = records.get_mut(&*labels.join("."));
    let (code, addresses) = match record {
        None => (3, Vec::new()),
        Some(Record::Silence) => return None,
        Some(Record::Addresses(_)) if !is_v4 => (0, Vec::new()),
        Some(Record::Addresses(lists)) => match lists.len() {
            1 => (0, lists[0].clone()),
            _ => (0, lists.remove(0)),
        },
    };
    let count = u8::try_from(addresses.len()).ok()?;
    let mut answer = header[..2].to_vec();
    // A response with recursion, one question and so many answers.
    answer.extend_from_slice(&[0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend_from_slice(question);
    for address in addresses {
        // The name of the question, type A, class IN, for no time at all.
        answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend_from_slice(&address.octets());
    }
    Some(answer)
}

/// Returns a record of addresses of a name, the same for each question.
pub(crate) fn always(addresses: &[IpAddr]) -> Record {
    Record::Addresses(vec![v4(addresses)])
}

/// Returns a record of an address for the first question about a name, and another one for all that follow.
pub(crate) fn first_then(first: IpAddr, then: IpAddr) -> Record {
    Record::Addresses(vec![v4(&[first]), v4(&[then])])
}

fn v4(addresses: &[IpAddr]) -> Vec<Ipv4Addr> {
    let addresses = addresses.iter().map(|address| match address {
        IpAddr::V4(address) => *address,
        IpAddr::V6(_) => panic!("IPv4 only"),
    });
    addresses.collect()
}
