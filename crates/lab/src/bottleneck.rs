//! What limited a run: generator, relay, reflector or nothing, by stated rules.
//!
//! A relay's figures under flood mean something only if the relay was what gave out. Everything here is decided from counters; the rules are
//! [`RULES`], which every report quotes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The rules in words, in the order in which they are tried.
pub(crate) const RULES: &str = "\
1. **generator**: it sent less than 97 % of what was due at a fixed rate.
2. **relay**: more than 2 % of the packets that reached its host did not leave it again, or were dropped before it, or it had 90 % of its CPUs (process and the \
kernel threads that receive for it).
3. **reflector**: more than 2 % of the packets that reached its host did not reach it.
4. **generator**: more than 2 % of the packets that came back to its host did not reach it; or, under flood, none of the above (it could not send enough).
5. **nothing**: none of the above at a fixed rate.

What did not arrive is the difference of packet counts, because the kernel's drop counters count a buffer of many datagrams as one.";

/// Share of a hop's packets beyond which its drops count; the ends of the windows of two programs differ by some milliseconds.
const DROPPED_SHARE: f64 = 0.02;
/// Share of its CPUs from which the relay counts as busy.
const BUSY_SHARE: f64 = 0.90;

/// Share of what was due that a generator has to send. Less is another load than the scenario's.
const SENT_SHARE: f64 = 0.97;

/// What limited a run.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Bottleneck {
    Generator,
    Nothing,
    Reflector,
    Relay,
    /// The run gave no figures.
    Unknown,
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Generator => "generator",
            Self::Nothing => "nothing",
            Self::Reflector => "reflector",
            Self::Relay => "relay",
            Self::Unknown => "unknown",
        })
    }
}

/// What the rules look at.
#[derive(Clone, Debug)]
pub(crate) struct Evidence {
    /// The load sends as much as it can.
    pub(crate) flood: bool,
    /// What was sent of what was due; 1 where nothing is.
    pub(crate) sent_share: f64,
    /// No relay takes part.
    pub(crate) direct: bool,
    pub(crate) seconds: f64,
    pub(crate) relay_cpu_s: f64,
    pub(crate) relay_cpus: u64,
    /// IP packets in.
    pub(crate) relay_in: u64,
    /// What did not leave again, or what drop counters say, whichever is more.
    pub(crate) relay_drops: u64,
    pub(crate) peer_in: u64,
    pub(crate) peer_drops: u64,
    pub(crate) load_in: u64,
    pub(crate) load_drops: u64,
}

/// Names the bottleneck, with the evidence in words.
pub(crate) fn judge(evidence: &Evidence) -> (Bottleneck, String) {
    let share = |drops: u64, arrived: u64| drops as f64 / (arrived.max(drops).max(1)) as f64;
    let busy = evidence.relay_cpu_s
        / (evidence.seconds * evidence.relay_cpus.max(1) as f64).max(f64::MIN_POSITIVE);
    // What a program in the driver relays, no counter of IP packets at the relay has; but it has left, so it had come.
    let relay_in = evidence.relay_in.max(evidence.peer_in + evidence.load_in);
    let relay = share(evidence.relay_drops, relay_in);
    let peer = share(evidence.peer_drops, evidence.peer_in);
    let load = share(evidence.load_drops, evidence.load_in);
    let bottleneck = if evidence.sent_share < SENT_SHARE {
        Bottleneck::Generator
    } else if !evidence.direct && (relay > DROPPED_SHARE || busy >= BUSY_SHARE) {
        Bottleneck::Relay
    } else if peer > DROPPED_SHARE {
        Bottleneck::Reflector
    } else if load > DROPPED_SHARE || evidence.flood {
        Bottleneck::Generator
    } else {
        Bottleneck::Nothing
    };
    let mut why = Vec::new();
    if evidence.sent_share < SENT_SHARE {
        why.push(format!(
            "{:.1} % of what was due was sent",
            evidence.sent_share * 100.0
        ));
    }
    if !evidence.direct {
        why.push(format!(
            "relay {:.0} % of its CPU, {:.1} % dropped at it",
            busy * 100.0,
            relay * 100.0
        ));
    }
    for (name, dropped) in [("reflector", peer), ("generator", load)] {
        if dropped > 0.005 {
            why.push(format!("{:.1} % dropped at the {name}", dropped * 100.0));
        }
    }
    (bottleneck, why.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> Evidence {
        Evidence {
            flood: false,
            sent_share: 1.0,
            direct: false,
            seconds: 4.0,
            relay_cpu_s: 1.0,
            relay_cpus: 1,
            relay_in: 10_000,
            relay_drops: 0,
            peer_in: 5_000,
            peer_drops: 0,
            load_in: 5_000,
            load_drops: 0,
        }
    }

    fn named(evidence: &Evidence) -> Bottleneck {
        judge(evidence).0
    }

    #[test]
    fn nothing_limits_a_fixed_rate_that_is_delivered() {
        assert_eq!(named(&quiet()), Bottleneck::Nothing);
    }

    #[test]
    fn a_flood_that_everyone_keeps_up_with_is_limited_by_the_generator() {
        let evidence = Evidence {
            flood: true,
            ..quiet()
        };
        assert_eq!(named(&evidence), Bottleneck::Generator);
    }

    #[test]
    fn a_relay_whose_driver_relays_dropped_a_share_of_what_left_it() {
        let evidence = Evidence {
            relay_in: 10,
            relay_drops: 100,
            ..quiet()
        };
        assert_eq!(named(&evidence), Bottleneck::Nothing);
        let evidence = Evidence {
            relay_drops: 1_000,
            ..evidence
        };
        assert_eq!(named(&evidence), Bottleneck::Relay);
    }

    #[test]
    fn a_relay_that_drops_or_is_busy_is_the_bottleneck_whatever_happens_behind_it() {
        let dropping = Evidence {
            relay_drops: 201,
            peer_drops: 4_000,
            ..quiet()
        };
        assert_eq!(named(&dropping), Bottleneck::Relay);
        let busy = Evidence {
            relay_cpu_s: 3.6,
            ..quiet()
        };
        assert_eq!(named(&busy), Bottleneck::Relay);
        let (_, why) = judge(&dropping);
        assert!(why.contains("80.0 % dropped at the reflector"), "{why}");
    }

    #[test]
    fn drops_behind_an_idle_relay_name_the_instrument() {
        let peer = Evidence {
            flood: true,
            peer_drops: 101,
            ..quiet()
        };
        assert_eq!(named(&peer), Bottleneck::Reflector);
        let load = Evidence {
            load_drops: 101,
            ..quiet()
        };
        assert_eq!(named(&load), Bottleneck::Generator);
    }

    #[test]
    fn a_generator_that_cannot_keep_its_rate_is_the_bottleneck_however_busy_the_relay_is() {
        let slow = Evidence {
            sent_share: 0.9,
            relay_cpu_s: 4.0,
            ..quiet()
        };
        let (bottleneck, why) = judge(&slow);
        assert_eq!(bottleneck, Bottleneck::Generator);
        assert!(why.contains("90.0 % of what was due was sent"), "{why}");
    }

    #[test]
    fn without_a_relay_it_cannot_be_the_bottleneck() {
        let evidence = Evidence {
            direct: true,
            flood: true,
            relay_cpu_s: 4.0,
            ..quiet()
        };
        assert_eq!(named(&evidence), Bottleneck::Generator);
    }
}
