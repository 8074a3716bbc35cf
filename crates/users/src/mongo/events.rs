//! What a stream of changes says about the collections: who is to be read again.
//!
//! An event names a user and is not believed in what it says of the key: whoever is named is read, so that events that come late or twice do no harm.
//! Of a document that is gone an event has the identifier alone, of which we know nothing; then all users are read.

use mongodb::bson::Document;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType};

use crate::records::{Changed, Names, Users};

/// The collection of users.
pub(super) const USERS: &str = "turnusers_lt";

/// What has to be read again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Notices {
    /// All users.
    pub(super) all_users: bool,
    /// The other collections.
    pub(super) tables: bool,
    /// These users.
    pub(super) names: Names,
    /// Those among them whose document stands in the place of another one.
    replaced: Names,
}

impl Notices {
    /// Returns the news that everything has to be read.
    pub(super) fn everything() -> Self {
        Self {
            all_users: true,
            tables: true,
            ..Self::default()
        }
    }

    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Takes an event.
    pub(super) fn take(&mut self, event: &ChangeStreamEvent<Document>) {
        let collection = event.ns.as_ref().and_then(|place| place.coll.as_deref());
        match collection {
            Some(USERS) => match user(event) {
                Some((realm, name)) => self.take_user(event, realm, name),
                None => self.all_users = true,
            },
            Some(_) => self.tables = true,
            None => *self = Self::everything(),
        }
    }

    fn take_user(&mut self, event: &ChangeStreamEvent<Document>, realm: &str, name: &str) {
        let count: usize = self.names.values().map(|names| names.len()).sum();
        if count >= Changed::NAMED_MAX {
            self.all_users = true;
            return;
        }
        let add = |names: &mut Names| {
            names
                .entry(realm.to_owned())
                .or_default()
                .insert(name.to_owned())
        };
        add(&mut self.names);
        if event.operation_type == OperationType::Replace {
            add(&mut self.replaced);
        }
    }

    /// Returns whether a document of one who is not known has replaced another one, whose user is nobody any more, and nothing says who that was.
    pub(super) fn replaces_unknown(&self, known: &Users) -> bool {
        let is_known = |realm: &str, name: &str| {
            let users = known.get(realm);
            users.is_some_and(|users| users.has(name))
        };
        let mut replaced = self.replaced.iter();
        replaced.any(|(realm, names)| !names.iter().all(|name| is_known(realm, name)))
    }

    /// Returns what is to be read now, and keeps the rest: all users only where that `may_be` now.
    pub(super) fn due(&mut self, may_be_all: bool) -> Self {
        let mut due = std::mem::take(self);
        if due.all_users && !may_be_all {
            due.all_users = false;
            self.all_users = true;
        }
        due
    }
}

