//! The configuration while lines are being taken over: values are single and valid, but not yet known to fit together.

use std::collections::BTreeMap;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::time::Duration;

use turnbuckle_engine::{AddressRange, Nat64Prefix};

use super::lenient;
use super::persona::Persona;
use super::problem::{Note, Origin, Problem};
use super::redirection::Written;
use super::settings::{
    Accept, Backend, Coalesce, Credential, DefaultFamily, Http, Level, Limits, Log, Process,
    Proxies, Relays, Stun, Timestamps, Tls,
};
use super::third_parties;
use super::tls::{CIPHER_SUITES, KEY_EXCHANGE_GROUPS};
use super::{Secret, syslog};

/// Lifetime that RFC 8656 recommends as upper bound for allocations (§7.2).
pub(super) const ALLOCATION_LIFETIME_MAX_S: u64 = 3600;
/// Lifetime of a channel binding (RFC 8656 §12).
pub(super) const CHANNEL_LIFETIME_S: u64 = 600;
/// Lifetime of a permission (RFC 8656 §9).
pub(super) const PERMISSION_LIFETIME_S: u64 = 300;

const fn nonzero_u32(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("a constant above zero")
}

const fn nonzero_u16(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).expect("a constant above zero")
}

/// Values as they were given, or their defaults. Cross-checked and completed by `finish`.
pub(super) struct Draft {
    /// Where each key was written, by the table's name for it. Keys that were not written are absent.
    pub(super) origins: BTreeMap<&'static str, Vec<Origin>>,
    pub(super) problems: Vec<Problem>,
    pub(super) persona: Persona,
    pub(super) notes: Vec<Note>,

    pub(super) listening_port: u16,
    pub(super) alt_listening_port: u16,
    pub(super) alt_tls_listening_port: u16,
    pub(super) auxiliary: Vec<(String, Origin)>,
    pub(super) nat_discovery: bool,
    pub(super) listening_device: Option<Box<str>>,
    pub(super) relay_device: Option<Box<str>>,
    pub(super) no_udp: bool,
    pub(super) no_tcp: bool,
    pub(super) listening_ips: Vec<(String, Origin)>,
    pub(super) relay_ips: Vec<(String, Origin)>,
    pub(super) external_ips: Vec<(String, Origin)>,
    pub(super) min_port: u16,
    pub(super) max_port: u16,
    pub(super) default_family: DefaultFamily,
    pub(super) keep_family: bool,

    pub(super) relay_threads: Option<u16>,
    pub(super) cpus: Option<NonZeroU16>,
    pub(super) pin_threads: bool,
    pub(super) accept: Accept,
    pub(super) backend: Backend,
    pub(super) batched_receive: bool,
    pub(super) segmentation: Option<bool>,
    pub(super) coalesce: Duration,
    pub(super) coalesce_policy: Coalesce,
    pub(super) socket_buffer_bytes: NonZeroU32,
    pub(super) log_receive: bool,
    pub(super) log_send: bool,

    pub(super) long_term_credentials: Option<bool>,
    pub(super) rest_enabled: Option<bool>,
    pub(super) users_beside_secrets: Option<bool>,
    pub(super) realm: Option<String>,
    pub(super) users: Vec<(String, Credential, Origin)>,
    pub(super) rest_secrets: Vec<Secret>,
    pub(super) user_database: Option<PathBuf>,
    pub(super) no_peer_rules_from_database: bool,
    pub(super) no_realms_from_database: bool,
    pub(super) rest_separator: u8,
    pub(super) third_parties: third_parties::Written,
    pub(super) nonce_lifetime: Duration,
    pub(super) nonce_secret: Option<Secret>,
    pub(super) binding_needs_credentials: bool,
    pub(super) checks_origin: bool,
    pub(super) limit_unauthorized: bool,
    pub(super) unauthorized_per_second: NonZeroU32,
    pub(super) unverified_excess_bytes_per_second: NonZeroU32,
    pub(super) unverified_bytes_per_second: NonZeroU32,

    pub(super) alternates: Written,
    pub(super) relays: Relays,
    pub(super) limits: Limits,
    pub(super) allowed_peers: Vec<AddressRange>,
    pub(super) denied_peers: Vec<AddressRange>,
    pub(super) nat64_prefixes: Vec<Nat64Prefix>,
    pub(super) allow_loopback: bool,
    pub(super) tls: Tls,
    pub(super) proxies: Proxies,
    pub(super) http: Http,
    pub(super) stun: Stun,
    pub(super) log: Log,
    pub(super) syslog_facility: u8,
    pub(super) process: Process,
}

