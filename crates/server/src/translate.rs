//! From the validated configuration to what engine and data path want to be told.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use if_addrs::{IfAddr, get_if_addrs};
use turnbuckle_datapath::{
    AcceptStrategy, Accepting, Backend, BufferBudget, CoalescePolicy, KeptSockets, Settings,
};
use turnbuckle_engine::{
    Action, AddressRange, Alternate, AuthConfig, Bandwidth, Config as EngineConfig, DefaultFamily,
    Fingerprint, InterfaceAddress, Lifetimes, Limits, NonceKey, NonceLifetime, PolicyRules, Rate,
    Redirection, RelayAddress, Rule, Service, TcpRelays, ThirdParties, TicketKey, UnverifiedLimits,
};

use crate::config::{self, Config, Credential, Persona};
use crate::dtls::{CookieKey, DtlsLimits, DtlsService};
use crate::log::{Lines, Scope};
use crate::proxy::Proxies;
use crate::random::OsRandom;
use crate::relay::DatagramService;
use crate::sources::CrowdLimits;
use crate::stream::{HttpService, StreamLimits, StreamService};
use crate::tls::Certificates;
use crate::users::{DatabaseError, Follower, Wanted};

/// What the receive buffers of busy relay sockets may take together.
pub(crate) const RELAY_BUFFER_BUDGET_BYTES: u64 = 256 * 1024 * 1024;

/// The backend to run, and a line that says why it was chosen.
pub(crate) fn backend(chosen: config::Backend) -> (Backend, String) {
    let as_configured = |backend| (backend, format!("data path: {backend}, as configured"));
    match chosen {
        config::Backend::Auto => Backend::probe(),
        config::Backend::Gso => as_configured(Backend::Gso),
        config::Backend::Mmsg => as_configured(Backend::Mmsg),
        config::Backend::Single => as_configured(Backend::Single),
    }
}

/// How the shards share connections.
///
/// # Errors
///
/// The kernel does not tell which processors may be used.
pub(crate) fn accepting(config: &Config) -> io::Result<Accepting> {
    let strategy = match config.threads.accept {
        config::Accept::Cpu => AcceptStrategy::Cpu,
        config::Accept::Exclusive => AcceptStrategy::Exclusive,
        config::Accept::Reuseport => AcceptStrategy::Reuseport,
        config::Accept::Shared => AcceptStrategy::Shared,
    };
    Accepting::new(strategy, config.threads.shards.get().into())
}

/// The data path of one shard.
pub(crate) fn datapath(
    config: &Config,
    backend: Backend,
    accepting: &Accepting,
    budget: &Arc<BufferBudget>,
) -> Settings {
    Settings {
        backend,
        accepting: accepting.clone(),
        // guard: V-63-sockets
        kept: Some(KeptSockets::default()),
        coalesce: config.datapath.coalesce,
        coalesce_policy: match config.datapath.coalesce_policy {
            config::Coalesce::Cpu => CoalescePolicy::Cpu,
            config::Coalesce::Latency => CoalescePolicy::Latency,
        },
        buffer_budget: Arc::clone(budget),
        socket_buffer: config.datapath.socket_buffer_bytes.get(),
        listener_device: config.addresses.listening_device.as_deref().map(Into::into),
        relay_device: config.addresses.relay_device.as_deref().map(Into::into),
        ..Settings::default()
    }
}

/// How many connections without an allocation a shard may have where the process may have so many `descriptors`: together at most half of them, so
/// that the others are there for relay sockets and for clients that have one.
fn connections_without_allocation(config: &Config, descriptors: Option<u64>) -> CrowdLimits {
    let limits = &config.limits;
    let shards = usize::from(config.threads.shards.get());
    let half = descriptors.map_or(usize::MAX, |all| {
        usize::try_from(all / 2).unwrap_or(usize::MAX)
    });
    let total = limits.connections_without_allocation.get() as usize;
    CrowdLimits {
        // guard: V-47-reserve
        total: total.min(half / shards).max(1),
        per_source: CrowdLimits::share(
            limits.connections_without_allocation_per_address.get(),
            shards,
        ),
    }
}

/// How connections are served, with `certificates` if TLS is spoken, in a process that may have so many `descriptors`.
pub(crate) fn streams(
    config: &Config,
    certificates: Option<&Certificates>,
    descriptors: Option<u64>,
) -> StreamService {
    let limits = &config.limits;
    StreamService {
        limits: StreamLimits {
            handshake: limits.stream_deadline,
            first_message: limits.stream_deadline,
            message: limits.stream_deadline,
            idle: limits.stream_idle,
            unallocated: limits.time_without_allocation,
            crowd: connections_without_allocation(config, descriptors),
        },
        tls: certificates.and_then(Certificates::shared),
        serves_plain: config.addresses.tcp,
        proxies: Proxies {
            sources: config.proxies.sources.clone(),
            datagram_sources: config.proxies.datagram_sources.clone(),
            only: config.proxies.port.is_some(),
        },
        http: HttpService {
            answers: config.http.answers,
            acme_redirect: config.http.acme_redirect.clone(),
        },
    }
}

