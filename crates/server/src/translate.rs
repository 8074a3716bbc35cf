//! From the validated configuration to what engine and data path want to be told.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use turnbuckle_datapath::{
    Accepting, BURST_DATAGRAMS, Backend, BufferBudget, BufferSettings, CoalescePolicy, Devices,
    RELAY_START_BYTES, Settings,
};
use turnbuckle_engine::{
    Action, AddressRange, Alternate, AnswerConfig, Asks, AuthConfig, Bandwidth, BindingConfig,
    Config as EngineConfig, Fingerprint, Lifetimes, Limits, MobilityConfig, NonceLifetime,
    PolicyRules, Rate, Redirection, RelayAddress, RelayConfig, Rule, Service, SharedRelays,
    TcpRelays, ThirdParties, UnverifiedLimits,
};

use crate::config::{Config, Credential, Masque, Persona, SharedRelayPorts};
use crate::control::keys::KeyRing;
use crate::control::limits::connections_without_allocation;
use crate::handle::SessionNumbers;
use crate::log::{Lines, Scope};
use crate::resolve::Resolver;
use crate::shard::book::{BookLimits, CrowdLimits};
use crate::shard::front::all::DatagramService;
use crate::shard::front::dtls::{DtlsLimits, DtlsService};
use crate::shard::front::proxy::Proxies;
use crate::shard::front::quic::{QuicService, Surroundings};
use crate::shard::front::stream::{HttpService, StreamService, TunnelService};
use crate::shard::serving::{Logged, Serving};
use crate::tls::Certificates;

/// Most bytes of `SO_RCVBUF` that the relay sockets may have together beyond what is free to each.
const RELAY_BUFFER_BUDGET_MAX: u64 = 1024 * 1024 * 1024;
/// The part of the machine's memory that this is at most. The kernel accounts the double.
const RELAY_BUFFER_MEMORY_PART: u64 = 16;

/// Returns what the receive buffers of relay sockets may have together on this machine.
pub(crate) fn relay_buffer_budget() -> Arc<BufferBudget> {
    let memory = rustix::system::sysinfo();
    let memory = memory.totalram.saturating_mul(memory.mem_unit.into());
    let part = memory / RELAY_BUFFER_MEMORY_PART;
    Arc::new(BufferBudget::new(part.min(RELAY_BUFFER_BUDGET_MAX)))
}

/// Returns a sentence about bursts that new relay sockets cannot hold, if the system grants them a receive buffer of `granted` bytes only.
pub(crate) fn short_receive_buffer(granted: u32) -> Option<String> {
    (granted < RELAY_START_BYTES).then(|| {
        format!(
            "relay sockets get receive buffers of {granted} bytes, and a burst of {BURST_DATAGRAMS} full datagrams needs {RELAY_START_BYTES}: \
             set `sysctl -w net.core.rmem_max=4194304`, or give the process CAP_NET_ADMIN"
        )
    })
}

/// Returns the backend to run, and a line that says why it was chosen.
pub(crate) fn backend(chosen: Option<Backend>) -> (Backend, String) {
    match chosen {
        Some(backend) => (backend, format!("data path: {backend}, as configured")),
        None => Backend::probe(),
    }
}

/// Returns how the shards share connections.
///
/// # Errors
///
/// The kernel does not tell which processors may be used.
pub(crate) fn accepting(config: &Config) -> io::Result<Accepting> {
    let datapath = &config.datapath;
    Accepting::new(datapath.accept, datapath.shards.get().into())
}

/// Returns the data path of one shard.
pub(crate) fn datapath(
    config: &Config,
    backend: Backend,
    accepting: &Accepting,
    budget: &Arc<BufferBudget>,
    (coalesce_policy, coalesce): (CoalescePolicy, Duration),
) -> Settings {
    Settings {
        backend,
        accepting: accepting.clone(),
        coalesce,
        coalesce_policy,
        buffers: BufferSettings {
            budget: Arc::clone(budget),
            listener: config.datapath.socket_buffer_bytes,
            ..BufferSettings::default()
        },
        devices: Devices {
            listeners: config
                .addresses
                .devices
                .listening
                .as_deref()
                .map(Into::into),
            relays: config.addresses.devices.relay.as_deref().map(Into::into),
        },
        ..Settings::default()
    }
}

