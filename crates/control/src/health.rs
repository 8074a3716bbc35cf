//! Whether the relay lives, and whether it takes new clients.

use std::time::Duration;

use turnbuckle_server::handle::Commands;

use crate::asking::ask_each;

/// Time in which every shard has to answer.
const ANSWER: Duration = Duration::from_secs(1);

/// Returns the shards that do not answer in time from within their loops. The question passes the main thread, so none of them answers while that
/// thread hangs.
pub(crate) async fn silent_shards(commands: &Commands) -> Vec<usize> {
    let ping = |shard, reply| commands.ping(shard, reply);
    let answers = ask_each(commands.shards(), ANSWER, ping).await;
    let silent = (0..).zip(answers).filter(|(_, answer)| answer.is_none());
    silent.map(|(shard, _)| shard).collect()
}
