//! The verbs on coturn's collections.

use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, StreamExt as _};
use mongodb::bson::{Document, RawDocument, RawDocumentBuf, doc};
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::ChangeStreamEvent;
use mongodb::error::Result as Answered;
use mongodb::options::FullDocumentType;
use tokio::time::{sleep, timeout};

use super::connect::Link;
use super::documents::{listed, options, options_update, place, secret, text, texts, token_key};
use super::events::{Notices, USERS};
use super::words::MongoSource;
use crate::change::{Change, Listed, Listing};
use crate::comparison::Comparison;
use crate::driver::Driver;
use crate::error::DatabaseError;
use crate::records::{Answer, Delta, Names, News, Records, Tables, Users, Wanted, user_key};
use crate::rest::{Reading, Rests};
use crate::secret::Secret;

/// Time between two signs of life, and between two counts.
const INTERVAL: Duration = Duration::from_secs(1);

/// Changes that come this soon one after the other are read at once.
const GATHERING: Duration = Duration::from_millis(50);

/// After so long everything is read again: with a change stream, and where documents are counted, which does not show those that are replaced.
const WHOLE_AFTER: [Duration; 2] = [Duration::from_secs(3600), Duration::from_secs(30)];

/// Documents that come in one message.
const BATCH: u32 = 10_000;

/// Users whom one query names.
const NAMES_MAX: usize = 1_000;

/// The collections that are followed, that of users first.
const COLLECTIONS: [&str; 4] = [USERS, "turn_secret", "realm", "oauth_key"];

/// A connection to MongoDB.
pub struct Mongo {
    link: Link,
    follows: Follows,
}

/// How far the database has been followed.
struct Follows {
    /// The changes that a replica set tells of.
    changes: Option<ChangeStream<ChangeStreamEvent<Document>>>,
    /// What has to be read again.
    notices: Notices,
    /// How many documents there were at the last look.
    counts: Vec<u64>,
    /// When everything was read.
    whole_at: Option<Instant>,
    /// Rests after all users were read.
    rests: Rests,
    /// How long to wait before the next look.
    pause: Duration,
}

impl Mongo {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or does not let the user in.
    pub(crate) async fn connect(source: &MongoSource) -> Result<Self, DatabaseError> {
        let link = Link::open(source).await?;
        link.within(link.database.run_command(doc! { "ping": 1 }))
            .await?;
        Ok(Self {
            link,
            follows: Follows {
                changes: None,
                notices: Notices::default(),
                counts: Vec::new(),
                whole_at: None,
                rests: Rests::new(),
                pause: INTERVAL,
            },
        })
    }

    /// Begins to listen to changes, if the server tells of any. What is read afterwards is at least as new.
    async fn listen(&mut self) -> Result<(), DatabaseError> {
        let hello = doc! { "hello": 1 };
        let hello = self.link.within(self.link.database.run_command(hello));
        let hello = hello.await?;
        // A member of a set, or a router in front of several sets.
        let tells = hello.contains_key("setName")
            || hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
        if tells {
            let of_ours = doc! { "$match": { "ns.coll": { "$in": COLLECTIONS.to_vec() } } };
            let watch = self.link.database.watch().pipeline([of_ours]);
            let watch = watch.full_document(FullDocumentType::UpdateLookup);
            self.follows.changes = Some(self.link.within(watch).await?);
        }
        Ok(())
    }

    /// Looks what has changed since the last look, as far as the database shows it.
    async fn look(&mut self) -> Result<(), DatabaseError> {
        let Some(changes) = &mut self.follows.changes else {
            return self.count().await;
        };
        while let Some(change) = changes.next().now_or_never() {
            match change {
                Some(Ok(event)) => self.follows.notices.take(&event),
                Some(Err(error)) => return Err(self.link.said(&error)),
                None => return Err(DatabaseError::passing(&self.link.source, ENDED)),
            }
        }
        let ping = self.link.database.run_command(doc! { "ping": 1 });
        self.link.within(ping).await.map(drop)
    }

    /// Counts the documents, where the server does not tell of changes.
    async fn count(&mut self) -> Result<(), DatabaseError> {
        let reading = Reading::begin();
        let mut counts = Vec::new();
        for name in COLLECTIONS {
            let collection = self.link.database.collection::<RawDocumentBuf>(name);
            let count = collection.estimated_document_count();
            counts.push(self.link.within(count).await?);
        }
        let follows = &mut self.follows;
        follows.notices.all_users |= follows.counts.first() != counts.first();
        follows.notices.tables |= follows.counts.get(1..) != counts.get(1..);
        follows.counts = counts;
        follows.pause = INTERVAL.max(reading.rest());
        Ok(())
    }

    /// Hands the documents of a collection to `take` one after the other, so that only the time between two messages is bounded.
    async fn each(
        &self,
        collection: &str,
        filter: Document,
        fields: Document,
        order: Document,
        mut take: impl FnMut(&RawDocument),
    ) -> Result<(), DatabaseError> {
        let collection = self.link.database.collection::<RawDocumentBuf>(collection);
        let found = collection.find(filter).projection(fields).sort(order);
        let mut found = self.link.within(found.batch_size(BATCH)).await?;
        while self.link.within(found.advance()).await? {
            take(found.current());
        }
        Ok(())
    }

