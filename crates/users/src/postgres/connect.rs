//! Connects to PostgreSQL as libpq does: hosts in their order, the environment, password files, TLS modes.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use openssl::error::ErrorStack;
use openssl::pkey::PKey;
use openssl::ssl::{SslConnector, SslFiletype, SslMethod, SslVerifyMode};
use postgres_openssl::MakeTlsConnector;
use tokio::time::timeout;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, NoTls, Socket};

use super::conninfo::{PostgresSource, is_path};
use super::said;
use crate::error::DatabaseError;
use crate::tls::is_refused;

/// How long a connection may take where nothing else is said: libpq would wait for ever.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Where Debian's server and client meet.
const SOCKETS: &str = "/var/run/postgresql";

/// One place to try.
struct Target {
    /// A name, an address, or the folder of a socket.
    host: String,
    /// In place of looking the name up.
    address: Option<std::net::IpAddr>,
    port: u16,
}

/// How the server proves who it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verify {
    Nothing,
    Chain,
    Name,
}

/// Connects to the first host that answers.
pub(super) async fn connect(source: &PostgresSource) -> Result<Client, DatabaseError> {
    let permanent = |what: String| DatabaseError::permanent(source, what);
    let user = match source.value("user") {
        Some(user) => user,
        None => own_name().ok_or_else(|| permanent("no user is named".to_owned()))?,
    };
    let database = source.value("dbname").unwrap_or_else(|| user.clone());
    let mut config = Config::new();
    config.user(&user).dbname(&database);
    config.application_name(
        source
            .value("application_name")
            .unwrap_or_else(|| "turnbuckle".to_owned()),
    );
    if let Some(options) = source.value("options") {
        config.options(options);
    }
    config.target_session_attrs(match source.value("target_session_attrs").as_deref() {
        Some("read-write") => TargetSessionAttrs::ReadWrite,
        Some("read-only") => TargetSessionAttrs::ReadOnly,
        _ => TargetSessionAttrs::Any,
    });
    let limit = match source.value("connect_timeout").map(|text| text.parse()) {
        // libpq waits for ever if it is 0 or less; here nothing does.
        Some(Ok(seconds)) if seconds > 0 => Duration::from_secs(seconds),
        _ => CONNECT_MAX,
    };
    let mut failed = None;
    for target in targets(source).map_err(permanent)? {
        let mut config = config.clone();
        config.host(&target.host).port(target.port);
        if let Some(address) = target.address {
            config.hostaddr(address);
        }
        let password = match source.value("password") {
            Some(password) => Some(password),
            None => password_of(source, &target, &database, &user),
        };
        if let Some(password) = password {
            config.password(password);
        }
        let connected = timeout(limit, connect_to(source, &target, config));
        let error = match connected.await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => error,
            Err(_) => {
                let what = format!("{}: no answer within {} s", target.host, limit.as_secs());
                DatabaseError::passing(source, what)
            }
        };
        // A host that says why it refuses is told of rather than one that is not there.
        if !failed.as_ref().is_some_and(DatabaseError::is_permanent) {
            failed = Some(error);
        }
    }
    Err(failed.unwrap_or_else(|| permanent("no host is named".to_owned())))
}

