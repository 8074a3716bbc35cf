//! Whether the values fit together, and what follows from them for this machine.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use turnbuckle_engine::{Action, AddressRange, AuthConfig, Forbidden, Policy, PolicyRules, Rule};

use super::Secret;
use super::addresses::addresses;
use super::draft::Draft;
use super::lenient;
use super::load::Loaded;
use super::machine::Machine;
use super::persona::Persona;
use super::problem::{Note, Problem, Problems};
use super::redirection::redirection;
use super::settings::{
    Accept, Authentication, Backend, Config, Credential, Datapath, DefaultFamily, PeerRules,
    StaticUser, Threads, UserDatabase,
};
use super::third_parties::third_parties;

/// Most shards: coturn's limit, and more than any machine this was measured on has processors.
pub(super) const SHARDS_MAX: u16 = 128;
/// Realm where neither configuration nor host name says one.
const REALM_OF_LAST_RESORT: &str = "turnbuckle";
/// Name of the user that is made up where no credentials are configured.
const GENERATED_USER: &str = "guest";

/// Checks the draft as a whole and completes it with what `machine` offers.
pub(super) fn finish(mut draft: Draft, machine: &Machine) -> Result<Loaded, Problems> {
    if draft.persona == Persona::Turnserver {
        lenient::find_certificates(&mut draft);
        if draft.relays.tcp && !draft.is_given("no-tcp-relay") {
            draft.note(
                "no-tcp-relay",
                "clients can connect to TCP services of peers unless this key is given (coturn's default; `turnbuckle serve` offers no TCP relays)",
            );
        }
        draft.note(
            "denied-peer-ip",
            "clients can reach private networks unless this key denies them (coturn's default; `turnbuckle serve` denies them)",
        );
    }
    if draft.log.syslog.is_some() {
        draft.log.syslog = Some(draft.syslog_facility);
    }
    if draft.tls.port == 0 {
        draft.tls.port = draft.listening_port;
    }
    contradictions(&mut draft);
    own_addresses(&mut draft, machine);
    let addresses = addresses(&mut draft, machine);
    let redirection = redirection(&mut draft, &addresses, machine);
    let authentication = authentication(&mut draft, machine);
    let threads = threads(&mut draft, machine);
    let datapath = Datapath {
        backend: backend(&mut draft),
        coalesce: draft.coalesce,
        coalesce_policy: draft.coalesce_policy,
        socket_buffer_bytes: draft.socket_buffer_bytes,
        log_receive: draft.log_receive,
        log_send: draft.log_send,
    };
    let config = Config {
        persona: draft.persona,
        addresses,
        threads,
        datapath,
        authentication,
        relays: draft.relays,
        limits: draft.limits,
        peers: PeerRules {
            allowed: draft.allowed_peers,
            denied: draft.denied_peers,
            nat64_prefixes: draft.nat64_prefixes,
            allow_loopback: draft.allow_loopback,
            allow_private: draft.persona == Persona::Turnserver,
        },
        redirection,
        tls: draft.tls,
        proxies: draft.proxies,
        http: draft.http,
        stun: draft.stun,
        log: draft.log,
        process: draft.process,
    };
    if !draft.problems.is_empty() {
        // Stable: problems of one place stay in the order in which they were found.
        draft
            .problems
            .sort_by(|one, other| one.origin.cmp(&other.origin));
        return Err(Problems(draft.problems));
    }
    Ok(Loaded {
        config,
        notes: draft.notes,
        origins: draft.origins,
    })
}

