//! What a query says: which sessions are meant, and how many.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use turnbuckle_server::config::Level;
use turnbuckle_server::handle::{SessionFilter, Transport};

/// What a query says.
#[derive(Debug, Default)]
pub(crate) struct Query {
    /// Which sessions are meant.
    pub(crate) filter: SessionFilter,
    /// All sessions are meant, and the query says so.
    pub(crate) is_for_all: bool,
    /// How many are wanted.
    pub(crate) max: Option<usize>,
    /// Where a page begins: shard and place.
    pub(crate) cursor: Option<(usize, u32)>,
    /// How long something lasts.
    pub(crate) seconds: Option<u64>,
    /// By what sessions are compared.
    pub(crate) by: Option<Measure>,
    /// What is compared.
    pub(crate) per: Option<Per>,
    /// Nothing is to change.
    pub(crate) is_dry_run: bool,
    /// A program.
    pub(crate) program: Option<PathBuf>,
    /// The lowest level of lines that are logged.
    pub(crate) level: Option<Level>,
}

/// By what sessions are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    Bytes,
    Datagrams,
    /// Bytes per second, now.
    Rate,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Per {
    Session,
    User,
}

/// Parameters that say which sessions are meant.
pub(crate) const FILTERS: [&str; 7] = [
    "user",
    "user_like",
    "realm",
    "transport",
    "client",
    "peer",
    "min_age",
];

impl Query {
    /// Reads a query in which `allowed` parameters may be, each once.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what is allowed.
    pub(crate) fn parse(text: &str, allowed: &[&[&str]]) -> Result<Self, String> {
        let mut query = Self::default();
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in form_urlencoded::parse(text.as_bytes()) {
            if !allowed.iter().any(|names| names.contains(&&*name)) {
                let names: Vec<&str> = allowed.concat();
                let allowed = match &*names {
                    [] => "none is".to_owned(),
                    names => names.join(", "),
                };
                let name = name.escape_debug();
                return Err(format!("`{name}` is no parameter here; allowed: {allowed}"));
            }
            if seen.iter().any(|earlier| *earlier == name) {
                return Err(format!("`{name}` is given twice; allowed once"));
            }
            query.take(&name, &value)?;
            seen.push(name.into_owned());
        }
        Ok(query)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        let filter = &mut self.filter;
        match name {
            "user" => filter.user = Some(value.to_owned()),
            "user_like" => filter.user_part = Some(value.to_owned()),
            "realm" => filter.realm = Some(value.to_owned()),
            "transport" => filter.transport = Some(transport(value)?),
            "client" => filter.client = Some(read(name, value, "an IP address")?),
            "peer" => filter.peer = Some(read(name, value, "an IP address")?),
            "min_age" => {
                let seconds = read(name, value, "a number of seconds")?;
                filter.age_min = Some(Duration::from_secs(seconds));
            }
            "all" => self.is_for_all = read(name, value, "true or false")?,
            "dry_run" => self.is_dry_run = read(name, value, "true or false")?,
            "level" => {
                let mut all = Level::ALL.into_iter();
                let level = all.find(|level| level.name().eq_ignore_ascii_case(value));
                self.level = Some(level.ok_or("`level` is debug, info, warning or error")?);
            }
            "seconds" => self.seconds = Some(read(name, value, "a number of seconds")?),
            "program" if value.starts_with('/') => self.program = Some(PathBuf::from(value)),
            "program" => return Err("`program` is a path that begins with /".to_owned()),
            "max" => self.max = Some(read(name, value, "a number")?),
            "cursor" => {
                let parts = value.split_once('-');
                let parts = parts.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                self.cursor = Some(parts.ok_or("`cursor` is none that a page has named")?);
            }
            "by" => {
                self.by = Some(match value {
                    "bytes" => Measure::Bytes,
                    "datagrams" => Measure::Datagrams,
                    "rate" => Measure::Rate,
                    _ => return Err("`by` is bytes, datagrams or rate".to_owned()),
                });
            }
            "per" => {
                self.per = Some(match value {
                    "session" => Per::Session,
                    "user" => Per::User,
                    _ => return Err("`per` is session or user".to_owned()),
                });
            }
            _ => return Err(format!("`{name}` is no parameter")),
        }
        Ok(())
    }
}

fn read<T: FromStr>(name: &str, value: &str, allowed: &str) -> Result<T, String> {
    let wrong = |_| {
        format!(
            "`{name}`: `{}` is wrong; allowed: {allowed}",
            value.escape_debug()
        )
    };
    value.parse().map_err(wrong)
}

fn transport(value: &str) -> Result<Transport, String> {
    let all = [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Dtls,
    ];
    all.into_iter()
        .find(|transport| transport.as_str().eq_ignore_ascii_case(value))
        .ok_or_else(|| "`transport` is one of udp, tcp, tls, dtls".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_whole_or_refused_with_what_is_allowed() {
        let parse = |text| Query::parse(text, &[&FILTERS, &["max", "cursor"]]);
        let query = parse(
            "user=a%20b%26c&transport=dtls&client=2001%3Adb8%3A%3A1&min_age=60&max=5&cursor=1-40",
        )
        .unwrap();
        assert_eq!(query.filter.user.as_deref(), Some("a b&c"));
        assert_eq!(query.filter.transport, Some(Transport::Dtls));
        assert_eq!(query.filter.age_min, Some(Duration::from_secs(60)));
        assert_eq!((query.max, query.cursor), (Some(5), Some((1, 40))));
        assert!(parse("").unwrap().filter.admits_all());
        for (wrong, why) in [
            ("usr=a", "`usr` is no parameter here; allowed: user, "),
            ("user=a&user=b", "given twice"),
            ("client=nowhere", "an IP address"),
            ("min_age=-1", "seconds"),
            ("transport=quic", "udp, tcp, tls, dtls"),
            ("cursor=7", "cursor"),
            ("all=true", "no parameter here"),
        ] {
            let error = parse(wrong).err().unwrap();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