async fn connect_to(
    source: &PostgresSource,
    target: &Target,
    mut config: Config,
) -> Result<Client, DatabaseError> {
    let mode = match is_path(&target.host) {
        true => "disable".to_owned(),
        false => source
            .value("sslmode")
            .unwrap_or_else(|| "prefer".to_owned()),
    };
    let (modes, verify): (&[SslMode], _) = match mode.as_str() {
        "disable" => (&[SslMode::Disable], Verify::Nothing),
        "allow" => (&[SslMode::Disable, SslMode::Require], Verify::Nothing),
        // A server may take some users without TLS alone.
        "prefer" => (&[SslMode::Prefer, SslMode::Disable], Verify::Nothing),
        // With a root certificate it means more, for the sake of old configurations.
        "require" if root_certificate(source).is_some() => (&[SslMode::Require], Verify::Chain),
        "require" => (&[SslMode::Require], Verify::Nothing),
        "verify-ca" => (&[SslMode::Require], Verify::Chain),
        "verify-full" => (&[SslMode::Require], Verify::Name),
        _ => {
            let what =
                "PGSSLMODE is none of disable, allow, prefer, require, verify-ca, verify-full";
            return Err(DatabaseError::permanent(source, what));
        }
    };
    let mut failed = None;
    for mode in modes {
        config.ssl_mode(*mode);
        let begun = match mode {
            // Without the certificates of the system, which take 20 ms to read, at each attempt to reach a database that is away.
            SslMode::Disable => begin(&config, NoTls).await,
            _ => {
                let tls = tls(source, verify);
                let tls = tls.map_err(|what| DatabaseError::permanent(source, what))?;
                begin(&config, tls).await
            }
        };
        match begun {
            Ok(client) => return Ok(client),
            Err(error) => {
                // What is wrong with TLS is told of, rather than that there must be TLS.
                if *mode != SslMode::Disable || failed.is_none() {
                    failed = Some(said(source, &error));
                }
                if !may_be_taken_otherwise(&error) {
                    break;
                }
            }
        }
    }
    Err(failed.unwrap_or_else(|| DatabaseError::permanent(source, "no TLS mode is possible")))
}

async fn begin<T>(config: &Config, tls: T) -> Result<Client, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
{
    let (client, connection) = config.connect(tls).await?;
    // Ends when the client is dropped; what went wrong the client's calls tell.
    tokio::spawn(async move { connection.await.ok() });
    Ok(client)
}

/// Returns whether a server that has refused a connection may take one with TLS in place of one without, or the other way round. A password that
/// is wrong is sent once.
fn may_be_taken_otherwise(error: &tokio_postgres::Error) -> bool {
    match error.code() {
        Some(code) => *code != SqlState::INVALID_PASSWORD,
        None => is_refused(error),
    }
}

fn targets(source: &PostgresSource) -> Result<Vec<Target>, String> {
    let list = |word: &str| -> Vec<String> {
        let value = source.value(word).unwrap_or_default();
        value.split(',').map(str::to_owned).collect()
    };
    let (hosts, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = hosts.len().max(addresses.len());
    let mut targets = Vec::with_capacity(count);
    for index in 0..count {
        let of = |list: &[String]| list.get(index).filter(|text| !text.is_empty()).cloned();
        let address = match of(&addresses) {
            Some(text) => Some(
                text.parse()
                    .map_err(|_| "`hostaddr` is not an address".to_owned())?,
            ),
            None => None,
        };
        let host = of(&hosts).or_else(|| of(&addresses));
        let port = match ports.as_slice() {
            [one] => Some(one.clone()),
            _ => of(&ports),
        };
        let port = port.filter(|port| !port.is_empty());
        targets.push(Target {
            host: host.unwrap_or_else(|| SOCKETS.to_owned()),
            address,
            port: match port {
                Some(port) => port
                    .parse()
                    .map_err(|_| "the port is not a number".to_owned())?,
                None => 5432,
            },
        });
    }
    Ok(targets)
}

fn tls(source: &PostgresSource, verify: Verify) -> Result<MakeTlsConnector, String> {
    let stack = |what: &str| {
        let what = what.to_owned();
        move |error: ErrorStack| match error
            .errors()
            .first()
            .and_then(openssl::error::Error::reason)
        {
            Some(reason) => format!("{what}: {reason}"),
            None => what,
        }
    };
    let mut builder = SslConnector::builder(SslMethod::tls_client()).map_err(stack("TLS"))?;
    match (verify, root_certificate(source)) {
        (Verify::Nothing, _) => builder.set_verify(SslVerifyMode::NONE),
        (_, Some(path)) if path == Path::new("system") => {}
        (_, Some(path)) => builder
            .set_ca_file(&path)
            .map_err(stack(&format!("sslrootcert {}", path.display())))?,
        (_, None) => {
            return Err("sslmode wants a root certificate: give sslrootcert".to_owned());
        }
    }
    let in_folder = |word: &str, name: &str| -> Option<PathBuf> {
        let given = source.value(word).map(PathBuf::from);
        given.or_else(|| of_home(name).filter(|path| path.exists()))
    };
    if let Some(path) = in_folder("sslcert", "postgresql.crt") {
        builder
            .set_certificate_chain_file(&path)
            .map_err(stack(&format!("sslcert {}", path.display())))?;
        let path =
            in_folder("sslkey", "postgresql.key").ok_or("sslcert wants a key: give sslkey")?;
        let name = format!("sslkey {}", path.display());
        match source.value("sslpassword") {
            Some(password) => {
                let pem = std::fs::read(&path).map_err(|error| format!("{name}: {error}"))?;
                let key = PKey::private_key_from_pem_passphrase(&pem, password.as_bytes());
                let key = key.map_err(stack(&name))?;
                builder.set_private_key(&key).map_err(stack(&name))?;
            }
            None => builder
                .set_private_key_file(&path, SslFiletype::PEM)
                .map_err(stack(&name))?,
        }
    }
    let mut tls = MakeTlsConnector::new(builder.build());
    tls.set_callback(move |ssl, _| {
        ssl.set_verify_hostname(verify == Verify::Name);
        Ok(())
    });
    Ok(tls)
}

/// Returns the file of certificates that the server's is judged by, or the word `system`.
fn root_certificate(source: &PostgresSource) -> Option<PathBuf> {
    let given = source.value("sslrootcert").map(PathBuf::from);
    given.or_else(|| of_home("root.crt").filter(|path| path.exists()))
}

/// Returns a file of the folder in which libpq looks for certificates.
fn of_home(name: &str) -> Option<PathBuf> {
    let home = std::env::var_os("HOME")?;
    Some(Path::new(&home).join(".postgresql").join(name))
}

/// Returns the name of the user that this process runs as.
fn own_name() -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()?;
    user.map(|user| user.name)
}

