//! The requests that are served, and their answers.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use rustix::process::geteuid;
use serde_json::{Value, json};
use tokio::sync::mpsc::Sender;
use tokio::time::timeout;
use turnbuckle_server::config::Reload;
use turnbuckle_server::handle::{SessionFilter, Upgrade};

use super::body::Answered;
use super::filter::{FILTERS, Query};
use super::session::object;
use super::top::top;
use super::{Api, Caller, trace};
use crate::asking::{ask, ask_for, say};
use crate::certificates::describe;
use crate::health;
use crate::pages::{Action, Walk, one_session};

/// The form of a list that is not cut into pages: an object in each line.
pub(crate) const NDJSON: &str = "application/x-ndjson";
const JSON: &str = "application/json";

/// Sessions of one page at most, and of a list of the largest.
pub(super) const SESSIONS_MAX: usize = 1000;

/// Keys that name files of certificates.
const CERTIFICATES: [&str; 2] = ["cert", "prometheus-cert"];

/// Time in which a reader of a list has to take the next piece.
pub(super) const READ: Duration = Duration::from_secs(10);

/// How long the trial of a program may take, and how long it may take to take over, if the query does not say.
const UPGRADE_S: u64 = 10;

/// The longest time that a query may say for it. The connection is served for longer.
const UPGRADE_S_MAX: u64 = 40;

/// How much longer the relay may take to answer.
const UPGRADE_GRACE: Duration = Duration::from_secs(10);

/// What happens to the relay after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    GoesOn,
    /// It ends.
    Ends,
    /// Another program takes over.
    HandsOver,
}

/// An answer, and what happens to the relay after it.
pub(crate) struct Answer {
    pub(crate) response: Response<Answered>,
    pub(crate) after: After,
    /// Whether it takes longer than others.
    pub(crate) is_long: bool,
}

/// A status other than 200, and why.
pub(super) type Refusal = (StatusCode, String);

/// Answers a request.
pub(crate) async fn answer<B>(api: &Arc<Api>, caller: Caller, request: &Request<B>) -> Answer {
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let is_list = || {
        let accept = request.headers().get(ACCEPT);
        accept.is_some_and(|accept| accept.as_bytes() == NDJSON.as_bytes())
    };
    let methods: &[Method] = match path {
        "/v1/info" | "/v1/health" | "/v1/sessions" | "/v1/top" | "/v1/counters" | "/v1/config"
        | "/v1/trace" => &[Method::GET],
        "/v1/sessions:end" | "/v1/stop" | "/v1/reload" | "/v1/upgrade" => &[Method::POST],
        "/v1/log" => &[Method::PUT],
        "/v1/certificates" => &[Method::GET, Method::POST],
        "/v1/drain" => &[Method::GET, Method::PUT, Method::DELETE],
        _ if path.starts_with("/v1/sessions/") => &[Method::GET, Method::DELETE],
        _ => {
            return refused((
                StatusCode::NOT_FOUND,
                "there is no such path here".to_owned(),
            ));
        }
    };
    let method = request.method();
    if !methods.contains(method) {
        let allowed: Vec<&str> = methods.iter().map(Method::as_str).collect();
        let allowed = allowed.join(", ");
        let why = format!("this path takes {allowed}");
        let mut answer = refused((StatusCode::METHOD_NOT_ALLOWED, why));
        if let Ok(allowed) = HeaderValue::from_str(&allowed) {
            answer.response.headers_mut().insert(ALLOW, allowed);
        }
        return answer;
    }
    let is_get = *method == Method::GET;
    let result = match path {
        "/v1/sessions" if is_list() => return list(api, query),
        "/v1/trace" => return trace::trace(api, caller, query).await,
        "/v1/sessions" => api.page(query).await,
        "/v1/sessions:end" => api.end_some(caller, query).await,
        "/v1/top" => top(&api.shared.commands, query).await,
        "/v1/config" => match plain(query) {
            Ok(()) => api.configuration().await,
            Err(refusal) => Err(refusal),
        },
        "/v1/reload" => api.reload(caller, query).await,
        "/v1/log" => api.set_log_level(caller, query).await,
        "/v1/certificates" => match plain(query) {
            Ok(()) if is_get => api.certificates().await,
            Ok(()) => api.reload_certificates(caller).await,
            Err(refusal) => Err(refusal),
        },
        "/v1/upgrade" => return api.upgrade(caller, query).await,
        "/v1/counters" => plain(query).map(|()| api.shared.counters.accounting().json()),
        "/v1/info" => plain(query).map(|()| api.info()),
        "/v1/health" => match plain(query) {
            Ok(()) => api.health().await,
            Err(refusal) => Err(refusal),
        },
        "/v1/drain" => match plain(query) {
            Ok(()) if is_get => Ok(api.drain().to_string()),
            Ok(()) => api.set_draining(caller, *method == Method::PUT).await,
            Err(refusal) => Err(refusal),
        },
        "/v1/stop" => {
            let stopped = match plain(query) {
                Ok(()) => api.note(caller, "stop").await,
                Err(refusal) => Err(refusal),
            };
            return match stopped {
                Ok(()) => Answer {
                    after: After::Ends,
                    ..done(json!({ "stopping": true }).to_string())
                },
                Err(refusal) => refused(refusal),
            };
        }
        _ => match (
            plain(query),
            path.trim_start_matches("/v1/sessions/").parse(),
        ) {
            (Ok(()), Ok(number)) if is_get => api.one(number, Action::List).await,
            (Ok(()), Ok(number)) => api.end_one(caller, number).await,
            (Err(refusal), _) => Err(refusal),
            (_, Err(_)) => {
                let why = "a session's number has at most eighteen digits".to_owned();
                Err((StatusCode::BAD_REQUEST, why))
            }
        },
    };
    match result {
        Ok(text) => done(text),
        Err(refusal) => refused(refusal),
    }
}

