//! Programs that choose the socket of a group with one address (`SO_REUSEPORT`) which gets a connection or a datagram; one of them chooses the socket
//! that belongs to the CPU on which a connection arrives.
//!
//! A classic BPF program that the kernel runs for each SYN, and for each datagram over its UDP payload (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5), returns
//! the number of a socket of the group; sockets are numbered in the order in which they began to listen, or were bound for datagrams. A number that no
//! socket has leaves it to the hash of the addresses. A load beyond the end of a packet ends a program with 0.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::io::Errno;

use crate::sockopt::last_errno;

/// Where the kernel's own values begin in a load (`SKF_AD_OFF`), as an unsigned offset.
const OWN_VALUES: u32 = 0xffff_f000;
/// `SKF_AD_CPU`: the CPU that runs the program.
const CPU: u32 = OWN_VALUES + 36;
/// `SKF_AD_RANDOM`: a random number.
const RANDOM: u32 = OWN_VALUES + 56;
/// No socket has this number: the kernel falls back to its hash of the addresses.
const NO_SOCKET: u32 = u32::MAX;

/// `A = value of the kernel`.
const LOAD: u16 = 0x20;
/// `if A == k`.
const JUMP_IF_EQUAL: u16 = 0x15;
/// `A = A mod k`.
const MODULO: u16 = 0x94;
/// `A = A * k`.
const MULTIPLY: u16 = 0x24;
/// `A = A + k`.
const ADD: u16 = 0x04;
/// `return k`.
const RETURN: u16 = 0x06;
/// `return A`.
const RETURN_A: u16 = 0x16;

fn step(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Returns the program. A connection on the CPU at place `j` of `cpus` goes to socket `j`, `j + cpus.len()`, ..., at random if there are several.
/// With fewer sockets than CPUs it goes to socket `j mod sockets`.
fn program(cpus: &[u32], sockets: u32) -> Vec<libc::sock_filter> {
    let places = u32::try_from(cpus.len()).unwrap_or(u32::MAX);
    let mut program = vec![step(LOAD, CPU)];
    for (place, &cpu) in (0..).zip(cpus) {
        // Sockets place, place + places, ... below `sockets`.
        let choices = sockets.saturating_sub(place).div_ceil(places);
        let arm = if choices <= 1 {
            vec![step(RETURN, place % sockets)]
        } else {
            vec![
                step(LOAD, RANDOM),
                step(MODULO, choices),
                step(MULTIPLY, places),
                step(ADD, place),
                step(RETURN_A, 0),
            ]
        };
        program.push(libc::sock_filter {
            jf: if choices <= 1 { 1 } else { 5 },
            ..step(JUMP_IF_EQUAL, cpu)
        });
        program.extend(arm);
    }
    program.push(step(RETURN, NO_SOCKET));
    program
}

/// Steers connections of the group that `socket` belongs to, `sockets` in number, by the CPU on which they arrive: those of the CPU at place
/// `j` of `cpus` go to the socket that began to listen as number `j`, modulo the number of sockets; with more sockets than CPUs also to
/// `j + cpus.len()` and so on. Connections on other CPUs are spread by the hash of their addresses.
///
/// # Errors
/// What `setsockopt` returns: `ENOMEM` or `EINVAL` for more CPUs than a program has room for (at least 680).
pub fn steer_by_cpu(socket: impl AsFd, cpus: &[u32], sockets: u32) -> Result<(), Errno> {
    if cpus.is_empty() || sockets == 0 {
        return Err(Errno::INVAL);
    }
    attach(socket.as_fd(), &mut program(cpus, sockets))
}

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

/// Has a program choose the socket for what comes to the group that `socket` belongs to, in place of the program that did.
///
/// # Errors
/// What `setsockopt` returns: `EINVAL` for a program that the kernel does not take and for a socket that is in no group.
pub fn steer(socket: impl AsFd, program: &[Instruction]) -> Result<(), Errno> {
    let mut program: Vec<_> = program
        .iter()
        .map(|instruction| libc::sock_filter {
            code: instruction.code,
            jt: instruction.if_true,
            jf: instruction.if_false,
            k: instruction.operand,
        })
        .collect();
    attach(socket.as_fd(), &mut program)
}

#[expect(unsafe_code, reason = "setsockopt with a BPF program")]
fn attach(socket: BorrowedFd<'_>, program: &mut [libc::sock_filter]) -> Result<(), Errno> {
    let description = libc::sock_fprog {
        len: program.len().try_into().map_err(|_| Errno::INVAL)?,
        filter: program.as_mut_ptr(),
    };
    let len = size_of::<libc::sock_fprog>()
        .try_into()
        .map_err(|_| Errno::INVAL)?;
    // SAFETY: `description` points at `program`, whose length it states; both live during the call, which only reads and copies them. The
    // descriptor is open for as long as it is borrowed.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const description).cast(),
            len,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel would.
    fn run(program: &[libc::sock_filter], cpu: u32, random: u32) -> u32 {
        let mut a = 0u32;
        let mut at = 0;
        loop {
            let step = &program[at];
            at += 1;
            match step.code {
                LOAD if step.k == CPU => a = cpu,
                LOAD => a = random,
                JUMP_IF_EQUAL => at += usize::from(if a == step.k { step.jt } else { step.jf }),
                MODULO => a %= step.k,
                MULTIPLY => a *= step.k,
                ADD => a += step.k,
                RETURN => return step.k,
                RETURN_A => return a,
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn each_cpu_has_its_socket_and_each_socket_its_cpu() {
        for sockets in 1..=13 {
            // Numbers as a cpuset leaves them.
            let cpus = [1, 2, 5, 9];
            let program = program(&cpus, sockets);
            let mut reached = vec![false; sockets as usize];
            for (place, &cpu) in (0u32..).zip(&cpus) {
                for random in 0..sockets {
                    let socket = run(&program, cpu, random);
                    assert!(socket < sockets, "{socket} of {sockets}");
                    if sockets >= 4 {
                        assert_eq!(socket % 4, place);
                    } else {
                        assert_eq!(socket, place % sockets);
                    }
                    reached[socket as usize] = true;
                }
            }
            assert!(reached.iter().all(|&reached| reached), "{sockets}");
            assert_eq!(run(&program, 3, 0), NO_SOCKET);
        }
    }
}