    async fn tables(&self, wanted: &Wanted) -> Result<Tables, DatabaseError> {
        let mut tables = Tables::default();
        if wanted.realms || wanted.peers {
            let all = doc! { "_id": 0 };
            let order = doc! { "realm": 1 };
            self.each("realm", doc! {}, all, order, |document| {
                let realm = text(document, "realm");
                if wanted.realms {
                    let origins = texts(document, "origin").into_iter();
                    let of_realm = origins.map(|origin| (origin, realm.clone()));
                    tables.origins.extend(of_realm);
                    tables.options.extend(options(document));
                }
                if wanted.peers {
                    for (field, ranges) in [
                        ("allowed_peer_ip", &mut tables.allowed),
                        ("denied_peer_ip", &mut tables.denied),
                    ] {
                        let of_realm = texts(document, field);
                        if !of_realm.is_empty() {
                            ranges.entry(realm.clone()).or_default().extend(of_realm);
                        }
                    }
                }
            })
            .await?;
            tables.origins.sort_unstable();
        }
        if wanted.token_keys {
            let (all, order) = (doc! { "_id": 0 }, doc! { "kid": 1 });
            let keys = &mut tables.token_keys;
            self.each("oauth_key", doc! {}, all, order, |document| {
                keys.push(token_key(document));
            })
            .await?;
        }
        if wanted.secrets {
            for realm in tables.realm_names(&wanted.realm) {
                let secrets = self.secrets(&realm).await?;
                tables.secrets.insert(realm, secrets);
            }
        }
        Ok(tables)
    }

    /// Returns the secrets of a realm, the newest first.
    async fn secrets(&self, realm: &str) -> Result<Vec<Secret>, DatabaseError> {
        let mut secrets = Vec::new();
        let (filter, fields) = (doc! { "realm": realm }, doc! { "value": 1 });
        let newest_first = doc! { "_id": -1 };
        self.each("turn_secret", filter, fields, newest_first, |document| {
            secrets.push(secret(document, "value"));
        })
        .await?;
        Ok(secrets)
    }

    /// Reads all users of a realm.
    async fn compare(&self, users: &mut Comparison<'_>, realm: &str) -> Result<(), DatabaseError> {
        let mut of_realm = users.realm(realm);
        let fields = doc! { "_id": 0, "name": 1, "hmackey": 1 };
        let filter = doc! { "realm": realm };
        self.each(USERS, filter, fields, doc! {}, |document| {
            let key = user_key(&text(document, "hmackey"));
            of_realm.take(&text(document, "name"), key);
        })
        .await?;
        users.end(realm, of_realm);
        Ok(())
    }

    /// Reads these users, as far as they are of realms that are known.
    async fn some(&self, mut names: Names, known: &Users) -> Result<Delta, DatabaseError> {
        names.retain(|realm, _| known.contains_key(realm));
        let mut put = Users::new();
        for (realm, names) in &mut names {
            let of_realm = put.entry(realm.clone()).or_default();
            let all: Vec<_> = names.iter().cloned().collect();
            for some in all.chunks(NAMES_MAX) {
                let fields = doc! { "_id": 0, "name": 1, "hmackey": 1 };
                let filter = doc! { "realm": realm.as_str(), "name": { "$in": some.to_vec() } };
                self.each(USERS, filter, fields, doc! {}, |document| {
                    let name = text(document, "name");
                    names.remove(&name);
                    of_realm.put(&name, user_key(&text(document, "hmackey")));
                })
                .await?;
            }
        }
        Ok(Delta {
            put,
            // Whoever was named and is not found is gone meanwhile.
            deleted: names,
            tables: None,
        })
    }

    /// Puts a document in the place of the one that `key` finds, if there is one.
    async fn put(
        &self,
        collection: &str,
        key: Document,
        more: Document,
    ) -> Result<(), DatabaseError> {
        let collection = self.link.database.collection::<Document>(collection);
        let mut document = key.clone();
        document.extend(more);
        let put = collection.replace_one(key, document).upsert(true);
        self.done(put).await
    }

    async fn update(
        &self,
        filter: Document,
        update: Document,
        may_create: bool,
    ) -> Result<(), DatabaseError> {
        let realms = self.link.database.collection::<Document>("realm");
        let updated = realms.update_many(filter, update).upsert(may_create);
        self.done(updated).await
    }

    async fn delete(&self, collection: &str, filter: Document) -> Result<(), DatabaseError> {
        let collection = self.link.database.collection::<Document>(collection);
        self.done(collection.delete_many(filter)).await
    }

    async fn done<T>(
        &self,
        written: impl IntoFuture<Output = Answered<T>>,
    ) -> Result<(), DatabaseError> {
        self.link.within(written).await.map(drop)
    }
}

/// What is said of a stream of changes that is over.
const ENDED: &str = "the server does not tell of changes any more";

