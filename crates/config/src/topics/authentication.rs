//! Users, secrets and the realm (coturn inventory §1.3).

use turnbuckle_engine::{AuthConfig, CredentialError, CredentialExpiry};
use turnbuckle_users::{MASK, Secret};

use super::addresses::Addresses;
use super::database::{self, UserDatabase};
use super::guests::{self, Guests};
use super::requests::{self, Requests};
use super::third_parties::{self, ThirdParties};
use crate::choice::{Choice, kind_of};
use crate::entry::{Group, Need};
use crate::findings::Findings;
use crate::machine::Machine;
use crate::persona::Persona;
use crate::problem::{Note, Origin, Problem};
use crate::raw::bytes_of;
use crate::row::{Row, Setting, Topic, VALUE_COUNTS, choice, each, flag, one};
use crate::value::Kind;

/// Realm where neither configuration nor host name says one.
const REALM_OF_LAST_RESORT: &str = "turnbuckle";
/// Longest realm, in bytes; a longer domain name of the host is no realm.
const REALM_LEN_MAX: usize = 127;
/// Name of the user that is made up where no credentials are configured.
const GENERATED_USER: &str = "guest";

/// The given values about users, secrets and the realm.
#[derive(Default)]
pub(crate) struct GivenAuthentication {
    has_long_term_credentials: bool,
    takes_secrets: Option<bool>,
    users_beside_secrets: bool,
    realm: Option<String>,
    users: Vec<(String, Credential, Origin)>,
    rest_secrets: Vec<Secret>,
    rest_separator: u8,
    credential_expiry: CredentialExpiry,
    pub(crate) database: database::GivenDatabase,
    pub(crate) third_parties: third_parties::GivenThirdParties,
    pub(crate) requests: requests::GivenRequests,
    pub(crate) guests: guests::GivenGuests,
}

/// Who may use the relay.
#[derive(Debug, Clone)]
pub struct Authentication {
    /// Realm of the long-term credentials (RFC 8489 §9.2); at most 127 bytes. Empty only where coturn's is: as `turnserver`, without realm and domain name.
    pub realm: Box<str>,
    /// Users with a password or key; names are unique.
    pub users: Vec<StaticUser>,
    /// Where there are secrets, or could be some in the database, users with a password or key count too.
    pub users_beside_secrets: bool,
    /// Secrets from which time-limited credentials are derived (TURN REST API); all are tried.
    pub rest_secrets: Vec<Secret>,
    /// Character between expiry time and identity in a time-limited user name; printable ASCII, neither letter nor digit.
    pub rest_separator: u8,
    /// In which requests a time-limited credential must not have expired.
    pub credential_expiry: CredentialExpiry,
    /// Where further users, secrets and rules are read from.
    pub database: Option<UserDatabase>,
    /// Authorization servers whose tokens are accepted (RFC 7635).
    pub third_parties: Option<ThirdParties>,
    /// Proofs that a request needs, and responses that an unproven source may get.
    pub requests: Requests,
    /// Clients that need no credentials.
    pub guests: Guests,
}

/// A user known from the configuration.
#[derive(Debug, Clone)]
pub struct StaticUser {
    /// User name; 1 to 508 bytes of UTF-8.
    pub name: Box<str>,
    /// Password or key.
    pub credential: Credential,
    /// Made up at start because the configuration names no credentials at all; its password must be printed.
    pub is_generated: bool,
}

impl Authentication {
    /// Returns the password of the user that was made up, if the configuration names no credentials at all.
    #[must_use]
    pub fn made_up_password(&self) -> Option<&Secret> {
        self.users.iter().find_map(StaticUser::made_up_password)
    }

    /// Gives the user that was made up this password, which clients have already. Does nothing where none was made up.
    pub fn keep_made_up_password(&mut self, password: &Secret) {
        let made_up = self.users.iter_mut().find(|user| user.is_generated);
        if let Some(user) = made_up {
            user.credential = Credential::Password(password.clone());
        }
    }
}

impl StaticUser {
    /// Returns the password, if it was made up.
    pub(crate) fn made_up_password(&self) -> Option<&Secret> {
        match &self.credential {
            Credential::Password(password) if self.is_generated => Some(password),
            Credential::Password(_) | Credential::Md5Key(_) => None,
        }
    }
}

/// The mechanism by which users prove their identity.
#[derive(Debug, Clone)]
pub enum Credential {
    /// The password; 1 to 256 bytes.
    Password(Secret),
    /// MD5 of `user:realm:password`, 16 bytes (RFC 8489 §9.2.2). Does for MESSAGE-INTEGRITY only, not for its SHA-256 form.
    Md5Key(Secret),
}

