//! Relaying in the kernel, in an XDP program.

use crate::choice::{Choice, kind_of};
use crate::entry::Group;
use crate::row::{Row, Topic, choice, number};
use crate::value::Kind;

/// Whether the kernel relays channels by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Xdp {
    /// In the driver where that works, otherwise not at all.
    Auto,
    /// In the network stack, for any driver.
    Generic,
    /// Not at all.
    #[default]
    Off,
    /// In the driver; otherwise the server does not start.
    On,
}

/// Relaying in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offload {
    /// Whether, and how.
    pub xdp: Xdp,
    /// Channels of each address family that there is memory for.
    pub channels: u32,
}

impl Topic for Offload {
    type Settings = Self;
}

impl Choice for Xdp {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("off", Self::Off),
        ("auto", Self::Auto),
        ("on", Self::On),
        ("generic", Self::Generic),
    ];
}

pub(crate) const ROWS: &[Row<Offload>] = &[
    Row::own(
        "O-038",
        "xdp",
        Group::Threads,
        kind_of!(Xdp),
        "Has the kernel relay the data of channels, by an XDP program at the network devices: on \
         in their drivers, or the server does not start; auto the same where it works; generic \
         for any driver, with `gro off` at the device. Only clients by plain UDP, peers of the \
         client's address family, without mobility; all else is relayed as usual. What comes to a \
         listener and begins as nothing does that is served there is dropped so too. Firewall \
         rules of this machine do not see what is relayed so.",
    )
    .default("off")
    .works(choice!(xdp)),
    Row::own(
        "O-038",
        "xdp-channels",
        Group::Threads,
        Kind::number(1, 1 << 20, "channels"),
        "Channels of each address family that there is memory for with xdp, 832 bytes for one of \
         each. Beyond it channels are relayed as usual.",
    )
    .default("16384")
    .works(number!(channels)),
];