fn contradictions(draft: &mut Draft) {
    let log = &draft.log;
    if !log.to_stdout && log.file.is_none() && !log.usual_file && log.syslog.is_none() {
        draft.problem(
            "no-stdout-log",
            "leaves lines nowhere to go; give `log-file` or `syslog` too",
        );
    }
    if draft.stun.rfc3489_binding && draft.binding_needs_credentials {
        draft.problem(
            "rfc3489-compatibility",
            "contradicts `secure-stun`: classic STUN has no credentials; give one of the two",
        );
    }
    if draft.stun.stun_only && draft.stun.no_binding {
        draft.problem(
            "no-stun",
            "together with `stun-only` nothing would be served; give one of the two",
        );
    }
    if !draft.relays.udp && !draft.relays.tcp {
        draft.problem(
            "no-udp-relay",
            "without `no-tcp-relay=false` nothing would be relayed; use `stun-only` to turn relaying off",
        );
    }
    super::tls::check(draft);
    super::proxies::check(draft);
    super::unused::note(draft);
    if draft.min_port > draft.max_port {
        let (min, max) = (draft.min_port, draft.max_port);
        let key = if draft.is_given("min-port") {
            "min-port"
        } else {
            "max-port"
        };
        let origin = draft.origin(key);
        (draft.min_port, draft.max_port) = (max, min);
        draft.misfit(
            &origin,
            key,
            format!("min-port {min} is above max-port {max}; allowed: min-port up to max-port"),
            "taken the other way round",
        );
    }
    if draft.keep_family
        && draft.is_given("allocation-default-address-family")
        && draft.default_family != DefaultFamily::Client
    {
        draft.problem(
            "keep-address-family",
            "contradicts `allocation-default-address-family`; give that one alone",
        );
    }
    if draft.accept == Accept::Cpu && !draft.pin_threads {
        draft.problem(
            "accept",
            "`cpu` gives connections to the shard that stays on their processor, and pin-threads=false lets shards move; allowed then: reuseport, exclusive, shared",
        );
    }
    if draft.limits.capacity_bytes_per_second.is_some() && draft.limits.bytes_per_second.is_none() {
        draft.problem(
            "bps-capacity",
            "shares out what `max-bps` promises; give that too",
        );
    }
    if draft.allow_loopback {
        draft.note(
            "allow-loopback-peers",
            "clients can reach every UDP service of this machine that listens on loopback",
        );
    }
    rules_without_effect(draft);
}

/// Tells who comes from coturn that this host's own addresses are no peers, and by which line they are.
fn own_addresses(draft: &mut Draft, machine: &Machine) {
    if draft.persona != Persona::Turnserver || draft.stun.stun_only {
        return;
    }
    let is_in =
        |ranges: &[AddressRange], own: IpAddr| ranges.iter().any(|range| range.contains(own));
    let refused: Vec<IpAddr> = machine
        .addresses
        .iter()
        .copied()
        .filter(|own| !own.is_loopback())
        .filter(|&own| !is_in(&draft.allowed_peers, own) && !is_in(&draft.denied_peers, own))
        .collect();
    if refused.is_empty() {
        return;
    }
    let addresses: Vec<String> = refused.iter().map(IpAddr::to_string).collect();
    let lines: Vec<String> = addresses
        .iter()
        .map(|own| format!("`allowed-peer-ip={own}`"))
        .collect();
    draft.note(
        "allowed-peer-ip",
        format!(
            "clients that send to an address of this host ({}) are refused, where coturn relays to services on it: {} lets them",
            addresses.join(", "),
            lines.join(" or ")
        ),
    );
}

/// Notes what `allowed-peer-ip` names in vain, because no rule opens such addresses.
fn rules_without_effect(draft: &mut Draft) {
    for range in draft.allowed_peers.clone() {
        let action = Action::Allow;
        let policy = Policy::new(PolicyRules {
            allow_loopback: draft.allow_loopback,
            rules: vec![Rule { action, range }],
            ..PolicyRules::strict()
        });
        let refusal = |ip: IpAddr| policy.check(SocketAddr::new(ip, 0)).err();
        // The ends of a range that holds others as well have different reasons, or none.
        if let Some(why) = refusal(range.first())
            && refusal(range.last()) == Some(why)
        {
            let more = match why {
                Forbidden::Loopback => "; `allow-loopback-peers` opens it",
                _ => "",
            };
            draft.note(
                "allowed-peer-ip",
                format!("{range} stays refused, no rule opens it ({why}){more}"),
            );
        }
    }
}

fn threads(draft: &mut Draft, machine: &Machine) -> Threads {
    let processors = draft
        .cpus
        .unwrap_or(machine.processors)
        .min(NonZeroU16::MIN.saturating_add(SHARDS_MAX - 1));
    let shards = match draft.relay_threads {
        Some(0) => {
            draft.note(
                "relay-threads",
                "0 means one shard here: it is what receives and relays",
            );
            NonZeroU16::MIN
        }
        Some(number) => NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN),
        None => processors,
    };
    Threads {
        shards,
        pin: draft.pin_threads,
        accept: draft.accept,
    }
}

