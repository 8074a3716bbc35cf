//! Says why a request is refused, for the operator: the reason in words, and which of them are worth a line without `verbose`.
//!
//! Two kinds are: clients that fail to prove who they are, one line for each source in a while, and limits that are reached, one line for each limit. Only a
//! source that has proven its address has such a line, so that nobody has another one banned by forging addresses.

use std::fmt::Write as _;
use std::mem::discriminant;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use turnbuckle_engine::{Family, Limit, Refusal, RelayOpenError, Time};

use super::pace::Pace;
use super::request::{Answer, Asked, Path};
use super::text::socket;

/// Time between two lines about one source. An operator's guard counts lines: fail2ban bans at the fifth in ten minutes.
const SOURCE_PAUSE: Duration = Duration::from_secs(5);

/// Time between two lines about one limit.
const LIMIT_PAUSE: Duration = Duration::from_secs(10);

/// Lines about sources per second, for the whole server. With some 200 bytes each they stay below 2 KB/s (V-50).
const SOURCE_LINES_PER_S: u64 = 8;

/// Sources and limits that are remembered at a time.
const SUBJECTS_MAX: usize = 64;

/// Returns why a request is refused. `realm` is the one that the server chose, escaped.
pub(super) fn why(refusal: Refusal, realm: &str) -> String {
    match refusal {
        Refusal::UserUnknown => format!("no such user in realm {realm}"),
        Refusal::KeyWrong => "key does not match (wrong password or shared secret)".to_owned(),
        Refusal::Expired { at_unix_s } => match timestamp(at_unix_s) {
            Some(time) => format!("expired at {time}"),
            None => format!("expired at {at_unix_s}"),
        },
        Refusal::TokenInvalid => "access token invalid or expired".to_owned(),
        Refusal::RealmForeign => format!("realm not served: REALM is not {realm}"),
        Refusal::AlgorithmNotOffered => "password algorithm not offered".to_owned(),
        Refusal::CredentialsMalformed => {
            "USERNAME, REALM, NONCE or PASSWORD-ALGORITHM is missing or malformed".to_owned()
        }
        Refusal::NonceStale => "nonce stale".to_owned(),
        Refusal::NonceForeign => {
            "nonce not issued to this client (its address changed, or the server restarted)"
                .to_owned()
        }
        Refusal::Malformed(what) => what.to_owned(),
        Refusal::Draining => "the relay drains and takes no new allocations".to_owned(),
        Refusal::ClientDenied => "the client's address is denied".to_owned(),
        Refusal::ReservationUnknown => "RESERVATION-TOKEN unknown or expired".to_owned(),
        Refusal::Limit(limit) => limit_reached(limit),
    }
}

/// Returns which limit is reached, and the key to change.
fn limit_reached(limit: Limit) -> String {
    match limit {
        Limit::User(max) => format!("user-quota reached: {max} allocations of one user"),
        Limit::Realm(max) => format!("total-quota reached: {max} allocations of one realm"),
        Limit::Bandwidth => "bps-capacity reached: no rate is left for an allocation".to_owned(),
        Limit::Allocations(max) => format!("max-allocations reached: {max} on one shard"),
        Limit::PendingOpens(max) => {
            format!("{max} relay sockets of one shard wait to be opened: the machine is too busy")
        }
        Limit::Ports {
            family,
            first,
            last,
        } => {
            let family = match family {
                Family::V4 => "IPv4",
                Family::V6 => "IPv6",
            };
            format!(
                "no free {family} relay port from {first} to {last}: \
                 widen min-port to max-port, or add a relay-ip"
            )
        }
        Limit::Socket(RelayOpenError::AddressInUse) => {
            "the relay ports that were tried belong to another program: \
             change min-port and max-port"
                .to_owned()
        }
        Limit::Socket(RelayOpenError::OutOfResources) => {
            "no file descriptor or memory for a relay socket: raise LimitNOFILE".to_owned()
        }
        Limit::Socket(RelayOpenError::Other) => {
            "the relay socket cannot be opened: check relay-ip".to_owned()
        }
        Limit::SocketLate => {
            "the relay socket was not opened in time: the machine is too busy".to_owned()
        }
        Limit::Reservations => "too many reserved ports wait for their tokens".to_owned(),
        Limit::Permissions(max) => {
            format!("max-permissions reached: {max}")
        }
        Limit::Channels(max) => format!("max-channels reached: {max}"),
        Limit::PeerConnections(max) => format!(
            "max-peer-connections reached: {max} of one allocation, or too many not bound yet"
        ),
        Limit::Connects => {
            "max-connects-per-second or max-pending-connects reached by one user".to_owned()
        }
    }
}

/// Returns a time in seconds since 1970 by RFC 3339.
fn timestamp(unix_s: u64) -> Option<String> {
    let second = i64::try_from(unix_s).ok()?;
    let time = jiff::Timestamp::from_second(second).ok()?;
    Some(time.to_string())
}

