//! MySQL and MariaDB, with coturn's tables.
//!
//! Which table has changed shows in `information_schema.tables.update_time`, which needs no right that a reader lacks. It has whole seconds, so a
//! state is settled only when its last second is over. MariaDB's `TRUNCATE TABLE` leaves it as it was, so each look asks whether there is a row at
//! all; a table that takes the name of another one shows by `create_time`. A table that has no `update_time` (a view, or one that is no plain table
//! of InnoDB) may have changed whenever it is looked at. Which rows of `turnusers_lt` have changed is not said anywhere: they are all read and
//! compared with those that are known ([decision 63](../../../../docs/decisions/0063-rows-that-nobody-names-are-compared.md)).

mod words;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt as _;
use mysql_async::prelude::Queryable as _;
use mysql_async::{
    ClientIdentity, Conn, IsolationLevel, Opts, OptsBuilder, Params, Row, SslOpts, Transaction,
    TxOpts, Value,
};
use openssl::pkcs12::Pkcs12;
use openssl::pkey::PKey;
use openssl::stack::Stack;
use openssl::x509::X509;
use tokio::time::{sleep, timeout};

pub use self::words::MysqlSource;
use self::words::Tls;
use crate::change::{Change, Listed, Listing};
use crate::comparison::Comparison;
use crate::driver::Driver;
use crate::error::DatabaseError;
use crate::records::{
    Answer, Delta, News, RealmOption, Records, Tables, TokenKeyRow, Users, Wanted, user_key,
};
use crate::rest::{Reading, Rests};
use crate::secret::Secret;
use crate::sql::Dialect;
use crate::tls::is_refused;

/// Time between two looks at when the tables have changed.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a connection may take, and how long the server may be silent, where nothing else is said.
const USUAL_MAX: Duration = Duration::from_secs(5);

/// After so long everything is read again.
const WHOLE_AFTER: Duration = Duration::from_secs(3600);

/// Where Debian's server and client meet.
const SOCKET: &str = "/run/mysqld/mysqld.sock";

/// When each table was made and has changed, and whether another change may follow that does not show. InnoDB says nothing of a table that nobody
/// has written to since the server started.
const CHANGED: &str = "select table_name,concat(coalesce(create_time,''),' ',coalesce(update_time,'')),\
    coalesce(create_time > now() - interval 2 second,0) or coalesce(update_time > now() - interval 2 second,\
    coalesce(engine,'')<>'InnoDB' or coalesce(create_options,'') like '%partitioned%') from information_schema.tables \
    where table_schema=database() and table_name in ('turnusers_lt','turn_secret','allowed_peer_ip',\
    'denied_peer_ip','turn_origin_to_realm','turn_realm_option','oauth_key')";

/// The table of users.
const USERS: &str = "turnusers_lt";

/// When tables have changed, by their names.
type Changed = BTreeMap<String, LastChange>;

/// When a table has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LastChange {
    /// When it was made, and when it was written to, as far as the server says it.
    at: String,
    /// Whether there is a row, of a table that is wanted and settled.
    has_rows: Option<bool>,
    /// Whether no other change can show in the same way.
    is_settled: bool,
}

/// A connection to MySQL or MariaDB.
pub struct Mysql {
    source: MysqlSource,
    conn: Conn,
    /// When the tables had changed that were read last.
    read: Changed,
    /// When users were read.
    whole_at: Instant,
    rests: Rests,
}

impl Mysql {
    /// Connects.
    ///
    /// # Errors
    ///
    /// The host cannot be reached, or does not let the user in.
    pub(crate) async fn connect(source: &MysqlSource) -> Result<Self, DatabaseError> {
        let opts = opts(source).map_err(|what| DatabaseError::permanent(source, what))?;
        let limit = source.connect_max.unwrap_or(USUAL_MAX);
        let mut conn = match timeout(limit, Conn::new(opts)).await {
            Ok(conn) => conn.map_err(|error| said(source, &error))?,
            Err(_) => return Err(silent(source, limit)),
        };
        // MySQL 8 shows a day's old times otherwise; MariaDB has no such variable and needs none.
        let fresh = conn.query_drop("set session information_schema_stats_expiry=0");
        match timeout(limit, fresh).await {
            Ok(Ok(()) | Err(mysql_async::Error::Server(_))) => {}
            Ok(Err(error)) => return Err(said(source, &error)),
            Err(_) => return Err(silent(source, limit)),
        }
        Ok(Self {
            source: source.clone(),
            conn,
            read: Changed::new(),
            whole_at: Instant::now(),
            rests: Rests::new(),
        })
    }

