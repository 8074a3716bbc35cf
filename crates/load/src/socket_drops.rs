//! Datagrams that the kernel dropped because a socket's buffer was full.

use std::collections::HashSet;
use std::fs;

/// Returns the sum over all UDP sockets of this network namespace that are bound to one of `ports`, from `/proc/net/udp` and `udp6`. 0 where
/// those cannot be read.
pub(crate) fn of_ports(ports: &HashSet<u16>) -> u64 {
    ["/proc/self/net/udp", "/proc/self/net/udp6"]
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .map(|table| sum(&table, ports))
        .sum()
}

fn sum(table: &str, ports: &HashSet<u16>) -> u64 {
    let row = |line: &str| {
        let mut columns = line.split_ascii_whitespace();
        let local = columns.nth(1)?;
        let (_, port) = local.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let drops: u64 = columns.next_back()?.parse().ok()?;
        ports.contains(&port).then_some(drops)
    };
    table.lines().skip(1).filter_map(row).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::sum;

    #[test]
    fn drops_of_other_ports_do_not_count() {
        let table = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n \
            1: 0100007F:0D98 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 1 2 0 7\n \
            2: 0100007F:0D99 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 2 2 0 100\n";
        assert_eq!(sum(table, &HashSet::from([3480])), 7);
        assert_eq!(sum(table, &HashSet::from([3480, 3481])), 107);
        assert_eq!(sum(table, &HashSet::new()), 0);
    }
}