/// Returns the password of the first line of the password file that fits. A file that others may read is not used, as in libpq.
fn password_of(
    source: &PostgresSource,
    target: &Target,
    database: &str,
    user: &str,
) -> Option<String> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".pgpass"));
    let path = source.value("passfile").map(PathBuf::from).or_else(home)?;
    let file = std::fs::File::open(path).ok()?;
    if file.metadata().ok()?.mode() & 0o077 != 0 {
        return None;
    }
    let host = match is_path(&target.host) {
        true if target.host == SOCKETS => "localhost",
        _ => &target.host,
    };
    let port = target.port.to_string();
    let wanted = [host, &port, database, user];
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    lines
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| password_in(&line, wanted))
}

/// Returns the password of a line `host:port:database:user:password`, if its first four fields fit. A `*` fits anything.
fn password_in(line: &str, wanted: [&str; 4]) -> Option<String> {
    let mut rest = line.chars();
    for wanted in wanted {
        let mut field = String::new();
        let mut is_any = false;
        loop {
            match rest.next()? {
                ':' => break,
                '\\' => field.push(rest.next()?),
                '*' if field.is_empty() => is_any = true,
                letter => field.push(letter),
            }
        }
        if !(is_any && field.is_empty()) && field != wanted {
            return None;
        }
    }
    let mut password = String::new();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => password.extend(rest.next()),
            letter => password.push(letter),
        }
    }
    Some(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_password_file_fits_field_by_field() {
        let wanted = ["db.example", "5432", "a:b", "turn"];
        for (line, expected) in [
            (r"db.example:5432:a\:b:turn:se\:cret", Some("se:cret")),
            ("*:*:*:turn:x", Some("x")),
            ("*:5433:*:turn:x", None),
            ("db.example:5432:a:b:turn:x", None),
            ("db.example:5432", None),
        ] {
            assert_eq!(password_in(line, wanted).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn hosts_are_tried_in_their_order_each_with_its_port() {
        let targets = |text| {
            let targets = targets(&PostgresSource::parse(text).unwrap()).unwrap();
            let shown = targets
                .iter()
                .map(|target| format!("{}:{}", target.host, target.port));
            shown.collect::<Vec<_>>()
        };
        assert_eq!(targets("host=a,b port=1,2"), ["a:1", "b:2"]);
        assert_eq!(targets("host=a,b port=7"), ["a:7", "b:7"]);
        assert_eq!(targets("hostaddr=192.0.2.1"), ["192.0.2.1:5432"]);
        assert_eq!(targets("user=u"), ["/var/run/postgresql:5432"]);
    }
}