impl Driver for Mongo {
    async fn follow(&mut self, wanted: &Wanted, known: &Records) -> Result<News, DatabaseError> {
        if self.follows.whole_at.is_none() {
            // What is read from here on is at least as new as what is told.
            self.listen().await?;
        }
        self.look().await?;
        let reading = Reading::begin();
        let began = reading.began();
        let after = WHOLE_AFTER[usize::from(self.follows.changes.is_none())];
        let whole_at = self.follows.whole_at;
        if whole_at.is_none_or(|whole_at| began - whole_at >= after) {
            self.follows.notices = Notices::everything();
        }
        let may_be_all = !self.follows.rests.is_resting(began);
        let due = self.follows.notices.due(may_be_all);
        let replaces = due.replaces_unknown(&known.users);
        self.follows.notices.all_users |= replaces && !may_be_all;
        let is_all = due.all_users || replaces && may_be_all;
        let is_part = wanted.users && self.follows.notices.all_users;
        let some = match is_part {
            true => News::Part,
            false => News::Delta,
        };
        if !is_all && !due.tables {
            return match wanted.users && !due.is_nothing() {
                true => self.some(due.names, &known.users).await.map(some),
                false if is_part => Ok(News::not_yet()),
                false => Ok(News::Nothing),
            };
        }
        let tables = self.tables(wanted).await?;
        let realms = tables.realm_names(&wanted.realm);
        let mut users = Comparison::new(&known.users, &realms);
        let news = if !wanted.users {
            let users = Users::new();
            News::Whole(Records { users, tables })
        } else if is_all || !users.has_known() {
            for realm in &realms {
                self.compare(&mut users, realm).await?;
            }
            users.news(tables)
        } else {
            let delta = self.some(due.names, &known.users).await?;
            some(Delta {
                tables: Some(tables),
                ..delta
            })
        };
        if is_all {
            self.follows.whole_at = Some(began);
            self.follows.rests.begin(&reading);
        }
        Ok(news)
    }

    async fn await_change(&mut self) {
        let Some(changes) = &mut self.follows.changes else {
            return sleep(self.follows.pause).await;
        };
        if !self.follows.notices.is_nothing() {
            return sleep(INTERVAL).await;
        }
        // An error is one of the next look, which finds the stream at its end.
        if let Ok(Some(Ok(event))) = timeout(INTERVAL, changes.next()).await {
            self.follows.notices.take(&event);
            sleep(GATHERING).await;
        }
    }

    async fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError> {
        let mut answer = Answer::default();
        let fields = doc! { "_id": 0, "hmackey": 1 };
        let filter = doc! { "realm": realm, "name": name };
        self.each(USERS, filter, fields, doc! {}, |document| {
            answer.key = user_key(&text(document, "hmackey"));
        })
        .await?;
        answer.secrets = self.secrets(realm).await?;
        Ok(answer)
    }

    /// Carries out a change. An origin that comes to another realm is for a moment one of both, and stays so if the server goes away in that moment: only a
    /// replica set could do both at once.
    async fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError> {
        match change {
            Change::PutUser { realm, name, key } => {
                let user = doc! { "realm": realm, "name": name };
                self.put(USERS, user, doc! { "hmackey": key }).await
            }
            Change::DeleteUser { realm, name } => {
                let user = doc! { "realm": realm, "name": name };
                self.delete(USERS, user).await
            }
            Change::AddSecret { realm, secret } => {
                let secret = doc! { "realm": realm, "value": secret };
                self.put("turn_secret", secret, doc! {}).await
            }
            Change::DeleteSecret { realm, secret } => {
                let secret = doc! { "realm": realm, "value": secret };
                self.delete("turn_secret", secret).await
            }
            Change::DeleteSecrets { realm } => {
                self.delete("turn_secret", doc! { "realm": realm }).await
            }
            Change::PutOrigin { origin, realm } => {
                let add = doc! { "$addToSet": { "origin": origin } };
                self.update(doc! { "realm": realm }, add, true).await?;
                let others = doc! { "origin": origin, "realm": { "$ne": realm } };
                self.update(others, doc! { "$pull": { "origin": origin } }, false)
                    .await
            }
            Change::DeleteOrigin { origin } => {
                let pull = doc! { "$pull": { "origin": origin } };
                self.update(doc! { "origin": origin }, pull, false).await
            }
            Change::PutRealmOptions { realm, options } => {
                let may_create = options.iter().any(|&(_, value)| value > 0);
                let update = options_update(options);
                self.update(doc! { "realm": realm }, update, may_create)
                    .await
            }
            Change::PutAdmin {
                name,
                realm,
                password,
            } => {
                let more = doc! { "realm": realm, "password": password };
                self.put("admin_user", doc! { "name": name }, more).await
            }
            Change::DeleteAdmin { name } => self.delete("admin_user", doc! { "name": name }).await,
        }
    }

    async fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError> {
        let (collection, fields) = place(listing);
        let filter = realm.map_or_else(Document::new, |realm| doc! { "realm": realm });
        let mut rows = Vec::new();
        self.each(collection, filter, fields, doc! {}, |document| {
            rows.extend(listed(listing, document));
        })
        .await?;
        Ok(rows)
    }
}
