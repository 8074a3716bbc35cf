//! `turnbuckle ctl`: looks at a relay that runs, and steers it.
//!
//! Each command is one request to the relay's Unix socket and its answer as text, or as the JSON that came. `drain --wait` asks until the relay has
//! ended.

mod client;
mod show;
mod upgrade;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use form_urlencoded::Serializer;
use hyper::Method;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use turnbuckle_server::config::ControlSocket;

use self::client::{Client, Failure};
use crate::api::socket::runtime_directory;

/// Where the units of the packages have the socket.
const USUAL_DIRECTORIES: [&str; 2] = ["/run/turnbuckle", "/run/turnserver"];

/// Time between two looks at a relay that drains.
const LOOK: Duration = Duration::from_millis(500);

/// How long nobody may answer until a relay that drains has ended. With `survive` the next one, after a crash or an upgrade, drains on.
const GONE_AFTER: Duration = Duration::from_secs(3);

/// Look at a relay that runs, and steer it
///
/// Exit codes: 0 done, 1 refused, or not healthy; 2 wrong command line; 3 no relay there, or no right to connect; 4 no answer in time.
#[derive(Args)]
pub struct Arguments {
    /// Socket of the relay (its key control-socket) [default: control.sock in $RUNTIME_DIRECTORY, /run/turnbuckle or /run/turnserver]
    #[arg(long, global = true, env = "TURNBUCKLE_SOCKET", value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print the relay's answer as it is: JSON, of lists an object in each line
    #[arg(long, global = true)]
    json: bool,
    /// Longest time to wait for an answer
    #[arg(
        long,
        global = true,
        value_name = "SECONDS",
        default_value_t = 10,
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    timeout: u64,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List sessions (allocations), all of them or those that a filter lets through
    Sessions {
        #[command(flatten)]
        filter: Filter,
    },
    /// Show one session
    Session {
        /// Its number
        number: u64,
    },
    /// End sessions; their clients get 437 for their next request
    End {
        /// Numbers of sessions
        #[arg(conflicts_with = "Filter", required_unless_present_any = ["Filter", "all"])]
        numbers: Vec<u64>,
        #[command(flatten)]
        filter: Filter,
        /// End every session
        #[arg(long, conflicts_with_all = ["Filter", "numbers"])]
        all: bool,
    },
    /// List the sessions or users that have relayed most, or relay most now, from clients and from peers together
    Top {
        /// What is compared: bytes or datagrams since the session began, or bytes per second now
        #[arg(long, value_enum, default_value_t = By::Bytes)]
        by: By,
        /// Add up the sessions of each user
        #[arg(long)]
        users: bool,
        /// Seconds over which the rate is measured
        #[arg(long, value_name = "SECONDS", default_value_t = 2,
              value_parser = clap::value_parser!(u64).range(1..=30))]
        seconds: u64,
        /// How many to list
        #[arg(long, value_name = "COUNT", default_value_t = 10,
              value_parser = clap::value_parser!(u16).range(1..=1000))]
        max: u16,
        #[command(flatten)]
        filter: Filter,
    },
    /// Refuse new allocations, and end when drain-min-allocations or fewer are left. A relay that has no more than these ends at once
    Drain {
        /// Wait until the relay has ended; exit code 1 if draining is called off meanwhile
        #[arg(long)]
        wait: bool,
        /// Longest wait, then exit code 4
        #[arg(long, value_name = "SECONDS", requires = "wait")]
        wait_max: Option<u64>,
    },
    /// Take new allocations again
    Undrain,
    /// End the relay, and all its sessions
    Stop,
    /// Show all counters as they are now (docs/counters.md explains them)
    Counters,
    /// Show the configuration that holds, secrets masked, and when a new value of a key would hold
    Config {
        /// Keys to show; without any, all that are written
        keys: Vec<String>,
        /// Show keys that have their default too
        #[arg(long)]
        all: bool,
    },
    /// Read the configuration again; exit code 1 if it is refused, and then nothing has changed
    Reload {
        /// Only say what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the files of certificates: names, and until when they are good
    Certificates {
        /// Read them again at once; exit code 1 if they are refused, and then the old ones stay
        #[arg(long)]
        reload: bool,
    },
    /// Have a new program take the calls over from the one that runs (needs survive); exit code 1 if it cannot, and then the calls go on as before
    Upgrade {
        /// The new program [default: what is now where the running one was started from]
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
        /// How long it may take to say whether it can, and then to do it
        #[arg(long, value_name = "SECONDS", default_value_t = 10,
              value_parser = clap::value_parser!(u64).range(1..=40))]
        within: u64,
        /// Only say whether it could
        #[arg(long)]
        dry_run: bool,
    },
    /// Leave out lines of the log below a level, until the configuration says otherwise
    Log {
        /// debug, info, warning or error
        #[arg(long)]
        level: String,
    },
    /// Show what one user asks for and is answered while it happens, and nothing of what it relays
    Trace {
        /// Name of the user: the whole, or the part without the time of a time-limited credential
        user: String,
        /// How long
        #[arg(long, value_name = "SECONDS", default_value_t = 600,
              value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
    },
    /// Show version, process, time since the start and how much is going on
    Info,
    /// Say whether every shard answers and what speaks against new clients; exit code 1 if anything does
    Health,
}

