//! PostgreSQL, with coturn's tables.
//!
//! Changes are found without a trigger and without a right that a reader lacks. As long as `pg_current_snapshot()` is what it was, no transaction
//! has ended. When it moves, rows are read whose `xmin` is not older than the oldest transaction that was under way when the tables were read
//! last; and as new rows are known then, the number of rows says whether any are gone, in which case the names are compared. Where another table has the
//! name of that of users, or it has other parts, all rows are read.
//!
//! That is true of tables. A view has no `xmin`, and what it shows may be in another database, whose changes move no snapshot here: where one stands in
//! a table's place, the tables are read again and again.

mod connect;
mod conninfo;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::iter::successors;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, GenericClient, IsolationLevel, Row, Transaction};

pub use self::conninfo::PostgresSource;
use crate::change::{Change, Listed, Listing};
use crate::comparison::Comparison;
use crate::driver::Driver;
use crate::error::DatabaseError;
use crate::realm_users::{RealmUsers, Remaining};
use crate::records::{
    Answer, Delta, Names, News, RealmOption, Records, Tables, TokenKeyRow, Users, Wanted, user_key,
};
use crate::rest::{Reading, Rests};
use crate::secret::Secret;
use crate::sql::Dialect;
use crate::tls;

/// Time between two looks at the snapshot, which costs the server 0.3 ms.
const INTERVAL: Duration = Duration::from_millis(500);

/// How long the server may be silent.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// After so long everything is read again.
const WHOLE_AFTER: Duration = Duration::from_secs(3600);

/// Tables by their names, with those that are parts of them.
const PARTS: &str = "with recursive used(name, id) as (\
    select name, to_regclass(name)::oid from unnest($1::text[]) name \
    union select name, inhrelid from pg_inherits join used on inhparent=id)";

/// What the client finds that will not pass by itself.
const LASTING: [&str; 2] = ["password missing", "server does not support TLS"];

/// A connection to PostgreSQL.
pub struct Postgres {
    source: PostgresSource,
    client: Client,
    /// What the tables tell of their changes; `None` before it was asked for.
    tells: Option<Tells>,
    /// What was read last; `None` before.
    read: Option<Read>,
    /// Rests after all rows were read.
    rests: Rests,
}

/// What the tables tell of their changes.
#[derive(Debug, Clone, Copy, Default)]
struct Tells {
    /// That none of them has changed: the snapshot is what it was. Else they are all read each time.
    nothing: bool,
    /// Which users have changed. Else all of them are read each time.
    users: bool,
    /// Which secrets are the newest.
    secrets: bool,
}

/// What [`Driver::follow`] has read last.
struct Read {
    /// Unknown where users do not tell what has changed.
    snapshot: Option<Snapshot>,
    /// Which table had the users, with its parts. Rows of another one may be older than the reading.
    users_in: String,
    realms: Vec<String>,
    whole_at: Instant,
}

/// Which transactions have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Snapshot {
    text: String,
    /// The oldest transaction under way, without the epoch.
    oldest: u32,
}

impl Postgres {
    /// Connects.
    ///
    /// # Errors
    ///
    /// No host can be reached, or none lets the user in.
    pub(crate) async fn connect(source: &PostgresSource) -> Result<Self, DatabaseError> {
        Ok(Self {
            source: source.clone(),
            client: connect::connect(source).await?,
            tells: None,
            read: None,
            rests: Rests::new(),
        })
    }

    async fn read_all(
        &mut self,
        tells: Tells,
        wanted: &Wanted,
        known: &Records,
    ) -> Result<News, DatabaseError> {
        let reading = Reading::begin();
        let began = reading.began();
        let source = self.source.clone();
        let transaction = within(&source, async {
            let builder = self.client.build_transaction();
            let builder = builder.isolation_level(IsolationLevel::RepeatableRead);
            builder.read_only(true).start().await
        })
        .await?;
        // An error inside of the transaction would end it: whether there are snapshots was found out before.
        let (snapshot, users_in) = match tells.users {
            true => (
                snapshot(&source, &transaction).await?,
                users_in(&source, &transaction).await?,
            ),
            false => Default::default(),
        };
        let reader = Reader {
            source: &source,
            transaction,
            tells,
        };
        let tables = reader.tables(wanted).await?;
        let realms = tables.realm_names(&wanted.realm);
        let is_fresh = |read: &&Read| {
            let is_of_same = read.realms == realms && read.users_in == users_in;
            is_of_same && began - read.whole_at < WHOLE_AFTER
        };
        let since = self.read.as_ref().filter(is_fresh);
        let since = since.and_then(|read| Some((read.snapshot.as_ref()?.oldest, read.whole_at)));
        let (news, whole_at) = match since {
            Some((oldest, whole_at)) => {
                let (put, deleted) = match wanted.users {
                    true => reader.users_since(&realms, oldest, &known.users).await?,
                    false => Default::default(),
                };
                let tables = Some(tables);
                (
                    News::Delta(Delta {
                        put,
                        deleted,
                        tables,
                    }),
                    whole_at,
                )
            }
            None if wanted.users => {
                let mut users = Comparison::new(&known.users, &realms);
                for realm in &realms {
                    reader.compare(&mut users, realm).await?;
                }
                (users.news(tables), began)
            }
            None => {
                let users = Users::new();
                (News::Whole(Records { users, tables }), began)
            }
        };
        within(&source, reader.transaction.commit()).await?;
        if whole_at == began || !tells.nothing {
            self.rests.begin(&reading);
        }
        self.read = Some(Read {
            snapshot,
            users_in,
            realms,
            whole_at,
        });
        Ok(news)
    }
}

