//! Starts a relay: tries its addresses, reads users and certificates, starts the shards.

use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use turnbuckle_datapath::Settings;
use turnbuckle_engine::{Commons, Config as EngineConfig};

use super::announce::{self, Running};
use super::certificates::FollowedCertificates;
use super::devices;
use super::drain::Drain;
use super::error::ServeError;
use super::events::Event;
use super::interfaces::Interfaces;
use super::keys::KeyRing;
use super::listening::Listening;
use super::relays::Relays;
use super::shards::Shards;
use super::statistics::Statistics;
use super::users::{Before, FollowedUsers, OpenedUsers};
use crate::binding;
use crate::config::{Config, Masque, Persona};
use crate::doctor;
use crate::handle::{EventSender, LiveCounters};
use crate::journal::{Memory, Slices};
use crate::offload::Offload;
use crate::resolve::Resolver;
use crate::shard::discovery::sites;
use crate::shard::front::all::DatagramService;
use crate::shard::{Followers, HostAddresses, Listeners, Plan};
use crate::survive::{ShardJournal, Survival, Takeover};
use crate::translate;

/// Holds the parts of a started relay. Its listeners receive nothing before clients are admitted.
pub(super) struct Started {
    pub(super) shards: Shards,
    pub(super) listening: Listening,
    pub(super) certificates: FollowedCertificates,
    pub(super) users: FollowedUsers,
    pub(super) interfaces: Interfaces,
    pub(super) relays: Relays,
    pub(super) drain: Drain,
    pub(super) statistics: Statistics,
    pub(super) offload: Offload,
    pub(super) counters: LiveCounters,
    pub(super) keys: KeyRing,
    /// File descriptors that the process may have.
    pub(super) descriptors: Option<u64>,
}

