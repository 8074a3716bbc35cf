//! How datagrams enter and leave, and what the running kernel offers.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::str::FromStr;
use std::sync::OnceLock;

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use turnbuckle_sys::address::RawAddress;
use turnbuckle_sys::receive::Slots;
use turnbuckle_sys::send::Scratch;
use turnbuckle_sys::sockopt;

use super::calls;
use crate::queue::TRAIN_SEGMENTS_MAX;

/// A way of moving datagrams; all of them do the same work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Batches, with GRO buffers coming in and `UDP_SEGMENT` trains going out.
    Gso,
    /// Batches of single datagrams: `recvmmsg` and `sendmmsg`.
    Mmsg,
    /// One system call per datagram, the baseline.
    Single,
}

/// Segments that every kernel with GSO takes in one send (`UDP_MAX_SEGMENTS` before Linux 6.9).
const SEGMENTS_MIN: u16 = 64;

impl Backend {
    /// Tries the features on loopback sockets. Returns the best backend that works, with one line that says why.
    pub fn probe() -> (Self, String) {
        choose(capabilities())
    }

    /// Returns the name used in configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gso => "gso",
            Self::Mmsg => "mmsg",
            Self::Single => "single",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::Gso, Self::Mmsg, Self::Single]
            .into_iter()
            .find(|backend| backend.as_str() == name)
            .ok_or(UnknownBackend)
    }
}

/// A name that is none of `gso`, `mmsg`, `single`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownBackend;

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such backend; allowed are gso, mmsg and single")
    }
}

impl std::error::Error for UnknownBackend {}

/// What was found to work when it was tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    /// `sendmmsg` and `recvmmsg` carry datagrams.
    batches: Result<(), Errno>,
    /// A train went out and arrived.
    gso: Result<(), Errno>,
    /// GRO can be enabled.
    gro: Result<(), Errno>,
    /// Segments of one send, [`SEGMENTS_MIN`] to [`TRAIN_SEGMENTS_MAX`].
    pub(crate) gso_segments_max: u16,
}

/// Tries the features, once per process.
pub(crate) fn capabilities() -> &'static Capabilities {
    static CAPABILITIES: OnceLock<Capabilities> = OnceLock::new();
    CAPABILITIES.get_or_init(Capabilities::try_all)
}

/// Returns the best backend, and why.
fn choose(capabilities: &Capabilities) -> (Backend, String) {
    let Capabilities {
        batches,
        gso,
        gro,
        gso_segments_max,
    } = *capabilities;
    if batches.is_err_and(is_loopback_down) && gro.is_ok() {
        // GRO (Linux 5.0) is younger than everything else that is needed, and each socket falls back by itself.
        let line = "data path: gso (the loopback interface is down, so it could not be tried)";
        return (Backend::Gso, line.to_owned());
    }
    if let Err(errno) = batches {
        return (
            Backend::Single,
            format!("data path: single (recvmmsg and sendmmsg do not work here: {errno})"),
        );
    }
    if let Err(errno) = gso {
        return (
            Backend::Mmsg,
            format!("data path: mmsg (UDP GSO does not work here: {errno})"),
        );
    }
    let gro = match gro {
        Ok(()) => "GRO".to_owned(),
        Err(errno) => format!("no GRO: {errno}"),
    };
    (
        Backend::Gso,
        format!("data path: gso ({gro}, trains of up to {gso_segments_max} datagrams)"),
    )
}

/// Returns whether sockets on the loopback interface failed because there is none.
fn is_loopback_down(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::ADDRNOTAVAIL | Errno::NETUNREACH | Errno::NETDOWN
    )
}