    async fn query(&mut self, query: &str, values: &[&str]) -> Result<Vec<Row>, DatabaseError> {
        let rows = self.conn.exec(query, params(values));
        within(&self.source, rows).await
    }

    /// Returns when the tables have changed.
    async fn changed(&mut self, wanted: &Wanted) -> Result<Changed, DatabaseError> {
        let rows = self.query(CHANGED, &[]).await?;
        let changes = rows.iter().map(|row| {
            let (at, is_settled) = (text(row, 1), text(row, 2) == "0");
            let change = LastChange {
                at,
                has_rows: None,
                is_settled,
            };
            // MySQL 8 has upper case where the server was set up so.
            (text(row, 0).to_lowercase(), change)
        });
        let mut changed: Changed = changes.collect();
        // What is not settled is read anyway, and of a view one row may cost as much as all.
        let is_settled = |table: &&str| (changed.get(*table)).is_some_and(|it| it.is_settled);
        let settled: Vec<_> = wanted.tables().filter(is_settled).collect();
        if settled.is_empty() {
            return Ok(changed);
        }
        let exists = |table| format!("exists(select 1 from {table})");
        let exists: Vec<_> = settled.iter().map(exists).collect();
        let query = format!("select {}", exists.join(","));
        let rows = self.query(&query, &[]).await?;
        for (column, table) in settled.iter().enumerate() {
            if let Some(change) = changed.get_mut(*table) {
                change.has_rows = rows.first().map(|row| text(row, column) != "0");
            }
        }
        Ok(changed)
    }

    /// Returns whether a table holds what it held when it was read.
    fn is_as_read(&self, table: &str, changed: &Changed) -> bool {
        let read = self.read.get(table);
        read.is_some_and(|read| read.is_settled && changed.get(table) == Some(read))
    }
}

impl Driver for Mysql {
    async fn follow(&mut self, wanted: &Wanted, known: &Records) -> Result<News, DatabaseError> {
        let changed = self.changed(wanted).await?;
        let reading = Reading::begin();
        let began = reading.began();
        let is_old = began - self.whole_at >= WHOLE_AFTER;
        let is_all_as_read = !changed.is_empty()
            && changed.keys().all(|table| self.is_as_read(table, &changed))
            && self.read.len() == changed.len();
        if is_all_as_read && !is_old {
            return Ok(News::Nothing);
        }
        if self.rests.is_resting(began) {
            return Ok(News::not_yet());
        }
        let are_users_as_read = self.is_as_read(USERS, &changed) && !is_old;
        let mut how = TxOpts::new();
        how.with_consistent_snapshot(true)
            .with_isolation_level(IsolationLevel::RepeatableRead)
            .with_readonly(true);
        let source = self.source.clone();
        let transaction = within(&source, self.conn.start_transaction(how)).await?;
        let mut reader = Reader {
            source: &source,
            transaction,
        };
        let tables = reader.tables(wanted).await?;
        let mut users = Comparison::new(&known.users, &tables.realm_names(&wanted.realm));
        let news = if !wanted.users {
            let users = Users::new();
            News::Whole(Records { users, tables })
        } else if are_users_as_read && users.has_known() {
            let tables = Some(tables);
            News::Delta(Delta {
                tables,
                ..Delta::default()
            })
        } else {
            for realm in tables.realm_names(&wanted.realm) {
                reader.compare(&mut users, &realm).await?;
            }
            self.whole_at = began;
            users.news(tables)
        };
        within(&source, reader.transaction.commit()).await?;
        self.read = changed;
        self.rests.begin(&reading);
        Ok(news)
    }

    async fn await_change(&mut self) {
        sleep(INTERVAL).await;
    }

    async fn ask(&mut self, realm: &str, name: &str) -> Result<Answer, DatabaseError> {
        // For the server names that differ in case, accents or spaces at their end may be the same. For what is followed they are not, nor for quotas.
        let query = "select hmackey,name from turnusers_lt where name=? and realm=?";
        let users = self.query(query, &[name, realm]).await?;
        let user = users.iter().find(|row| borrowed(row, 1) == name);
        let query = "select value from turn_secret where realm=?";
        let secrets = self.query(query, &[realm]).await?;
        Ok(Answer {
            key: user.and_then(|row| user_key(&text(row, 0))),
            secrets: secrets.iter().map(|row| secret(row, 0)).collect(),
        })
    }

    async fn change(&mut self, change: Change<'_>) -> Result<(), DatabaseError> {
        let transaction = self.conn.start_transaction(TxOpts::default());
        let mut transaction = within(&self.source, transaction).await?;
        for statement in Dialect::Mysql.change(change) {
            let values: Vec<_> = statement.values.iter().map(String::as_str).collect();
            let done = transaction.exec_drop(statement.text, params(&values));
            within(&self.source, done).await?;
        }
        within(&self.source, transaction.commit()).await
    }