impl Choice for CredentialExpiry {
    const WORDS: &'static [(&'static str, Self)] =
        &[("allocation", Self::Allocation), ("request", Self::Request)];
}

impl Topic for GivenAuthentication {
    type Settings = Authentication;
}

type Key = Row<GivenAuthentication>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-040",
        "lt-cred-mech",
        Group::Authentication,
        Kind::Flag,
        "Long-term credentials (RFC 8489 §9.2), the only ones TURN has. Always on; a client that \
         offers SHA-256 gets it.",
    )
    .short('a')
    .default("true")
    .coturn_default("false", "authentication cannot be turned off")
    .stricter("off together with credentials is refused")
    .works(Setting {
        take: |given, written| {
            given.has_long_term_credentials = written.value.flag();
            Ok(())
        },
        show: |_| one(true),
    }),
    Key::new(
        "O-042",
        "user",
        Group::Authentication,
        Kind::User,
        "User with password, or with the MD5 key of user:realm:password. Command lines are \
         visible to other users of the machine; files need not be. Without any user and secret \
         one user with a random password is made up and printed.",
    )
    .short('u')
    .repeatable()
    .secret()
    .stricter(
        "a name may be given once, and as turnserver the last one counts with a warning; 0x must \
         be followed by 32 hexadecimal digits; `turnbuckle serve` takes users and secrets together \
         (`users-beside-secrets`)",
    )
    .example("alice:a-long-password")
    .live()
    .works(Setting {
        take: |given, written| {
            let (name, credential) = user(written.value.text())?;
            given.users.push((name, credential, written.origin.clone()));
            Ok(())
        },
        show: |authentication| {
            let users = authentication.users.iter();
            each(users.map(|user| format!("{}:{MASK}", user.name)))
        },
    }),
    Key::new(
        "O-043",
        "realm",
        Group::Authentication,
        Kind::Text(REALM_LEN_MAX),
        "Realm of the credentials; with a user database, of requests whose ORIGIN leads to no \
         other.",
    )
    .short('r')
    .default("(domain name of the host, else turnbuckle; as turnserver else empty)")
    .stricter("double quotes and backslashes are refused")
    .example("example.org")
    .works(Setting {
        take: |given, written| {
            let realm = written.value.text();
            if realm.contains(['"', '\\']) {
                return Err("contains a double quote or backslash".to_owned());
            }
            given.realm = Some(realm.to_owned());
            Ok(())
        },
        show: |authentication| one(&authentication.realm),
    }),
    Key::new(
        "O-044",
        "use-auth-secret",
        Group::Authentication,
        Kind::Flag,
        "Time-limited credentials (TURN REST API): the user name is expiry time and identity, \
         the password base64(HMAC-SHA1(secret, user name)). With `userdb` the secrets in it \
         count too.",
    )
    .default("(on if static-auth-secret is given)")
    .stricter(VALUE_COUNTS)
    .example("true")
    .always_on_in_coturn()
    .live()
    .works(Setting {
        take: |given, written| {
            given.takes_secrets = Some(written.value.flag());
            Ok(())
        },
        show: |authentication| {
            let database = authentication.database.as_ref();
            let from_database = database.is_some_and(|database| database.has_secrets);
            one(from_database || !authentication.rest_secrets.is_empty())
        },
    }),
    Key::new(
        "O-045",
        "static-auth-secret",
        Group::Authentication,
        Kind::Text(256),
        "Secret for time-limited credentials; implies use-auth-secret. Every secret is tried.",
    )
    .repeatable()
    .secret()
    .example("a-long-secret-shared-with-the-web-service")
    .live()
    .works(Setting {
        take: |given, written| {
            let secret = Secret::new(bytes_of(written.value.text()));
            if given.rest_secrets.contains(&secret) {
                return Err("is given twice".to_owned());
            }
            given.rest_secrets.push(secret);
            Ok(())
        },
        show: |authentication| each(authentication.rest_secrets.iter().map(|_| MASK)),
    }),
    Key::own(
        "O-045",
        "users-beside-secrets",
        Group::Authentication,
        Kind::Flag,
        "Where there is a secret for time-limited credentials, users of the configuration and of \
         the database count too. As `turnserver` they do not unless this says so, as in coturn.",
    )
    .default("true")
    .turnserver_default("false")
    .live()
    .works(flag!(users_beside_secrets)),
    Key::new(
        "O-046",
        "rest-api-separator",
        Group::Authentication,
        Kind::Separator,
        "Character between expiry time and identity in time-limited user names.",
    )
    .short('C')
    .default(":")
    .stricter("letters, digits and spaces are refused")
    .needs(Need::Secrets)
    .live()
    .works(Setting {
        take: |given, written| {
            given.rest_separator = written.value.text().bytes().next().unwrap_or_default();
            Ok(())
        },
        show: |authentication| one(char::from(authentication.rest_separator)),
    }),
    Key::own(
        "O-046",
        "credential-expiry",
        Group::Authentication,
        kind_of!(CredentialExpiry),
        "When the time of a time-limited credential counts. With 'allocation' only new \
         allocations and tunnels need one that has not expired: calls go on, and are refreshed \
         with the credential they began with. With 'request' each request needs one, and no \
         allocation is granted more time than its credential has left.",
    )
    .default("allocation")
    .needs(Need::Secrets)
    .live()
    .works(choice!(credential_expiry)),
];

