//! Whether the relay lives, and whether it takes new clients.

use std::time::Duration;

use turnbuckle_server::handle::Commands;

use crate::asking::ask_each;
use crate::shared::Shared;

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

/// Returns a line for each shard that does not answer: why the relay is not alive.
pub(crate) fn deaths(silent_shards: &[usize]) -> Vec<String> {
    let line = |shard: &usize| format!("shard {shard} does not answer");
    silent_shards.iter().map(line).collect()
}

/// Returns why the relay should get no new clients, in lines; none if it should.
pub(crate) fn faults(shared: &Shared, silent_shards: &[usize]) -> Vec<String> {
    let mut faults = deaths(silent_shards);
    if shared.counters.is_draining() {
        faults.push("draining".to_owned());
    }
    let database = shared.counters.database();
    if database.is_some_and(|database| database.age.is_none()) {
        faults.push("the user database has not been read yet".to_owned());
    }
    faults.extend(shared.counters.relay_faults());
    faults.extend(shared.certificates.faults());
    faults
}
