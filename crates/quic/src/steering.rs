//! A classic BPF program by which the kernel gives each datagram to the shard that its connection id names.
//!
//! The kernel runs it for each datagram that comes to a group of sockets with one address (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5), in which socket
//! number `n` is shard `n`'s. The program sees the UDP payload. It returns the number of a socket, or [`NO_SOCKET`], with which the kernel falls back to
//! its hash of the addresses, as without a program.
//!
//! Invariant: a number is returned only for a datagram whose first packet has a connection id of this server, where [`Ids::shard_of_datagram`]
//! returns the same number. For a buffer of several datagrams the first one decides. Whatever the program returns, the shard looks at the id again.

use crate::cid::{CONNECTION_ID_LEN, Ids, LONG_ID_AT, LONG_LEN_AT, SHORT_ID_AT, rounds};

/// No group has so many sockets: the kernel falls back to its hash of the addresses.
const NO_SOCKET: u32 = u32::MAX;
/// A datagram that is shorter has no connection id of ours behind a long header.
const LEN_MIN: usize = LONG_ID_AT + CONNECTION_ID_LEN;

/// One instruction of a classic BPF program, as in linux/filter.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What is done.
    pub code: u16,
    /// Instructions that a jump passes over if its condition holds.
    pub if_true: u8,
    /// Instructions that it passes over if not.
    pub if_false: u8,
    /// The operand `k`.
    pub operand: u32,
}

/// `A = length of the datagram`.
const LOAD_LEN: u16 = 0x80;
/// `A = the byte at k`.
const LOAD_BYTE: u16 = 0x30;
/// `A = the four bytes at X + k`, in network order.
const LOAD_WORD_AT_X: u16 = 0x40;
/// `A = cell k`, and the reverse.
const LOAD_CELL: u16 = 0x60;
const STORE_CELL: u16 = 0x02;
/// `X = k`.
const SET_X: u16 = 0x01;
/// `X = A`.
const COPY_TO_X: u16 = 0x07;
/// `if A == k`, `if A == X`, `if A >= k`.
const IF_EQUAL: u16 = 0x15;
const IF_EQUAL_X: u16 = 0x1d;
const IF_AT_LEAST: u16 = 0x35;
/// Go on `k` instructions further.
const JUMP: u16 = 0x05;
/// `A = A op k`, `A = A op X`.
const AND: u16 = 0x54;
const XOR: u16 = 0xa4;
const XOR_X: u16 = 0xac;
const MULTIPLY: u16 = 0x24;
const SHIFT_RIGHT: u16 = 0x74;
/// `return k`, `return A`.
const RETURN: u16 = 0x06;
const RETURN_A: u16 = 0x16;

/// Cells: the words of a connection id in their order, of which the first is what the others are hidden with.
const HIDDEN_WITH: u32 = 0;
const TAG: u32 = 1;
const SHARD: u32 = 2;

/// Where a jump goes.
#[derive(Clone, Copy)]
enum To {
    Next,
    Long,
    Short,
    NoSocket,
}

impl Ids {
    /// Returns the program for a group in which the first `shards` sockets are the shards'.
    pub fn steering(&self, shards: u32) -> Vec<Instruction> {
        let mut program = Program::default();
        program.step(LOAD_LEN, 0);
        // A load beyond the end of a datagram would end the program with 0, which is a socket.
        // guard: V-85-length
        program.jump(IF_AT_LEAST, narrow(LEN_MIN), To::Next, To::NoSocket);
        program.step(LOAD_BYTE, 0);
        program.jump(IF_AT_LEAST, 192, To::Long, To::Next);
        program.jump(IF_AT_LEAST, 128, To::NoSocket, To::Next);
        program.jump(IF_AT_LEAST, 64, To::Short, To::NoSocket);
        program.long = program.instructions.len();
        program.step(LOAD_BYTE, narrow(LONG_LEN_AT));
        let len = narrow(CONNECTION_ID_LEN);
        program.jump(IF_EQUAL, len, To::Next, To::NoSocket);
        program.step(SET_X, narrow(LONG_ID_AT));
        program.step(JUMP, 1);
        program.short = program.instructions.len();
        program.step(SET_X, narrow(SHORT_ID_AT));
        for cell in [HIDDEN_WITH, TAG, SHARD] {
            program.step(LOAD_WORD_AT_X, 4 * cell);
            program.step(STORE_CELL, cell);
        }
        program.mix(self.tag);
        program.step(COPY_TO_X, 0);
        program.step(LOAD_CELL, TAG);
        program.jump(IF_EQUAL_X, 0, To::Next, To::NoSocket);
        program.mix(self.shard);
        program.step(COPY_TO_X, 0);
        program.step(LOAD_CELL, SHARD);
        program.step(XOR_X, 0);
        program.step(AND, 0xff);
        program.jump(IF_AT_LEAST, shards, To::NoSocket, To::Next);
        program.step(RETURN_A, 0);
        program.end()
    }
}

/// A program under construction.
#[derive(Default)]
struct Program {
    instructions: Vec<Instruction>,
    /// The jumps, and where each goes if its condition holds and if not.
    jumps: Vec<(usize, [To; 2])>,
    /// The first instruction about a long header, and the first about a short one.
    long: usize,
    short: usize,
}

impl Program {
    fn step(&mut self, code: u16, operand: u32) {
        self.instructions.push(Instruction {
            code,
            if_true: 0,
            if_false: 0,
            operand,
        });
    }