/// How datagrams are served, with `certificates` if DTLS is spoken. All shards get the same, because they share the key of the cookies.
pub(crate) fn datagrams(config: &Config, certificates: Option<&Certificates>) -> DatagramService {
    let limits = &config.limits;
    let context = certificates.and_then(Certificates::shared_dtls);
    DatagramService {
        serves_plain: config.addresses.udp,
        dtls: context.map(|context| DtlsService {
            context,
            cookies: CookieKey::random(),
            limits: DtlsLimits {
                handshake: limits.stream_deadline,
                first_message: limits.stream_deadline,
                idle: limits.stream_idle,
                unallocated: limits.time_without_allocation,
                crowd: CrowdLimits {
                    total: limits.dtls_without_allocation.get() as usize,
                    per_source: CrowdLimits::share(
                        limits.dtls_without_allocation_per_address.get(),
                        usize::from(config.threads.shards.get()),
                    ),
                },
                sessions: limits.dtls_sessions.get() as usize,
            },
        }),
    }
}

/// What shard `shard` of `shards` logs.
pub(crate) fn log(config: &Config, shard: usize, shards: usize) -> Scope {
    Scope {
        persona: config.persona,
        wanted: Lines {
            sessions: config.log.sessions || config.log.requests,
            binding: config.log.binding,
        },
        requests: config.log.requests,
        shard,
        shards,
        limits_answers: config
            .authentication
            .unauthorized_replies_per_second
            .is_some(),
        realm: config.authentication.realm.clone(),
    }
}

/// The engine of every shard.
///
/// # Errors
///
/// What the engine does not take: a name, password or secret, named without its value.
pub(crate) fn engine(config: &Config) -> Result<EngineConfig, String> {
    let stun = &config.stun;
    let limits = &config.limits;
    let ports = config.addresses.relay_ports;
    Ok(EngineConfig {
        auth: authentication(config)?,
        policy: policy(config),
        unverified: unverified(config),
        service: match (stun.stun_only, stun.no_binding) {
            (true, _) => Service::StunOnly,
            (false, true) => Service::TurnOnly,
            (false, false) => Service::StunAndTurn,
        },
        secure_stun: config.authentication.binding_needs_credentials,
        check_origin: config.authentication.checks_origin,
        mapped_address: stun.mapped_address,
        rfc5766_channel_numbers: stun.rfc5766_channel_numbers,
        rfc3489_binding: stun.rfc3489_binding,
        fingerprint: if stun.fingerprint {
            Fingerprint::Always
        } else {
            Fingerprint::Mirror
        },
        software: stun
            .software
            .then(|| concat!("Turnbuckle-", env!("CARGO_PKG_VERSION")).into()),
        detailed_reasons: stun.detailed_reasons,
        lifetimes: Lifetimes {
            allocation_max: limits.allocation_lifetime_max,
            permission: limits.permission_lifetime,
            channel: limits.channel_lifetime,
            ..Lifetimes::default()
        },
        limits: Limits {
            user_quota: limits.allocations_per_user.map(Into::into),
            total_quota: limits.allocations_total.map(Into::into),
            allocations: limits.allocations_per_shard.get(),
            tombstones: limits
                .allocations_per_shard
                .get()
                .saturating_mul(2)
                .max(4_096),
            permissions_per_allocation: limits.permissions_per_allocation.get(),
            channels_per_allocation: limits.channels_per_allocation.get(),
            ..Limits::default()
        },
        relays: config
            .addresses
            .relays
            .iter()
            .map(|&local| relay_address(config, local))
            .collect(),
        relay_ports: ports.min.get()..=ports.max.get(),
        default_family: match config.addresses.default_family {
            config::DefaultFamily::Client => DefaultFamily::Client,
            config::DefaultFamily::V4 => DefaultFamily::V4,
            config::DefaultFamily::V6 => DefaultFamily::V6,
        },
        bandwidth: Bandwidth {
            bytes_per_s: limits.bytes_per_second,
            capacity_bytes_per_s: limits.capacity_bytes_per_second,
        },
        mobility: mobility(config),
        resume_with_old_nonce: config.persona == Persona::Turnserver,
        passes_over_discovery: config.persona == Persona::Turnserver,
        redirection: redirection(config),
        udp_relays: config.relays.udp,
        tcp: config.relays.tcp.then(|| tcp_relays(config)),
        ..EngineConfig::default()
    })
}

