//! Permissions, channels, and who a client claims to be (V-13, V-29).

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use turnbuckle_wire::{AttributeType, Class, Message, Method};

use crate::context::Context;
use crate::matrix::channel_data;
use crate::report::{Verdict, judge, refused};
use turnbuckle_client::Transport;
use turnbuckle_client::UDP;
use turnbuckle_client::blocking::{Session, code, plain};

/// A peer that every server may reach; nothing is sent to it.
const SOMEBODY: [u8; 4] = [21, 0, 0, 9];
const WAIT: Duration = Duration::from_millis(300);

/// Sends data without a permission, to the peer and from it, and by a permission for somebody else (V-13).
pub(super) fn permissions(context: &Context, over: Transport) -> io::Result<Verdict> {
    let v4 = context
        .allowed
        .iter()
        .copied()
        .find(std::net::IpAddr::is_ipv4);
    let Some(ip) = v4 else {
        return Ok(Verdict::NotTried(
            "takes an IPv4 peer on this host that the server may reach: --allowed".to_owned(),
        ));
    };
    let Ok(peer) = UdpSocket::bind((ip, 0)) else {
        return Ok(Verdict::NotTried(format!("{ip} is not of this host")));
    };
    peer.set_read_timeout(Some(WAIT))?;
    let address = peer.local_addr()?;
    let mut session = Session::over(&context.target, over)?;
    let answer = match session.allocate(UDP, |_| {}) {
        Ok(answer) => answer,
        Err(code) => return Ok(refused(code)),
    };
    let relayed = answer
        .message()
        .and_then(|message| message.xor_relayed_address().ok()?);
    let Some(relayed) = relayed else {
        return Ok(refused(200));
    };
    let mut wrong = Vec::new();
    let mut buffer = [0; 256];
    let send = |data: &[u8]| {
        plain(Class::Indication, Method::SEND, |writer| {
            writer.xor_peer_address(address).data(data);
        })
    };
    session.send(&send(b"without a permission"));
    session.send(&channel_data(0x4000, b"without a channel"));
    if peer.recv_from(&mut buffer).is_ok() {
        wrong.push("the peer is reached without a permission".to_owned());
    }
    let _ = peer.send_to(b"without a permission", relayed);
    if session.receive(WAIT).is_some() {
        wrong.push("the client is reached without a permission".to_owned());
    }
    // Another address of the network, and this one with another port: only the latter is the same peer.
    let permit = |session: &mut Session, address: SocketAddr| {
        let answer = session.request(Method::CREATE_PERMISSION, |writer| {
            writer.xor_peer_address(address);
        });
        code(answer.as_ref())
    };
    permit(&mut session, (SOMEBODY.map(|octet| octet ^ 2), 9).into());
    session.send(&send(b"by somebody else's permission"));
    if peer.recv_from(&mut buffer).is_ok() {
        wrong.push("the peer is reached by somebody else's permission".to_owned());
    }
    let got = permit(&mut session, SocketAddr::new(ip, 1));
    session.send(&send(b"by a permission"));
    let is_reached = peer.recv_from(&mut buffer).is_ok();
    let _ = peer.send_to(b"by a permission", relayed);
    let is_heard = session.receive(WAIT).is_some();
    if !(is_reached && is_heard) {
        wrong.push(format!(
            "with a permission ({got}) it is not reached either"
        ));
    }
    let _ = session.refresh(0);
    Ok(judge(
        "without one nothing passes, with one it does, whatever the port",
        &wrong,
    ))
}

/// Binds one number to two peers, two numbers to one, and numbers that are none (V-29).
pub(super) fn channels(context: &Context, over: Transport) -> io::Result<Verdict> {
    let mut session = Session::over(&context.target, over)?;
    if let Err(code) = session.allocate(UDP, |_| {}) {
        return Ok(refused(code));
    }
    let mut bind = |number: u16, port: u16| {
        let [high, low] = number.to_be_bytes();
        let answer = session.request(Method::CHANNEL_BIND, |writer| {
            writer.bytes(AttributeType::CHANNEL_NUMBER, &[high, low, 0, 0]);
            writer.xor_peer_address((SOMEBODY, port).into());
        });
        code(answer.as_ref())
    };
    let first = bind(0x4000, 9);
    if first != 200 {
        return Ok(Verdict::NotTried(format!(
            "ChannelBind to a public address is answered with {first}"
        )));
    }
    let mut wrong = Vec::new();
    for (number, port, what) in [
        (0x4000, 10, "a number that is another peer's"),
        (0x4001, 9, "a second number for a peer"),
        (0x0000, 11, "number 0x0000"),
        (0x3FFF, 11, "number 0x3FFF"),
        (0x8000, 11, "number 0x8000"),
        (0xFFFF, 11, "number 0xFFFF"),
    ] {
        let got = bind(number, port);
        if got != 400 {
            wrong.push(format!("{what} is answered with {got}"));
        }
    }
    if bind(0x4000, 9) != 200 {
        wrong.push("the same binding again is refused".to_owned());
    }
    let _ = session.refresh(0);
    Ok(judge("six conflicts are answered with 400", &wrong))
}

/// Sends a PROXY protocol header as a stranger, which claims another client's address.
pub(super) fn proxy_header(context: &Context, _: Transport) -> io::Result<Verdict> {
    const CLAIMED: [u8; 4] = [198, 51, 100, 77];
    let binding = plain(Class::Request, Method::BINDING, |_| {});
    let mut version_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0C".to_vec();
    version_2.extend(CLAIMED);
    version_2.extend([192, 0, 2, 1, 0x12, 0x34, 0x0D, 0x96]);
    let version_1 = b"PROXY TCP4 198.51.100.77 192.0.2.1 4660 3478\r\n".to_vec();
    let mut version_2_udp = version_2.clone();
    if let Some(byte) = version_2_udp.get_mut(13) {
        *byte = 0x12;
    }
    let mut wrong = Vec::new();
    for header in [&version_1, &version_2] {
        let Ok(mut stream) =
            TcpStream::connect_timeout(&context.target.server, Duration::from_secs(2))
        else {
            return Ok(Verdict::NotTried("nobody listens by TCP".to_owned()));
        };
        stream.set_read_timeout(Some(WAIT))?;
        let _ = stream.write_all(&[&header[..], &binding].concat());
        let mut answer = [0; 512];
        let len = stream.read(&mut answer).unwrap_or(0);
        if names(answer.get(..len).unwrap_or_default(), CLAIMED) {
            wrong.push("the address that a stranger claims by TCP is believed".to_owned());
        }
    }
    let mut session = Session::udp(&context.target)?;
    session.send(&[&version_2_udp[..], &binding].concat());
    if session
        .receive(WAIT)
        .is_some_and(|answer| names(&answer, CLAIMED))
    {
        wrong.push("the address that a stranger claims by UDP is believed".to_owned());
    }
    Ok(judge("nobody is believed, in three forms", &wrong))
}

/// Returns whether an answer gives this address as its client's.
fn names(answer: &[u8], ip: [u8; 4]) -> bool {
    let mapped = Message::parse(answer)
        .ok()
        .and_then(|message| message.xor_mapped_address().ok()?);
    mapped.is_some_and(|address| address.ip() == std::net::IpAddr::from(ip))
}
