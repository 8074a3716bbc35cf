//! Canonical forms and embeddings.

use proptest::prelude::*;

use super::*;

#[test]
fn a_mapped_address_is_the_ipv4_address() {
    //= V-03
    let peer = PeerAddress::new("[::ffff:127.0.0.1]:80".parse().unwrap());
    assert_eq!(peer.address(), "127.0.0.1:80".parse().unwrap());
}

#[test]
fn scope_and_flow_label_do_not_make_another_peer() {
    //= V-05
    let v6 = "fe80::1".parse().unwrap();
    let scoped = core::net::SocketAddrV6::new(v6, 80, 5, 7);
    let plain = PeerAddress::new("[fe80::1]:80".parse().unwrap());
    assert_eq!(PeerAddress::new(scoped.into()), plain);
}

#[test]
fn the_examples_of_rfc_6052() {
    // RFC 6052 §2.4, table 2.
    for (prefix, len, embedded) in [
        ("2001:db8::", 32, "2001:db8:c000:221::"),
        ("2001:db8:100::", 40, "2001:db8:1c0:2:21::"),
        ("2001:db8:122::", 48, "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::", 56, "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::", 64, "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::", 96, "2001:db8:122:344::c000:221"),
        ("64:ff9b::", 96, "64:ff9b::c000:221"),
    ] {
        let prefix = Nat64Prefix::new(prefix.parse().unwrap(), len).unwrap();
        let v4 = Ipv4Addr::new(192, 0, 2, 33);
        let v6: Ipv6Addr = embedded.parse().unwrap();
        assert_eq!(prefix.embed(v4), v6, "{prefix}");
        assert_eq!(prefix.extract(v6), Some(v4), "{prefix}");
    }
}

#[test]
fn refuses_prefixes_that_rfc_6052_does_not_know() {
    for (prefix, len) in [
        ("2001:db8::", 33),
        ("2001:db8::", 0),
        ("2001:db8::", 128),
        ("2001:db8::1", 96),
        ("2001:db8:1::", 32),
        ("2001:db8:0:0:0100::", 96),
    ] {
        assert_eq!(
            Nat64Prefix::new(prefix.parse().unwrap(), len),
            None,
            "{prefix}/{len}"
        );
    }
}

#[test]
fn finds_the_address_in_every_form() {
    //= V-04
    let v4 = Ipv4Addr::new(10, 1, 2, 3);
    for (text, form) in [
        ("::10.1.2.3", Embedding::Compatible),
        ("::ffff:0:10.1.2.3", Embedding::Translated),
        ("64:ff9b::10.1.2.3", Embedding::Nat64WellKnown),
        ("64:ff9b:1::10.1.2.3", Embedding::Nat64LocalUse),
        ("2001:470::5efe:10.1.2.3", Embedding::Isatap),
        ("2001:470::200:5efe:10.1.2.3", Embedding::Isatap),
        ("fe80::5efe:10.1.2.3", Embedding::Isatap),
        ("2001:0:4136:e378:8000:63bf:f5fe:fdfc", Embedding::Teredo),
        ("2002:0a01:0203::1", Embedding::SixToFour),
    ] {
        let found: Vec<_> = embedded_v4(text.parse().unwrap(), &[]).collect();
        assert_eq!(found, [(form, v4)], "{text}");
    }
}

#[test]
fn an_operators_prefix_says_where_the_address_stands() {
    let prefix = Nat64Prefix::new("64:ff9b:1:5::".parse().unwrap(), 64).unwrap();
    let v4 = Ipv4Addr::new(10, 1, 2, 3);
    let found: Vec<_> = embedded_v4(prefix.embed(v4), &[prefix]).collect();
    assert_eq!(found, [(Embedding::Nat64Operator, v4)]);
    let unknown: Vec<_> = embedded_v4(prefix.embed(v4), &[]).collect();
    assert_eq!(unknown, [(Embedding::Nat64LocalUse, Ipv4Addr::UNSPECIFIED)]);
}

#[test]
fn ordinary_addresses_carry_nothing() {
    for text in [
        "::",
        "::1",
        "2001:470::1",
        "2606:4700::1111",
        "64:ff9b:2::1",
        "fd00::1",
        "2001:1::1",
    ] {
        assert_eq!(embedded_v4(text.parse().unwrap(), &[]).count(), 0, "{text}");
    }
}

#[test]
fn knows_the_tunnels_of_rfc_8656() {
    //= TURN-117
    for text in ["2001::1", "2001:0:ffff::1", "2002::", "2002:ffff::1"] {
        assert!(is_tunnel(text.parse().unwrap()), "{text}");
    }
    for text in [
        "2001:1::1",
        "2003::1",
        "192.0.2.1",
        "::ffff:192.0.2.1",
        "2001:470::1",
    ] {
        assert!(!is_tunnel(text.parse().unwrap()), "{text}");
    }
}

proptest! {
    #[test]
    fn what_was_embedded_is_extracted(
        bits: u128,
        len in prop::sample::select(vec![32_u8, 40, 48, 56, 64, 96]),
        v4: u32,
    ) {
        let bits = bits & !host_mask(len) & !(0xff << 56);
        let prefix = Nat64Prefix::new(Ipv6Addr::from_bits(bits), len).unwrap();
        let v4 = Ipv4Addr::from_bits(v4);
        let v6 = prefix.embed(v4);
        prop_assert_eq!(prefix.extract(v6), Some(v4));
        // RFC 6052 §2.2: bits 64 to 71 are zero, except in the address that a /96 ends with, which lies behind them.
        prop_assert_eq!(v6.octets()[8], 0);
    }
}