impl Driver for Postgres {
    async fn follow(&mut self, wanted: &Wanted, known: &Records) -> Result<News, DatabaseError> {
        let tells = match self.tells {
            Some(tells) => tells,
            None => *self
                .tells
                .insert(tells(&self.source, &self.client, wanted).await?),
        };
        if let Some(read) = &self.read {
            if !tells.nothing && self.rests.is_resting(Instant::now()) {
                return Ok(News::not_yet());
            }
            if tells.nothing && snapshot(&self.source, &self.client).await? == read.snapshot {
                return Ok(News::Nothing);
            }
        }
        self.read_all(tells, wanted, known).await
    }

    async fn await_change(&mut self) {
        sleep(INTERVAL).await;
    }

    async fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError> {
        let query = "select hmackey from turnusers_lt where name=$1 and realm=$2";
        let rows = found(&self.source, self.client.query(query, &[&name, &realm])).await?;
        let query = "select value from turn_secret where realm=$1";
        let secrets = found(&self.source, self.client.query(query, &[&realm])).await?;
        Ok(Answer {
            key: rows.first().and_then(|row| user_key(&text(row, 0))),
            secrets: secrets.iter().map(|row| secret(row, 0)).collect(),
        })
    }

    async fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError> {
        let transaction = within(&self.source, self.client.transaction()).await?;
        for statement in Dialect::Postgres.change(change) {
            let values: Vec<_> = statement
                .values
                .iter()
                .map(|value| value as &(dyn ToSql + Sync))
                .collect();
            within(&self.source, transaction.execute(&statement.text, &values)).await?;
        }
        within(&self.source, transaction.commit()).await
    }

    async fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError> {
        let statement = Dialect::Postgres.list(listing, realm);
        let values: Vec<_> = statement
            .values
            .iter()
            .map(|value| value as &(dyn ToSql + Sync))
            .collect();
        let rows = within(&self.source, self.client.query(&statement.text, &values)).await?;
        let listed = rows.iter().map(|row| Listed {
            realm: text(row, 0),
            name: text(row, 1),
            value: text(row, 2),
        });
        Ok(listed.collect())
    }
}

/// Reads one state of the database.
struct Reader<'a> {
    source: &'a PostgresSource,
    transaction: Transaction<'a>,
    tells: Tells,
}