fn backend(draft: &mut Draft) -> Backend {
    let implied = match (draft.batched_receive, draft.segmentation) {
        (false, Some(true)) => {
            draft.problem(
                "udp-gso",
                "needs batched receive; remove `udp-recvmmsg=false`",
            );
            Backend::Auto
        }
        (false, _) => Backend::Single,
        (true, Some(true)) => Backend::Gso,
        (true, Some(false)) => Backend::Mmsg,
        (true, None) => Backend::Auto,
    };
    let chosen = draft.backend;
    if chosen == Backend::Auto || implied == Backend::Auto || chosen == implied {
        return if chosen == Backend::Auto {
            implied
        } else {
            chosen
        };
    }
    let other = if implied == Backend::Single {
        "udp-recvmmsg"
    } else {
        "udp-gso"
    };
    draft.problem(
        "udp-backend",
        format!("contradicts `{other}`; give `udp-backend` alone"),
    );
    chosen
}

fn authentication(draft: &mut Draft, machine: &Machine) -> Authentication {
    if draft.rest_enabled == Some(false) && !draft.rest_secrets.is_empty() {
        draft.problem(
            "use-auth-secret",
            "is off and `static-auth-secret` is given; remove one of the two",
        );
    }
    let takes_secrets = draft.rest_enabled.unwrap_or(!draft.rest_secrets.is_empty());
    let users_beside_secrets = draft
        .users_beside_secrets
        .unwrap_or(draft.persona == Persona::Turnbuckle);
    let database = user_database(draft, takes_secrets, users_beside_secrets);
    secrets_and_users(draft, takes_secrets, users_beside_secrets);
    if draft.rest_enabled == Some(true) && draft.rest_secrets.is_empty() && database.is_none() {
        draft.problem(
            "use-auth-secret",
            "needs a secret; give `static-auth-secret`, or `userdb` with secrets in it",
        );
    }
    let has_credentials =
        !draft.users.is_empty() || !draft.rest_secrets.is_empty() || database.is_some();
    if draft.long_term_credentials == Some(false) && has_credentials {
        draft.problem(
            "lt-cred-mech",
            "is off and credentials are given; authentication cannot be turned off; remove the line",
        );
    }
    let realm = match (draft.realm.take(), &machine.domain) {
        (Some(realm), _) => realm,
        (None, domain) => {
            let of_md5_key = draft
                .users
                .iter()
                .find(|(_, credential, _)| matches!(credential, Credential::Md5Key(_)));
            if let Some((_, _, origin)) = of_md5_key
                && draft.persona == Persona::Turnbuckle
            {
                let problem = Problem::new(
                    origin,
                    "user",
                    "is given by its key, which holds for one realm only",
                );
                draft.problems.push(problem.hint("give `realm` too"));
            }
            domain
                .clone()
                .filter(|name| name.len() <= 127)
                .unwrap_or_else(|| match draft.persona {
                    Persona::Turnbuckle => REALM_OF_LAST_RESORT.to_owned(),
                    // The keys that coturn stored are of this realm.
                    Persona::Turnserver => String::new(),
                })
        }
    };
    if realm.is_empty() {
        draft.note(
            "realm",
            "is not given, and the host has no domain name: the realm is empty, as in coturn, and keys in the database are those of an empty realm",
        );
    }
    let mut users = accepted_users(draft, &realm);
    let is_needed = !draft.stun.stun_only || draft.binding_needs_credentials;
    if !has_credentials && draft.persona == Persona::Turnserver {
        draft.note(
            "user",
            "there are no credentials: coturn would let anyone relay, this server answers only Binding requests until `user`, `static-auth-secret` or `userdb` is given",
        );
    } else if !has_credentials && is_needed {
        if draft.log.file.is_some() || draft.log.syslog.is_some() {
            draft.problem(
                "user",
                "none is given, and the password that is made up then would stand in the log; give `user`, `static-auth-secret` or `userdb`",
            );
        }
        users.extend(generated_user(draft, machine));
    }
    let limit = draft
        .limit_unauthorized
        .then_some(draft.unauthorized_per_second);
    if limit.is_none() && draft.is_given("unauthorized-ratelimit-rps") {
        draft.problem(
            "unauthorized-ratelimit-rps",
            "has no effect without `unauthorized-ratelimit`; add that or remove the line",
        );
    }
    let third_parties = third_parties(draft, &realm, database.is_some());
    Authentication {
        third_parties,
        realm: realm.into(),
        users,
        rest_secrets: std::mem::take(&mut draft.rest_secrets),
        users_beside_secrets,
        database,
        rest_separator: draft.rest_separator,
        nonce_lifetime: draft.nonce_lifetime,
        nonce_secret: draft.nonce_secret.take(),
        binding_needs_credentials: draft.binding_needs_credentials,
        checks_origin: draft.checks_origin,
        unauthorized_replies_per_second: limit,
        unverified_excess_bytes_per_second: draft.unverified_excess_bytes_per_second,
        unverified_bytes_per_second: draft.unverified_bytes_per_second,
    }
}