/// Returns how connections are served, with `certificates` if TLS is spoken, as far as it is not in `serving`. With a `resolver` there are tunnels of
/// UDP in HTTP.
pub(crate) fn streams(
    config: &Config,
    serving: &Serving,
    certificates: Option<&Certificates>,
    resolver: Option<&Resolver>,
) -> StreamService {
    StreamService {
        limits: serving.streams,
        tls: certificates.and_then(Certificates::shared),
        serves_any_alpn: config.tls.alpn.serves_any,
        serves_plain: config.addresses.tcp,
        proxies: Proxies {
            sources: serving.proxies.clone(),
            datagram_sources: serving.datagram_proxies.clone(),
            only: config.protocols.proxies.port.is_some(),
        },
        tunnels: resolver.map(|resolver| TunnelService {
            serves_plain: config.protocols.http.masque == Masque::Plain,
            serves_bound: config.protocols.http.masque_bind,
            resolver: resolver.clone(),
        }),
        http: serving.http.clone(),
    }
}

/// Returns how datagrams are served, with `certificates` if DTLS or QUIC is spoken, as far as it is not in `serving`. All shards get the same, because
/// they share the keys. With a `resolver` there are tunnels of UDP in HTTP/3.
pub(crate) fn datagrams(
    config: &Config,
    serving: &Serving,
    certificates: Option<&Certificates>,
    keys: &KeyRing,
    resolver: Option<&Resolver>,
) -> DatagramService {
    let context = certificates.and_then(Certificates::shared_dtls);
    let quic = certificates.and_then(Certificates::shared_quic);
    DatagramService {
        serves_plain: config.addresses.udp,
        routes: None,
        dtls: context.map(|context| DtlsService {
            context,
            cookies: keys.cookies.clone(),
            limits: serving.datagrams,
        }),
        quic: quic.map(|tls| QuicService {
            surroundings: Surroundings::Machine(tls),
            keys: keys.quic.clone(),
            book: serving.datagrams.book,
            serves_bound: config.protocols.http.masque_bind,
            resolver: resolver.cloned(),
            is_steered: config.tls.quic.is_steered,
        }),
    }
}

/// Returns how every shard serves clients, as far as that may change while it runs, in a process that may have so many `descriptors`.
pub(crate) fn serving(config: &Config, descriptors: Option<u64>) -> Serving {
    let limits = &config.limits.clients;
    // Who has no allocation has the same limits of time whatever the protocol.
    let book = |crowd| BookLimits {
        handshake: limits.stream_deadline,
        first_message: limits.stream_deadline,
        message: limits.stream_deadline,
        idle: limits.stream_idle,
        unallocated: limits.time_without_allocation,
        crowd,
    };
    Serving {
        streams: book(connections_without_allocation(config, descriptors)),
        datagrams: DtlsLimits {
            book: book(CrowdLimits {
                total: limits.dtls_without_allocation as usize,
                per_source: CrowdLimits::share(
                    limits.dtls_without_allocation_per_address,
                    usize::from(config.datapath.shards.get()),
                ),
            }),
            sessions: limits.dtls_sessions as usize,
        },
        proxies: config.protocols.proxies.sources.clone(),
        datagram_proxies: config.protocols.proxies.datagram_sources.clone(),
        http: HttpService {
            answers: config.protocols.http.answers,
            acme_redirect: config.protocols.http.acme_redirect.clone(),
        },
        log: Logged {
            wanted: Lines {
                sessions: config.log.sessions || config.log.requests,
                binding: config.log.binding,
            },
            requests: config.log.requests,
            summaries: config.log.has_summaries(),
            limits_answers: config
                .authentication
                .requests
                .unauthorized_replies_per_second
                .is_some(),
            stateless_nonces: config.authentication.requests.announcing_nonces,
        },
        coalesce: (config.datapath.coalesce_policy, config.datapath.coalesce),
    }
}

