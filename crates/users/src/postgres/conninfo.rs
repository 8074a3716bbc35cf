//! Connection strings of PostgreSQL (libpq: "Connection Strings"), as words or as a URI.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::secret::{MASK, Secret};
use crate::words::unknown;

/// The words that have an effect here, each with the variable of the environment that stands for it where it is not given.
pub(super) const WORDS: [(&str, &str); 16] = [
    ("application_name", "PGAPPNAME"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("dbname", "PGDATABASE"),
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("options", "PGOPTIONS"),
    ("passfile", "PGPASSFILE"),
    ("password", "PGPASSWORD"),
    ("port", "PGPORT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslmode", "PGSSLMODE"),
    ("sslpassword", ""),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("user", "PGUSER"),
];

/// Words whose values are never shown.
const SECRETS: [&str; 2] = ["password", "sslpassword"];

/// Words that libpq knows, with the values that ask for nothing that is not done here anyway.
const WITHOUT_EFFECT: [(&str, &[&str]); 4] = [
    (
        "client_encoding",
        &["utf8", "UTF8", "utf-8", "UTF-8", "auto"],
    ),
    ("gssencmode", &["disable", "prefer"]),
    ("channel_binding", &["disable", "prefer"]),
    ("fallback_application_name", &[]),
];

/// A connection to PostgreSQL.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct PostgresSource {
    /// The words that were given.
    words: BTreeMap<&'static str, Secret>,
}

impl PostgresSource {
    /// Reads a connection string.
    ///
    /// # Errors
    ///
    /// Says what is wrong, without values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let schemes = ["postgresql://", "postgres://"];
        let rest = schemes.iter().find_map(|scheme| text.strip_prefix(scheme));
        let given = match rest {
            Some(rest) => of_uri(rest)?,
            None if text.contains(['=', ' ']) || text.is_empty() => of_conninfo(text)?,
            // A password in it would be shown as the name of a database is.
            None if text.contains("://") => {
                return Err("a URI begins with `postgresql://` or `postgres://`".to_owned());
            }
            // libpq takes it for the name of a database.
            None => vec![("dbname".to_owned(), text.to_owned())],
        };
        let mut source = Self::default();
        for (word, value) in given {
            source.add(&word, value)?;
        }
        Ok(source)
    }

    fn add(&mut self, word: &str, value: String) -> Result<(), String> {
        if let Some((_, harmless)) = WITHOUT_EFFECT.iter().find(|(known, _)| *known == word) {
            let is_harmless = harmless.is_empty() || harmless.contains(&value.as_str());
            return match is_harmless {
                true => Ok(()),
                false => Err(format!("`{word}` can only be {}", harmless.join(" or "))),
            };
        }
        let Some((known, _)) = WORDS.iter().find(|(known, _)| *known == word) else {
            return Err(unknown(word, &WORDS.map(|(known, _)| known)));
        };
        let allowed: &[&str] = match *known {
            "sslmode" => &[
                "disable",
                "allow",
                "prefer",
                "require",
                "verify-ca",
                "verify-full",
            ],
            "target_session_attrs" => &["any", "read-write", "read-only"],
            _ => &[],
        };
        if !allowed.is_empty() && !allowed.contains(&value.as_str()) {
            return Err(format!("`{known}` is one of {}", allowed.join(", ")));
        }
        if *known == "port"
            && !value
                .split(',')
                .all(|port| port.is_empty() || is_port(port))
        {
            return Err("`port` is a number from 1 to 65535, or one for each host".to_owned());
        }
        if *known == "connect_timeout" && value.parse::<i32>().is_err() {
            return Err("`connect_timeout` is a number of seconds".to_owned());
        }
        self.words.insert(known, Secret::new(value.into_bytes()));
        Ok(())
    }

    /// Returns the value of a word, if it was given.
    pub(super) fn given(&self, word: &str) -> Option<Cow<'_, str>> {
        let value = self.words.get(word)?;
        Some(String::from_utf8_lossy(value.expose()))
    }

    /// Returns the value of a word: as given, or from the environment.
    pub(super) fn value(&self, word: &str) -> Option<String> {
        let given = self.given(word).map(Cow::into_owned);
        given.or_else(|| {
            let (_, variable) = WORDS.iter().find(|(known, _)| *known == word)?;
            let value = match *variable {
                "" => None,
                variable => std::env::var(variable).ok(),
            };
            value.filter(|value| !value.is_empty())
        })
    }

    /// Returns the hosts that the words name, without sockets of this machine.
    pub(crate) fn hosts(&self) -> Vec<String> {
        ["hostaddr", "host"]
            .iter()
            .filter_map(|word| self.value(word))
            .flat_map(|hosts| hosts.split(',').map(str::to_owned).collect::<Vec<_>>())
            .filter(|host| !host.is_empty() && !is_path(host))
            .collect()
    }
}

