//! Peers of relay sockets that allocations share: each is one client's, from its grant until the client gives it up, and its datagrams and those to it
//! are that client's alone.

use std::net::SocketAddr;

use super::super::client::Client;
use super::rules::Datagram;
use crate::violation::{Violation, ensure};

/// Checks that nobody but its owner sends to a peer, or hears from it.
pub(super) fn check(clients: &[Client], relayed: &Datagram, now: u64) -> Result<(), Violation> {
    let mut others = clients.iter().filter(|it| it.owner != relayed.owner);
    let owner = others.find(|it| it.held(relayed.by, now).any(|peer| peer == relayed.peer));
    ensure(owner.is_none(), "claims", || {
        format!("{relayed:?}, although the peer is that of {owner:?}")
    })
}

/// Checks that no two clients have been granted one peer of a shared port.
pub(super) fn have_one_owner(
    clients: &[Client],
    shared: &[SocketAddr],
    now: u64,
) -> Result<(), Violation> {
    for &by in shared {
        for client in clients {
            for peer in client.held(by, now) {
                let owner = client.owner;
                check(clients, &Datagram { owner, peer, by }, now)?;
            }
        }
    }
    Ok(())
}