/// Returns realm and name of the user whom an event concerns, if it says who that is and was.
fn user(event: &ChangeStreamEvent<Document>) -> Option<(&str, &str)> {
    let is_renamed = match event.operation_type {
        OperationType::Insert | OperationType::Replace => false,
        OperationType::Update => {
            let update = event.update_description.as_ref()?;
            let of_name = |field: &str| matches!(field, "realm" | "name");
            let mut fields = update.updated_fields.keys();
            fields.any(|field| of_name(field))
                || update.removed_fields.iter().any(|field| of_name(field))
        }
        _ => return None,
    };
    let document = event.full_document.as_ref().filter(|_| !is_renamed)?;
    document
        .get_str("realm")
        .ok()
        .zip(document.get_str("name").ok())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mongodb::bson::{deserialize_from_document, doc};

    use super::*;

    /// Returns an event as MongoDB's manual shows it.
    fn event(operation: &str, collection: &str, more: Document) -> ChangeStreamEvent<Document> {
        let mut event = doc! {
            "_id": { "_data": "8263" },
            "operationType": operation,
            "ns": { "db": "turn", "coll": collection },
            "documentKey": { "_id": 7 },
        };
        event.extend(more);
        deserialize_from_document(event).expect("an event")
    }

    fn alice() -> Document {
        doc! { "fullDocument": { "_id": 7, "realm": "r", "name": "alice", "hmackey": "00" } }
    }

    fn updated(fields: Document, removed: &[&str]) -> Document {
        let mut more = alice();
        let removed = removed.to_vec();
        more.insert(
            "updateDescription",
            doc! { "updatedFields": fields, "removedFields": removed },
        );
        more
    }

    fn notices(events: &[ChangeStreamEvent<Document>]) -> Notices {
        let mut notices = Notices::default();
        events.iter().for_each(|event| notices.take(event));
        notices
    }

    fn names() -> Names {
        Names::from([("r".to_owned(), BTreeSet::from(["alice".to_owned()]))])
    }

    #[test]
    fn a_user_who_is_new_or_has_another_key_is_read_alone() {
        for event in [
            event("insert", USERS, alice()),
            event("update", USERS, updated(doc! { "hmackey": "00" }, &[])),
            event("replace", USERS, alice()),
        ] {
            let notices = notices(&[event]);
            assert_eq!((notices.all_users, notices.tables), (false, false));
            assert_eq!(notices.names, names());
        }
    }

    #[test]
    fn all_users_are_read_where_an_event_does_not_say_who_was_there() {
        let without = doc! { "fullDocument": { "_id": 7, "realm": "r" } };
        for event in [
            event("delete", USERS, doc! {}),
            event("drop", USERS, doc! {}),
            event("update", USERS, updated(doc! { "name": "alice" }, &[])),
            event(
                "update",
                USERS,
                updated(doc! { "hmackey": "00" }, &["realm"]),
            ),
            event("insert", USERS, without),
            event(
                "update",
                USERS,
                doc! { "updateDescription": { "updatedFields": {}, "removedFields": [] } },
            ),
        ] {
            let notices = notices(&[event]);
            assert_eq!((notices.all_users, notices.tables), (true, false));
        }
    }

    #[test]
    fn a_document_that_replaces_one_counts_as_that_users_only_where_it_is_known() {
        let replaced = notices(&[event("replace", USERS, alice())]);
        let known = |name: &str| {
            let users = [(name, None)].into_iter().collect();
            Users::from([("r".to_owned(), users)])
        };
        assert!(!replaced.replaces_unknown(&known("alice")));
        assert!(replaced.replaces_unknown(&known("bob")));
        let inserted = notices(&[event("insert", USERS, alice())]);
        assert!(!inserted.replaces_unknown(&known("bob")));
    }

    #[test]
    fn other_collections_are_read_without_users_and_after_the_end_of_the_database_everything_is() {
        let of_secrets = notices(&[event("insert", "turn_secret", doc! {})]);
        assert_eq!((of_secrets.all_users, of_secrets.tables), (false, true));
        let mut end = event("dropDatabase", "", doc! {});
        end.ns = None;
        assert_eq!(notices(&[end]), Notices::everything());
    }

    #[test]
    fn what_is_not_due_yet_is_kept() {
        let events = [
            event("insert", USERS, alice()),
            event("delete", USERS, doc! {}),
        ];
        let mut notices = notices(&events);
        let due = notices.due(false);
        assert_eq!((due.all_users, due.names), (false, names()));
        assert!(notices.all_users && notices.names.is_empty());
        assert!(notices.due(true).all_users);
        assert!(notices.is_nothing());
    }

    #[test]
    fn beyond_as_many_names_as_are_told_apart_all_users_are_read() {
        let mut notices = Notices::default();
        for number in 0..=Changed::NAMED_MAX {
            let document = doc! { "realm": "r", "name": number.to_string() };
            notices.take(&event("insert", USERS, doc! { "fullDocument": document }));
        }
        assert!(notices.all_users);
        assert_eq!(notices.names["r"].len(), Changed::NAMED_MAX);
    }
}