impl Api {
    fn info(&self) -> String {
        let accounting = self.shared.counters.accounting();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs(),
            "shards": self.shared.commands.shards(),
            "allocations": accounting.get("allocations", None),
            "tunnels": accounting.get("tunnels", None),
            "socket_drops": accounting.total_socket_drops(),
            "draining": self.shared.counters.is_draining(),
            "program": std::env::current_exe().ok().map(|path| path.display().to_string()),
            "upgrade": self.upgraded.as_ref().map(|upgraded| json!({
                "number": upgraded.number,
                "from": upgraded.from,
                "put_back": upgraded.put_back,
                "taken_over": accounting.get("taken_over", None),
                "not_taken_over": accounting.get("not_taken_over", None),
            })),
        })
        .to_string()
    }

    /// Has a program tried that is to take over, and has it take over after the answer.
    async fn upgrade(&self, caller: Caller, query: &str) -> Answer {
        match self.try_upgrade(caller, query).await {
            Ok((text, after)) => Answer {
                after,
                ..done(text)
            },
            Err(refusal) => refused(refusal),
        }
    }

    async fn try_upgrade(&self, caller: Caller, query: &str) -> Result<(String, After), Refusal> {
        let what = format!("upgrade: {}", query.escape_debug());
        let query = read(query, &[&["program", "seconds", "dry_run"]])?;
        let seconds = query.seconds.unwrap_or(UPGRADE_S);
        if !(1..=UPGRADE_S_MAX).contains(&seconds) {
            let why = format!("`seconds` is 1 to {UPGRADE_S_MAX}");
            return Err((StatusCode::BAD_REQUEST, why));
        }
        if query.program.is_some() && !caller.may_name_programs(geteuid().as_raw()) {
            let why = "only root and the relay's own user may name a program; without one the program that is installed takes over";
            return Err((StatusCode::FORBIDDEN, why.to_owned()));
        }
        self.note(caller, &what).await?;
        let within = Duration::from_secs(seconds);
        let upgrade = Upgrade {
            program: query.program,
            within,
            is_dry_run: query.is_dry_run,
        };
        let tried = ask_for(within + UPGRADE_GRACE, |reply| {
            self.shared.commands.upgrade(upgrade.clone(), reply)
        });
        let tried = tried.await.ok_or_else(busy)?;
        let tried = tried.map_err(|why| (StatusCode::CONFLICT, why))?;
        let answer = json!({
            "number": tried.number,
            "dry_run": upgrade.is_dry_run,
            "program": tried.program,
            "from": env!("CARGO_PKG_VERSION"),
            "to": tried.version,
            "allocations": tried.allocations,
            "waiting": tried.waiting,
            "ending": tried.ending,
        });
        let after = match upgrade.is_dry_run {
            true => After::GoesOn,
            false => After::HandsOver,
        };
        Ok((answer.to_string(), after))
    }

    /// Says whether every shard answers, and what speaks against new clients.
    async fn health(&self) -> Result<String, Refusal> {
        let silent = health::silent_shards(&self.shared.commands).await;
        let faults = health::faults(&self.shared, &silent);
        let health = json!({
            "live": silent.is_empty(),
            "ready": faults.is_empty(),
            "draining": self.shared.counters.is_draining(),
            "silent_shards": silent,
            "faults": faults,
        });
        Ok(health.to_string())
    }

    fn drain(&self) -> Value {
        let accounting = self.shared.counters.accounting();
        json!({
            "draining": self.shared.counters.is_draining(),
            "allocations": accounting.get("allocations", None),
            "tunnels": accounting.get("tunnels", None),
        })
    }

    async fn set_draining(&self, caller: Caller, is_draining: bool) -> Result<String, Refusal> {
        let what = if is_draining { "drain" } else { "undrain" };
        self.note(caller, what).await?;
        let left_max = match is_draining {
            true => {
                let begun = ask(|reply| self.shared.commands.drain(reply));
                Some(begun.await.ok_or_else(busy)?)
            }
            false => {
                let ended = ask(|reply| self.shared.commands.undrain(reply));
                ended.await.ok_or_else(busy)?;
                None
            }
        };
        // The shards have heard of it before they answer this.
        health::silent_shards(&self.shared.commands).await;
        let mut answer = self.drain();
        answer["left_max"] = left_max.into();
        Ok(answer.to_string())
    }

    /// Answers with a page of the sessions that pass a filter.
    async fn page(&self, query: &str) -> Result<String, Refusal> {
        let query = read(query, &[&FILTERS, &["max", "cursor"]])?;
        let max = at_most(query.max.unwrap_or(SESSIONS_MAX))?;
        let from = query.cursor.unwrap_or_default();
        let mut walk = Walk::new(&self.shared.commands, Action::List, query.filter, from);
        let mut sessions: Vec<Value> = Vec::new();
        while sessions.len() < max {
            let page = walk.page(max - sessions.len()).await.map_err(silent)?;
            let Some(page) = page else {
                break;
            };
            sessions.extend(page.sessions.iter().map(object));
        }
        let cursor = walk.next().map(|(shard, place)| format!("{shard}-{place}"));
        Ok(json!({ "sessions": sessions, "cursor": cursor }).to_string())
    }

    /// Lists or ends one session, and answers with what it was like.
    async fn one(&self, number: u64, action: Action) -> Result<String, Refusal> {
        let found = one_session(&self.shared.commands, action, number).await;
        match found.map_err(silent)? {
            Some(session) => Ok(object(&session).to_string()),
            None => {
                let why = format!("there is no session {number:018}");
                Err((StatusCode::NOT_FOUND, why))
            }
        }
    }

    async fn end_one(&self, caller: Caller, number: u64) -> Result<String, Refusal> {
        let what = format!("end session {number:018}");
        self.note(caller, &what).await?;
        self.one(number, Action::End).await
    }

    /// Ends the sessions that pass a filter.
    async fn end_some(&self, caller: Caller, query: &str) -> Result<String, Refusal> {
        let what = format!("end sessions: {}", query.escape_debug());
        let query = read(query, &[&FILTERS, &["all"]])?;
        if query.filter.admits_all() != query.is_for_all {
            let why = match query.is_for_all {
                true => "`all` leaves no room for a filter",
                false => "which sessions? give a filter, or all=true",
            };
            return Err((StatusCode::BAD_REQUEST, why.to_owned()));
        }
        self.note(caller, &what).await?;
        let mut walk = Walk::new(&self.shared.commands, Action::End, query.filter, (0, 0));
        let mut ended = 0;
        loop {
            match walk.page(SESSIONS_MAX).await {
                Ok(Some(page)) => ended += page.sessions.len(),
                Ok(None) => return Ok(json!({ "ended": ended }).to_string()),
                Err(shard) => {
                    let (status, why) = silent(shard);
                    return Err((status, format!("{why}; ended {ended} sessions before")));
                }
            }
        }
    }

    /// Answers with every key that has a place in this version and its values, secrets masked.
    async fn configuration(&self) -> Result<String, Refusal> {
        let effective = ask(|reply| self.shared.commands.configuration(reply));
        let effective = effective.await.ok_or_else(busy)?;
        let keys = effective.iter().map(|one| {
            json!({
                "key": one.entry.name,
                "values": one.values,
                "from": one.origins.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "reload": one.entry.reload().map(Reload::as_str),
            })
        });
        Ok(json!({ "effective": keys.collect::<Vec<_>>() }).to_string())
    }

    /// Has the relay read its configuration again.
    async fn reload(&self, caller: Caller, query: &str) -> Result<String, Refusal> {
        let query = read(query, &[&["dry_run"]])?;
        if !query.is_dry_run {
            self.note(caller, "reload").await?;
        }
        let reloading = ask(|reply| self.shared.commands.reload(query.is_dry_run, reply));
        let report = reloading.await.ok_or_else(busy)?;
        let report = report.map_err(|why| (StatusCode::UNPROCESSABLE_ENTITY, why))?;
        // The shards have their new settings before they answer this.
        if let Some(&shard) = health::silent_shards(&self.shared.commands).await.first() {
            return Err(silent(shard));
        }
        let answer = json!({
            "dry_run": query.is_dry_run,
            "changed": report.changed,
            "restart_pending": report.restart_pending,
            "notes": report.notes,
        });
        Ok(answer.to_string())
    }

    /// Answers with what the files of the certificates hold.
    async fn certificates(&self) -> Result<String, Refusal> {
        let effective = ask(|reply| self.shared.commands.configuration(reply));
        let effective = effective.await.ok_or_else(busy)?;
        let named = effective
            .iter()
            .filter(|one| CERTIFICATES.contains(&one.entry.name));
        let mut files: Vec<&str> = Vec::new();
        for file in named.flat_map(|one| &one.values) {
            if !file.is_empty() && !files.contains(&&**file) {
                files.push(file);
            }
        }
        let all = files.iter().map(|file| describe(Path::new(file)));
        Ok(json!({ "certificates": all.collect::<Vec<_>>() }).to_string())
    }

    /// Has the relay read the files of its certificates again, and answers as [`Self::certificates`] does.
    async fn reload_certificates(&self, caller: Caller) -> Result<String, Refusal> {
        self.note(caller, "certificates").await?;
        let read = ask(|reply| self.shared.commands.reload_certificates(reply));
        let read = read.await.ok_or_else(busy)?;
        read.map_err(|why| (StatusCode::UNPROCESSABLE_ENTITY, why))?;
        self.certificates().await
    }

    async fn set_log_level(&self, caller: Caller, query: &str) -> Result<String, Refusal> {
        let what = format!("log: {}", query.escape_debug());
        let level = read(query, &[&["level"]])?.level.ok_or_else(|| {
            let why = "`level` is missing: debug, info, warning or error";
            (StatusCode::BAD_REQUEST, why.to_owned())
        })?;
        self.note(caller, &what).await?;
        let set = ask(|reply| self.shared.commands.set_log_level(level, reply));
        set.await.ok_or_else(busy)?;
        Ok(json!({ "level": level.name().to_lowercase() }).to_string())
    }

    /// Writes into the log what a caller is about to change.
    pub(super) async fn note(&self, caller: Caller, what: &str) -> Result<(), Refusal> {
        let process = match caller.process {
            Some(process) => format!(", process {process}"),
            None => String::new(),
        };
        let line = format!("control: user {}{process}: {what}", caller.user);
        match say(&self.shared.commands, &line).await {
            true => Ok(()),
            false => Err(busy()),
        }
    }
}