/// Opens all sockets, or takes over those in the `survival` with all that belongs to them, and prints what the relay serves. The process may have so
/// many `descriptors`. Each shard has one of `outlets` for its events; without a consumer there are none. The `config` has then what calls need of it
/// that are taken over.
///
/// # Errors
///
/// What could not be set up.
pub(super) fn start(
    config: &mut Config,
    mut survival: Option<&mut Survival>,
    descriptors: Option<u64>,
    events: &SyncSender<Event>,
    outlets: &[EventSender],
    out: &mut impl Write,
) -> Result<Started, ServeError> {
    let count = usize::from(config.datapath.shards.get());
    let (mut takeover, journals, keys) = match &mut survival {
        Some(survival) => {
            let (takeover, journals) = survival.take(count, out);
            (takeover, journals, survival.keys(config))
        }
        None => (Takeover::none(count), Vec::new(), KeyRing::new(config)),
    };
    // Before anything is made from the configuration, and in what a reload begins with.
    takeover.keep_relays(config);
    let certificates = FollowedCertificates::load(config, out)?;
    let config = &*config;
    let (backend, why) = translate::backend(config.datapath.backend);
    devices::probe_devices(config).map_err(ServeError::new)?;
    let is_first = takeover.listeners == 0;
    try_relays(config, is_first, out)?;
    let mut listening =
        Listening::begin(config, &takeover, out).map_err(|error| ServeError::from_io(&error))?;
    let engine = translate::engine(config, &keys).map_err(ServeError::new)?;
    let needs_rows = survival
        .as_ref()
        .is_some_and(|survival| survival.needs_rows());
    let before = Before {
        has_calls: takeover.allocations() > 0 && !needs_rows,
        had_peer_rules: survival.as_ref().and_then(|it| it.had_peer_rules()),
    };
    let users = OpenedUsers::open(config, Arc::new(engine), before, events, out)?;
    let commons = Commons::new(&users.engine);
    let budget = translate::relay_buffer_budget();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let interfaces = Interfaces::follow(events.clone()).map_err(|error| {
        ServeError::new(format!(
            "cannot read the addresses of this machine: {error}"
        ))
    })?;
    let accepting = translate::accepting(config).map_err(|error| ServeError::from_io(&error))?;
    let serving = translate::serving(config, descriptors);
    // The machine may have got an address while the configuration was read.
    listening.follow(config, interfaces.addresses());
    let attached = std::mem::take(&mut takeover.attached);
    let mut offload = Offload::start(config, attached).map_err(ServeError::new)?;
    if let Some(meters) = offload.meters() {
        commons.set_meters(meters);
    }
    let wants_tunnels = config.protocols.http.masque != Masque::Off;
    let resolver = wants_tunnels.then(Resolver::of_machine);
    let certificates_now = certificates.current();
    let datagrams =
        translate::datagrams(config, &serving, certificates_now, &keys, resolver.as_ref());
    offload.screen(config, listening.own_datagrams());
    let recorded = takeover.allocations();
    let listeners = takeover.listeners;
    let (mut records, mut kept) = (Vec::new(), Vec::new());
    for shard in takeover.shards {
        records.push(shard.record);
        kept.push(shard.sockets);
    }
    let memory = Memory {
        count_max: users.engine.limits.tombstones as usize,
        replay: users.engine.auth.nonce_lifetime.replay_memory(),
        slices: Slices::SERVING,
    };
    let journals: Vec<_> = journals
        .into_iter()
        .zip(records)
        .map(|(segments, record)| ShardJournal::new(segments, memory, record))
        .collect();
    let plan = |index: usize, mailboxes| Plan {
        index,
        is_restart: false,
        core: config.datapath.pin.then_some(index % cores),
        host: HostAddresses {
            interfaces: interfaces.addresses().to_vec(),
            relays: Vec::new(),
        },
        listeners: Listeners {
            datagrams: listening.datagrams.clone(),
            shared: listening.shared.clone(),
            streams: listening.streams.clone(),
            discovery: sites(config),
            later: Vec::new(),
        },
        engine: Arc::clone(&users.engine),
        commons: Arc::clone(&commons),
        mailboxes,
        streams: translate::streams(config, &serving, certificates.current(), resolver.as_ref()),
        datagrams: DatagramService {
            routes: offload.routes(),
            ..datagrams.clone()
        },
        datapath: Settings {
            // guard: V-63-sockets
            kept: kept.get(index).cloned(),
            ..translate::datapath(config, backend, &accepting, &budget, serving.coalesce)
        },
        followers: Followers {
            asker: users.asker.clone(),
            journal: journals.get(index).cloned(),
            log: translate::log(config, &serving, index, count),
            events: outlets.get(index).cloned(),
        },
    };
    let mut shards =
        Shards::start(count, events.clone(), plan).map_err(|error| ServeError::from_io(&error))?;
    offload.begin(config).map_err(ServeError::new)?;
    if listeners > 0 {
        let counted = shards.all().iter().map(|shard| &shard.counters.engine);
        let taken: u64 = counted.map(|engine| engine.taken_over.get()).sum();
        let _ = writeln!(
            out,
            "survive: took over {listeners} listening sockets and {taken} of {recorded} allocations from the process before"
        );
    }
    let has_database = users.is_read;
    let database = users.state.clone();
    let engine = Arc::clone(&users.engine);
    let users = users.follow(Arc::clone(&commons));
    note_rows(survival.as_deref(), &users, &engine);
    let running = Running {
        listening: &listening,
        shards: count,
        backend: &why,
        has_database,
    };
    announce::running(config, &running, out);
    if let Some(advice) = binding::unreachable(config) {
        let _ = writeln!(out, "warning: {advice}");
    }
    // The same for what is relayed from.
    let mut relays = Relays::new(config, Arc::clone(&commons));
    relays.follow(config, interfaces.addresses(), &mut shards, out);
    let _ = writeln!(out, "{}", offload.line());
    certificates.say_validity(out);
    if let Some(advice) = doctor::unused_xdp(config) {
        let _ = writeln!(out, "{advice}");
    }
    let counted = shards
        .all()
        .iter()
        .map(|shard| (Arc::clone(&shard.counters), Arc::clone(&shard.batches)));
    Ok(Started {
        statistics: Statistics::new(config, shards.all()),
        counters: LiveCounters::new(counted, Arc::clone(&commons), database),
        shards,
        listening,
        certificates,
        users,
        interfaces,
        relays,
        drain: Drain::new(
            config.limits.drained,
            survival.as_deref().map(Survival::draining),
        ),
        offload,
        keys,
        descriptors,
    })
}

/// Tries the relay addresses that are named.
///
/// # Errors
///
/// No socket can be opened at one of them. As `turnserver`, and where a relay before has served, this is a warning.
fn try_relays(config: &Config, is_first: bool, out: &mut impl Write) -> Result<(), ServeError> {
    let is_fatal = config.persona == Persona::Turnbuckle && is_first;
    for why in binding::unusable(config) {
        if is_fatal {
            return Err(ServeError::new(format!(
                "relay-ip: {why}; allowed: addresses of this machine"
            )));
        }
        let _ = writeln!(
            out,
            "warning: {why}; clients get error 508 for it while that lasts"
        );
    }
    Ok(())
}

/// Notes for the next relay what rows of the user database say of peers.
pub(super) fn note_rows(survival: Option<&Survival>, users: &FollowedUsers, engine: &EngineConfig) {
    if let (Some(survival), Some(rows)) = (survival, users.peer_rows(engine)) {
        survival.note_rows(rows);
    }
}
