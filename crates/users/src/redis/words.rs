//! The connection string of `redis-userdb` and `redis-statsdb`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::Secret;

/// Where a Redis or Valkey server is and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisAddress {
    pub(super) host: String,
    pub(super) port: u16,
    /// The number that `SELECT` takes.
    pub(super) database: u32,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    /// How long the connection may take to come up, and each answer to come.
    pub(super) timeout: Duration,
    /// `None`: the connection is not encrypted.
    pub(super) tls: Option<RedisTls>,
}

/// How the connection is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RedisTls {
    pub(super) ca: Option<PathBuf>,
    pub(super) ca_directory: Option<PathBuf>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    /// The name that the server is asked for and that its certificate must be good for; `None`: the host.
    pub(super) server_name: Option<String>,
    pub(super) is_verified: bool,
}

/// A connection string that cannot be used. Its text holds no value of the string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddressError {
    /// A word without `=`; its place, counted from one.
    NoValue(usize),
    /// A key that is not known.
    UnknownKey(String),
    /// A value that the key does not take: the key, and what it takes.
    Value(&'static str, &'static str),
    /// Keys of TLS without `tls=true`: the key.
    NoTls(&'static str),
    /// A certificate without its key, or the other way round.
    HalfCertificate,
}

impl fmt::Display for RedisAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValue(place) => write!(
                f,
                "word {place} has no `=`; the words are `key=value`, with blanks between them and none in them"
            ),
            Self::UnknownKey(key) => write!(
                f,
                "key `{}` is unknown; keys are ip, port, dbname, user, password, connect_timeout, tls, ca, capath, cert, clientkey, sni, verify and their other names in coturn",
                key.escape_debug()
            ),
            Self::Value(key, allowed) => write!(f, "{key} takes {allowed}"),
            Self::NoTls(key) => write!(f, "{key} needs tls=true"),
            Self::HalfCertificate => f.write_str("cert and clientkey need each other"),
        }
    }
}

impl std::error::Error for RedisAddressError {}

/// Port of a server where none is given.
const PORT: u16 = 6379;

/// Time that connecting and each answer may take where none is given.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A year, in seconds: more than anybody waits.
const TIMEOUT_S_MAX: u64 = 31_536_000;

/// What the words of a string have said so far.
struct Given {
    address: RedisAddress,
    wants_tls: Option<bool>,
    tls: RedisTls,
    /// A key that makes sense with TLS alone.
    tls_key: Option<&'static str>,
}

impl RedisAddress {
    /// Reads coturn's form: words `key=value` with blanks between them. Of two words with one key the last counts.
    ///
    /// # Errors
    ///
    /// A word is no pair, a key is unknown, or a value is none that its key takes.
    pub fn parse(text: &str) -> Result<Self, RedisAddressError> {
        let mut given = Given::new();
        let words = text
            .split([' ', '\t', '\r', '\n'])
            .filter(|word| !word.is_empty());
        for (index, word) in words.enumerate() {
            let (key, value) = word
                .split_once('=')
                .ok_or(RedisAddressError::NoValue(index + 1))?;
            given.take(key, value)?;
        }
        given.finish()
    }

    /// Returns the name or address of the server's host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port of the server.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for RedisAddress {
    /// Writes what can be shown to anybody: host, port and number of the database.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            host,
            port,
            database,
            ..
        } = self;
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}/{database}"),
            false => write!(f, "{host}:{port}/{database}"),
        }
    }
}

impl Given {
    fn new() -> Self {
        Self {
            address: RedisAddress {
                host: "127.0.0.1".to_owned(),
                port: PORT,
                database: 0,
                user: None,
                password: None,
                timeout: TIMEOUT,
                tls: None,
            },
            wants_tls: None,
            tls: RedisTls {
                ca: None,
                ca_directory: None,
                certificate: None,
                key: None,
                server_name: None,
                is_verified: true,
            },
            tls_key: None,
        }
    }

    fn take(&mut self, key: &str, value: &str) -> Result<(), RedisAddressError> {
        let text = || (!value.is_empty()).then(|| value.to_owned());
        let file = || (!value.is_empty()).then(|| PathBuf::from(value));
        match key {
            "host" | "ip" | "addr" | "ipaddr" | "hostaddr" => {
                self.address.host = text().ok_or(RedisAddressError::Value(
                    "ip",
                    "the name or the address of a host",
                ))?;
            }
            "dbname" | "db" | "database" => {
                let what = RedisAddressError::Value("dbname", "a number, 0 for the first database");
                self.address.database = value.parse().map_err(|_| what)?;
            }
            "user" | "uname" | "name" | "username" => self.address.user = text(),
            "password" | "pwd" | "passwd" | "secret" => {
                self.address.password = text().map(|text| Secret::new(text.into_bytes()));
            }
            "port" | "p" => {
                let port = value.parse().ok().filter(|port| *port > 0);
                self.address.port =
                    port.ok_or(RedisAddressError::Value("port", "a number from 1 to 65535"))?;
            }
            "connect_timeout" | "timeout" => {
                let seconds = value
                    .parse()
                    .ok()
                    .filter(|seconds| *seconds <= TIMEOUT_S_MAX);
                // Zero is no time to wait in coturn either, but the usual one.
                self.address.timeout = match seconds {
                    Some(0) => TIMEOUT,
                    Some(seconds) => Duration::from_secs(seconds),
                    None => {
                        return Err(RedisAddressError::Value(
                            "connect_timeout",
                            "a number of seconds up to 31536000",
                        ));
                    }
                };
            }
            "tls" | "ssl" => {
                self.wants_tls = Some(match value {
                    "true" | "yes" | "on" | "1" => true,
                    "false" | "no" | "off" | "0" => false,
                    _ => return Err(RedisAddressError::Value("tls", "true or false")),
                });
            }
            "ca" | "cacert" | "tls-ca" => self.tls(|tls| tls.ca = file(), "ca"),
            "capath" => self.tls(|tls| tls.ca_directory = file(), "capath"),
            "cert" => self.tls(|tls| tls.certificate = file(), "cert"),
            "clientkey" | "tls-key" => self.tls(|tls| tls.key = file(), "clientkey"),
            "sni" | "servername" => self.tls(|tls| tls.server_name = text(), "sni"),
            "verify" => {
                let is_verified = match value {
                    "none" | "0" | "false" => false,
                    "peer" | "1" | "true" => true,
                    _ => {
                        return Err(RedisAddressError::Value("verify", "peer or none"));
                    }
                };
                self.tls(|tls| tls.is_verified = is_verified, "verify");
            }
            unknown => return Err(RedisAddressError::UnknownKey(unknown.to_owned())),
        }
        Ok(())
    }