impl Reader<'_> {
    async fn tables(&self, wanted: &Wanted) -> Result<Tables, DatabaseError> {
        let mut tables = Tables::default();
        if wanted.realms {
            // Sorted by bytes, as elsewhere.
            let query =
                r#"select origin,realm from turn_origin_to_realm order by origin collate "C""#;
            let rows = self.rows(query).await?;
            tables.origins = rows
                .iter()
                .map(|row| (text(row, 0), text(row, 1)))
                .collect();
            let rows = self
                .rows("select realm,opt,value from turn_realm_option")
                .await?;
            let option = |row: &Row| RealmOption {
                realm: text(row, 0),
                option: text(row, 1),
                value: text(row, 2),
            };
            tables.options = rows.iter().map(option).collect();
            tables.options.sort_unstable_by(|one, other| {
                (&one.realm, &one.option).cmp(&(&other.realm, &other.option))
            });
        }
        if wanted.peers {
            tables.allowed = self.ranges("allowed_peer_ip").await?;
            tables.denied = self.ranges("denied_peer_ip").await?;
        }
        if wanted.token_keys {
            let query =
                "select kid,ikm_key,timestamp::text,lifetime::text,as_rs_alg,realm from oauth_key";
            let rows = self.rows(query).await?;
            let key = |row: &Row| TokenKeyRow {
                name: text(row, 0),
                key: secret(row, 1),
                timestamp: text(row, 2),
                lifetime: text(row, 3),
                cipher: text(row, 4),
                realm: text(row, 5),
            };
            tables.token_keys = rows.iter().map(key).collect();
            tables
                .token_keys
                .sort_unstable_by(|one, other| one.name.cmp(&other.name));
        }
        if wanted.secrets {
            // The newest come first: the row that was written last, as far as transactions tell.
            let order = match self.tells.secrets {
                true => "age(xmin),value",
                false => "value",
            };
            let query = format!("select value from turn_secret where realm=$1 order by {order}");
            for realm in tables.realm_names(&wanted.realm) {
                let values: [&(dyn ToSql + Sync); 1] = [&realm];
                let rows = self.transaction.query(&query, &values);
                let rows = within(self.source, rows).await?;
                let secrets = rows.iter().map(|row| secret(row, 0)).collect();
                tables.secrets.insert(realm, secrets);
            }
        }
        Ok(tables)
    }

    async fn ranges(&self, table: &str) -> Result<BTreeMap<String, Vec<String>>, DatabaseError> {
        let rows = self
            .rows(&format!("select realm,ip_range from {table}"))
            .await?;
        let mut ranges = BTreeMap::<String, Vec<String>>::new();
        for row in rows {
            let of_realm = ranges.entry(text(&row, 0)).or_default();
            of_realm.push(text(&row, 1));
        }
        for of_realm in ranges.values_mut() {
            of_realm.sort_unstable();
        }
        Ok(ranges)
    }

    async fn rows(&self, query: &str) -> Result<Vec<Row>, DatabaseError> {
        within(self.source, self.transaction.query(query, &[])).await
    }

    /// Reads all users of a realm.
    async fn compare(&self, users: &mut Comparison<'_>, realm: &str) -> Result<(), DatabaseError> {
        let mut of_realm = users.realm(realm);
        let query = "select name,hmackey from turnusers_lt where realm=$1";
        self.each(query, &[&realm], |row| {
            of_realm.take(borrowed(row, 0), user_key(borrowed(row, 1)));
        })
        .await?;
        users.end(realm, of_realm);
        Ok(())
    }

    /// Returns the users whose rows were written by the transaction `oldest` or a later one, and of those that are known the ones that are gone.
    async fn users_since(
        &self,
        realms: &[String],
        oldest: u32,
        known: &Users,
    ) -> Result<(Users, Names), DatabaseError> {
        let mut new = Users::new();
        let query = "select realm,name,hmackey from turnusers_lt \
            where realm=any($1) and age(xmin)<=age($2::text::xid)";
        let oldest = oldest.to_string();
        self.each(query, &[&realms, &oldest], |row| put(&mut new, row))
            .await?;
        let of_realm = |users: &Users, realm| users.get(realm).map_or(0, RealmUsers::len);
        let mut expected = 0;
        for realm in realms {
            let is_known = |name: &&str| known.get(realm).is_some_and(|users| users.has(name));
            let names = new.get(realm).into_iter().flat_map(RealmUsers::names);
            let already = names.filter(is_known).count();
            expected += of_realm(known, realm) + of_realm(&new, realm) - already;
        }
        let query = "select count(*) from turnusers_lt where realm=any($1)";
        let counted = within(self.source, self.transaction.query_one(query, &[&realms])).await?;
        let counted: i64 = counted.get(0);
        let mut gone = Names::new();
        if usize::try_from(counted) != Ok(expected) {
            let query = "select name from turnusers_lt where realm=$1";
            for (realm, users) in known.iter().filter(|(realm, _)| realms.contains(realm)) {
                let mut remaining = Remaining::new(users);
                self.each(query, &[realm], |row| {
                    remaining.see(borrowed(row, 0));
                })
                .await?;
                gone.insert(realm.clone(), remaining.unseen());
            }
        }
        Ok((new, gone))
    }

    /// Reads rows as they come, so that only the time between two of them is bounded.
    async fn each(
        &self,
        query: &str,
        values: &[&(dyn ToSql + Sync)],
        mut take: impl FnMut(&Row),
    ) -> Result<(), DatabaseError> {
        let values = values.iter().copied().map(|value| value as &dyn ToSql);
        let rows = within(self.source, self.transaction.query_raw(query, values)).await?;
        let mut rows = pin!(rows);
        while let Some(row) = within(self.source, rows.try_next()).await? {
            take(&row);
        }
        Ok(())
    }
}

