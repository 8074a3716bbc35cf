//! Connections to MongoDB as coturn writes them: URIs.

use std::fmt;

use crate::secret::Secret;
use crate::words::unknown;

/// What is said of a connection where the driver is not there.
#[cfg(not(feature = "mongo"))]
pub(crate) const WITHOUT: &str =
    "this program is built without MongoDB; build it with `--features mongo`";

/// The database where the URI names none.
const USUAL_DATABASE: &str = "turn";

/// The options that mean something to the driver.
const OPTIONS: [&str; 25] = [
    "appName",
    "authMechanism",
    "authSource",
    "connectTimeoutMS",
    "directConnection",
    "heartbeatFrequencyMS",
    "journal",
    "loadBalanced",
    "localThresholdMS",
    "maxStalenessSeconds",
    "readConcernLevel",
    "readPreference",
    "readPreferenceTags",
    "replicaSet",
    "retryReads",
    "retryWrites",
    "serverSelectionTimeoutMS",
    "tls",
    "tlsAllowInvalidCertificates",
    "tlsAllowInvalidHostnames",
    "tlsCAFile",
    "tlsCertificateKeyFile",
    "tlsInsecure",
    "w",
    "wTimeoutMS",
];

/// The option of these that the driver does not read from a URI.
const ANY_NAME: &str = "tlsAllowInvalidHostnames";

/// The names that options of TLS had before.
const FORMER: [(&str, &str); 5] = [
    ("ssl", "tls"),
    ("sslCertificateAuthorityFile", "tlsCAFile"),
    ("sslClientCertificateKeyFile", "tlsCertificateKeyFile"),
    ("sslAllowInvalidCertificates", "tlsAllowInvalidCertificates"),
    ("sslAllowInvalidHostnames", "tlsAllowInvalidHostnames"),
];

/// A connection to MongoDB.
#[derive(Clone, PartialEq, Eq)]
pub struct MongoSource {
    /// The URI with the present names of the options.
    pub(super) uri: Secret,
    /// The scheme and the hosts, as they are written.
    shown: String,
    /// The hosts without ports; none if a name server has to say which they are.
    hosts: Vec<String>,
    pub(super) database: String,
    /// Whether the server's certificate may be one for another host; nothing if the URI does not say.
    pub(super) any_name: Option<bool>,
}

impl MongoSource {
    /// Reads a URI, `mongodb://` or `mongodb+srv://`. Whether the driver is there shows when it is connected to.
    ///
    /// # Errors
    ///
    /// Says what is wrong, without passwords.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text
            .split_once("://")
            .filter(|(scheme, _)| matches!(*scheme, "mongodb" | "mongodb+srv"))
            .ok_or("begins with neither `mongodb://` nor `mongodb+srv://`")?;
        let (before, options) = rest.split_once('?').unwrap_or((rest, ""));
        // Whatever follows would be taken for options, and named.
        if options.contains('@') {
            return Err(
                "a `?` in the user or password is written `%3F`, and an `@` in an option `%40`"
                    .to_owned(),
            );
        }
        let (login, place) = match before.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, before),
        };
        if login.is_some_and(|login| login.contains(['/', '@', '[', ']'])) {
            return Err("user and password are percent-encoded".to_owned());
        }
        let (hosts, database) = place.split_once('/').unwrap_or((place, ""));
        if hosts.split(',').any(str::is_empty) {
            return Err("a host is missing".to_owned());
        }
        let database = match database {
            "" => USUAL_DATABASE.to_owned(),
            name => decoded(name).ok_or("the name of the database is percent-encoded")?,
        };
        if database.contains(['/', '\\', ' ', '"', '$', '.']) {
            return Err(
                "the name of a database holds none of `/ \\ \" $ .` and no blank".to_owned(),
            );
        }
        let (options, any_name) = present(options)?;
        let separator = if options.is_empty() { "" } else { "?" };
        let named = place.strip_prefix(hosts).unwrap_or_default();
        // Between the hosts and the options there is a slash.
        let named = if named.is_empty() { "/" } else { named };
        let login = login.map_or_else(String::new, |login| format!("{login}@"));
        let uri = format!("{scheme}://{login}{hosts}{named}{separator}{options}");
        Ok(Self {
            uri: Secret::new(uri.into_bytes()),
            shown: format!("{scheme}://{hosts}"),
            hosts: match scheme {
                "mongodb" => hosts.split(',').filter_map(without_port).collect(),
                _ => Vec::new(),
            },
            database,
            any_name,
        })
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        self.hosts.clone()
    }
}

impl fmt::Display for MongoSource {
    /// Writes where the database is, without user, password and options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            self.shown.escape_debug(),
            self.database.escape_debug()
        )
    }
}