/// Values of other topics: who has to authenticate, and where a generated password would be shown.
pub(crate) struct Others<'a> {
    pub(crate) is_stun_only: bool,
    pub(crate) addresses: &'a Addresses,
    pub(crate) keeps_lines: bool,
}

impl GivenAuthentication {
    /// Returns whether time-limited credentials are accepted.
    pub(crate) fn takes_secrets(&self) -> bool {
        self.takes_secrets.unwrap_or(!self.rest_secrets.is_empty())
    }
}

/// Reports contradictions, drops users that have no effect, and generates a user where there would be none.
pub(crate) fn finish(
    mut given: GivenAuthentication,
    others: &Others<'_>,
    machine: &Machine,
    findings: &mut Findings,
) -> Authentication {
    if given.takes_secrets == Some(false) && !given.rest_secrets.is_empty() {
        findings.problem(
            "use-auth-secret",
            "is off and `static-auth-secret` is given; remove one of the two",
        );
    }
    let takes_secrets = given.takes_secrets();
    let users_beside_secrets = given.users_beside_secrets;
    let has_database = given.database.source.is_some();
    if takes_secrets {
        leave_out_users(&mut given, findings);
    } else if findings.is_given("users-beside-secrets") {
        findings.note(
            "users-beside-secrets",
            "has no effect without `use-auth-secret` or `static-auth-secret`",
        );
    }
    if given.takes_secrets == Some(true) && given.rest_secrets.is_empty() && !has_database {
        findings.problem(
            "use-auth-secret",
            "needs a secret; give `static-auth-secret`, or `userdb` with secrets in it",
        );
    }
    let is_written = !given.users.is_empty() || !given.rest_secrets.is_empty();
    let has_credentials = is_written || has_database;
    if !given.has_long_term_credentials && has_credentials {
        findings.problem(
            "lt-cred-mech",
            "is off and credentials are given; authentication cannot be turned off; remove the \
             line",
        );
    }
    let realm = realm(given.realm, &given.users, machine, findings);
    let mut users = accepted_users(given.users, &given.rest_secrets, &realm, findings);
    let listeners = [
        &others.addresses.listeners[..],
        &others.addresses.auxiliary[..],
    ]
    .concat();
    let has_external = others.addresses.has_external();
    let guests = guests::finish(given.guests, &listeners, has_external, findings);
    let is_needed = (!others.is_stun_only || given.requests.binding_needs_credentials)
        && guests.sources.is_empty();
    let has_none = !is_written && database::given_as(findings).is_none();
    if has_none && findings.is_lenient() && guests.sources.is_empty() {
        let found = match has_database {
            true => ", or there are some in the database that was found",
            false => "",
        };
        findings.note(
            "user",
            format!(
                "there are no credentials: coturn would let anyone relay, this server answers \
                 only Binding requests until `user`, `static-auth-secret` or `userdb` is given\
                 {found}"
            ),
        );
    } else if !has_credentials && is_needed {
        if others.keeps_lines {
            findings.problem(
                "user",
                "none is given, and the password that is made up then would stand in the log; \
                 give `user`, `static-auth-secret` or `userdb`",
            );
        }
        users.extend(generated_user(machine, findings));
    }
    let requests = requests::finish(given.requests, findings);
    let third_parties = third_parties::finish(given.third_parties, &realm, has_database, findings);
    Authentication {
        realm: realm.into(),
        users,
        users_beside_secrets,
        rest_secrets: given.rest_secrets,
        rest_separator: given.rest_separator,
        credential_expiry: given.credential_expiry,
        database: database::finish(
            given.database,
            takes_secrets,
            users_beside_secrets,
            findings,
        ),
        third_parties,
        requests,
        guests,
    }
}

