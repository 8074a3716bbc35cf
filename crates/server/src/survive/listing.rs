//! The list of listening sockets that a relay leaves behind: a line for each, `shard kind address descriptor cookie`, with the word `shared` behind it if
//! another process listens for datagrams at that address too. The next relay cannot find that out: its attempt to bind the address alone would meet these sockets.
//!
//! A list is appended behind the one before, and counts once its place and length are stored in one word. A socket is recognised by its cookie, which
//! the kernel gives to no other one (`SO_COOKIE`).

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use rustix::net::sockopt;
use turnbuckle_datapath::{KeptSockets, SocketKind};

use super::kept::{Kept, Word};

/// Bits of the word that hold the length of the list.
const LEN_BITS: u32 = 24;

/// Bytes of a list at most.
const LEN_MAX: u64 = (1 << LEN_BITS) - 1;

/// A listening socket.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) shard: usize,
    pub(super) kind: SocketKind,
    pub(super) address: SocketAddr,
    /// The number of the descriptor.
    pub(super) number: i32,
    pub(super) cookie: u64,
    /// Another process listens for datagrams at its address too.
    pub(super) is_shared: bool,
}

impl Listed {
    /// Returns whether a descriptor is that of this socket.
    pub(super) fn is(&self, descriptor: &OwnedFd) -> bool {
        cookie(descriptor) == Some(self.cookie)
    }

    fn line(&self) -> String {
        let kind = match self.kind {
            SocketKind::Connections => "tcp",
            SocketKind::Datagrams => "udp",
            SocketKind::Relay => "relay",
        };
        let shared = if self.is_shared { " shared" } else { "" };
        format!(
            "{} {kind} {} {} {}{shared}\n",
            self.shard, self.address, self.number, self.cookie
        )
    }

    fn of(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let listed = Self {
            shard: words.next()?.parse().ok()?,
            kind: match words.next()? {
                "tcp" => SocketKind::Connections,
                "udp" => SocketKind::Datagrams,
                _ => return None,
            },
            address: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
            cookie: words.next()?.parse().ok()?,
            is_shared: match words.next() {
                None => false,
                Some("shared") => true,
                Some(_) => return None,
            },
        };
        words.next().is_none().then_some(listed)
    }
}

impl Kept {
    /// Leaves the listening sockets of the shards to the next relay, in place of those that were listed before. At the addresses in `shared` another process
    /// listens for datagrams too.
    ///
    /// # Errors
    ///
    /// The list cannot be written.
    pub(super) fn list(&self, shards: &[KeptSockets], shared: &[SocketAddr]) -> io::Result<()> {
        let mut list = String::new();
        for (shard, sockets) in shards.iter().enumerate() {
            sockets.each(|kind, address, descriptor| {
                if let Some(cookie) = cookie(descriptor)
                    && kind != SocketKind::Relay
                {
                    let number = descriptor.as_raw_fd();
                    let listed = Listed {
                        shard,
                        kind,
                        address,
                        number,
                        cookie,
                        is_shared: kind == SocketKind::Datagrams && shared.contains(&address),
                    };
                    list.push_str(&listed.line());
                }
            });
        }
        let len = list.len() as u64;
        if len > LEN_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let before = self.get(Word::Listing);
        // The first half of the file or the second, whichever does not count.
        let start = match before >> LEN_BITS {
            0 => LEN_MAX + 1,
            _ => 0,
        };
        self.listing.write_all_at(list.as_bytes(), start)?;
        self.set(Word::Listing, start << LEN_BITS | len);
        Ok(())
    }

    /// Returns the listening sockets that were left; `None` if there is no list, or not one of this program.
    pub(super) fn listed(&self) -> Option<Vec<Listed>> {
        read(self.get(Word::Listing), &self.listing)
    }
}

/// Returns the sockets of the list that a word names in a file.
pub(super) fn read(word: u64, file: &File) -> Option<Vec<Listed>> {
    let (start, len) = (word >> LEN_BITS, word & LEN_MAX);
    let mut list = vec![0; usize::try_from(len).ok()?];
    file.read_exact_at(&mut list, start).ok()?;
    let listed: Option<Vec<_>> = str::from_utf8(&list)
        .ok()?
        .lines()
        .map(Listed::of)
        .collect();
    listed.filter(|listed| !listed.is_empty())
}

fn cookie(socket: impl AsFd) -> Option<u64> {
    sockopt::socket_cookie(socket).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written_and_no_other_line_is() {
        for is_shared in [false, true] {
            let listed = Listed {
                shard: 3,
                kind: SocketKind::Datagrams,
                address: "[2001:db8::1]:3478".parse().unwrap(),
                number: 17,
                cookie: 1 << 40,
                is_shared,
            };
            let line = listed.line();
            assert_eq!(Listed::of(line.trim_end()), Some(listed));
        }
        for wrong in [
            "",
            "3 udp",
            "3 unix 127.0.0.1:1 2 3",
            "3 udp 127.0.0.1:1 2 3 4",
            "3 udp 127.0.0.1:1 2 3 shared 4",
        ] {
            assert_eq!(Listed::of(wrong), None, "{wrong}");
        }
    }
}
