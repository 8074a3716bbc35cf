//! Authentication, realms and nonces (coturn inventory §1.3).

use std::time::Duration;

use crate::config::draft::user;
use crate::config::entry::{Entry, Group};
use crate::config::secret::{MASK, Secret};
use crate::config::third_parties::token_key;
use crate::config::value::Kind;

use super::{flag, one};

const GROUP: Group = Group::Authentication;
const VALUE_COUNTS: &str = "the value counts; coturn ignores it and always switches on";

pub(super) const ENTRIES: &[Entry] = &[
    Entry::new(
        "O-040",
        "lt-cred-mech",
        GROUP,
        Kind::Flag,
        "Long-term credentials (RFC 8489 §9.2), the only ones TURN has. Always on; a client that offers SHA-256 gets it.",
    )
    .short('a')
    .default("true")
    .coturn_default("false", "authentication cannot be turned off")
    .stricter("off together with credentials is refused")
    .works(
        |draft, value, _| {
            draft.long_term_credentials = Some(value.flag());
            Ok(())
        },
        |_| flag(true),
    ),
    Entry::new("O-041", "no-auth", GROUP, Kind::Flag, "Serves anyone without credentials.")
        .short('z')
        .default("false")
        .coturn_default("true", "coturn serves anyone if no credentials are configured; here a user with a random password is made up")
        .only(&["false"], "authentication is required: an open relay is used by strangers within hours"),
    Entry::new(
        "O-042",
        "user",
        GROUP,
        Kind::User,
        "User with password, or with the MD5 key of user:realm:password. Command lines are visible to other users of the machine; files need not be. Without \
         any user and secret one user with a random password is made up and printed.",
    )
    .short('u')
    .repeatable()
    .secret()
    .stricter("a name may be given once; 0x must be followed by 32 hexadecimal digits; `turnbuckle serve` takes users and secrets together (`users-beside-secrets`)")
    .works(
        |draft, value, origin| {
            let (name, credential) = user(value.text())?;
            draft.users.push((name, credential, origin.clone()));
            Ok(())
        },
        |config| config.authentication.users.iter().map(|user| format!("{}:{MASK}", user.name)).collect(),
    ),
    Entry::new("O-043", "realm", GROUP, Kind::Text(127), "Realm of the credentials; with a user database, of requests whose ORIGIN leads to no other.")
        .short('r')
        .default("(domain name of the host, else turnbuckle; as turnserver else empty)")
        .stricter("double quotes and backslashes are refused")
        .works(
            |draft, value, _| {
                if value.text().contains(['"', '\\']) {
                    return Err("contains a double quote or backslash".to_owned());
                }
                draft.realm = Some(value.text().to_owned());
                Ok(())
            },
            |config| one(&config.authentication.realm),
        ),
    Entry::new(
        "O-044",
        "use-auth-secret",
        GROUP,
        Kind::Flag,
        "Time-limited credentials (TURN REST API): the user name is expiry time and identity, the password base64(HMAC-SHA1(secret, user name)). With \
         `userdb` the secrets in it count too.",
    )
    .default("(on if static-auth-secret is given)")
    .stricter(VALUE_COUNTS)
    .works(
        |draft, value, _| {
            draft.rest_enabled = Some(value.flag());
            Ok(())
        },
        |config| {
            let from = &config.authentication;
            flag(!from.rest_secrets.is_empty() || from.database.as_ref().is_some_and(|database| database.has_secrets))
        },
    ),
    Entry::new("O-045", "static-auth-secret", GROUP, Kind::Text(256), "Secret for time-limited credentials; implies use-auth-secret. Every secret is tried.")
        .repeatable()
        .secret()
        .works(
            |draft, value, _| {
                let secret = Secret::new(value.text().as_bytes());
                if draft.rest_secrets.contains(&secret) {
                    return Err("is given twice".to_owned());
                }
                draft.rest_secrets.push(secret);
                Ok(())
            },
            |config| config.authentication.rest_secrets.iter().map(|_| MASK.to_owned()).collect(),
        ),
    Entry::new(
        "",
        "users-beside-secrets",
        GROUP,
        Kind::Flag,
        "Where there is a secret for time-limited credentials, users of the configuration and of the database count too. As `turnserver` they do not unless this \
         says so, as in coturn.",
    )
    .default("true")
    .works(
        |draft, value, _| {
            draft.users_beside_secrets = Some(value.flag());
            Ok(())
        },
        |config| flag(config.authentication.users_beside_secrets),
    ),
    Entry::new("O-046", "rest-api-separator", GROUP, Kind::Separator, "Character between expiry time and identity in time-limited user names.")
        .short('C')
        .default(":")
        .stricter("letters, digits and spaces are refused")
        .works(
            |draft, value, _| {
                draft.rest_separator = value.text().bytes().next().unwrap_or(b':');
                Ok(())
            },
            |config| one(char::from(config.authentication.rest_separator)),
        ),
    Entry::new("O-047", "no-auth-pings", GROUP, Kind::Flag, "No periodic test queries to the user database.")
        .default("true")
        .no_effect("the database is followed by a thread of its own, and no request asks it anything"),
    Entry::new("O-048", "no-dynamic-ip-list", GROUP, Kind::Flag, "No peer address rules from the database.")
        .default("false")
        .stricter("the value counts; coturn ignores it and always switches on. The rules are read again within a second of a change")
        .works(
            |draft, value, _| {
                draft.no_peer_rules_from_database = value.flag();
                Ok(())
            },
            |config| flag(config.authentication.database.as_ref().is_some_and(|database| !database.has_peer_rules)),
        ),
    Entry::new("O-049", "no-dynamic-realms", GROUP, Kind::Flag, "No realms by ORIGIN and no realm options from the database.")
        .default("false")
        .stricter("the value counts; coturn ignores it and always switches on. A rate that changes counts for allocations to come")
        .works(
            |draft, value, _| {
                draft.no_realms_from_database = value.flag();
                Ok(())
            },
            |config| flag(config.authentication.database.as_ref().is_some_and(|database| !database.has_realms)),
        ),
    Entry::new("O-050", "oauth", GROUP, Kind::Flag, "Third-party authorization (RFC 7635): who shows a token of an authorization server needs no password here. The keys are those of `oauth-key` and of \
         the table `oauth_key` of the user database.")
        .default("false")
        .stricter("needs oauth-key or userdb; a key in the table `oauth_key` whose lifetime cannot be read is left out")
        .works(
            |draft, value, _| {
                draft.third_parties.is_wanted = value.flag();
                Ok(())
            },
            |config| flag(config.authentication.third_parties.is_some()),
        ),
    Entry::new("O-051", "server-name", GROUP, Kind::Text(255), "Name of this server in third-party authorization.")
        .default("(realm)")
        .works(
            |draft, value, _| {
                draft.third_parties.server_name = Some(value.text().to_owned());
                Ok(())
            },
            |config| {
                let third_parties = config.authentication.third_parties.iter();
                third_parties.map(|parties| parties.server_name.to_string()).collect()
            },
        ),
    Entry::new(
        "",
        "oauth-key",
        GROUP,
        Kind::Text(512),
        "Key that this server shares with an authorization server: name (kid), key in base64, and A256GCM or A128GCM if it is not the former.",
    )
    .repeatable()
    .secret()
    .works(
        |draft, value, origin| {
            let key = token_key(value.text())?;
            draft.third_parties.keys.push((key, origin.clone()));
            Ok(())
        },
        |config| {
            let third_parties = config.authentication.third_parties.iter();
            third_parties.flat_map(|parties| parties.keys.iter().map(|key| format!("{}:{MASK}", key.name))).collect()
        },
    ),
    Entry::new("O-052", "check-origin-consistency", GROUP, Kind::Flag, "Requests about an allocation must carry the ORIGIN of the request that created it, else 441.")
        .default("false")
        .works(
            |draft, value, _| {
                draft.checks_origin = value.flag();
                Ok(())
            },
            |config| flag(config.authentication.checks_origin),
        ),
    Entry::new("O-053", "stale-nonce", GROUP, Kind::OptionalInteger { min: 1, max: 3600, unit: "seconds" }, "How long a nonce is accepted.")
        .default("600")
        .stricter("at most one hour, and 0 (for ever) is refused: an overheard nonce must not be of use later")
        .works(
            |draft, value, _| {
                draft.nonce_lifetime = Duration::from_secs(value.integer().into());
                Ok(())
            },
            |config| one(config.authentication.nonce_lifetime.as_secs()),
        ),
    Entry::new("O-054", "stateless-nonce", GROUP, Kind::Flag, "Nonces are computed, not stored.")
        .default("true")
        .only(&["true"], "nonces are always stateless, so that unproven requests cost no memory"),
    Entry::new(
        "O-055",
        "stateless-nonce-secret",
        GROUP,
        Kind::Text(256),
        "Key of the nonces, for servers that accept each other's, and across restarts. Without it a random key holds for the life of the process.",
    )
    .default("(random)")
    .secret()
    .stricter("at least 16 bytes")
    .works(
        |draft, value, _| {
            if value.text().len() < 16 {
                return Err("is shorter than 16 bytes".to_owned());
            }
            draft.nonce_secret = Some(Secret::new(value.text().as_bytes()));
            Ok(())
        },
        |config| config.authentication.nonce_secret.iter().map(|_| MASK.to_owned()).collect(),
    ),
    Entry::new("O-056", "secure-stun", GROUP, Kind::Flag, "Binding requests need credentials too.").default("false").works(
        |draft, value, _| {
            draft.binding_needs_credentials = value.flag();
            Ok(())
        },
        |config| flag(config.authentication.binding_needs_credentials),
    ),
    Entry::new("O-057", "unauthorized-ratelimit", GROUP, Kind::Flag, "Limits answers to requests without valid credentials, per source address.")
        .default("false")
        .works(
            |draft, value, _| {
                draft.limit_unauthorized = value.flag();
                Ok(())
            },
            |config| flag(config.authentication.unauthorized_replies_per_second.is_some()),
        ),
    Entry::new(
        "O-058",
        "unauthorized-ratelimit-rps",
        GROUP,
        Kind::Integer { min: 1, max: 1_000_000, unit: "answers per second" },
        "The limit that unauthorized-ratelimit sets.",
    )
    .default("10")
    .stricter("refused without unauthorized-ratelimit")
    .works(
        |draft, value, _| {
            draft.unauthorized_per_second = value.nonzero()?;
            Ok(())
        },
        |config| config.authentication.unauthorized_replies_per_second.map(|limit| limit.to_string()).into_iter().collect(),
    ),
    Entry::new(
        "",
        "unverified-excess-bytes-per-second",
        GROUP,
        Kind::Integer { min: 64, max: 1_000_000_000, unit: "bytes per second" },
        "What may go to one source address that proved nothing, beyond the bytes that came from it. A client's first contact takes about 80 bytes of \
         it, and eight times as much may go at once: raise it where thousands of clients come from one address, as in load tests.",
    )
    .default("8192")
    .works(
        |draft, value, _| {
            draft.unverified_excess_bytes_per_second = value.nonzero()?;
            Ok(())
        },
        |config| one(config.authentication.unverified_excess_bytes_per_second),
    ),
    Entry::new(
        "",
        "unverified-bytes-per-second",
        GROUP,
        Kind::Integer { min: 64, max: 1_000_000_000, unit: "bytes per second" },
        "All that may go to one source address that proved nothing; four times as much may go at once.",
    )
    .default("32768")
    .works(
        |draft, value, _| {
            draft.unverified_bytes_per_second = value.nonzero()?;
            Ok(())
        },
        |config| one(config.authentication.unverified_bytes_per_second),
    ),
];