impl fmt::Debug for MongoSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the options with their present names, without the one that is not for the driver's reader, and that.
fn present(options: &str) -> Result<(String, Option<bool>), String> {
    let mut named = Vec::new();
    let mut any_name = None;
    for pair in options.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair
            .split_once('=')
            .ok_or("an option is `name=value`, and options are joined by `&`")?;
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        let former = FORMER.iter().find(|(former, _)| is(former));
        let known = former.map(|(_, present)| *present);
        let known = known.or_else(|| OPTIONS.into_iter().find(|known| is(known)));
        match known.ok_or_else(|| unknown(name, &OPTIONS))? {
            ANY_NAME => {
                let value = value.parse();
                any_name = Some(value.map_err(|_| format!("`{ANY_NAME}` is true or false"))?);
            }
            known => named.push(format!("{known}={value}")),
        }
    }
    Ok((named.join("&"), any_name))
}

/// Returns a host without its port, and nothing for a Unix socket.
fn without_port(host: &str) -> Option<String> {
    if host.to_ascii_lowercase().contains("%2f") {
        return None;
    }
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    Some(name.to_owned())
}

/// Returns the text that stands percent-encoded in a URI.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let digits = after.get(..2)?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        bytes.push(u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?);
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> String {
        let source = MongoSource::parse(text).expect("a URI");
        String::from_utf8_lossy(source.uri.expose()).into_owned()
    }

    #[test]
    fn the_database_is_that_of_the_path_or_else_turn() {
        for (text, database) in [
            ("mongodb://h/coturn", "coturn"),
            ("mongodb://h/co%2dturn?w=1", "co-turn"),
            ("mongodb://u:p@h:1,[::1]:2/x", "x"),
            ("mongodb://h", "turn"),
            ("mongodb://h/", "turn"),
            ("mongodb://h/?tls=true", "turn"),
            ("mongodb+srv://h?w=1", "turn"),
        ] {
            let source = MongoSource::parse(text).expect(text);
            assert_eq!(source.database, database, "{text}");
        }
    }

    #[test]
    fn former_names_of_options_become_present_ones() {
        assert_eq!(
            uri(
                "mongodb://h/d?ssl=true&sslCertificateAuthorityFile=/ca.pem&SSLallowinvalidhostnames=true"
            ),
            "mongodb://h/d?tls=true&tlsCAFile=/ca.pem"
        );
        let any_name = |value: &str| {
            let uri = format!("mongodb://h/d?sslAllowInvalidHostnames={value}");
            MongoSource::parse(&uri).map(|source| source.any_name)
        };
        assert_eq!(any_name("true"), Ok(Some(true)));
        assert!(any_name("yes").is_err());
        assert_eq!(uri("mongodb://u:p@h?w=1"), "mongodb://u:p@h/?w=1");
        assert_eq!(uri("mongodb://h"), "mongodb://h/");
    }

    #[test]
    fn hosts_are_known_without_ports_and_sockets_are_none() {
        let hosts = |text| MongoSource::parse(text).expect("a URI").hosts();
        assert_eq!(
            hosts("mongodb://u:p@db1:27017,[2001:db8::1]:2,192.0.2.1/d"),
            ["db1", "2001:db8::1", "192.0.2.1"]
        );
        assert!(hosts("mongodb://%2Ftmp%2Fmongodb-27017.sock/d").is_empty());
        assert!(hosts("mongodb+srv://db.example.org").is_empty());
    }

    #[test]
    fn nothing_shows_a_user_or_password() {
        let source = MongoSource::parse("mongodb://turn:hush@h:1/d?appName=x").expect("a URI");
        assert_eq!(source.to_string(), "mongodb://h:1/d");
        assert_eq!(format!("{source:?}"), "mongodb://h:1/d");
        for wrong in [
            "turn:hush@h",
            "http://turn:hush@h",
            "mongodb://turn:hu?sh=1@h/d",
            "mongodb://turn:hu/sh@h/d",
            "mongodb://turn:hush@/d",
            "mongodb://turn:hush@h,/d",
            "mongodb://turn:hush@h/d?x",
            "mongodb://turn:hush@h/a%zz",
            "mongodb://turn:hush@h/a.b",
            "mongodb://turn:hush@h/d?tlsCertificateKeyFilePassword=hush",
        ] {
            let error = MongoSource::parse(wrong).expect_err(wrong);
            assert!(!error.contains("hu"), "{error}");
        }
    }

    #[test]
    fn an_option_that_is_not_known_is_refused_by_name() {
        let error = MongoSource::parse("mongodb://h/d?tlss=1").expect_err("unknown");
        assert!(error.contains("`tlss` is not known"), "{error}");
    }

    #[cfg(not(feature = "mongo"))]
    #[test]
    fn without_the_driver_a_connection_is_refused_by_the_name_of_the_feature() {
        let source = MongoSource::parse("mongodb://turn:hush@h/d").expect("a URI");
        let error = crate::Connection::open(&crate::Source::Mongo(source));
        let error = error.err().expect("no driver");
        let text = error.to_string();
        assert!(
            error.is_permanent() && text.contains("--features mongo"),
            "{text}"
        );
        assert!(!text.contains("hush"), "{text}");
    }
}
