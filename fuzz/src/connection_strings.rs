//! Properties of the connection strings of user databases.

use std::fmt::{Debug, Display};

use turnbuckle_users::{MongoSource, MysqlSource, PostgresSource, RedisAddress, Source};

/// A password that stands nowhere else.
const SECRET: &str = "Sw0rdf1sh";

/// Checks that the string is read or refused, whatever stands behind a password, and that the password is in nothing that is said of it.
pub fn connection_strings(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for before in ["", "password=", "user=turn password="] {
        let text = given(before, " ", &text);
        judge(PostgresSource::parse(&text).map(Source::Postgres), &text);
        judge(MysqlSource::parse(&text).map(Source::Mysql), &text);
        judge(RedisAddress::parse(&text).map(Source::Redis), &text);
    }
    for before in ["", "postgresql://turn:", "postgres://:"] {
        let text = given(before, "@", &text);
        judge(PostgresSource::parse(&text).map(Source::Postgres), &text);
    }
    for before in ["", "mongodb://turn:", "mongodb+srv://turn:"] {
        let text = given(before, "@", &text);
        judge(MongoSource::parse(&text).map(Source::Mongo), &text);
    }
}

/// Puts the secret between what comes before and what comes behind, if anything comes before.
fn given(before: &str, behind: &str, text: &str) -> String {
    match before {
        "" => text.to_owned(),
        before => format!("{before}{SECRET}{behind}{text}"),
    }
}

fn judge<E: Display + Debug>(parsed: Result<Source, E>, text: &str) {
    let said = match &parsed {
        Ok(source) => format!("{source} {source:?} {} {:?}", source.kind(), source.hosts()),
        Err(error) => format!("{error} {error:?}"),
    };
    let is_given = text.contains(SECRET);
    assert!(!is_given || !said.contains(SECRET), "{text:?}: {said}");
}
