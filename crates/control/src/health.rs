//! Whether the relay lives, and whether it takes new clients.

use std::time::Duration;

use tokio::sync::oneshot;
use turnbuckle_server::handle::Commands;

/// Time in which every shard has to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the shards that do not answer in time from within their loops. The question passes the main thread, so none of them answers while that
/// thread hangs.
pub(crate) async fn silent_shards(commands: &Commands) -> Vec<usize> {
    let mut asked = Vec::with_capacity(commands.shards());
    for shard in 0..commands.shards() {
        let (answer, answered) = oneshot::channel();
        let reply = Box::new(move |()| {
            // Who asked may not wait any longer.
            let _ = answer.send(());
        });
        // A refusal drops the reply, and with it the sender.
        let _ = commands.ping(shard, reply);
        asked.push(answered);
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let mut silent = Vec::new();
    for (shard, answered) in asked.into_iter().enumerate() {
        if !matches!(
            tokio::time::timeout_at(deadline, answered).await,
            Ok(Ok(()))
        ) {
            silent.push(shard);
        }
    }
    silent
}