    fn tls(&mut self, set: impl FnOnce(&mut RedisTls), key: &'static str) {
        set(&mut self.tls);
        self.tls_key.get_or_insert(key);
    }

    fn finish(mut self) -> Result<RedisAddress, RedisAddressError> {
        if self.tls.certificate.is_some() != self.tls.key.is_some() {
            return Err(RedisAddressError::HalfCertificate);
        }
        match (self.wants_tls, self.tls_key) {
            (Some(true), _) => self.address.tls = Some(self.tls),
            // A certificate named beside a connection in the clear would be taken for protection.
            (None, Some(key)) => return Err(RedisAddressError::NoTls(key)),
            (Some(false), _) | (None, None) => {}
        }
        Ok(self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> RedisAddress {
        RedisAddress::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn an_empty_string_names_the_usual_server() {
        let address = parsed("");
        assert_eq!(address.to_string(), "127.0.0.1:6379/0");
        assert_eq!((address.user, address.password), (None, None));
        assert_eq!(
            (address.timeout, address.tls),
            (Duration::from_secs(5), None)
        );
    }

    #[test]
    fn every_name_of_coturn_for_a_key_is_taken() {
        for key in ["host", "ip", "addr", "ipaddr", "hostaddr"] {
            assert_eq!(parsed(&format!("{key}=db.example")).host(), "db.example");
        }
        for key in ["dbname", "db", "database"] {
            assert_eq!(parsed(&format!("{key}=7")).database, 7);
        }
        for key in ["user", "uname", "name", "username"] {
            assert_eq!(parsed(&format!("{key}=turn")).user.as_deref(), Some("turn"));
        }
        for key in ["password", "pwd", "passwd", "secret"] {
            let password = parsed(&format!("{key}=a=b")).password;
            assert_eq!(password.as_ref().map(Secret::expose), Some(&b"a=b"[..]));
        }
        for key in ["port", "p"] {
            assert_eq!(parsed(&format!("{key}=6380")).port(), 6380);
        }
        for key in ["connect_timeout", "timeout"] {
            assert_eq!(
                parsed(&format!("{key}=30")).timeout,
                Duration::from_secs(30)
            );
        }
        for key in ["tls", "ssl"] {
            assert!(parsed(&format!("{key}=true")).tls.is_some());
            assert!(parsed(&format!("{key}=false")).tls.is_none());
        }
        let tls = |word: &str| parsed(&format!("{word} tls=true")).tls.unwrap();
        for key in ["ca", "cacert", "tls-ca"] {
            assert_eq!(tls(&format!("{key}=/ca")).ca, Some("/ca".into()));
        }
        for key in ["clientkey", "tls-key"] {
            let tls = tls(&format!("cert=/c {key}=/k"));
            assert_eq!(
                (tls.certificate, tls.key),
                (Some("/c".into()), Some("/k".into()))
            );
        }
        for key in ["sni", "servername"] {
            let name = tls(&format!("{key}=db.example")).server_name;
            assert_eq!(name.as_deref(), Some("db.example"));
        }
        assert_eq!(tls("capath=/d").ca_directory, Some("/d".into()));
        for value in ["none", "0", "false"] {
            assert!(!tls(&format!("verify={value}")).is_verified);
        }
        assert!(tls("verify=peer").is_verified);
    }

    #[test]
    fn the_string_of_coturns_sample_is_read() {
        let address =
            parsed("ip=10.0.0.5 dbname=2 user=turn  password=turn port=6390 connect_timeout=30\t");
        assert_eq!(address.to_string(), "10.0.0.5:6390/2");
        assert_eq!(parsed("ip=fd00::5 db=2").to_string(), "[fd00::5]:6379/2");
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name_and_shows_no_value() {
        for (text, expected) in [
            ("password=hunter2 ip", "word 2 has no `=`"),
            ("hots=hunter2", "key `hots` is unknown"),
            ("dbname=hunter2", "dbname takes a number"),
            ("port=0", "port takes"),
            ("port=65536", "port takes"),
            ("timeout=hunter2", "connect_timeout takes"),
            ("tls=hunter2", "tls takes true or false"),
            ("tls=true verify=hunter2", "verify takes peer or none"),
            ("ip=", "ip takes"),
            ("ca=/hunter2", "ca needs tls=true"),
            ("tls=true cert=/hunter2", "cert and clientkey"),
            ("tls=true clientkey=/hunter2", "cert and clientkey"),
        ] {
            let error = RedisAddress::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        let shown = format!("{:?}", parsed("password=hunter2 tls=true"));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
