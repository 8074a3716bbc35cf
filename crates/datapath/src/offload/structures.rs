//! The structures of the program, as the BTF of the committed object has them, against the places that this module writes and reads.

use std::collections::BTreeMap;

use super::line::Layout;
use super::{meters, nexthop, screen};

static OBJECT: &[u8] = include_bytes!("../../bpf/turn.bpf.o");

/// Bytes of a word.
const WORD: usize = 8;

/// Size of a structure in bytes, and the offset of each of its members.
type Structure = (usize, BTreeMap<String, usize>);

fn number(bytes: &[u8], at: usize, len: usize) -> usize {
    let bytes = &bytes[at..at + len];
    bytes
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | usize::from(byte))
}

fn text(strings: &[u8], at: usize) -> String {
    let end = strings[at..].iter().position(|&it| it == 0).unwrap();
    String::from_utf8(strings[at..at + end].to_vec()).unwrap()
}

/// Returns the contents of a section of the object (ELF64, little-endian).
fn section(name: &str) -> &'static [u8] {
    let (table, size, count) = (
        number(OBJECT, 0x28, 8),
        number(OBJECT, 0x3A, 2),
        number(OBJECT, 0x3C, 2),
    );
    let contents = |index: usize| {
        let header = table + index * size;
        let (offset, len) = (
            number(OBJECT, header + 0x18, 8),
            number(OBJECT, header + 0x20, 8),
        );
        &OBJECT[offset..offset + len]
    };
    let names = contents(number(OBJECT, 0x3E, 2));
    let mut all = 0..count;
    let index = all.find(|index| text(names, number(OBJECT, table + index * size, 4)) == name);
    contents(index.unwrap())
}

/// Returns the structures of the object by their names (Documentation/bpf/btf.rst).
fn structures() -> BTreeMap<String, Structure> {
    let btf = section(".BTF");
    assert_eq!(number(btf, 0, 2), 0xEB9F);
    let header = number(btf, 4, 4);
    let part = |at: usize| &btf[header + number(btf, at, 4)..][..number(btf, at + 4, 4)];
    let (types, strings) = (part(8), part(16));
    let mut found = BTreeMap::new();
    let mut at = 0;
    while at < types.len() {
        let (name, info, size) = (
            number(types, at, 4),
            number(types, at + 4, 4),
            number(types, at + 8, 4),
        );
        let (kind, count) = (info >> 24 & 0x1F, info & 0xFFFF);
        at += 12;
        // What follows the head, by kind: nothing, or so many bytes once or for each member.
        let len = match kind {
            1 | 14 | 17 => 4,
            3 => 12,
            4 | 5 | 15 | 19 => 12 * count,
            6 | 13 => 8 * count,
            2 | 7..=12 | 16 | 18 => 0,
            other => panic!("a type of kind {other}"),
        };
        if kind == 4 {
            let members = (0..count).map(|member| {
                let member = at + 12 * member;
                let offset_bits = number(types, member + 8, 4);
                (text(strings, number(types, member, 4)), offset_bits / 8)
            });
            found.insert(text(strings, name), (size, members.collect()));
        }
        at += len;
    }
    found
}

#[test]
fn members_of_the_programs_structures_are_where_this_module_has_them() {
    let structures = structures();
    let check = |name: &str, words: usize, members: &[(&str, usize)]| {
        let (size, offsets) = &structures[name];
        assert_eq!(*size, words * WORD, "{name}");
        for (member, word) in members {
            assert_eq!(offsets[*member], word * WORD, "{name}.{member}");
        }
        let unused = offsets.contains_key("unused");
        assert_eq!(offsets.len(), members.len() + usize::from(unused), "{name}");
    };
    for (name, layout) in [("line4", Layout::V4), ("line6", Layout::V6)] {
        check(
            name,
            layout.len,
            &[
                ("seq", Layout::SEQ),
                ("ports", Layout::PORTS),
                ("addresses", Layout::ADDRESSES),
                ("new_ports", layout.new_ports()),
                ("new_addresses", layout.new_addresses()),
                ("expires_ns", layout.expires_ns()),
                ("packets", layout.packets()),
                ("bytes", layout.bytes()),
            ],
        );
    }
    check(
        "hop",
        nexthop::HOP_WORDS,
        &[
            ("egress", nexthop::EGRESS),
            ("destination", nexthop::DESTINATION),
            ("source", nexthop::SOURCE),
        ],
    );
    check(
        "meter",
        meters::METER_WORDS,
        &[
            ("rate", meters::RATE),
            ("empty_at_ns", meters::EMPTY_AT_NS),
            ("packets", meters::PACKETS),
            ("bytes", meters::BYTES),
        ],
    );
    check(
        "listener",
        screen::LISTENER_WORDS,
        &[
            ("place", screen::PLACE),
            ("address", screen::ADDRESS),
            ("first_bytes", screen::FIRST_BYTES),
            ("mark", screen::MARK),
        ],
    );
    check(
        "refused",
        screen::REFUSED_WORDS,
        &[("unknown", screen::UNKNOWN), ("unmarked", screen::UNMARKED)],
    );
    // The words of `Kernel::passes`, in its order.
    let passes = [
        "expired",
        "changing",
        "next_hop",
        "too_large",
        "checksum",
        "headroom",
        "padding",
    ];
    let passes: Vec<_> = passes.into_iter().zip(0..).collect();
    check("passes", super::program::PASSES_WORDS, &passes);
}
