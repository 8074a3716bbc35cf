//! Which part of a run has which CPUs.

use std::fmt;
use std::str::FromStr;

/// CPUs by number, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuList(Vec<usize>);

impl CpuList {
    /// Returns CPUs 0 to `count` - 1.
    pub(crate) fn all(count: usize) -> Self {
        Self((0..count.max(1)).collect())
    }

    /// Returns those of this machine that are in use; where the kernel does not say, those that it gives this process.
    pub(crate) fn online() -> Self {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let list = list.ok().and_then(|list| list.trim().parse().ok());
        list.unwrap_or_else(|| {
            Self::all(std::thread::available_parallelism().map_or(1, usize::from))
        })
    }

    pub(crate) fn is_within(&self, others: &Self) -> bool {
        self.0.iter().all(|cpu| others.0.contains(cpu))
    }

    pub(crate) fn first(&self) -> usize {
        self.0.first().copied().unwrap_or(0)
    }

    pub(crate) fn last(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }

    /// Returns the first for one program and the rest for another; the same one twice if there is only one.
    pub(crate) fn split(&self) -> (Self, Self) {
        match self.0.split_first() {
            Some((first, rest)) if !rest.is_empty() => (Self(vec![*first]), Self(rest.to_vec())),
            _ => (self.clone(), self.clone()),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for CpuList {
    /// Writes it in the form that `taskset -c` takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, cpu) in self.0.iter().enumerate() {
            write!(f, "{}{cpu}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "`{text}` is no list of CPUs; numbers and ranges are, with commas between: 0,2-3"
            )
        };
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first: usize = first.trim().parse().map_err(|_| wrong())?;
            let last: usize = last.trim().parse().map_err(|_| wrong())?;
            if last < first || last >= 1024 {
                return Err(wrong());
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

/// CPUs of the three hosts where they share one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) load: CpuList,
    pub(crate) relay: CpuList,
    pub(crate) peer: CpuList,
}

impl Placement {
    /// Places the server alone on CPU 0; generator and reflector on the rest, apart from each other as soon as there are three CPUs.
    ///
    /// The generator has the larger share: it sends and it receives.
    pub(crate) fn for_cpus(count: usize) -> Self {
        let relay = CpuList(vec![0]);
        if count <= 1 {
            return Self {
                load: relay.clone(),
                peer: relay.clone(),
                relay,
            };
        }
        if count == 2 {
            return Self {
                load: CpuList(vec![1]),
                relay,
                peer: CpuList(vec![1]),
            };
        }
        let peers = (count - 1) / 2;
        Self {
            load: CpuList((1..count - peers).collect()),
            relay,
            peer: CpuList((count - peers..count).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> CpuList {
        text.parse().expect("a list")
    }

    #[test]
    fn the_server_has_cpu_0_for_itself_and_the_others_share_the_rest() {
        for (count, load, peer) in [
            (2, "1", "1"),
            (3, "1", "2"),
            (4, "1-2", "3"),
            (8, "1-4", "5-7"),
        ] {
            let placement = Placement::for_cpus(count);
            assert_eq!(placement.relay, list("0"), "{count}");
            assert_eq!(placement.load, list(load), "{count}");
            assert_eq!(placement.peer, list(peer), "{count}");
        }
    }

    #[test]
    fn one_program_has_the_first_cpu_and_the_other_the_rest() {
        assert_eq!(list("1-3").split(), (list("1"), list("2-3")));
        assert_eq!(list("1").split(), (list("1"), list("1")));
    }

    #[test]
    fn reads_and_writes_lists_as_taskset_does() {
        assert_eq!(list("3,0-1").to_string(), "0,1,3");
        for wrong in ["", "a", "2-1", "1,,2", "0-99999"] {
            assert!(wrong.parse::<CpuList>().is_err(), "{wrong}");
        }
    }
}
