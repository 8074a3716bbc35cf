//! Limits the file descriptors of the process and of clients without an allocation.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;
use crate::shard::book::CrowdLimits;

/// Raises the descriptor limit to the highest allowed value, because each relayed transport address takes one; so many are left to other processes of
/// the same table. Returns the new limit.
pub(crate) fn raise_descriptor_limit(left: u64) -> Option<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused only where a sandbox forbids it; then the old limit holds and 508 is the answer beyond it.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum.map(|maximum| maximum.saturating_sub(left)),
            maximum,
        },
    );
    getrlimit(Resource::Nofile).current
}

/// Returns how many connections without an allocation a shard may have if the process may have `descriptors` file descriptors. All shards together
/// may use half of them. The other half is left for relay sockets and for clients with an allocation.
pub(crate) fn connections_without_allocation(
    config: &Config,
    descriptors: Option<u64>,
) -> CrowdLimits {
    let limits = &config.limits.clients;
    let shards = usize::from(config.datapath.shards.get());
    let half = descriptors.map_or(usize::MAX, |all| {
        usize::try_from(all / 2).unwrap_or(usize::MAX)
    });
    let total = limits.connections_without_allocation as usize;
    CrowdLimits {
        // guard: V-47-reserve
        total: total.min(half / shards).max(1),
        per_source: CrowdLimits::share(limits.connections_without_allocation_per_address, shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configured::configured;

    /// H3: strangers leave descriptors to relay sockets, and what holds per address holds for all shards together.
    #[test]
    fn connections_without_an_allocation_take_half_of_the_descriptors_at_most() {
        let config = configured(&["--relay-threads=4"]);
        let limits = |descriptors| connections_without_allocation(&config, descriptors);
        assert_eq!(limits(Some(1024)).total, 128);
        assert_eq!(limits(Some(1 << 20)).total, 4096);
        assert_eq!(limits(None).total, 4096);
        assert_eq!(limits(Some(3)).total, 1);
        assert_eq!(limits(None).per_source, 256);
    }
}
