//! What has gone wrong in TURN servers, tried against the running binary over UDP, TCP, TLS and DTLS.
//!
//! Every test starts a relay of its own, attacks it, and looks at four things: the answer on the wire, a canary where the relay
//! must not send to, that the process is still the one that was started, and that its accounts balance to the datagram. The
//! last two are checked by [`harness::Server`] when it goes out of scope.
//!
//! Most tests live on loopback addresses of their own. Those that need special addresses move into a network namespace, which takes
//! root; without it they say `not run`. `scripts/guards` removes each guard from the product and shows that its test fails.
//!
//! | row | what | tests |
//! |---|---|---|
//! | V-01 | loopback peers | `relay_abuse` |
//! | V-02 | "this host" | `relay_abuse` |
//! | V-03 | IPv4-mapped peers | `relay_abuse` |
//! | V-04 | other embeddings | `relay_abuse` |
//! | V-05 | link-local, metadata services | `relay_abuse` |
//! | V-07 | the relay's own addresses | `own_addresses` |
//! | V-11 | broadcast and multicast | `relay_abuse` |
//! | V-13 | permissions | `permissions` |
//! | V-12 | scanning through Connect | `tcp_relays` |
//! | V-14 | redirection | `redirection` |
//! | V-16 | coturn's console, other services beside the relay | `console`, `own_addresses` |
//! | V-20 | predictable nonces and ports | `randomness` |
//! | V-21 | state before proof | `memory`, `guests` |
//! | V-22 | replayed nonces and requests | `nonces` |
//! | V-23 | attributes behind the integrity attribute | `attributes` |
//! | V-24 | repeated attributes | `attributes` |
//! | V-25 | comparing integrity in constant time | `enumeration`: equal answers; the time is printed, not judged. The engine's bench `timing` judges it (docs/performance/2026-11-21-timing) |
//! | V-26 | telling users from strangers | `enumeration` |
//! | V-27 | bidding down | `nonces` |
//! | V-28 | another user on a client's 5-tuple | `hijack` |
//! | V-29 | conflicting channels | `hijack` |
//! | V-30 | mobility tickets | `mobility` |
//! | V-34 | what an unproved request says of realms | `realms` |
//! | V-42 | DTLS: state before the cookie, half-open sessions | `dtls` |
//! | V-46 | slow readers; peers that flood and peers that knock | `streams`, `tcp_relays` |
//! | V-47 | framing of streams | `streams` |
//! | V-48 | TLS handshakes | `tls` |
//! | V-51 | metrics | `metrics`, `boards`, `status_page` |
//! | V-63 | a process that is killed, or hands over to another program | `survival`, `keepers`, `upgrades`; with `xdp`, `kernel` |
//! | V-89, V-91 | bound tunnels to whom no peer may be, and what their clients did not ask for | `bound` |
//! | V-80 to V-86, V-88, V-95 | QUIC: floods, tokens, amplification, what passes for ChannelData, hand-over, request floods, key logs | `quic` |
//! | V-89, V-93 | switches that forbid relaying, and wrong passwords, at every door | `switches` |
//! | V-54, V-80, V-87, V-91, V-93, V-94 | tunnels of UDP in HTTP/3: questions to the database, places, clients without settings, what is for another tunnel, passwords, ICMP | `http3` |
//! | V-89 | forbidden peers as targets of tunnels, in every spelling | `probe` |
//! | V-90 | names of targets: rebinding, silence, endless ones | `http3` |
//!
//! Of relay sockets that allocations share, V-07, V-29 and V-45 have tests of their own (`shared_relays`).
//! And of the port that serves everything: whom a proxy may speak for, what HTTP gets (`proxy`).
//! Who may give commands, and what a bad caller costs, is in `control`, that each leaves a line in `audit`, that no secret is shown in `secrets`; what is said of a relay that is not well, in `health`.
//! That a burst is not lost where it arrives is in `bursts`. What the RFCs ask of packets and connections is in `standards`, what coturn's options do in `options`.
//! All that can be tried with nothing but a server's address is a program too, `turnbuckle probe`; `probe` runs it.
//!
//! What of these rows is not tried, because the relay has no such path: admin and metrics listeners as peers (any
//! other port of an own address stands for them). Permissions at 299.9 and
//! 300.1 seconds are tried in the engine, where time is an argument; here with a lifetime of two seconds.

#![expect(
    clippy::unwrap_used,
    clippy::unwrap_in_result,
    reason = "a test that cannot go on ends"
)]
#![expect(clippy::print_stdout, reason = "figures")]

mod attributes;
mod audit;
mod bandwidth;
mod boards;
mod bound;
mod bursts;
mod console;
mod control;
mod dtls;
mod enumeration;
mod guests;
mod harness;
mod health;
mod hijack;
mod http3;
mod http3_rules;
mod keepers;
#[cfg(all(feature = "xdp", target_arch = "x86_64"))]
mod kernel;
mod legacy;
mod memory;
mod metrics;
mod mobility;
mod nonces;
#[path = "../not_run/mod.rs"]
mod not_run;
mod options;
mod own_addresses;
mod permissions;
#[path = "../ports/mod.rs"]
mod ports;
mod probe;
mod proxy;
mod quic;
mod randomness;
mod realms;
mod redirection;
mod refusals;
mod relay_abuse;
mod reloads;
mod secrets;
mod shared_relays;
mod standards;
mod status_page;
mod streams;
mod survival;
mod switches;
mod tcp_relays;
mod tls;
mod tunnels;
mod upgrades;