/// Which sessions are meant; all conditions have to hold
#[derive(Args)]
struct Filter {
    /// Name of the user: the whole, or the part without the time of a time-limited credential
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Part of the name of the user
    #[arg(long, value_name = "PART")]
    user_like: Option<String>,
    /// Realm
    #[arg(long)]
    realm: Option<String>,
    /// udp, tcp, tls or dtls between client and relay
    #[arg(long)]
    transport: Option<String>,
    /// IP address of the client
    #[arg(long, value_name = "ADDRESS")]
    client: Option<String>,
    /// IP address of a peer that there is a permission for
    #[arg(long, value_name = "ADDRESS")]
    peer: Option<String>,
    /// Least age in seconds
    #[arg(long, value_name = "SECONDS")]
    min_age: Option<u64>,
}

impl Filter {
    /// Returns a path with these conditions and `more` as its query.
    fn path(&self, path: &str, more: &[(&str, &str)]) -> String {
        let mut query = Serializer::new(String::new());
        let min_age = self.min_age.map(|age| age.to_string());
        let conditions = [
            ("user", &self.user),
            ("user_like", &self.user_like),
            ("realm", &self.realm),
            ("transport", &self.transport),
            ("client", &self.client),
            ("peer", &self.peer),
            ("min_age", &min_age),
        ];
        for (name, value) in conditions {
            if let Some(value) = value {
                query.append_pair(name, value);
            }
        }
        query.extend_pairs(more);
        format!("{path}?{}", query.finish())
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    Bytes,
    Datagrams,
    Rate,
}

/// Carries out a command, and returns the exit code. What is wrong is on standard error.
///
/// # Errors
///
/// There is no runtime to be had.
pub fn run(arguments: &Arguments) -> io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let call = Call {
        client: Client {
            socket: socket(arguments.socket.as_deref()),
            patience: Duration::from_secs(arguments.timeout),
        },
        as_json: arguments.json,
    };
    match runtime.block_on(call.carry_out(&arguments.command)) {
        Ok(code) => Ok(code),
        Err(failure) => {
            // Nothing is left to be said if standard error is gone too.
            let _ = writeln!(io::stderr(), "turnbuckle ctl: {failure}");
            Ok(ExitCode::from(failure.code()))
        }
    }
}

fn socket(named: Option<&Path>) -> PathBuf {
    let in_directory = |directory: &Path| directory.join(ControlSocket::NAME);
    let usual = || {
        let all = USUAL_DIRECTORIES.map(|directory| in_directory(directory.as_ref()));
        let there = all.iter().find(|path| path.exists());
        there.unwrap_or(&all[0]).clone()
    };
    match (named, runtime_directory()) {
        (Some(path), _) => path.to_owned(),
        (None, Some(directory)) => in_directory(&directory),
        (None, None) => usual(),
    }
}

/// A command on its way.
struct Call {
    client: Client,
    as_json: bool,
}