/// Returns whether a host is the folder of a Unix socket, or a socket in the abstract name space.
pub(super) fn is_path(host: &str) -> bool {
    host.starts_with(['/', '@'])
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok_and(|port| port > 0)
}

impl fmt::Display for PostgresSource {
    /// Writes the words without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("postgresql")?;
        for (word, value) in &self.words {
            let value = match SECRETS.contains(word) {
                true => Cow::Borrowed(MASK),
                false => String::from_utf8_lossy(value.expose()),
            };
            write!(f, " {word}={}", value.escape_debug())?;
        }
        Ok(())
    }
}

impl fmt::Debug for PostgresSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads `key = value` words. A value may stand between single quotes; a backslash takes the next character as it is.
fn of_conninfo(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut words = Vec::new();
    let mut rest = text.chars().peekable();
    loop {
        while rest
            .next_if(|letter| letter.is_ascii_whitespace())
            .is_some()
        {}
        if rest.peek().is_none() {
            return Ok(words);
        }
        let mut word = String::new();
        while let Some(letter) =
            rest.next_if(|&letter| letter != '=' && !letter.is_ascii_whitespace())
        {
            word.push(letter);
        }
        while rest
            .next_if(|letter| letter.is_ascii_whitespace())
            .is_some()
        {}
        if rest.next() != Some('=') {
            return Err(format!("word {} has no `=`", words.len() + 1));
        }
        while rest
            .next_if(|letter| letter.is_ascii_whitespace())
            .is_some()
        {}
        let is_quoted = rest.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        let mut is_closed = !is_quoted;
        while let Some(letter) = rest.next_if(|letter| is_quoted || !letter.is_ascii_whitespace()) {
            match letter {
                '\\' => value.extend(rest.next()),
                '\'' if is_quoted => {
                    is_closed = true;
                    break;
                }
                letter => value.push(letter),
            }
        }
        if !is_closed {
            return Err(format!(
                "the quote of `{}` is not closed",
                word.escape_debug()
            ));
        }
        words.push((word, value));
    }
}

/// Reads `user:password@host:port,host:port/dbname?word=value&word=value`, without its scheme.
fn of_uri(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut words = Vec::new();
    let mut add = |word: &str, value: &str| -> Result<(), String> {
        if !value.is_empty() {
            words.push((word.to_owned(), decoded(value)?));
        }
        Ok(())
    };
    let (text, query) = text.split_once('?').unwrap_or((text, ""));
    let (authority, database) = text.split_once('/').unwrap_or((text, ""));
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    add("user", user)?;
    add("password", password)?;
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (name, rest) = rest.split_once(']').ok_or("`[` of a host is not closed")?;
                (name, rest.strip_prefix(':').unwrap_or(""))
            }
            None => host.split_once(':').unwrap_or((host, "")),
        };
        names.push(name);
        ports.push(port);
    }
    add("host", &names.join(","))?;
    if ports.iter().any(|port| !port.is_empty()) {
        add("port", &ports.join(","))?;
    }
    add("dbname", database)?;
    for word in query.split('&').filter(|word| !word.is_empty()) {
        let (word, value) = word.split_once('=').ok_or("a word after `?` has no `=`")?;
        match (word, value) {
            ("ssl", "true") => add("sslmode", "require")?,
            _ => add(word, value)?,
        }
    }
    Ok(words)
}

