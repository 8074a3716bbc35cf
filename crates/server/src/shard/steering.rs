//! The program by which the kernel gives datagrams of QUIC to the shard that has the connection.
//!
//! It saves the hand-over between shards, nothing more: what the kernel gives to another shard, because there is no program, or because datagrams of
//! two connections came in one buffer, is handed over.

use turnbuckle_datapath::Instruction;

use crate::shard::front::quic::QuicService;

/// Returns the program for the sockets of so many shards; `None` where there is no QUIC, or nothing to choose from.
pub(super) fn program(quic: Option<&QuicService>, shards: usize) -> Option<Vec<Instruction>> {
    let quic = quic.filter(|quic| quic.is_steered && shards > 1)?;
    let program = quic.keys.ids().steering(shards.try_into().ok()?);
    Some(program.into_iter().map(of).collect())
}

fn of(step: turnbuckle_quic::Instruction) -> Instruction {
    Instruction {
        code: step.code,
        if_true: step.if_true,
        if_false: step.if_false,
        operand: step.operand,
    }
}