impl Draft {
    pub(super) fn new(persona: Persona) -> Self {
        Self {
            origins: BTreeMap::new(),
            problems: Vec::new(),
            persona,
            notes: Vec::new(),
            listening_port: 3478,
            alt_listening_port: 0,
            alt_tls_listening_port: 0,
            auxiliary: Vec::new(),
            nat_discovery: false,
            listening_device: None,
            relay_device: None,
            no_udp: false,
            no_tcp: false,
            listening_ips: Vec::new(),
            relay_ips: Vec::new(),
            external_ips: Vec::new(),
            min_port: 49152,
            max_port: u16::MAX,
            default_family: DefaultFamily::V4,
            keep_family: false,
            relay_threads: None,
            cpus: None,
            pin_threads: true,
            accept: Accept::Reuseport,
            backend: Backend::Auto,
            batched_receive: true,
            segmentation: None,
            coalesce: Duration::from_micros(500),
            coalesce_policy: Coalesce::Latency,
            socket_buffer_bytes: nonzero_u32(2 << 20),
            log_receive: false,
            log_send: false,
            long_term_credentials: None,
            rest_enabled: None,
            users_beside_secrets: None,
            realm: None,
            users: Vec::new(),
            rest_secrets: Vec::new(),
            user_database: None,
            no_peer_rules_from_database: false,
            no_realms_from_database: false,
            rest_separator: b':',
            third_parties: third_parties::Written::default(),
            nonce_lifetime: Duration::from_secs(600),
            nonce_secret: None,
            binding_needs_credentials: false,
            checks_origin: false,
            limit_unauthorized: false,
            unauthorized_per_second: nonzero_u32(10),
            unverified_excess_bytes_per_second: nonzero_u32(8192),
            unverified_bytes_per_second: nonzero_u32(32_768),
            alternates: Written::default(),
            relays: Relays {
                udp: true,
                tcp: persona == Persona::Turnserver,
                connect_port_min: 1024,
                masks_connect_errors: false,
                connects_per_second: nonzero_u32(10),
                pending_connects: nonzero_u32(64),
                connections_per_allocation: nonzero_u16(256),
            },
            limits: Limits {
                allocations_per_user: None,
                allocations_total: None,
                allocations_per_shard: nonzero_u32(65_536),
                permissions_per_allocation: nonzero_u16(1024),
                channels_per_allocation: nonzero_u16(1024),
                allocation_lifetime_max: Duration::from_secs(ALLOCATION_LIFETIME_MAX_S),
                channel_lifetime: Duration::from_secs(CHANNEL_LIFETIME_S),
                permission_lifetime: Duration::from_secs(PERMISSION_LIFETIME_S),
                stream_deadline: Duration::from_secs(10),
                stream_idle: Duration::from_secs(60),
                time_without_allocation: Duration::from_secs(600),
                connections_without_allocation: nonzero_u32(4096),
                connections_without_allocation_per_address: nonzero_u32(1024),
                bytes_per_second: None,
                capacity_bytes_per_second: None,
                drained: 0,
                dtls_without_allocation: nonzero_u32(2048),
                dtls_without_allocation_per_address: nonzero_u32(256),
                dtls_sessions: nonzero_u32(16_384),
            },
            allowed_peers: Vec::new(),
            denied_peers: Vec::new(),
            nat64_prefixes: Vec::new(),
            allow_loopback: false,
            tls: Tls {
                wanted: true,
                dtls_wanted: false,
                port: 5349,
                certificate: None,
                key: None,
                key_password: None,
                client_authorities: None,
                only_tls13: false,
                cipher_suites: CIPHER_SUITES.to_vec(),
                groups: KEY_EXCHANGE_GROUPS.to_vec(),
            },
            proxies: Proxies {
                port: None,
                sources: Vec::new(),
                datagram_sources: Vec::new(),
            },
            http: Http {
                answers: false,
                acme_redirect: None,
            },
            stun: Stun {
                stun_only: false,
                no_binding: false,
                fingerprint: false,
                software: false,
                mapped_address: false,
                rfc5766_channel_numbers: false,
                rfc3489_binding: false,
                mobility: false,
                detailed_reasons: false,
            },
            log: Log {
                sessions: false,
                requests: false,
                binding: false,
                statistics_interval: Duration::from_secs(10),
                statistics_file: None,
                to_stdout: true,
                file: None,
                usual_file: persona == Persona::Turnserver,
                is_dated: true,
                syslog: None,
                level_min: Level::Debug,
                timestamps: match persona {
                    Persona::Turnbuckle => Timestamps::None,
                    Persona::Turnserver => Timestamps::Format(Timestamps::ISO.into()),
                },
            },
            syslog_facility: syslog::DAEMON,
            process: Process {
                is_daemon: false,
                pid_file: (persona == Persona::Turnserver)
                    .then(|| "/var/run/turnserver.pid".into()),
                user: None,
                group: None,
            },
        }
    }