impl Capabilities {
    fn try_all() -> Self {
        let loopback = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let pair = || -> std::io::Result<(Socket, Socket, RawAddress)> {
            let open = || -> std::io::Result<Socket> {
                let socket =
                    Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
                socket.bind(&loopback(0).into())?;
                Ok(socket)
            };
            let (to, from) = (open()?, open()?);
            let address = to.local_addr()?.as_socket().unwrap_or_else(|| loopback(9));
            Ok((to, from, address.into()))
        };
        let (to, from, address) = match pair() {
            Ok(sockets) => sockets,
            Err(error) => {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                let nothing = Err(errno);
                let unbound = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP));
                return Self {
                    batches: nothing,
                    gso: nothing,
                    gro: unbound.map_or(nothing, |socket| sockopt::enable_gro(socket.as_fd())),
                    gso_segments_max: SEGMENTS_MIN,
                };
            }
        };
        let mut slots = Slots::new(2, true);
        let mut scratch = Scratch::default();
        let receive_all = |expected: usize, slots: &mut Slots| -> Result<(), Errno> {
            let mut bytes = 0;
            while bytes < expected {
                let received = calls::receive(slots, to.as_fd(), 0, 2)?;
                bytes += (0..received)
                    .map(|slot| slots.bytes(slot).len())
                    .sum::<usize>();
            }
            Ok(())
        };
        let mut try_batches = || {
            let mut batch = scratch.batch();
            batch.message(&address, None);
            batch.piece(&[1]);
            batch.message(&address, None);
            batch.piece(&[2]);
            batch.seal();
            calls::send(&mut batch, from.as_fd(), 0)?;
            // Both were sent by one call; loopback delivers before the call returns.
            receive_all(2, &mut slots)
        };
        let batches = try_batches();
        let mut try_train = |segments: u16| {
            let bytes = [7; TRAIN_SEGMENTS_MAX as usize * 2];
            let bytes = &bytes[..usize::from(segments) * 2];
            let mut batch = scratch.batch();
            batch.message(&address, Some(2));
            batch.piece(bytes);
            batch.seal();
            calls::send_one(&batch, from.as_fd(), 0)?;
            receive_all(bytes.len(), &mut slots)
        };
        let gso = try_train(SEGMENTS_MIN);
        let gro = sockopt::enable_gro(to.as_fd());
        let gso_segments_max = match gso.and_then(|()| try_train(TRAIN_SEGMENTS_MAX)) {
            Ok(()) => TRAIN_SEGMENTS_MAX,
            Err(_) => SEGMENTS_MIN,
        };
        Self {
            batches,
            gso,
            gro,
            gso_segments_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::calls::fault::{self, Call, Outcome};

    #[test]
    fn names_are_read_back() {
        for backend in [Backend::Gso, Backend::Mmsg, Backend::Single] {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        assert_eq!("xdp".parse::<Backend>(), Err(UnknownBackend));
    }

    #[test]
    fn the_probe_finds_what_the_kernel_has() {
        // Linux 5.0 and later have all of it.
        let (backend, line) = choose(&Capabilities::try_all());
        assert_eq!(backend, Backend::Gso, "{line}");
        assert!(line.contains("trains of up to"), "{line}");
    }

    #[test]
    fn the_probe_steps_down_when_a_feature_is_refused() {
        let refuse_gso = fault::script(|call| match call {
            Call::Send { segment: Some(_) } => Outcome::Fail(Errno::INVAL),
            _ => Outcome::Pass,
        });
        assert_eq!(choose(&Capabilities::try_all()).0, Backend::Mmsg);
        drop(refuse_gso);

        let refuse_batches = fault::script(|call| match call {
            Call::SendBatch { .. } => Outcome::Fail(Errno::NOSYS),
            _ => Outcome::Pass,
        });
        let (backend, line) = choose(&Capabilities::try_all());
        assert_eq!(backend, Backend::Single);
        assert!(!line.contains('\n'), "{line}");
        drop(refuse_batches);

        let refuse_long_trains = fault::script({
            let mut trains = 0;
            move |call| match call {
                Call::Send { segment: Some(_) } => {
                    trains += 1;
                    if trains == 2 {
                        Outcome::Fail(Errno::INVAL)
                    } else {
                        Outcome::Pass
                    }
                }
                _ => Outcome::Pass,
            }
        });
        let capabilities = Capabilities::try_all();
        assert_eq!(
            (choose(&capabilities).0, capabilities.gso_segments_max),
            (Backend::Gso, SEGMENTS_MIN)
        );
        drop(refuse_long_trains);
    }
}
