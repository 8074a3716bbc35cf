//! What sessions have relayed, added up by realm, and by user if that is asked for.
//!
//! Invariant: at most [`SERIES_MAX`] pairs of realm and user have a sum of their own, the first that come. All others of a realm have one together.
//! Users choose their names, so without a bound anybody could fill the memory of whoever stores the metrics.

use std::collections::HashMap;

use turnbuckle_server::handle::{Event, EventKind, Identity, Traffic as Sum, Usage};

/// Sums that are kept apart.
const SERIES_MAX: usize = 1000;

/// The user of whoever came after the first [`SERIES_MAX`].
const OTHER: &str = "(other)";

/// Whom a sum belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    pub(crate) realm: Box<str>,
    /// `None` unless users are told apart.
    pub(crate) user: Option<Box<str>>,
}

/// Sums of what sessions have reported.
pub(crate) struct Traffic {
    labels_users: bool,
    /// All sessions together.
    pub(crate) totals: Usage,
    /// In the order in which they came.
    sums: Vec<(Owner, Usage)>,
    index: HashMap<Owner, usize>,
    /// Sums that belong to no single user.
    others: usize,
}

impl Traffic {
    pub(crate) fn new(labels_users: bool) -> Self {
        Self {
            labels_users,
            totals: Usage::default(),
            sums: Vec::new(),
            index: HashMap::new(),
            others: 0,
        }
    }

    /// Tells users apart from now on, or does not. If that is another way than before, the sums of owners begin anew.
    pub(crate) fn set_labels(&mut self, labels_users: bool) {
        if labels_users != self.labels_users {
            *self = Self {
                totals: std::mem::take(&mut self.totals),
                ..Self::new(labels_users)
            };
        }
    }

    /// Adds what an event reports.
    pub(crate) fn add(&mut self, event: &Event) {
        if let EventKind::Used { session, since } | EventKind::Ended { session, since, .. } =
            &event.kind
        {
            let place = self.place(session);
            add(&mut self.sums[place].1, since);
            add(&mut self.totals, since);
        }
    }

    /// Returns each owner with its sum, in the order in which they came.
    pub(crate) fn sums(&self) -> &[(Owner, Usage)] {
        &self.sums
    }

    /// Returns how many users, or realms, have a sum of their own.
    pub(crate) fn named(&self) -> usize {
        self.sums.len() - self.others
    }

    fn place(&mut self, session: &Identity) -> usize {
        let mut owner = Owner {
            realm: session.realm.clone(),
            user: self.labels_users.then(|| session.quota_name.clone()),
        };
        if let Some(place) = self.index.get(&owner) {
            return *place;
        }
        if self.named() >= SERIES_MAX && owner.user.is_some() {
            owner.user = Some(OTHER.into());
            if let Some(place) = self.index.get(&owner) {
                return *place;
            }
            self.others += 1;
        }
        let place = self.sums.len();
        self.index.insert(owner.clone(), place);
        self.sums.push((owner, Usage::default()));
        place
    }
}

fn add(sum: &mut Usage, more: &Usage) {
    let add = |sum: &mut Sum, more: &Sum| {
        sum.datagrams = sum.datagrams.wrapping_add(more.datagrams);
        sum.bytes = sum.bytes.wrapping_add(more.bytes);
    };
    add(&mut sum.client_received, &more.client_received);
    add(&mut sum.client_sent, &more.client_sent);
    add(&mut sum.peer_received, &more.peer_received);
    add(&mut sum.peer_sent, &more.peer_sent);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use turnbuckle_server::handle::{ClientSide, Transport};

    use super::*;

    fn used(user: &str) -> Event {
        let address = SocketAddr::from(([192, 0, 2, 1], 3478));
        let session = Identity {
            number: 1,
            realm: "example.org".into(),
            user: format!("1700000000:{user}").into(),
            quota_name: user.into(),
            client: ClientSide {
                server: address,
                address,
                transport: Transport::Udp,
                seal: None,
            },
        };
        let received = Sum {
            datagrams: 2,
            bytes: 300,
        };
        let since = Usage {
            client_received: received,
            ..Usage::default()
        };
        Event {
            shard: 0,
            kind: EventKind::Used {
                session: Arc::new(session),
                since: Box::new(since),
            },
        }
    }

    #[test]
    fn of_a_million_users_those_after_the_first_thousand_have_one_sum_and_nothing_is_left_out() {
        let mut traffic = Traffic::new(true);
        for user in 0..1_000_000 {
            traffic.add(&used(&user.to_string()));
        }
        assert_eq!(traffic.named(), 1000);
        let sums = traffic.sums();
        assert_eq!((sums.len(), traffic.index.len()), (1001, 1001));
        let (other, usage) = &sums[1000];
        assert_eq!(other.user.as_deref(), Some("(other)"));
        assert_eq!(usage.client_received.datagrams, 999_000 * 2);
        assert_eq!(&*sums[0].0.realm, "example.org");
        let all: u64 = sums.iter().map(|(_, sum)| sum.client_received.bytes).sum();
        assert_eq!(all, traffic.totals.client_received.bytes);
        assert_eq!(all, 1_000_000 * 300);
    }

    #[test]
    fn sums_of_owners_begin_anew_only_where_they_are_told_apart_in_another_way() {
        let mut traffic = Traffic::new(false);
        traffic.add(&used("alice"));
        traffic.set_labels(false);
        assert_eq!(traffic.sums().len(), 1);
        traffic.set_labels(true);
        assert!(traffic.sums().is_empty());
        traffic.add(&used("alice"));
        assert_eq!(traffic.sums()[0].0.user.as_deref(), Some("alice"));
        assert_eq!(traffic.totals.client_received.datagrams, 4);
    }

    #[test]
    fn users_of_a_realm_are_one_sum_unless_they_are_to_be_told_apart() {
        let mut traffic = Traffic::new(false);
        traffic.add(&used("alice"));
        traffic.add(&used("bob"));
        assert_eq!(traffic.sums().len(), 1);
        assert_eq!(traffic.sums()[0].0.user, None);
    }
}