/// What lines were written of late.
pub(super) struct Warnings {
    sources: Seldom<IpAddr>,
    source_lines: Pace,
    limits: Seldom<std::mem::Discriminant<Limit>>,
}

impl Warnings {
    /// Begins without any, in one of `shards` shards.
    pub(super) fn new(shards: usize) -> Self {
        let per_s = (SOURCE_LINES_PER_S / shards.max(1) as u64).max(1);
        Self {
            sources: Seldom::new(SOURCE_PAUSE),
            source_lines: Pace::new(per_s, per_s),
            limits: Seldom::new(LIMIT_PAUSE),
        }
    }

    /// Returns whether a refusal may have a line without `verbose`.
    pub(super) fn are_of(refusal: Refusal) -> bool {
        refusal.is_failed_authentication() || matches!(refusal, Refusal::Limit(_))
    }

    /// Returns the line about a refusal, if one is due.
    pub(super) fn line(
        &mut self,
        path: Path,
        answer: &Answer,
        asked: &Asked,
        reason: &str,
        now: Time,
    ) -> Option<String> {
        let refusal = answer.why?;
        let (what, left_out) = if let Refusal::Limit(limit) = refusal {
            let left_out = self.limits.admit(discriminant(&limit), now, || true)?;
            ("request refused", left_out)
        } else if refusal.is_failed_authentication() {
            let pace = &mut self.source_lines;
            let may = || pace.admit(now).is_some();
            let left_out = self.sources.admit(network(path.client.ip()), now, may)?;
            ("authentication failed", left_out)
        } else {
            return None;
        };
        let mut line = format!(
            "warning: {what}: client={}, transport={}",
            path.client,
            socket(path.transport)
        );
        let realm = answer.realm.as_ref().or(asked.realm.as_ref());
        // Writing to a string does not fail.
        if let Some(realm) = realm {
            let _ = write!(line, ", realm=<{realm}>");
        }
        if let Some(user) = &asked.user {
            let _ = write!(line, ", username=<{user}>");
        }
        if let Some(error) = answer.error {
            let _ = write!(line, ", error={error}");
        }
        let _ = write!(line, ", reason: {reason}");
        if left_out > 0 {
            let _ = write!(line, " ({left_out} more since the last such line)");
        }
        Some(line)
    }
}

/// Returns what counts as one source: an IPv4 address, or an IPv6 /64.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64)).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// Admits one line about each subject, and the next one after a pause.
struct Seldom<T> {
    pause: Duration,
    /// Each with the time of its last line and the lines left out since, the oldest first.
    subjects: Vec<(T, Time, u64)>,
}

impl<T: PartialEq> Seldom<T> {
    fn new(pause: Duration) -> Self {
        Self {
            pause,
            subjects: Vec::new(),
        }
    }

    /// Returns how many lines about `subject` were left out since its last one, if one may be written now. One that is due needs leave by `may` too.
    fn admit(&mut self, subject: T, now: Time, may: impl FnOnce() -> bool) -> Option<u64> {
        let known = self.subjects.iter().position(|(it, ..)| *it == subject);
        if let Some((_, last, left_out)) = known.and_then(|at| self.subjects.get_mut(at))
            && now < *last + self.pause
        {
            *left_out += 1;
            return None;
        }
        if !may() {
            if let Some((_, _, left_out)) = known.and_then(|at| self.subjects.get_mut(at)) {
                *left_out += 1;
            }
            return None;
        }
        let (at, left_out) = match known {
            Some(at) => (
                Some(at),
                self.subjects.get(at).map_or(0, |(_, _, count)| *count),
            ),
            None => ((self.subjects.len() >= SUBJECTS_MAX).then_some(0), 0),
        };
        if let Some(at) = at {
            self.subjects.remove(at);
        }
        self.subjects.push((subject, now, 0));
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_has_one_line_in_a_while_and_the_next_one_says_how_many_were_left_out() {
        let mut lines = Seldom::new(Duration::from_secs(5));
        let second = Time::from_secs;
        assert_eq!(lines.admit('a', second(1), || true), Some(0));
        for _ in 0..3 {
            assert_eq!(lines.admit('a', second(5), || true), None);
        }
        assert_eq!(lines.admit('b', second(5), || true), Some(0), "another one");
        assert_eq!(lines.admit('a', second(6), || false), None, "no leave");
        assert_eq!(lines.admit('a', second(6), || true), Some(4));
        for subject in 'A'..='z' {
            lines.admit(subject, second(100), || true);
        }
        for subject in '0'..='z' {
            lines.admit(subject, second(200), || true);
        }
        assert_eq!(lines.subjects.len(), SUBJECTS_MAX, "bounded");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
    }
}