/// Notes which users are accepted beside secrets, and drops the others.
fn leave_out_users(given: &mut GivenAuthentication, findings: &mut Findings) {
    let has_users = !given.users.is_empty();
    let (key, whose) = match (has_users, database::given_as(findings)) {
        (true, Some(_)) => ("user", "the users of the configuration and of the database"),
        (true, None) => ("user", "the users of the configuration"),
        (false, Some(key)) => (key, "the users of the database"),
        (false, None) => return,
    };
    if !given.users_beside_secrets {
        given.users.clear();
        findings.note(
            key,
            format!(
                "{whose} are left out, because time-limited credentials are in use; \
                 `users-beside-secrets` lets both in"
            ),
        );
    } else if !findings.is_given("users-beside-secrets") {
        findings.note(
            key,
            format!(
                "{whose} can log in beside those with time-limited credentials; \
                 `users-beside-secrets=false` leaves them out, as coturn does"
            ),
        );
    }
}

/// Returns the given realm, else the host's domain name, else the last resort.
fn realm(
    given: Option<String>,
    users: &[(String, Credential, Origin)],
    machine: &Machine,
    findings: &mut Findings,
) -> String {
    let realm = given.unwrap_or_else(|| {
        let mut users = users.iter();
        let of_md5_key = users.find(|(_, kind, _)| matches!(kind, Credential::Md5Key(_)));
        if let Some((_, _, origin)) = of_md5_key
            && !findings.is_lenient()
        {
            let problem = Problem::new(
                origin,
                "user",
                "is given by its key, which holds for one realm only",
            );
            findings.problems.push(problem.hint("give `realm` too"));
        }
        let domain = machine.domain.clone();
        domain
            .filter(|name| name.len() <= REALM_LEN_MAX)
            .unwrap_or_else(|| match findings.persona {
                Persona::Turnbuckle => REALM_OF_LAST_RESORT.to_owned(),
                // The keys that coturn stored are of this realm.
                Persona::Turnserver => String::new(),
            })
    });
    if realm.is_empty() {
        findings.note(
            "realm",
            "is not given, and the host has no domain name: the realm is empty, as in coturn, \
             and keys in the database are those of an empty realm",
        );
    }
    realm
}

/// Returns the users that the engine will take, so that what it refuses is reported with the line that says it. Of one name `turnserver` takes the
/// last, as coturn does: it is the one that an operator has changed or given on the command line.
fn accepted_users(
    mut given: Vec<(String, Credential, Origin)>,
    rest_secrets: &[Secret],
    realm: &str,
    findings: &mut Findings,
) -> Vec<StaticUser> {
    let mut users = Vec::with_capacity(given.len());
    let mut rules = match AuthConfig::new(realm) {
        Ok(rules) => rules,
        Err(error) => {
            findings.problem("realm", format!("{error}; allowed: text of 1 to 127 bytes"));
            return users;
        }
    };
    for secret in rest_secrets {
        if let Err(error) = rules.add_rest_secret(secret.expose()) {
            findings.problem(
                "static-auth-secret",
                format!("{error}; allowed: {} secrets", AuthConfig::REST_SECRETS_MAX),
            );
            break;
        }
    }
    let is_lenient = findings.is_lenient();
    if is_lenient {
        given.reverse();
    }
    let mut refused = Vec::new();
    for (name, credential, origin) in given {
        let added = match &credential {
            Credential::Password(secret) => rules.add_user(&name, secret.expose()),
            // Sixteen bytes, since `user` made them of 32 digits.
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
                let instead = match error {
                    CredentialError::Duplicate if is_lenient => "the last one counts",
                    _ => "allowed: each name once, in printable characters",
                };
                let message = format!("user `{}`: {error}; {instead}", name.escape_debug());
                refused.push(Problem::new(&origin, "user", message));
            }
        }
    }
    if is_lenient {
        users.reverse();
        refused.reverse();
    }
    match findings.persona {
        Persona::Turnbuckle => findings.problems.extend(refused),
        Persona::Turnserver => findings.notes.extend(refused.into_iter().map(Note::of)),
    }
    users
}

/// Generates a user whose password nobody can guess: 120 random bits.
fn generated_user(machine: &Machine, findings: &mut Findings) -> Option<StaticUser> {
    use base64::Engine as _;
    let mut bytes = [0; 15];
    if let Err(error) = (machine.fill_random)(&mut bytes) {
        let message =
            format!("none is given, and the system yields no randomness to make one up: {error}");
        findings.problem("user", message);
        return None;
    }
    let password = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes);
    findings.note(
        "user",
        format!(
            "no credentials are given: user `{GENERATED_USER}` with a random password is made up \
             for this run"
        ),
    );
    Some(StaticUser {
        name: GENERATED_USER.into(),
        credential: Credential::Password(Secret::new(password.into_bytes())),
        is_generated: true,
    })
}

/// Splits `name:password` or `name:0xKEY` at the first colon. Errors never repeat the text.
fn user(text: &str) -> Result<(String, Credential), String> {
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
        None => Credential::Password(Secret::new(bytes_of(secret))),
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