impl Call {
    async fn carry_out(&self, command: &Command) -> Result<ExitCode, Failure> {
        match command {
            Command::Sessions { filter } => self.sessions(filter).await?,
            Command::Session { number } => {
                let path = format!("/v1/sessions/{number}");
                let answer = self.client.ask(Method::GET, &path).await?;
                self.say(&answer, show::session)?;
            }
            Command::End {
                numbers,
                filter,
                all,
            } => self.end(numbers, filter, *all).await?,
            Command::Top {
                by,
                users,
                seconds,
                max,
                filter,
            } => {
                let by = match by {
                    By::Bytes => "bytes",
                    By::Datagrams => "datagrams",
                    By::Rate => "rate",
                };
                let per = if *users { "user" } else { "session" };
                let (max, seconds) = (max.to_string(), seconds.to_string());
                let more = [
                    ("by", by),
                    ("per", per),
                    ("max", &max),
                    ("seconds", &seconds),
                ];
                let path = filter.path("/v1/top", &more);
                let answer = self.client.ask(Method::GET, &path).await?;
                self.say(&answer, show::top)?;
            }
            Command::Drain { wait, wait_max } => self.drain(*wait, *wait_max).await?,
            Command::Undrain => {
                let answer = self.client.ask(Method::DELETE, "/v1/drain").await?;
                self.say(&answer, |_| "new allocations are taken\n".to_owned())?;
            }
            Command::Stop => {
                let answer = self.client.ask(Method::POST, "/v1/stop").await?;
                self.say(&answer, |_| "the relay ends\n".to_owned())?;
            }
            Command::Counters => self.pairs(Method::GET, "/v1/counters").await?,
            Command::Config { keys, all } => self.configuration(keys, *all).await?,
            Command::Reload { dry_run } => {
                let path = format!("/v1/reload?dry_run={dry_run}");
                let answer = self.client.ask(Method::POST, &path).await?;
                self.say(&answer, show::pairs)?;
            }
            Command::Upgrade {
                program,
                within,
                dry_run,
            } => {
                self.upgrade(program.as_deref(), *within, *dry_run).await?;
            }
            Command::Log { level } => {
                let mut query = Serializer::new(String::new());
                let query = query.append_pair("level", level).finish();
                let answer = self
                    .client
                    .ask(Method::PUT, &format!("/v1/log?{query}"))
                    .await?;
                self.say(&answer, show::pairs)?;
            }
            Command::Certificates { reload } => {
                let method = if *reload { Method::POST } else { Method::GET };
                let answer = self.client.ask(method, "/v1/certificates").await?;
                self.say(&answer, |answer| {
                    let all = answer["certificates"].as_array().into_iter().flatten();
                    all.map(|one| show::certificate(one) + "\n").collect()
                })?;
            }
            Command::Trace { user, seconds } => self.trace(user, *seconds).await?,
            Command::Info => self.pairs(Method::GET, "/v1/info").await?,
            Command::Health => {
                let answer = self.client.ask(Method::GET, "/v1/health").await?;
                self.say(&answer, show::pairs)?;
                if answer["ready"] != Value::Bool(true) {
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn sessions(&self, filter: &Filter) -> Result<(), Failure> {
        let mut out = io::BufWriter::new(io::stdout().lock());
        let mut write = |line: &[u8]| out.write_all(line).and_then(|()| out.write_all(b"\n"));
        if !self.as_json {
            written(write(show::HEADING.as_bytes()))?;
        }
        let path = filter.path("/v1/sessions", &[]);
        let listed = self.client.list(&path, |line| {
            let session: Value = serde_json::from_slice(line)
                .map_err(|_| Failure::Unreachable("a line of the list is no JSON".to_owned()))?;
            if let Some(why) = session["error"].as_str() {
                return Err(Failure::Refused(why.to_owned()));
            }
            written(match self.as_json {
                true => write(line),
                false => write(show::line(&session).as_bytes()),
            })
        });
        let listed = listed.await;
        // What came before a failure is shown too.
        written(out.flush())?;
        listed
    }

    /// Shows the lines of a trace as they come.
    async fn trace(&self, user: &str, seconds: u64) -> Result<(), Failure> {
        let mut query = Serializer::new(String::new());
        query.append_pair("user", user);
        query.append_pair("seconds", &seconds.to_string());
        // Nothing may happen for as long.
        let client = Client {
            socket: self.client.socket.clone(),
            patience: self.client.patience + Duration::from_secs(seconds),
        };
        let path = format!("/v1/trace?{}", query.finish());
        let traced = client.list(&path, |line| {
            let text = match self.as_json {
                true => String::from_utf8_lossy(line).into_owned(),
                false => {
                    let strange =
                        |_| Failure::Unreachable("a line of the trace is no JSON".to_owned());
                    let line: Value = serde_json::from_slice(line).map_err(strange)?;
                    show::traced(&line)
                }
            };
            let mut out = io::stdout().lock();
            written(writeln!(out, "{text}").and_then(|()| out.flush()))
        });
        traced.await
    }

    async fn end(&self, numbers: &[u64], filter: &Filter, all: bool) -> Result<(), Failure> {
        for number in numbers {
            let path = format!("/v1/sessions/{number}");
            let answer = self.client.ask(Method::DELETE, &path).await?;
            self.say(&answer, |_| format!("ended session {number:018}\n"))?;
        }
        if numbers.is_empty() {
            let more: &[_] = if all { &[("all", "true")] } else { &[] };
            let path = filter.path("/v1/sessions:end", more);
            let answer = self.client.ask(Method::POST, &path).await?;
            if answer["ended"] == 0 && !all {
                let why = "no session passes the filter: nothing was ended";
                return Err(Failure::Refused(why.to_owned()));
            }
            self.say(&answer, |answer| {
                format!("ended {} sessions\n", show::text(&answer["ended"]))
            })?;
        }
        Ok(())
    }

    /// Shows the configuration as lines of a file, each with its place and its class.
    async fn configuration(&self, keys: &[String], all: bool) -> Result<(), Failure> {
        let answer = self.client.ask(Method::GET, "/v1/config").await?;
        let effective = answer["effective"].as_array();
        let known = |key: &String| {
            let mut entries = effective.into_iter().flatten();
            entries.any(|entry| entry["key"] == **key)
        };
        if let Some(unknown) = keys.iter().find(|key| !known(key)) {
            let why = format!(
                "`{}` is not a key that has a value here",
                unknown.escape_debug()
            );
            return Err(Failure::Refused(why));
        }
        self.say(&answer, |_| {
            let chosen = effective.into_iter().flatten().filter(|entry| {
                let is_written = entry["from"]
                    .as_array()
                    .is_some_and(|from| !from.is_empty());
                let is_named = keys.iter().any(|key| entry["key"] == **key);
                is_named || (keys.is_empty() && (all || is_written))
            });
            chosen.map(show::setting).collect()
        })
    }

    /// Has the relay drain. Waits for its end if that is wanted, or if nothing is left to wait for.
    async fn drain(&self, is_awaited: bool, longest_s: Option<u64>) -> Result<(), Failure> {
        let answer = self.client.ask(Method::PUT, "/v1/drain").await?;
        let count = |name| answer[name].as_u64().unwrap_or(u64::MAX);
        let (allocations, tunnels) = (count("allocations"), count("tunnels"));
        let is_over =
            allocations.saturating_add(tunnels) <= answer["left_max"].as_u64().unwrap_or(0);
        if !is_over || self.as_json {
            self.say(&answer, |_| {
                format!("draining; {allocations} allocations and {tunnels} tunnels left\n")
            })?;
        }
        if is_awaited || is_over {
            let longest = longest_s.map(Duration::from_secs);
            let longest = longest.or_else(|| (!is_awaited).then_some(self.client.patience));
            self.wait(longest, is_over).await?;
            if !self.as_json {
                written(writeln!(io::stdout(), "drained, ended"))?;
            }
        }
        Ok(())
    }

    /// Waits until the relay has ended. One that `is_over` has no successor.
    async fn wait(&self, longest: Option<Duration>, is_over: bool) -> Result<(), Failure> {
        let gone_after = if is_over { Duration::ZERO } else { GONE_AFTER };
        let deadline = longest.map(|longest| Instant::now() + longest);
        let mut unanswered_since = None;
        loop {
            match self.client.ask(Method::GET, "/v1/drain").await {
                Ok(answer) if answer["draining"] != Value::Bool(true) => {
                    let why = "draining was called off";
                    return Err(Failure::Refused(why.to_owned()));
                }
                Ok(_) => unanswered_since = None,
                Err(Failure::Unreachable(_)) => {
                    let since = *unanswered_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= gone_after {
                        return Ok(());
                    }
                }
                Err(failure) => return Err(failure),
            }
            // A relay that does not answer has probably ended: that is found out first.
            if unanswered_since.is_none() && deadline.is_some_and(|it| Instant::now() >= it) {
                let why = "allocations are left, and the relay goes on draining";
                return Err(Failure::Late(why.to_owned()));
            }
            sleep(LOOK).await;
        }
    }

    /// Asks for an object, and prints its names and values.
    async fn pairs(&self, method: Method, path: &str) -> Result<(), Failure> {
        let answer = self.client.ask(method, path).await?;
        self.say(&answer, show::pairs)
    }

    /// Prints an answer.
    fn say(&self, answer: &Value, text: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        let text = match self.as_json {
            true => format!("{answer}\n"),
            false => text(answer),
        };
        written(io::stdout().write_all(text.as_bytes()))
    }
}

/// Takes a reader of standard output that went away for one that has read enough.
fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::Refused(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}