/// Replaces `%` and two hexadecimal digits by what they stand for.
fn decoded(text: &str) -> Result<String, String> {
    const WRONG: &str = "`%` in the URI is not followed by two hexadecimal digits of UTF-8 text";
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, others @ ..] = rest {
        rest = others;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, others) = rest.split_at_checked(2).ok_or(WRONG)?;
        let digits = std::str::from_utf8(digits).map_err(|_| WRONG)?;
        if digits.starts_with('+') {
            return Err(WRONG.to_owned());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| WRONG)?);
        rest = others;
    }
    String::from_utf8(bytes).map_err(|_| WRONG.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match PostgresSource::parse(text) {
            Ok(source) => source.to_string(),
            Err(error) => error,
        }
    }

    #[test]
    fn words_and_uris_are_read_as_libpq_reads_them_and_secrets_are_masked() {
        for (text, expected) in [
            (
                "host=localhost dbname=coturn user=turn password=turn connect_timeout=30",
                "postgresql connect_timeout=30 dbname=coturn host=localhost password=******** user=turn",
            ),
            (
                r"dbname = 'a b' password='it\'s'user=u",
                "postgresql dbname=a b password=******** user=u",
            ),
            (
                "postgresql://u:p%40ss@[::1]:5433,db.example/co%2Fturn?sslmode=verify-full&ssl=true",
                "postgresql dbname=co/turn host=::1,db.example password=******** port=5433, sslmode=require user=u",
            ),
            (
                "postgres:///turn?host=/run/pg",
                "postgresql dbname=turn host=/run/pg",
            ),
            ("turn", "postgresql dbname=turn"),
            (
                "host=h gssencmode=disable client_encoding=UTF8",
                "postgresql host=h",
            ),
        ] {
            assert!(shown(text).starts_with(expected), "{text}: {}", shown(text));
        }
        let source = PostgresSource::parse(r"password='it\'s'").unwrap();
        assert_eq!(source.given("password").as_deref(), Some("it's"));
        let source = PostgresSource::parse("postgres://u:p%40s:s@h").unwrap();
        assert_eq!(source.given("password").as_deref(), Some("p@s:s"));
    }

    #[test]
    fn what_is_not_known_is_refused_by_name_and_no_value_is_repeated() {
        for (text, expected) in [
            (
                "host=h service=mine",
                "`service` is not known; the words are application_name,",
            ),
            ("host=h krbsrvname=x", "`krbsrvname` is not known"),
            (
                "host=h gssencmode=require",
                "`gssencmode` can only be disable or prefer",
            ),
            (
                "host=h sslmode=yes",
                "`sslmode` is one of disable, allow, prefer, require,",
            ),
            ("host=h port=http", "`port` is a number"),
            ("host=h password=my secret", "word 3 has no `=`"),
            ("password='secret", "the quote of `password` is not closed"),
            ("postgres://h/d?secret", "a word after `?` has no `=`"),
            ("postgres://u:secret%zz@h", "`%` in the URI is not followed"),
            (
                "mongodb://u:secret@h",
                "a URI begins with `postgresql://` or",
            ),
        ] {
            let error = PostgresSource::parse(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn hosts_of_the_network_are_named_and_sockets_are_not() {
        let hosts = |text| PostgresSource::parse(text).unwrap().hosts();
        assert_eq!(
            hosts("host=db.example,/run/pg,192.0.2.7"),
            ["db.example", "192.0.2.7"]
        );
        assert_eq!(
            hosts("host=db.example hostaddr=192.0.2.8"),
            ["192.0.2.8", "db.example"]
        );
    }
}