/// Returns what shard `shard` of `shards` logs.
pub(crate) fn log(config: &Config, serving: &Serving, shard: usize, shards: usize) -> Scope {
    Scope {
        persona: config.persona,
        logged: serving.log,
        numbers: SessionNumbers::of_now(),
        shard,
        shards,
        realm: config.authentication.realm.clone(),
    }
}

/// Returns the configuration of every shard's engine.
///
/// # Errors
///
/// Names what the engine does not take: a name, password or secret, named without its value.
pub(crate) fn engine(config: &Config, keys: &KeyRing) -> Result<EngineConfig, String> {
    let stun = &config.stun;
    let limits = &config.limits;
    Ok(EngineConfig {
        auth: authentication(config, keys)?,
        policy: policy(config),
        unverified: unverified(config),
        service: match (stun.stun_only, stun.no_binding) {
            (true, _) => Service::StunOnly,
            (false, true) => Service::TurnOnly,
            (false, false) => Service::StunAndTurn,
        },
        answers: AnswerConfig {
            fingerprint: if stun.fingerprint {
                Fingerprint::Always
            } else {
                Fingerprint::Mirror
            },
            software: stun
                .software
                .then(|| concat!("Turnbuckle-", env!("CARGO_PKG_VERSION")).into()),
            detailed_reasons: stun.detailed_reasons,
            ..AnswerConfig::default()
        },
        binding: BindingConfig {
            secure_stun: config.authentication.requests.binding_needs_credentials,
            mapped_address: stun.mapped_address,
            rfc3489_binding: stun.rfc3489_binding,
            passes_over_discovery: config.persona == Persona::Turnserver,
        },
        lifetimes: Lifetimes {
            allocation_max: limits.allocation_lifetime_max,
            permission: limits.permission_lifetime,
            channel: limits.channel_lifetime,
            ..Lifetimes::default()
        },
        limits: Limits {
            user_quota: limits.allocations_per_user.map(Into::into),
            total_quota: limits.allocations_total.map(Into::into),
            allocations: limits.allocations_per_shard,
            tombstones: limits.allocations_per_shard.saturating_mul(2).max(4_096),
            permissions_per_allocation: limits.permissions_per_allocation,
            channels_per_allocation: limits.channels_per_allocation,
            bandwidth: Bandwidth {
                bytes_per_s: limits.bytes_per_second,
                capacity_bytes_per_s: limits.capacity_bytes_per_second,
            },
            ..Limits::default()
        },
        relays: relays(config),
        mobility: MobilityConfig {
            key: stun.mobility.then(|| keys.tickets.clone()),
            resume_with_old_nonce: config.persona == Persona::Turnserver,
        },
        redirection: redirection(config),
        ..EngineConfig::default()
    })
}

fn relays(config: &Config) -> RelayConfig {
    let from = &config.addresses;
    let addresses = from.relays.iter();
    RelayConfig {
        addresses: addresses
            .map(|&local| relay_address(config, local))
            .collect(),
        former: from.former.addresses.clone(),
        ports: from.relay_ports.min.get()..=from.relay_ports.max.get(),
        udp: config.relays.udp,
        shared: config.datapath.shared_relays.map(|shared| SharedRelays {
            addresses: shared_addresses(config, shared),
            peers_per_allocation: shared.peers_per_allocation,
        }),
        tcp: config.relays.tcp.then(|| tcp_relays(config)),
        default_family: from.default_family,
        rfc5766_channel_numbers: config.stun.rfc5766_channel_numbers,
        check_origin: config.authentication.requests.checks_origin,
        ..RelayConfig::default()
    }
}

/// Returns where each shard binds its shared relay sockets, of IPv4 and of IPv6.
pub(crate) fn shared_addresses(
    config: &Config,
    shared: SharedRelayPorts,
) -> Vec<[Option<SocketAddr>; 2]> {
    let [v4, v6] = config.addresses.shared_relays();
    let shards = 0..config.datapath.shards.get();
    shards
        .map(|shard| {
            let ports = shared.ports_of(shard);
            [v4.zip(Some(ports[0])), v6.zip(Some(ports[1]))].map(|at| at.map(SocketAddr::from))
        })
        .collect()
}