/// Says who counts where there are secrets and users both, and leaves out who does not.
fn secrets_and_users(draft: &mut Draft, takes_secrets: bool, users_beside_secrets: bool) {
    if !takes_secrets {
        if draft.is_given("users-beside-secrets") {
            draft.note(
                "users-beside-secrets",
                "has no effect without `use-auth-secret` or `static-auth-secret`",
            );
        }
        return;
    }
    let has_users = !draft.users.is_empty();
    let (key, whose) = match (has_users, draft.is_given("userdb")) {
        (true, true) => ("user", "the users of the configuration and of the database"),
        (true, false) => ("user", "the users of the configuration"),
        (false, true) => ("userdb", "the users of the database"),
        (false, false) => return,
    };
    if !users_beside_secrets {
        draft.users.clear();
        draft.note(
            key,
            format!("{whose} are left out, because time-limited credentials are in use; `users-beside-secrets` lets both in"),
        );
    } else if !draft.is_given("users-beside-secrets") {
        draft.note(
            key,
            format!("{whose} can log in beside those with time-limited credentials; `users-beside-secrets=false` leaves them out, as coturn does"),
        );
    }
}

/// The database, if one is named, and what of it counts.
fn user_database(
    draft: &mut Draft,
    takes_secrets: bool,
    users_beside_secrets: bool,
) -> Option<UserDatabase> {
    let path = draft.user_database.take()?;
    Some(UserDatabase {
        path,
        has_users: !takes_secrets || users_beside_secrets,
        has_secrets: takes_secrets,
        has_peer_rules: !draft.no_peer_rules_from_database,
        has_realms: !draft.no_realms_from_database,
    })
}

/// The users that the engine will take, so that what it refuses is reported with the line that says it.
fn accepted_users(draft: &mut Draft, realm: &str) -> Vec<StaticUser> {
    let mut users = Vec::with_capacity(draft.users.len());
    let mut rules = match AuthConfig::new(realm) {
        Ok(rules) => rules,
        Err(error) => {
            draft.problem(
                "realm",
                format!("{error}; allowed: 1 to 127 characters of text"),
            );
            return users;
        }
    };
    for secret in &draft.rest_secrets {
        if let Err(error) = rules.add_rest_secret(secret.expose()) {
            draft.problem(
                "static-auth-secret",
                format!("{error}; allowed: {} secrets", AuthConfig::REST_SECRETS_MAX),
            );
            break;
        }
    }
    for (name, credential, origin) in std::mem::take(&mut draft.users) {
        let added = match &credential {
            Credential::Password(secret) => {
                rules.add_user(&name, &String::from_utf8_lossy(secret.expose()))
            }
            // Sixteen bytes, since `draft::user` made them of 32 digits.
            Credential::Md5Key(secret) => {
                rules.add_user_by_md5_key(&name, secret.expose().try_into().unwrap_or_default())
            }
        };
        match added {
            Ok(()) => users.push(StaticUser {
                name: name.into(),
                credential,
                is_generated: false,
            }),
            Err(error) => {
                let message = format!(
                    "user `{}`: {error}; allowed: each name once, in printable characters",
                    name.escape_debug()
                );
                let problem = Problem::new(&origin, "user", message);
                match draft.persona {
                    Persona::Turnbuckle => draft.problems.push(problem),
                    Persona::Turnserver => draft.notes.push(Note::of(problem)),
                }
            }
        }
    }
    users
}

/// A user whose password nobody can guess: 120 random bits.
fn generated_user(draft: &mut Draft, machine: &Machine) -> Option<StaticUser> {
    use base64::Engine as _;
    let mut bytes = [0; 15];
    if let Err(error) = (machine.fill_random)(&mut bytes) {
        let message =
            format!("none is given, and the system yields no randomness to make one up: {error}");
        draft.problem("user", message);
        return None;
    }
    let password = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    draft.note("user", format!("no credentials are given: user `{GENERATED_USER}` with a random password is made up for this run"));
    Some(StaticUser {
        name: GENERATED_USER.into(),
        credential: Credential::Password(Secret::new(password.into_bytes())),
        is_generated: true,
    })
}