    async fn list(
        &mut self,
        listing: Listing,
        realm: Option<&str>,
    ) -> Result<Vec<Listed>, DatabaseError> {
        let statement = Dialect::Mysql.list(listing, realm);
        let values: Vec<_> = statement.values.iter().map(String::as_str).collect();
        let rows = self.query(&statement.text, &values).await?;
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
    source: &'a MysqlSource,
    transaction: Transaction<'a>,
}

impl Reader<'_> {
    async fn tables(&mut self, wanted: &Wanted) -> Result<Tables, DatabaseError> {
        let mut tables = Tables::default();
        if wanted.realms {
            let query = "select origin,realm from turn_origin_to_realm";
            let rows = self.rows(query, &[]).await?;
            tables.origins = rows
                .iter()
                .map(|row| (text(row, 0), text(row, 1)))
                .collect();
            tables.origins.sort_unstable();
            let query = "select realm,opt,value from turn_realm_option order by realm,opt";
            let rows = self.rows(query, &[]).await?;
            let option = |row: &Row| RealmOption {
                realm: text(row, 0),
                option: text(row, 1),
                value: text(row, 2),
            };
            tables.options = rows.iter().map(option).collect();
        }
        if wanted.peers {
            tables.allowed = self.ranges("allowed_peer_ip").await?;
            tables.denied = self.ranges("denied_peer_ip").await?;
        }
        if wanted.token_keys {
            let query = "select kid,ikm_key,timestamp,lifetime,as_rs_alg,realm from oauth_key";
            let rows = self.rows(query, &[]).await?;
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
            let query = "select value from turn_secret where realm=? order by value";
            for realm in tables.realm_names(&wanted.realm) {
                let rows = self.rows(query, &[&realm]).await?;
                let secrets = rows.iter().map(|row| secret(row, 0)).collect();
                tables.secrets.insert(realm, secrets);
            }
        }
        Ok(tables)
    }

    async fn ranges(
        &mut self,
        table: &str,
    ) -> Result<BTreeMap<String, Vec<String>>, DatabaseError> {
        let query = format!("select realm,ip_range from {table} order by ip_range");
        let mut ranges = BTreeMap::<String, Vec<String>>::new();
        for row in self.rows(&query, &[]).await? {
            let of_realm = ranges.entry(text(&row, 0)).or_default();
            of_realm.push(text(&row, 1));
        }
        Ok(ranges)
    }

    async fn rows(&mut self, query: &str, values: &[&str]) -> Result<Vec<Row>, DatabaseError> {
        let rows = self.transaction.exec(query, params(values));
        within(self.source, rows).await
    }

    /// Reads the users of a realm as they come, so that only the time between two of them is bounded.
    async fn compare(
        &mut self,
        users: &mut Comparison<'_>,
        realm: &str,
    ) -> Result<(), DatabaseError> {
        let mut of_realm = users.realm(realm);
        let query = "select name,hmackey from turnusers_lt where realm=?";
        let rows = self
            .transaction
            .exec_stream::<Row, _, _>(query, params(&[realm]));
        let mut rows = within(self.source, rows).await?;
        while let Some(row) = within(self.source, rows.try_next()).await? {
            of_realm.take(&borrowed(&row, 0), user_key(&borrowed(&row, 1)));
        }
        users.end(realm, of_realm);
        Ok(())
    }
}

fn opts(source: &MysqlSource) -> Result<Opts, String> {
    let password = source.password.as_ref();
    let password = password.map(|password| String::from_utf8_lossy(password.expose()).into_owned());
    let mut opts = OptsBuilder::default()
        .user(Some(source.user.as_str()))
        .pass(password)
        .db_name(Some(source.database.as_str()))
        .prefer_socket(false);
    if source.is_local() {
        let socket = std::env::var("MYSQL_UNIX_PORT").unwrap_or_else(|_| SOCKET.to_owned());
        opts = opts.socket(Some(socket));
    } else {
        opts = opts.ip_or_hostname(source.host.as_str());
        opts = opts
            .tcp_port(source.port.unwrap_or(3306))
            .ssl_opts(tls(&source.tls)?);
    }
    Ok(opts.into())
}

