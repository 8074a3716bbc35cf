//! TCP relays (RFC 6062): who may connect, how fast, what failures reveal, and how much may wait (V-10, V-12, V-46).

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use socket2::{Domain, SockAddr, Socket, Type};
use turnbuckle_wire::Method;

use crate::context::Context;
use crate::report::{Verdict, judge, refused};
use crate::statistics::compare;
use turnbuckle_client::TCP;
use turnbuckle_client::Transport;
use turnbuckle_client::blocking::{Answer, Session, code};

/// How long what a peer does may take to show at the client.
const WAIT: Duration = Duration::from_millis(500);
/// Ports that are scanned.
const SCANNED: std::ops::Range<u16> = 20_000..21_000;
/// How long a failed Connect may take: RFC 6062 §5.2 says 30 s.
const CONNECT_MAX: Duration = Duration::from_secs(45);
/// The probability below which the times are taken to distinguish closed ports from filtered ones.
const P_MIN: f64 = 0.01;
/// Samples of each kind without which there is no verdict.
const SAMPLES_MIN: usize = 8;
/// What a peer may send before it is bound, with all that the kernels on both sides keep.
const UNBOUND_MAX: usize = 32 << 20;
/// How long it may wait (RFC 6062 §5.2 to §5.4: 30 s).
const BIND_MAX: Duration = Duration::from_secs(40);

/// A client with a TCP relay, and a peer's address on this host.
struct Scene {
    session: Session,
    relayed: SocketAddr,
    peer: IpAddr,
}

impl Scene {
    fn new(
        context: &Context,
        over: Transport,
        is_other: bool,
    ) -> io::Result<Result<Self, Verdict>> {
        let v4 = context.allowed.iter().copied().find(IpAddr::is_ipv4);
        let Some(peer) = v4 else {
            return Ok(Err(Verdict::NotTried(
                "takes an IPv4 peer on this host that the server may reach: --allowed".to_owned(),
            )));
        };
        let mut session = Session::over(&context.target, over)?;
        if let Some(other) = context.other_user.as_ref().filter(|_| is_other) {
            session.proof.set_credentials(other.clone());
        }
        let answer = match session.allocate(TCP, |_| {}) {
            Ok(answer) => answer,
            Err(442 | 400) => {
                return Ok(Err(Verdict::NotTried("no TCP relays are given".to_owned())));
            }
            Err(code) => return Ok(Err(refused(code))),
        };
        let relayed = answer
            .message()
            .and_then(|message| message.xor_relayed_address().ok()?);
        let Some(relayed) = relayed else {
            return Ok(Err(refused(200)));
        };
        Ok(Ok(Self {
            session,
            relayed,
            peer,
        }))
    }

    /// Returns a connection of the peer to the relayed address.
    fn knock(&self) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SockAddr::from(SocketAddr::new(self.peer, 0)))?;
        socket.connect_timeout(&SockAddr::from(self.relayed), WAIT)?;
        Ok(socket.into())
    }

    fn connect_request(&self, peer: SocketAddr) -> Vec<u8> {
        self.session.signed(Method::CONNECT, |writer| {
            writer.xor_peer_address(peer);
        })
    }
}

/// Connects as a peer without a permission (V-10).
pub(super) fn uninvited(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut scene = match Scene::new(context, over, false)? {
        Ok(scene) => scene,
        Err(verdict) => return Ok(verdict),
    };
    let mut wrong = Vec::new();
    let knocked = scene.knock();
    if let Some(told) = scene.session.receive(WAIT) {
        wrong.push(format!("the client is told, by {} bytes", told.len()));
    }
    if let Ok(mut stream) = knocked {
        stream.set_read_timeout(Some(WAIT))?;
        let _ = stream.write_all(b"without a permission");
        let end = stream.read(&mut [0; 64]);
        if matches!(&end, Err(error) if error.kind() == ErrorKind::WouldBlock) {
            wrong.push("its connection stays open".to_owned());
        }
    }
    let _ = scene.session.refresh(0);
    Ok(judge(
        "its connection is closed, and the client is not told",
        &wrong,
    ))
}

/// Asks for connections to a privileged port, and to a thousand others as fast as they go (V-12).
pub(super) fn scan(context: &Context, over: Transport) -> io::Result<Verdict> {
    // As the other user, so that what is counted against it is not against the next attack.
    let mut scene = match Scene::new(context, over, true)? {
        Ok(scene) => scene,
        Err(verdict) => return Ok(verdict),
    };
    let mut wrong = Vec::new();
    let request = scene.connect_request(SocketAddr::new(scene.peer, 22));
    let privileged = code(scene.session.exchange(&request).as_ref());
    if privileged != 403 {
        wrong.push(format!(
            "a Connect to port 22 is answered with {privileged}"
        ));
    }
    let ports: Vec<u16> = SCANNED.collect();
    let peer = scene.peer;
    let mut counts: BTreeMap<u16, usize> = BTreeMap::new();
    scene.session.many(
        &ports,
        |session, port| {
            session.signed(Method::CONNECT, |writer| {
                writer.xor_peer_address(SocketAddr::new(peer, *port));
            })
        },
        |_, code| *counts.entry(code).or_default() += 1,
    );
    let _ = scene.session.refresh(0);
    let limited = [403, 486, 508].iter().filter_map(|code| counts.get(code));
    let limited: usize = limited.sum();
    if limited == 0 {
        wrong.push(format!("{} ports are tried, and no end", ports.len()));
    }
    Ok(judge(
        format!(
            "port 22: {privileged}; of {} ports {limited} are refused",
            ports.len()
        ),
        &wrong,
    ))
}

