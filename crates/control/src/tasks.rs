//! The tasks of the control side's thread, and the orders that begin and end them.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use turnbuckle_server::config::Console as ConsoleSettings;
use turnbuckle_server::handle::Upgraded;
use turnbuckle_users::RedisAddress;

use crate::api::Api;
use crate::api::socket::Socket;
use crate::console::{Console, Listener as ConsoleListener};
use crate::listener::{Listener, Site};
use crate::shared::{Shared, lock};
use crate::statsdb::{self, Statsdb};
use crate::watchdog;

/// Time that a consumer has to hand on what is left when the relay has stopped, or another one takes its place.
const CLOSING: Duration = Duration::from_secs(2);

/// Something that is to be done from now on.
pub(crate) enum Order {
    /// Take commands at a socket.
    Api(Socket, Option<Upgraded>),
    /// Serve a console, in place of one before.
    Console(Option<(ConsoleListener, ConsoleSettings)>),
    /// Tell the service manager in this interval that the relay is alive.
    Feed(Duration),
    /// Take events as they come, if there are any.
    FollowEvents,
    /// Serve metrics, in place of a listener before.
    Metrics(Option<(Listener, Site)>),
    /// Tell a Redis server of sessions, in place of one before. Statuses with these local addresses are ours.
    Statsdb(Option<(RedisAddress, HashSet<SocketAddr>)>),
}

/// What runs.
#[derive(Default)]
pub(crate) struct Tasks {
    console: Option<JoinHandle<()>>,
    events: Option<JoinHandle<()>>,
    metrics: Option<JoinHandle<()>>,
    /// It ends by itself when the sender is dropped.
    statsdb: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Tasks {
    /// Carries out orders until there will be none any more, and then hands on what is left.
    pub(crate) async fn run(mut self, shared: Arc<Shared>, mut orders: UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            self.carry_out(order, &shared);
        }
        while shared.take_events() {}
        if let Some((end, ended)) = self.statsdb {
            drop(end);
            // A server that hangs has had its time. The next start mends what is left there.
            let _ = tokio::time::timeout(CLOSING, ended).await;
        }
    }

    fn carry_out(&mut self, order: Order, shared: &Arc<Shared>) {
        let (counters, commands) = (&shared.counters, &shared.commands);
        match order {
            Order::Api(socket, upgraded) => {
                let api = Api::new(Arc::clone(shared), upgraded);
                tokio::spawn(api.serve(socket));
            }
            Order::Console(console) => {
                let console = console.map(|(listener, settings)| {
                    let console = Console::new(&settings, counters.clone(), commands.clone());
                    tokio::spawn(console.serve(listener))
                });
                replace(&mut self.console, console);
            }
            Order::Feed(interval) => {
                tokio::spawn(watchdog::feed(commands.clone(), interval));
            }
            Order::FollowEvents if self.events.is_none() && shared.has_events() => {
                let following = Arc::clone(shared).follow_events();
                self.events = Some(tokio::spawn(following));
            }
            Order::FollowEvents => {}
            Order::Metrics(metrics) => {
                let metrics = metrics.map(|(listener, site)| {
                    tokio::spawn(listener.serve(Arc::clone(shared), Arc::new(site)))
                });
                replace(&mut self.metrics, metrics);
            }
            Order::Statsdb(wanted) => {
                if let Some((end, ended)) = self.statsdb.take() {
                    drop(end);
                    tokio::spawn(tokio::time::timeout(CLOSING, ended));
                }
                let is_up = wanted.is_some().then(Arc::<AtomicBool>::default);
                lock(&shared.is_statsdb_up).clone_from(&is_up);
                lock(&shared.consumers).remove(statsdb::NAME);
                self.statsdb = wanted.zip(is_up).map(|((address, listeners), is_up)| {
                    let inbox = lock(&shared.consumers).add(statsdb::NAME);
                    let commands = commands.clone();
                    let statsdb = Statsdb::new(address, listeners, commands, inbox, is_up);
                    let (end, ended) = oneshot::channel();
                    (end, tokio::spawn(statsdb.run(ended)))
                });
            }
        }
    }
}

/// Ends a task, which takes no more connections then, and has another one in its place. Connections go on.
fn replace(task: &mut Option<JoinHandle<()>>, next: Option<JoinHandle<()>>) {
    if let Some(before) = std::mem::replace(task, next) {
        before.abort();
    }
}