/// Seconds' worth of connections that a user may begin at once.
const CONNECTS_BURST_S: u32 = 10;

fn tcp_relays(config: &Config) -> TcpRelays {
    let from = &config.relays;
    TcpRelays {
        peer_ports: vec![from.connect_port_min..=u16::MAX],
        mask_connect_errors: from.masks_connect_errors,
        connections_per_allocation: from.connections_per_allocation.get(),
        pending_per_user: from.pending_connects.get(),
        connects_per_user: Rate {
            burst: from
                .connects_per_second
                .get()
                .saturating_mul(CONNECTS_BURST_S),
            per_s: from.connects_per_second.get(),
        },
        ..TcpRelays::default()
    }
}

/// The key of tickets, one for all shards.
fn mobility(config: &Config) -> Option<TicketKey> {
    let secret = &config.authentication.nonce_secret;
    config.stun.mobility.then(|| match secret {
        Some(secret) => TicketKey::from_secret(secret.expose()),
        None => TicketKey::random(&mut OsRandom::new()),
    })
}

/// Which list is whose.
fn redirection(config: &Config) -> Redirection {
    let from = &config.redirection;
    let own_or = |own: &Vec<Alternate>, other: &Vec<Alternate>| match own.is_empty() {
        false => own.clone(),
        true => other.clone(),
    };
    Redirection {
        dtls: own_or(&from.tls, &from.udp),
        tcp: own_or(&from.tcp, &from.any),
        tls: from.tls.clone(),
        udp: own_or(&from.udp, &from.any),
        exempt: config.addresses.auxiliary.clone(),
    }
}

/// The user database, open and read, if there is one; `engine` is what the configuration says without it.
///
/// # Errors
///
/// It cannot be opened or read; as `turnserver` it is waited for then.
pub(crate) fn users(
    config: &Config,
    engine: &Arc<EngineConfig>,
) -> Result<Option<Follower>, DatabaseError> {
    let Some(database) = &config.authentication.database else {
        return Ok(None);
    };
    let wanted = Wanted {
        users: database.has_users,
        secrets: database.has_secrets,
        peers: database.has_peer_rules,
        realms: database.has_realms,
        token_keys: config.authentication.third_parties.is_some(),
    };
    let realm = config.authentication.realm.to_string();
    let (path, base) = (database.path.clone(), Arc::clone(engine));
    match config.persona {
        Persona::Turnbuckle => Follower::open(path, realm, wanted, base).map(Some),
        // coturn starts, and asks again with every request.
        Persona::Turnserver => Ok(Some(Follower::open_or_wait(path, realm, wanted, base))),
    }
}

pub(crate) fn relay_address(config: &Config, local: IpAddr) -> RelayAddress {
    let public = config.addresses.public(local);
    RelayAddress {
        local,
        external: (public != local).then_some(public),
    }
}

/// The addresses of the host's interfaces as they are now, in a fixed order.
///
/// # Errors
///
/// The kernel does not tell them.
pub(crate) fn interfaces() -> io::Result<Vec<InterfaceAddress>> {
    let mut found: Vec<_> = get_if_addrs()?
        .into_iter()
        .map(|interface| InterfaceAddress {
            ip: interface.ip(),
            prefix_len: match interface.addr {
                IfAddr::V4(v4) => v4.prefixlen,
                IfAddr::V6(v6) => v6.prefixlen,
            },
        })
        .collect();
    found.sort_by_key(|address| address.ip);
    Ok(found)
}