/// Measures whether the time of a 447 distinguishes a closed port from a filtered one (V-12).
pub(super) fn timing(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut scene = match Scene::new(context, over, false)? {
        Ok(scene) => scene,
        Err(verdict) => return Ok(verdict),
    };
    let mut random = SmallRng::seed_from_u64(12);
    let mut silent = Vec::new();
    // Closed only when all ports are chosen, so that none is chosen twice.
    let mut closing = Vec::new();
    let mut peers = Vec::new();
    for _ in 0..context.connects {
        let Ok(filtered) = Filtered::new(scene.peer) else {
            return Ok(Verdict::NotTried(format!(
                "{} is not of this host",
                scene.peer
            )));
        };
        let listener = TcpListener::bind((scene.peer, 0))?;
        peers.push((listener.local_addr()?, false));
        closing.push(listener);
        peers.push((filtered.address, true));
        silent.push(filtered);
    }
    drop(closing);
    peers.shuffle(&mut random);
    let mut begun = BTreeMap::new();
    let mut ended: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    let mut refusals = BTreeMap::new();
    let mut hear = |session: &mut Session, begun: &mut BTreeMap<Vec<u8>, (Instant, bool)>, wait| {
        while let Some(message) = session.receive(wait) {
            let id = message.get(8..20).unwrap_or_default().to_vec();
            let Some((since, is_silent)) = begun.remove(&id) else {
                continue;
            };
            match Answer(message).code() {
                447 => ended[usize::from(is_silent)].push(since.elapsed().as_secs_f64() * 1e3),
                code => *refusals.entry(code).or_insert(0) += 1,
            }
            if begun.is_empty() {
                break;
            }
        }
    };
    for (peer, is_silent) in peers {
        let request = scene.connect_request(peer);
        let id = request.get(8..20).unwrap_or_default().to_vec();
        begun.insert(id, (Instant::now(), is_silent));
        scene.session.send(&request);
        let pause = Duration::from_micros(random.random_range(500..20_000));
        hear(&mut scene.session, &mut begun, pause);
    }
    let deadline = Instant::now() + CONNECT_MAX;
    while !begun.is_empty() && Instant::now() < deadline {
        hear(&mut scene.session, &mut begun, Duration::from_secs(1));
    }
    let _ = scene.session.refresh(0);
    drop(silent);
    let unanswered = begun.values().filter(|(_, is_silent)| *is_silent).count();
    let [closed, filtered] = ended;
    if closed.len() < SAMPLES_MIN || filtered.len() + unanswered < SAMPLES_MIN {
        return Ok(Verdict::NotTried(format!(
            "447 for {} closed and {} filtered ports alone, others {refusals:?}",
            closed.len(),
            filtered.len()
        )));
    }
    let mean = crate::statistics::mean;
    if unanswered > 0 {
        return Ok(Verdict::Failed(format!(
            "closed ports fail after {:.1} ms, {unanswered} filtered ones not within {} s",
            mean(&closed),
            CONNECT_MAX.as_secs()
        )));
    }
    let comparison = compare(&closed, &filtered);
    let text = format!(
        "{} closed and {} filtered ports fail after {:.1} and {:.1} ms; Kolmogorov-Smirnov p = {:.3}, t = {:.1}",
        closed.len(),
        filtered.len(),
        mean(&closed),
        mean(&filtered),
        comparison.p,
        comparison.t
    );
    let wrong = if comparison.p < P_MIN {
        vec![text.clone()]
    } else {
        Vec::new()
    };
    Ok(judge(text, &wrong))
}

/// A port that answers nothing, as behind a packet filter: its queue of connections is full, so that the kernel drops the SYNs of
/// further ones (listen(2)).
struct Filtered {
    address: SocketAddr,
    _listener: Socket,
    _first: TcpStream,
}

impl Filtered {
    fn new(ip: IpAddr) -> io::Result<Self> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        listener.bind(&SockAddr::from(SocketAddr::new(ip, 0)))?;
        listener.listen(0)?;
        let address = listener.local_addr()?.as_socket();
        let address = address.ok_or(ErrorKind::AddrNotAvailable)?;
        let first = TcpStream::connect_timeout(&address, WAIT)?;
        Ok(Self {
            address,
            _listener: listener,
            _first: first,
        })
    }
}

/// Sends as much as a peer can before the client takes its connection up, which it never does (V-46).
pub(super) fn flood_before_bind(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut scene = match Scene::new(context, over, false)? {
        Ok(scene) => scene,
        Err(verdict) => return Ok(verdict),
    };
    let permitted = SocketAddr::new(scene.peer, 9);
    scene.session.request(Method::CREATE_PERMISSION, |writer| {
        writer.xor_peer_address(permitted);
    });
    let mut peer = match scene.knock() {
        Ok(peer) => peer,
        Err(error) => {
            return Ok(Verdict::NotTried(format!(
                "the peer cannot connect: {error}"
            )));
        }
    };
    peer.set_nonblocking(true)?;
    let started = Instant::now();
    let junk = vec![0x55; 65_536];
    let mut sent = 0;
    let mut is_open = true;
    while is_open && sent <= UNBOUND_MAX && started.elapsed() < BIND_MAX {
        match peer.write(&junk) {
            Ok(len) => sent += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                is_open = !matches!(peer.read(&mut [0; 64]), Ok(0));
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(_) => is_open = false,
        }
    }
    let seconds = started.elapsed().as_secs();
    let _ = scene.session.refresh(0);
    let mut wrong = Vec::new();
    if sent > UNBOUND_MAX {
        wrong.push(format!("{} MiB are taken", sent >> 20));
    } else if is_open {
        wrong.push(format!("the connection is open after {seconds} s"));
    }
    Ok(judge(
        format!(
            "{} KiB are taken, and the connection is closed after {seconds} s",
            sent >> 10
        ),
        &wrong,
    ))
}
