//! Asks shards and the main thread, and waits for their answers without holding them up.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use turnbuckle_server::handle::{Commands, Refused, Reply};

/// Time in which whoever is asked until it answers has to.
const ANSWER: Duration = Duration::from_secs(5);

/// Time after which a shard or the main thread is asked again when it had too much to do.
const PAUSE: Duration = Duration::from_millis(2);

/// Returns a reply and where it arrives. A refusal drops the reply, as a full queue does, and ends the wait.
fn reply<T: Send + 'static>() -> (Reply<T>, oneshot::Receiver<T>) {
    let (answer, answered) = oneshot::channel();
    let reply = Box::new(move |value| {
        // Who asked may not wait any longer.
        let _ = answer.send(value);
    });
    (reply, answered)
}

/// Asks for something until it is answered. Returns `None` if it is not for five seconds.
pub(crate) async fn ask<T: Send + 'static>(
    send: impl Fn(Reply<T>) -> Result<(), Refused>,
) -> Option<T> {
    ask_for(ANSWER, send).await
}

/// Asks for something until it is answered. Returns `None` if it is not for so long.
pub(crate) async fn ask_for<T: Send + 'static>(
    time: Duration,
    send: impl Fn(Reply<T>) -> Result<(), Refused>,
) -> Option<T> {
    let deadline = Instant::now() + time;
    loop {
        let (reply, answered) = reply();
        let _ = send(reply);
        match timeout_at(deadline, answered).await {
            Ok(Ok(value)) => return Some(value),
            Err(_) => return None,
            Ok(Err(_)) if Instant::now() + PAUSE > deadline => return None,
            Ok(Err(_)) => sleep(PAUSE).await,
        }
    }
}

/// Writes a line to the log. Returns false if the log has taken none for five seconds.
pub(crate) async fn say(commands: &Commands, line: &str) -> bool {
    // The line needs no answer: it is a command that is taken, or refused and tried again.
    let taken = ask(|reply| {
        commands.say(line.to_owned())?;
        reply(());
        Ok(())
    });
    taken.await.is_some()
}

/// Asks all shards at once, and returns what each has answered by the end of `time`; `None` for one that has refused, or not answered.
pub(crate) async fn ask_each<T: Send + 'static>(
    shards: usize,
    time: Duration,
    send: impl Fn(usize, Reply<T>) -> Result<(), Refused>,
) -> Vec<Option<T>> {
    let asked: Vec<_> = (0..shards)
        .map(|shard| {
            let (reply, answered) = reply();
            let _ = send(shard, reply);
            answered
        })
        .collect();
    let deadline = Instant::now() + time;
    let mut answers = Vec::with_capacity(shards);
    for answered in asked {
        let answer = timeout_at(deadline, answered).await;
        answers.push(answer.ok().and_then(Result::ok));
    }
    answers
}