fn authentication(config: &Config) -> Result<AuthConfig, String> {
    let from = &config.authentication;
    let mut auth = AuthConfig::new(&from.realm).map_err(|error| format!("realm: {error}"))?;
    for user in &from.users {
        let added = match &user.credential {
            Credential::Md5Key(key) => match key.expose().try_into() {
                Ok(key) => auth.add_user_by_md5_key(&user.name, key),
                Err(_) => {
                    return Err(format!(
                        "user {}: a key has 16 bytes",
                        user.name.escape_debug()
                    ));
                }
            },
            Credential::Password(password) => {
                auth.add_user(&user.name, &String::from_utf8_lossy(password.expose()))
            }
        };
        added.map_err(|error| format!("user {}: {error}", user.name.escape_debug()))?;
    }
    for secret in &from.rest_secrets {
        auth.add_rest_secret(secret.expose())
            .map_err(|error| format!("static-auth-secret: {error}"))?;
    }
    auth.rest_separator = char::from(from.rest_separator);
    if let Some(from) = &from.third_parties {
        let text = |error| format!("oauth-key: {error}");
        let mut third_parties = ThirdParties::new(&from.server_name).map_err(text)?;
        for key in &from.keys {
            third_parties
                .add_key(&key.name, key.cipher, key.key.expose(), None, None)
                .map_err(text)?;
        }
        auth.third_parties = Some(third_parties);
    }
    auth.nonce_lifetime = NonceLifetime::new(from.nonce_lifetime)
        .ok_or("stale-nonce: 1 to 3600 seconds are allowed")?;
    // Without a configured key all shards still share one, so that a client whom the kernel moves to another shard goes on.
    auth.nonce_key = Some(match &from.nonce_secret {
        Some(secret) => NonceKey::from_secret(secret.expose()),
        None => NonceKey::random(&mut OsRandom::new()),
    });
    Ok(auth)
}

/// What may go at once to a source that proved nothing, in seconds' worth: clients of one household or office come together.
const EXCESS_BURST_S: u32 = 8;
/// The same for all bytes, where the answers that cost nothing count too.
const BYTES_BURST_S: u32 = 4;

fn unverified(config: &Config) -> UnverifiedLimits {
    let from = &config.authentication;
    let rate = |per_s: u32, burst_s| Rate {
        burst: per_s.saturating_mul(burst_s),
        per_s,
    };
    UnverifiedLimits {
        excess: rate(
            from.unverified_excess_bytes_per_second.get(),
            EXCESS_BURST_S,
        ),
        bytes: rate(from.unverified_bytes_per_second.get(), BYTES_BURST_S),
        answers_per_s: from.unauthorized_replies_per_second.map(Into::into),
        ..UnverifiedLimits::default()
    }
}

fn policy(config: &Config) -> PolicyRules {
    let mut policy = PolicyRules {
        deny_special_purpose: !config.peers.allow_private,
        allow_loopback: config.peers.allow_loopback,
        nat64_prefixes: config.peers.nat64_prefixes.clone(),
        ranges_open_own: config.persona == Persona::Turnserver,
        ..PolicyRules::strict()
    };
    let allowed = config
        .peers
        .allowed
        .iter()
        .map(|range| (Action::Allow, range));
    let denied = config
        .peers
        .denied
        .iter()
        .map(|range| (Action::Deny, range));
    if config.persona == Persona::Turnserver {
        // Multicast is what begins with 224 or more to coturn, and so no-multicast-peers closes what is reserved too.
        let reserved = AddressRange::prefix(Ipv4Addr::new(240, 0, 0, 0).into(), 4);
        policy.rules.extend(reserved.ok().map(|range| Rule {
            action: Action::Deny,
            range,
        }));
    }
    policy.rules.extend(
        allowed
            .chain(denied)
            .map(|(action, &range)| Rule { action, range }),
    );
    policy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Machine, Request, load};

    #[test]
    fn the_defaults_of_the_option_table_are_those_of_the_engine() {
        let machine = Machine::discover().unwrap();
        let Ok(Request::Run(loaded)) = load(vec!["--user=a:b".into()], &machine) else {
            panic!("a single user is a whole configuration");
        };
        let ours = engine(&loaded.config).unwrap();
        let theirs = EngineConfig::default();
        assert_eq!(
            format!("{:?}", ours.unverified),
            format!("{:?}", theirs.unverified)
        );
        assert_eq!(format!("{:?}", ours.limits), format!("{:?}", theirs.limits));
        assert_eq!(
            format!("{:?}", ours.lifetimes),
            format!("{:?}", theirs.lifetimes)
        );
        assert_eq!(ours.relay_ports, theirs.relay_ports);
    }

    /// H3: strangers leave descriptors to relay sockets, and what holds per address holds for all shards together.
    #[test]
    fn connections_without_an_allocation_take_half_of_the_descriptors_at_most() {
        let machine = Machine::discover().unwrap();
        let arguments = ["--user=a:b", "--relay-threads=4"].map(Into::into);
        let Ok(Request::Run(loaded)) = load(arguments.to_vec(), &machine) else {
            panic!("a whole configuration");
        };
        let limits = |descriptors| connections_without_allocation(&loaded.config, descriptors);
        assert_eq!(limits(Some(1024)).total, 128);
        assert_eq!(limits(Some(1 << 20)).total, 4096);
        assert_eq!(limits(None).total, 4096);
        assert_eq!(limits(Some(3)).total, 1);
        assert_eq!(limits(None).per_source, 256);
    }
}