/// Seconds' worth of connections that a user may begin at once.
const CONNECTS_BURST_S: u32 = 10;

fn tcp_relays(config: &Config) -> TcpRelays {
    let from = &config.relays;
    TcpRelays {
        peer_ports: vec![from.connect_port_min..=u16::MAX],
        mask_connect_errors: from.masks_connect_errors,
        connections_per_allocation: from.connections_per_allocation,
        pending_per_user: from.pending_connects,
        connects_per_user: Rate {
            burst: from.connects_per_second.saturating_mul(CONNECTS_BURST_S),
            per_s: from.connects_per_second,
        },
        ..TcpRelays::default()
    }
}

/// Returns the lists of alternate servers by transport. A transport without a list of its own has the other one's.
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

pub(crate) fn relay_address(config: &Config, local: IpAddr) -> RelayAddress {
    let public = config.addresses.public(local);
    RelayAddress {
        local,
        external: (public != local).then_some(public),
    }
}

fn authentication(config: &Config, keys: &KeyRing) -> Result<AuthConfig, String> {
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
            Credential::Password(password) => auth.add_user(&user.name, password.expose()),
        };
        added.map_err(|error| format!("user {}: {error}", user.name.escape_debug()))?;
    }
    for secret in &from.rest_secrets {
        auth.add_rest_secret(secret.expose())
            .map_err(|error| format!("static-auth-secret: {error}"))?;
    }
    auth.rest_separator = char::from(from.rest_separator);
    auth.credential_expiry = from.credential_expiry;
    auth.dialect.wrong_realm_is_mismatch = config.persona == Persona::Turnserver;
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
    auth.nonce_lifetime = NonceLifetime::new(from.requests.nonce_lifetime)
        .ok_or("stale-nonce: 1 to 3600 seconds are allowed")?;
    auth.dialect.plain_nonces = !from.requests.announcing_nonces;
    auth.nonce_key = Some(keys.nonces.clone());
    auth.guest_sources.clone_from(&from.guests.sources);
    auth.asks = match &from.database {
        Some(database) if database.asks && database.has_users => Asks::Users,
        Some(database) if database.asks => Asks::Secrets,
        _ => Asks::Never,
    };
    Ok(auth)
}

/// Burst that a source without proof may be sent, in seconds of its rate: clients of one household or office come together.
const EXCESS_BURST_S: u32 = 8;
/// The same for all bytes, where the answers that cost nothing count too.
const BYTES_BURST_S: u32 = 4;

fn unverified(config: &Config) -> UnverifiedLimits {
    let from = &config.authentication.requests;
    let rate = |per_s: u32, burst_s| Rate {
        burst: per_s.saturating_mul(burst_s),
        per_s,
    };
    UnverifiedLimits {
        excess: rate(from.unverified_excess_bytes_per_second, EXCESS_BURST_S),
        bytes: rate(from.unverified_bytes_per_second, BYTES_BURST_S),
        answers_per_s: from.unauthorized_replies_per_second.map(Into::into),
        ..UnverifiedLimits::default()
    }
}

fn policy(config: &Config) -> PolicyRules {
    let from = &config.relays.peers;
    let mut policy = PolicyRules {
        deny_special_purpose: !from.allow_private,
        allow_loopback: from.allow_loopback,
        nat64_prefixes: from.nat64_prefixes.clone(),
        ranges_open_own: config.persona == Persona::Turnserver,
        ..PolicyRules::strict()
    };
    let allowed = from.allowed.iter().map(|range| (Action::Allow, range));
    let denied = from.denied.iter().map(|range| (Action::Deny, range));
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
    use crate::configured::configured;

    #[test]
    fn the_defaults_of_the_option_table_are_those_of_the_engine() {
        let config = configured(&[]);
        let ours = engine(&config, &KeyRing::new(&config)).unwrap();
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
        assert_eq!(ours.relays.ports, theirs.relays.ports);
    }
}
