//! Connections to MySQL as coturn writes them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::encrypted::decrypted;
use crate::secret::{MASK, Secret};
use crate::words::{unknown, words};

/// The words, each with the names that it may have.
const WORDS: [(&str, &[&str]); 12] = [
    ("host", &["host", "ip", "addr", "ipaddr", "hostaddr"]),
    ("dbname", &["dbname", "db", "database"]),
    ("user", &["user", "uname", "name", "username"]),
    ("password", &["password", "pwd", "passwd", "secret"]),
    ("port", &["port", "p"]),
    ("connect_timeout", &["connect_timeout", "timeout"]),
    ("read_timeout", &["read_timeout"]),
    ("key", &["key", "ssl-key"]),
    ("ca", &["ca", "ssl-ca"]),
    ("cert", &["cert", "ssl-cert"]),
    ("capath", &["capath", "ssl-capath"]),
    ("cipher", &["cipher", "ssl-cipher"]),
];

/// A connection to MySQL or MariaDB.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct MysqlSource {
    /// `localhost`, or nothing, is the Unix socket.
    pub(super) host: String,
    pub(super) port: Option<u16>,
    pub(super) database: String,
    pub(super) user: String,
    pub(super) password: Option<Secret>,
    pub(super) connect_max: Option<Duration>,
    pub(super) silence_max: Option<Duration>,
    pub(super) tls: Tls,
}

/// Files for TLS. Without any there is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Tls {
    pub(super) key: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) ca: Option<PathBuf>,
    pub(super) ca_folder: Option<PathBuf>,
}

impl MysqlSource {
    /// Reads the words of a connection.
    ///
    /// # Errors
    ///
    /// Says what is wrong, without values.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut source = Self::default();
        for (name, value) in words(text)? {
            let known = WORDS.iter().find(|(_, names)| names.contains(&name));
            let (word, _) = known.ok_or_else(|| unknown(name, &WORDS.map(|(word, _)| word)))?;
            let seconds = || match value.parse() {
                Ok(0) => Ok(None),
                Ok(seconds) => Ok(Some(Duration::from_secs(seconds))),
                Err(_) => Err(format!("`{name}` is a number of seconds")),
            };
            match *word {
                "host" => source.host = value.to_owned(),
                "dbname" => source.database = value.to_owned(),
                "user" => source.user = value.to_owned(),
                "password" => source.password = Some(Secret::new(value.as_bytes())),
                "port" => {
                    let port = value.parse().ok().filter(|&port: &u16| port > 0);
                    let port = port.ok_or("`port` is a number from 1 to 65535")?;
                    source.port = Some(port);
                }
                "connect_timeout" => source.connect_max = seconds()?,
                "read_timeout" => source.silence_max = seconds()?,
                "key" => source.tls.key = Some(value.into()),
                "cert" => source.tls.cert = Some(value.into()),
                "ca" => source.tls.ca = Some(value.into()),
                "capath" => source.tls.ca_folder = Some(value.into()),
                // `cipher`: the TLS library chooses among those that are good.
                _ => {}
            }
        }
        if source.tls.key.is_some() != source.tls.cert.is_some() {
            return Err("`key` and `cert` are given together".to_owned());
        }
        Ok(source)
    }

    /// Decrypts the password, which `turnadmin -E` has encrypted with the key in the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the password is not base64.
    pub fn decrypt(&mut self, key_file: &Path) -> Result<(), String> {
        if let Some(password) = &mut self.password {
            *password = Secret::new(decrypted(key_file, password.expose())?);
        }
        Ok(())
    }

    /// Returns whether the database is reached by a Unix socket.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.host.as_str(), "" | "localhost")
    }

    pub(crate) fn hosts(&self) -> Vec<String> {
        match self.is_local() {
            true => Vec::new(),
            false => vec![self.host.clone()],
        }
    }
}

impl fmt::Display for MysqlSource {
    /// Writes the words without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = match self.is_local() {
            true => "localhost",
            false => &self.host,
        };
        let (host, database) = (host.escape_debug(), self.database.escape_debug());
        write!(f, "mysql host={host}")?;
        if let Some(port) = self.port {
            write!(f, " port={port}")?;
        }
        write!(f, " dbname={database} user={}", self.user.escape_debug())?;
        match self.password {
            Some(_) => write!(f, " password={MASK}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for MysqlSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every word once, by the name that it is kept under.
    const ALL: &str = "host=db.example dbname=coturn user=turn password=a=b port=3307 connect_timeout=7 \
        read_timeout=8 key=/key ca=/ca cert=/cert capath=/folder cipher=AES";

    #[test]
    fn every_word_is_taken_and_the_password_is_masked() {
        let source = MysqlSource::parse(ALL).unwrap();
        assert_eq!(
            source.to_string(),
            "mysql host=db.example port=3307 dbname=coturn user=turn password=********"
        );
        assert_eq!(source.password, Some(Secret::new(&b"a=b"[..])));
        assert_eq!(source.connect_max, Some(Duration::from_secs(7)));
        assert_eq!(source.silence_max, Some(Duration::from_secs(8)));
        let tls = Tls {
            key: Some("/key".into()),
            cert: Some("/cert".into()),
            ca: Some("/ca".into()),
            ca_folder: Some("/folder".into()),
        };
        assert_eq!(source.tls, tls);
        assert_eq!(source.hosts(), ["db.example"]);
        let local = MysqlSource::parse("host=localhost db=t").unwrap();
        assert!(local.hosts().is_empty());
    }

    #[test]
    fn every_name_of_coturn_for_a_word_means_the_same() {
        let usual = MysqlSource::parse(ALL).unwrap();
        for (word, others) in [
            ("host", &["ip", "addr", "ipaddr", "hostaddr"][..]),
            ("dbname", &["db", "database"]),
            ("user", &["uname", "name", "username"]),
            ("password", &["pwd", "passwd", "secret"]),
            ("port", &["p"]),
            ("connect_timeout", &["timeout"]),
            ("key", &["ssl-key"]),
            ("ca", &["ssl-ca"]),
            ("cert", &["ssl-cert"]),
            ("capath", &["ssl-capath"]),
            ("cipher", &["ssl-cipher"]),
        ] {
            for other in others {
                let words = ALL.split_whitespace().map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap();
                    let name = if name == word { *other } else { name };
                    format!("{name}={value}")
                });
                let words = words.collect::<Vec<_>>().join(" ");
                assert_eq!(MysqlSource::parse(&words), Ok(usual.clone()), "{words}");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_refused_by_name_and_no_value_is_repeated() {
        for (text, expected) in [
            (
                "host=h sslmode=x",
                "`sslmode` is not known; the words are host, dbname,",
            ),
            ("host=h password=my secret", "word 3 has no `=`"),
            ("host=h port=secret", "`port` is a number"),
            ("host=h timeout=secret", "`timeout` is a number of seconds"),
            ("host=h key=secret", "`key` and `cert` are given together"),
        ] {
            let error = MysqlSource::parse(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn an_encrypted_password_is_decrypted_with_the_key_of_the_file() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("key");
        std::fs::write(&path, "5aKaQJCd20g14uy6").expect("written");
        let mut source = MysqlSource::parse("host=h password=DQlrV/0=").unwrap();
        source.decrypt(&path).unwrap();
        assert_eq!(source.password, Some(Secret::new(&b"hello"[..])));
        assert!(source.decrypt(Path::new("/nonexistent")).is_err());
    }
}
