//! Traces of single users: what a user asks for and is answered, line by line while it happens, and nothing of what it relays.
//!
//! Invariant: a shard never waits for a reader. What finds the queue full is lost, and the last line says how much. A trace ends by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::json;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use turnbuckle_server::handle::{Trace, Traced};

use super::answer::{Answer, READ, Refusal, busy, read, refused, silent, streamed};
use super::body::Answered;
use super::session::object;
use super::{Api, Caller};
use crate::asking::ask;
use crate::pages::{Action, Walk};

/// Lines that may wait for a reader.
const LINES_MAX: usize = 1024;

/// Traces at a time.
pub(super) const TRACES_MAX: usize = 4;

/// Sessions of the user that are told of at first.
const SESSIONS_MAX: usize = 1000;

/// How long a trace lasts at the longest, and if nothing is said.
pub(crate) const LASTS: Duration = Duration::from_secs(600);

/// Answers with a trace.
pub(super) async fn trace(api: &Arc<Api>, caller: Caller, query: &str) -> Answer {
    match begin(api, caller, query).await {
        Ok(answer) => answer,
        Err(refusal) => refused(refusal),
    }
}

async fn begin(api: &Arc<Api>, caller: Caller, query: &str) -> Result<Answer, Refusal> {
    let query = read(query, &[&["user", "seconds"]])?;
    let wrong = |why: &str| (StatusCode::BAD_REQUEST, why.to_owned());
    let user = query.filter.user.clone();
    let user = user.ok_or_else(|| wrong("`user` is missing: the whole name"))?;
    let lasts = query.seconds.map_or(LASTS, Duration::from_secs);
    if lasts.is_zero() || lasts > LASTS {
        return Err(wrong("`seconds` is 1 to 600"));
    }
    let place = Arc::clone(&api.traces).try_acquire_owned();
    let place = place.map_err(|_| {
        let why = format!("{TRACES_MAX} traces are made already");
        (StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let what = format!("trace of {} for {} s", user.escape_debug(), lasts.as_secs());
    api.note(caller, &what).await?;
    let (pieces, body) = Answered::pieces();
    let mut first = Vec::new();
    let mut walk = Walk::new(&api.shared.commands, Action::List, query.filter, (0, 0));
    while let Some(page) = walk.page(SESSIONS_MAX).await.map_err(silent)? {
        first.extend(page.sessions);
        if first.len() >= SESSIONS_MAX {
            break;
        }
    }
    let (queue, lines) = mpsc::channel(LINES_MAX);
    let lost = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + lasts;
    let trace = Trace {
        user: user.into(),
        sessions: first.iter().map(|session| session.number).collect(),
        until: until.into_std(),
        outlet: Arc::new({
            let lost = Arc::clone(&lost);
            move |traced| match queue.try_send(traced) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    lost.fetch_add(1, Relaxed);
                    true
                }
                Err(TrySendError::Closed(_)) => false,
            }
        }),
    };
    let begun = ask(|reply| api.shared.commands.trace(trace.clone(), reply));
    begun.await.ok_or_else(busy)?;
    let sessions = first
        .iter()
        .map(|session| json!({ "session": object(session) }));
    // Every shard has the trace by now.
    let first = sessions.chain([json!({ "begun": true })]);
    let first: String = first.map(|line| format!("{line}\n")).collect();
    tokio::spawn(send(first, lines, lost, until, pieces, place));
    Ok(streamed(body))
}

/// Sends lines as they come until the trace ends or its reader goes.
async fn send(
    first: String,
    mut lines: mpsc::Receiver<Traced>,
    lost: Arc<AtomicU64>,
    until: Instant,
    pieces: mpsc::Sender<Bytes>,
    place: OwnedSemaphorePermit,
) {
    let begun = Instant::now();
    let mut piece = first;
    loop {
        if !piece.is_empty() {
            let sent = timeout(READ, pieces.send(piece.into())).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        piece = tokio::select! {
            () = pieces.closed() => return,
            line = timeout_at(until, lines.recv()) => match line {
                Ok(Some(Traced { shard, text })) => {
                    let after = begun.elapsed().as_secs_f64();
                    format!("{}\n", json!({ "after_s": after, "shard": shard, "text": text }))
                }
                _ => break,
            },
        };
    }
    let last = json!({ "ended": true, "lost": lost.load(Relaxed) });
    // The reader may have gone by now.
    let _ = timeout(READ, pieces.send(format!("{last}\n").into())).await;
    drop(place);
}