/// Returns what the tables tell of their changes. One that is not there is left to the reading, which fails.
async fn tells(
    source: &PostgresSource,
    client: &Client,
    wanted: &Wanted,
) -> Result<Tells, DatabaseError> {
    if snapshot(source, client).await?.is_none() {
        return Ok(Tells::default());
    }
    // Of a table in parts, one may be of another server.
    let query = format!(
        "{PARTS} select distinct name from used join pg_class on oid=id where relkind not in ('r','p')"
    );
    let tables: Vec<_> = wanted.tables().collect();
    let others = within(source, client.query(&query, &[&tables])).await?;
    let others: Vec<_> = others.iter().map(|row| text(row, 0)).collect();
    let is_plain = |table: &str| !others.iter().any(|other| other == table);
    Ok(Tells {
        nothing: others.is_empty(),
        users: is_plain("turnusers_lt"),
        secrets: is_plain("turn_secret"),
    })
}

/// Returns which table has the users, with its parts.
async fn users_in(
    source: &PostgresSource,
    client: &impl GenericClient,
) -> Result<String, DatabaseError> {
    let query = format!("{PARTS} select string_agg(id::text, ' ' order by id) from used");
    let row = within(
        source,
        client.query_one(&query, &[&["turnusers_lt"].as_slice()]),
    )
    .await?;
    Ok(text(&row, 0))
}

/// Returns the snapshot, or `None` where the database knows no snapshots.
async fn snapshot(
    source: &PostgresSource,
    client: &impl GenericClient,
) -> Result<Option<Snapshot>, DatabaseError> {
    let query = "select pg_current_snapshot()::text";
    let row = match timeout(SILENCE_MAX, client.query_one(query, &[])).await {
        Ok(Ok(row)) => row,
        Ok(Err(error)) if error.code() == Some(&SqlState::UNDEFINED_FUNCTION) => return Ok(None),
        Ok(Err(error)) => return Err(said(source, &error)),
        Err(_) => return Err(silent(source)),
    };
    let text: String = text(&row, 0);
    let oldest = text
        .split(':')
        .next()
        .and_then(|xid| xid.parse::<u64>().ok());
    Ok(oldest.map(|oldest| Snapshot {
        // Rows bear the number without the epoch.
        oldest: u32::try_from(oldest & u64::from(u32::MAX)).unwrap_or_default(),
        text,
    }))
}

fn put(users: &mut Users, row: &Row) {
    let of_realm = users.entry(text(row, 0)).or_default();
    of_realm.put(borrowed(row, 1), user_key(borrowed(row, 2)));
}

/// Returns the text of a column; null is empty.
fn text(row: &Row, column: usize) -> String {
    borrowed(row, column).to_owned()
}

/// Returns the same as [`text`], where it stands.
fn borrowed(row: &Row, column: usize) -> &str {
    let text: Option<&str> = row.try_get(column).ok().flatten();
    text.unwrap_or_default()
}

fn secret(row: &Row, column: usize) -> Secret {
    Secret::new(text(row, column).into_bytes())
}

/// Waits for an answer, within the time that the server may be silent.
async fn within<T>(
    source: &PostgresSource,
    answer: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, DatabaseError> {
    match timeout(SILENCE_MAX, answer).await {
        Ok(answer) => answer.map_err(|error| said(source, &error)),
        Err(_) => Err(silent(source)),
    }
}

/// Waits for rows as [`within`] does. There are none of a value that the database's encoding does not have: anybody may ask for one, and the
/// connection is as good as before.
async fn found(
    source: &PostgresSource,
    rows: impl Future<Output = Result<Vec<Row>, tokio_postgres::Error>>,
) -> Result<Vec<Row>, DatabaseError> {
    let rows = async {
        match rows.await {
            Err(error)
                if error.code().is_some_and(|code| {
                    *code == SqlState::UNTRANSLATABLE_CHARACTER
                        || *code == SqlState::CHARACTER_NOT_IN_REPERTOIRE
                }) =>
            {
                Ok(Vec::new())
            }
            rows => rows,
        }
    };
    within(source, rows).await
}

fn silent(source: &PostgresSource) -> DatabaseError {
    DatabaseError::passing(
        source,
        format!("no answer within {} s", SILENCE_MAX.as_secs()),
    )
}

/// Words an error. What the server says of values is left out: a detail repeats the row.
fn said(source: &PostgresSource, error: &tokio_postgres::Error) -> DatabaseError {
    if let Some(answer) = error.as_db_error() {
        // Class of the code: 28 is authentication, 3D and 3F are names, 42 is rights, tables and columns.
        let class = answer.code().code().get(..2).unwrap_or_default();
        return match class {
            "28" | "3D" | "3F" | "42" => DatabaseError::permanent(source, answer.message()),
            _ => DatabaseError::passing(source, answer.message()),
        };
    }
    let mut what = error.to_string();
    for cause in successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !what.contains(&cause) {
            what = format!("{what}: {cause}");
        }
    }
    match tls::is_refused(error) || LASTING.iter().any(|lasting| what.contains(lasting)) {
        true => DatabaseError::permanent(source, what),
        false => DatabaseError::passing(source, what),
    }
}