/// Returns how TLS is made. As in coturn the server has to have a certificate of the given authority, of whatever name, and of anybody where none
/// is given.
fn tls(files: &Tls) -> Result<Option<SslOpts>, String> {
    if *files == Tls::default() {
        return Ok(None);
    }
    let mut roots: Vec<PathBuf> = files.ca.iter().cloned().collect();
    if let Some(folder) = &files.ca_folder {
        let in_folder = |what: String| format!("capath {}: {what}", folder.display());
        roots.extend(hashed(folder).map_err(in_folder)?);
    }
    let mut tls = SslOpts::default()
        .with_danger_skip_domain_validation(true)
        .with_danger_accept_invalid_certs(roots.is_empty())
        .with_disable_built_in_roots(!roots.is_empty())
        .with_root_certs(roots.into_iter().map(Into::into).collect());
    if let (Some(key), Some(cert)) = (&files.key, &files.cert) {
        let archive = identity(key, cert)?;
        tls = tls.with_client_identity(Some(ClientIdentity::new(archive.into())));
    }
    Ok(Some(tls))
}

/// Returns the files of a folder that OpenSSL looks for in one of authorities: those that are called by the hash of the name in the certificate.
fn hashed(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let is_hash = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let path = entry.map_err(|error| error.to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parts = name.split_once('.');
        if parts.is_some_and(|(hash, number)| is_hash(hash) && is_number(number)) {
            found.push(path);
        }
    }
    // Without any, no server would have to prove anything.
    match found.is_empty() {
        true => Err("no certificate is called by its hash (`openssl rehash`)".to_owned()),
        false => Ok(found),
    }
}

/// Packs a key and its certificates in the form that the TLS library takes.
fn identity(key: &Path, cert: &Path) -> Result<Vec<u8>, String> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let wrong = |path: &Path| format!("{}: it cannot be read as PEM", path.display());
    let pkey = PKey::private_key_from_pem(&read(key)?).map_err(|_| wrong(key))?;
    let certificates = X509::stack_from_pem(&read(cert)?).map_err(|_| wrong(cert))?;
    let mut certificates = certificates.into_iter();
    let own = certificates.next().ok_or_else(|| wrong(cert))?;
    let archive = Stack::new().and_then(|mut others| {
        certificates.try_for_each(|other| others.push(other))?;
        let mut archive = Pkcs12::builder();
        archive.pkey(&pkey).cert(&own).ca(others);
        archive.build2("")?.to_der()
    });
    archive.map_err(|_| format!("{}: the key does not fit", cert.display()))
}

fn params(values: &[&str]) -> Params {
    match values {
        [] => Params::Empty,
        values => Params::Positional(values.iter().map(Value::from).collect()),
    }
}

/// Returns the text of a column, of whatever type; null is empty.
fn text(row: &Row, column: usize) -> String {
    borrowed(row, column).into_owned()
}

/// Returns the same as [`text`], where it stands if it is text.
fn borrowed(row: &Row, column: usize) -> Cow<'_, str> {
    match row.as_ref(column) {
        None | Some(Value::NULL) => Cow::Borrowed(""),
        Some(Value::Bytes(bytes)) => String::from_utf8_lossy(bytes),
        Some(Value::Int(number)) => number.to_string().into(),
        Some(Value::UInt(number)) => number.to_string().into(),
        Some(other) => other.as_sql(true).trim_matches('\'').to_owned().into(),
    }
}

fn secret(row: &Row, column: usize) -> Secret {
    Secret::new(text(row, column).into_bytes())
}

/// Waits for an answer, within the time that the server may be silent.
async fn within<T>(
    source: &MysqlSource,
    answer: impl Future<Output = Result<T, mysql_async::Error>>,
) -> Result<T, DatabaseError> {
    let limit = source.silence_max.unwrap_or(USUAL_MAX);
    match timeout(limit, answer).await {
        Ok(answer) => answer.map_err(|error| said(source, &error)),
        Err(_) => Err(silent(source, limit)),
    }
}

fn silent(source: &MysqlSource, limit: Duration) -> DatabaseError {
    DatabaseError::passing(source, format!("no answer within {} s", limit.as_secs()))
}

/// Words an error.
fn said(source: &MysqlSource, error: &mysql_async::Error) -> DatabaseError {
    match error {
        mysql_async::Error::Server(answer) => match answer.code {
            // Access denied, to the server, a database or a table; no such database or table.
            1044 | 1045 | 1049 | 1142 | 1146 | 1698 => {
                DatabaseError::permanent(source, &answer.message)
            }
            _ => DatabaseError::passing(source, &answer.message),
        },
        mysql_async::Error::Io(mysql_async::IoError::Io(error)) if !is_refused(error) => {
            DatabaseError::passing(source, error)
        }
        mysql_async::Error::Io(error) => DatabaseError::permanent(source, error),
        error => DatabaseError::passing(source, error),
    }
}