    fn jump(&mut self, code: u16, operand: u32, if_true: To, if_false: To) {
        let at = self.instructions.len();
        self.jumps.push((at, [if_true, if_false]));
        self.step(code, operand);
    }

    /// Appends the instructions of `A = mix(cell 0)`.
    fn mix(&mut self, key: [u32; 2]) {
        self.step(LOAD_CELL, HIDDEN_WITH);
        self.step(XOR, key[0]);
        for (factor, shift) in rounds(key) {
            self.step(MULTIPLY, factor);
            self.step(COPY_TO_X, 0);
            self.step(SHIFT_RIGHT, shift);
            self.step(XOR_X, 0);
        }
        self.step(XOR, key[1]);
    }

    /// Adds the end without a socket, and fills in how far the jumps go.
    fn end(mut self) -> Vec<Instruction> {
        let no_socket = self.instructions.len();
        self.step(RETURN, NO_SOCKET);
        for (at, targets) in self.jumps {
            let [if_true, if_false] = targets.map(|to| {
                let target = match to {
                    To::Next => at + 1,
                    To::Long => self.long,
                    To::Short => self.short,
                    To::NoSocket => no_socket,
                };
                u8::try_from(target - at - 1).expect("the program has some 60 instructions")
            });
            let instruction = &mut self.instructions[at];
            (instruction.if_true, instruction.if_false) = (if_true, if_false);
        }
        self.instructions
    }
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).expect("a length of a header")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would.
    fn run(program: &[Instruction], datagram: &[u8]) -> u32 {
        let (mut a, mut x, mut cells) = (0_u32, 0_u32, [0_u32; 16]);
        let mut at = 0;
        loop {
            let Instruction {
                code,
                if_true,
                if_false,
                operand: k,
            } = program[at];
            at += 1;
            let go = |holds: bool| usize::from(if holds { if_true } else { if_false });
            let bytes = |from: u32, len: usize| datagram.get(from as usize..)?.get(..len);
            match code {
                LOAD_LEN => a = u32::try_from(datagram.len()).unwrap(),
                LOAD_BYTE => match bytes(k, 1) {
                    Some(byte) => a = byte[0].into(),
                    None => return 0,
                },
                LOAD_WORD_AT_X => match bytes(x + k, 4) {
                    Some(word) => a = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return 0,
                },
                LOAD_CELL => a = cells[k as usize],
                STORE_CELL => cells[k as usize] = a,
                SET_X => x = k,
                COPY_TO_X => x = a,
                IF_EQUAL => at += go(a == k),
                IF_EQUAL_X => at += go(a == x),
                IF_AT_LEAST => at += go(a >= k),
                JUMP => at += k as usize,
                AND => a &= k,
                XOR => a ^= k,
                XOR_X => a ^= x,
                MULTIPLY => a = a.wrapping_mul(k),
                SHIFT_RIGHT => a >>= k,
                RETURN => return k,
                RETURN_A => return a,
                code => panic!("{code:#x}"),
            }
        }
    }

    fn ids() -> Ids {
        Ids::new(std::array::from_fn(|index| {
            u8::try_from((index * 29 + 7) % 256).unwrap()
        }))
    }

    #[test]
    fn the_program_finds_the_shard_that_the_id_names() {
        let program = ids().steering(4);
        for shard in 0..=u8::MAX {
            for round in 0..8_u8 {
                let id = ids().make(shard, [round, shard, 3, 250, 5, round ^ 0xa5, 7]);
                let expected = match u32::from(shard) {
                    shard @ 0..4 => shard,
                    _ => NO_SOCKET,
                };
                for first in [64, 79, 80, 127] {
                    let short = [&[first][..], &id, &[0x55; 9]].concat();
                    assert_eq!(run(&program, &short), expected, "{short:02x?}");
                }
                for first in [192, 0xd0, 255] {
                    let long = [&[first, 0, 0, 0, 1, 12][..], &id].concat();
                    assert_eq!(run(&program, &long), expected, "{long:02x?}");
                }
            }
        }
    }

    #[test]
    fn whatever_has_no_id_of_this_server_is_left_to_the_kernel() {
        let program = ids().steering(4);
        let id = ids().make(2, [9; 7]);
        for first in 0..=u8::MAX {
            // Too short, or with another length of the id, or with a tag that is wrong.
            for len in 0..18 {
                let mut bytes = [&[first, 0, 0, 0, 1, 12][..], &id].concat();
                bytes.truncate(len);
                assert_eq!(run(&program, &bytes), NO_SOCKET, "{bytes:02x?}");
            }
            for len in (0..=u8::MAX).filter(|&len| len != 12) {
                let bytes = [&[first, 0, 0, 0, 1, len][..], &id, &[0; 12]].concat();
                assert_eq!(run(&program, &bytes), NO_SOCKET, "{bytes:02x?}");
            }
            for bit in 0..64 {
                let mut id = id;
                id[bit / 8] ^= 1 << (bit % 8);
                let short = [&[first][..], &id, &[0; 9]].concat();
                let long = [&[first, 0, 0, 0, 1, 12][..], &id].concat();
                assert_eq!(run(&program, &short), NO_SOCKET, "{short:02x?}");
                assert_eq!(run(&program, &long), NO_SOCKET, "{long:02x?}");
            }
        }
        // TURN's requests and what lies between ChannelData and long headers never have one.
        for first in (0..64).chain(128..192) {
            let short = [&[first][..], &id, &[0; 9]].concat();
            assert_eq!(run(&program, &short), NO_SOCKET);
        }
    }
}
