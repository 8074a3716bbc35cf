//! ICMP errors that relayed datagrams caused (RFC 8656 §11.5).

use core::net::SocketAddr;

use turnbuckle_wire::{Class, Icmp, MessageWriter, Method};

use crate::allocations::Allocations;
use crate::command::IcmpError;
use crate::drop_reason::DropReason;
use crate::id::RelayHandle;
use crate::out::Out;
use crate::random::Random;
use crate::random::transaction_id;
use crate::rules::Rules;
use crate::time::Now;

pub(crate) fn relay_icmp(
    now: Now,
    relay: RelayHandle,
    error: &IcmpError,
    rules: &Rules,
    allocations: &Allocations,
    out: &mut Out,
    random: &mut impl Random,
) -> Result<(), DropReason> {
    if !is_relayed(error) {
        return Err(DropReason::IcmpNotRelayed);
    }
    if !out.outbox.has_room(rules.config.limits.reply_queue_bytes) {
        return Err(DropReason::ReplyQueueFull);
    }
    // the destination of the datagram that caused it decides, never the sender of the ICMP message
    let peer = rules.policies.usual.admit(error.peer);
    let allocation = allocations
        .live(relay.allocation)
        .ok_or(DropReason::RelayClosed)?;
    allocation
        .live_relay(relay.family, now.time)
        .ok_or(DropReason::RelayClosed)?;
    // guard: V-13-icmp
    if !allocation.permissions.permits(peer.ip(), now.time)
        || rules
            .policies
            .forbids_by_now(relay.allocation, allocation.account.user(), peer)
    {
        return Err(DropReason::IcmpNotRelayed);
    }
    let client = allocation.client;
    let transaction = transaction_id(random);
    let icmp = Icmp {
        kind: error.kind,
        code: u16::from(error.code),
        data: if is_too_big(error) { error.mtu } else { 0 },
    };
    out.outbox.reply(client, |buffer| {
        let mut writer = MessageWriter::new(buffer, Class::Indication, Method::DATA, transaction);
        writer.xor_peer_address(peer.address()).icmp(icmp);
        writer.finish()
    });
    Ok(())
}

/// Returns whether the error is relayed: ICMPv4 types 3 and 11, ICMPv6 types 1, 2 and 3.
fn is_relayed(error: &IcmpError) -> bool {
    let is_v4 = matches!(error.peer, SocketAddr::V4(_));
    error.v6 != is_v4
        && if error.v6 {
            matches!(error.kind, 1..=3)
        } else {
            matches!(error.kind, 3 | 11)
        }
}

/// Returns whether the error carries an MTU: "fragmentation needed and DF set" or "packet too big" (RFC 8656 §18.13).
fn is_too_big(error: &IcmpError) -> bool {
    if error.v6 {
        error.kind == 2
    } else {
        error.kind == 3 && error.code == 4
    }
}