    /// Where `key` was last written; the command line if it was not.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.origins
            .get(key)
            .and_then(|all| all.last())
            .cloned()
            .unwrap_or(Origin::CommandLine)
    }

    pub(super) fn is_given(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Remembers a problem of `key` at the place where it was last written; one that coturn lives with is a note where this is `turnserver`.
    pub(super) fn problem(&mut self, key: &str, message: impl Into<String>) {
        if self.persona == Persona::Turnserver && !lenient::is_fatal_together(key) {
            self.note(key, message);
            return;
        }
        let origin = self.origin(key);
        self.problems.push(Problem::new(&origin, key, message));
    }

    /// Remembers what is wrong with a value written at `origin`. Where this is `turnserver`, which starts as coturn does, it is a note that says what is
    /// done `instead`.
    pub(super) fn misfit(
        &mut self,
        origin: &Origin,
        key: &str,
        message: impl Into<String>,
        instead: &str,
    ) {
        let problem = Problem::new(origin, key, message);
        match self.persona {
            Persona::Turnbuckle => self.problems.push(problem),
            Persona::Turnserver => self.notes.push(Note::of(problem.hint(instead))),
        }
    }

    pub(super) fn note(&mut self, key: &str, text: impl Into<String>) {
        let origin = self.origins.get(key).and_then(|all| all.last()).cloned();
        self.notes.push(Note {
            origin,
            key: key.to_owned(),
            text: text.into(),
        });
    }

    /// Says what a range of peers under `key` does not mean.
    pub(super) fn peer_range(&mut self, key: &str, range: AddressRange) {
        if range.is_mapped() {
            let text = format!(
                "{range} is about IPv4-mapped forms, which are refused as peers anyway; IPv4 peers are judged by IPv4 ranges, such as {}",
                range.canonical()
            );
            self.note(key, text);
        }
    }
}

/// Splits `name:password` or `name:0xKEY` at the first colon. Errors never repeat the text.
pub(super) fn user(text: &str) -> Result<(String, Credential), String> {
    let Some((name, secret)) = text.split_once(':') else {
        return Err("has no `:` between name and password".to_owned());
    };
    if name.is_empty() {
        return Err("has no name before the `:`".to_owned());
    }
    if name.len() > 508 {
        return Err("has a name of more than 508 bytes (RFC 8489 §14.3)".to_owned());
    }
    if secret.is_empty() {
        return Err("has no password after the `:`".to_owned());
    }
    if secret.len() > 256 {
        return Err("has a password of more than 256 bytes".to_owned());
    }
    let credential = match secret.strip_prefix("0x") {
        Some(digits) => Credential::Md5Key(Secret::new(key(digits)?)),
        None => Credential::Password(Secret::new(secret.as_bytes())),
    };
    Ok((name.to_owned(), credential))
}

fn key(digits: &str) -> Result<Vec<u8>, String> {
    let wrong = || "begins with 0x but is not 32 hexadecimal digits".to_owned();
    let nibbles: Vec<u8> = digits
        .chars()
        .map_while(|digit| digit.to_digit(16))
        .filter_map(|digit| u8::try_from(digit).ok())
        .collect();
    if digits.len() != 32 || nibbles.len() != 32 {
        return Err(wrong());
    }
    Ok(nibbles
        .chunks_exact(2)
        .map(|pair| pair.iter().fold(0, |byte, nibble| byte << 4 | nibble))
        .collect())
}