/// Answers with all sessions that pass a filter, one in a line, as fast as they are read.
fn list(api: &Arc<Api>, query: &str) -> Answer {
    let query = match read(query, &[&FILTERS]) {
        Ok(query) => query,
        Err(refusal) => return refused(refusal),
    };
    let (pieces, body) = Answered::pieces();
    tokio::spawn(send_list(Arc::clone(api), query.filter, pieces));
    Answer {
        is_long: false,
        ..streamed(body)
    }
}

/// Answers with lines that come while they are made.
pub(super) fn streamed(body: Answered) -> Answer {
    Answer {
        response: response(StatusCode::OK, body, NDJSON),
        after: After::GoesOn,
        is_long: true,
    }
}

async fn send_list(api: Arc<Api>, filter: SessionFilter, pieces: Sender<Bytes>) {
    let mut walk = Walk::new(&api.shared.commands, Action::List, filter, (0, 0));
    loop {
        let (piece, is_last) = match walk.page(SESSIONS_MAX).await {
            Ok(None) => return,
            Ok(Some(page)) => {
                let lines = page.sessions.iter();
                let lines: String = lines
                    .map(|session| format!("{}\n", object(session)))
                    .collect();
                (lines, false)
            }
            Err(shard) => {
                let (_, why) = silent(shard);
                (format!("{}\n", json!({ "error": why })), true)
            }
        };
        if piece.is_empty() {
            continue;
        }
        // A reader that is gone or takes nothing has no use for the rest.
        let sent = timeout(READ, pieces.send(piece.into())).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

pub(super) fn read(query: &str, allowed: &[&[&str]]) -> Result<Query, Refusal> {
    Query::parse(query, allowed).map_err(|why| (StatusCode::BAD_REQUEST, why))
}

/// Takes no parameters.
fn plain(query: &str) -> Result<(), Refusal> {
    read(query, &[]).map(drop)
}

pub(super) fn at_most(max: usize) -> Result<usize, Refusal> {
    match max {
        1..=SESSIONS_MAX => Ok(max),
        _ => Err((
            StatusCode::BAD_REQUEST,
            format!("`max` is 1 to {SESSIONS_MAX}"),
        )),
    }
}

pub(super) fn silent(shard: usize) -> Refusal {
    let why = format!("shard {shard} does not answer");
    (StatusCode::SERVICE_UNAVAILABLE, why)
}

pub(super) fn busy() -> Refusal {
    let why = "the relay takes no command now".to_owned();
    (StatusCode::SERVICE_UNAVAILABLE, why)
}

fn done(text: String) -> Answer {
    whole(StatusCode::OK, text)
}

pub(super) fn refused((status, why): Refusal) -> Answer {
    whole(status, json!({ "error": why }).to_string())
}

fn whole(status: StatusCode, text: String) -> Answer {
    let body = Answered::Whole(Some((text + "\n").into()));
    Answer {
        response: response(status, body, JSON),
        after: After::GoesOn,
        is_long: false,
    }
}

fn response(status: StatusCode, body: Answered, content_type: &'static str) -> Response<Answered> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
