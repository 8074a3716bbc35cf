//! Values on the command lines of the instruments.

use std::net::SocketAddr;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rustix::thread::CpuSet;
use turnbuckle_datapath::Backend;

use crate::reach::Reach;

/// Most threads of one kind. More would measure the scheduler.
pub(crate) const THREADS_MAX: usize = 64;

/// A number of threads, or as many as suit the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    Auto,
    Number(usize),
}

/// Returns each address with so many ports, from its own on. Those beyond 65535 are left out; port 0 stands for any and has no next one.
pub(crate) fn on_ports(addresses: &[SocketAddr], ports: u16) -> Vec<SocketAddr> {
    let with_ports = |&address: &SocketAddr| {
        let count = if address.port() == 0 { 1 } else { ports };
        let ports = (0..count).map_while(move |index| address.port().checked_add(index));
        ports.map(move |port| SocketAddr::new(address.ip(), port))
    };
    addresses.iter().flat_map(with_ports).collect()
}

pub(crate) fn threads(text: &str) -> Result<Threads, String> {
    if text == "auto" {
        return Ok(Threads::Auto);
    }
    match text.parse() {
        Ok(number @ 1..=THREADS_MAX) => Ok(Threads::Number(number)),
        _ => Err(format!("allowed: auto, or 1 to {THREADS_MAX}")),
    }
}

impl Threads {
    /// Returns the number, or `auto` when it was left open; never more than `most`, never none.
    pub(crate) fn or(self, auto: usize, most: usize) -> usize {
        let number = match self {
            Self::Auto => auto,
            Self::Number(number) => number,
        };
        number.clamp(1, most.max(1))
    }
}

/// A choice of backend; `None` for `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackendChoice(Option<Backend>);

pub(crate) fn backend(text: &str) -> Result<BackendChoice, String> {
    if text == "auto" {
        return Ok(BackendChoice(None));
    }
    text.parse()
        .map(|backend| BackendChoice(Some(backend)))
        .map_err(|_| "allowed: auto, single, mmsg, gso".to_owned())
}

impl BackendChoice {
    pub(crate) const AUTO: Self = Self(None);

    pub(crate) fn resolve(self) -> Backend {
        self.0.unwrap_or_else(|| Backend::probe().0)
    }
}

/// Returns a parser of the names of ways to the server.
pub(crate) fn transports() -> impl TypedValueParser<Value = Reach> {
    PossibleValuesParser::new(Reach::ALL.map(Reach::as_str)).try_map(|text| text.parse::<Reach>())
}

/// Parses seconds, fractions allowed, up to a day.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("allowed: 0 to 86400 seconds".to_owned()),
    }
}

/// Parses packets per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1e9 => Ok(rate),
        _ => Err("allowed: more than 0, at most 1000000000 packets per second".to_owned()),
    }
}

/// CPU numbers, `0,2-3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cpus(pub(crate) Vec<usize>);

pub(crate) fn cpus(text: &str) -> Result<Cpus, String> {
    let wrong = || {
        format!(
            "allowed: CPU numbers below {} and ranges of them, as in 0,2-3",
            CpuSet::MAX_CPU
        )
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
            return Err(wrong());
        };
        if first > last || last >= CpuSet::MAX_CPU {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    Ok(Cpus(cpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_as_many_ports_as_there_are() {
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(on_ports(&[at(7), at(0)], 2), [at(7), at(8), at(0)]);
        assert_eq!(on_ports(&[at(65535)], 3), [at(65535)]);
    }

    #[test]
    fn a_number_of_threads_has_limits() {
        assert_eq!(threads("auto"), Ok(Threads::Auto));
        assert_eq!(threads("64"), Ok(Threads::Number(64)));
        for wrong in ["0", "65", "-1", "many", ""] {
            assert!(threads(wrong).is_err_and(|error| error.contains("1 to 64")));
        }
        assert_eq!(Threads::Auto.or(4, 2), 2);
        assert_eq!(Threads::Number(3).or(1, 0), 1);
    }

    #[test]
    fn cpus_are_numbers_and_ranges() {
        assert_eq!(cpus("0,2-4"), Ok(Cpus(vec![0, 2, 3, 4])));
        for wrong in ["", "a", "3-1", "0,,1", "100000"] {
            assert!(cpus(wrong).is_err());
        }
    }

    #[test]
    fn durations_and_rates_are_finite_and_positive() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for wrong in ["-1", "nan", "inf", "1e9"] {
            assert!(seconds(wrong).is_err());
            assert!(wrong == "1e9" || rate(wrong).is_err());
        }
        assert!(rate("0").is_err());
    }
}
