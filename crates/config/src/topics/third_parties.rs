//! Third-party authorization (RFC 7635): the keys shared with authorization servers.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use turnbuckle_engine::{ThirdParties as Rules, TokenCipher};
use turnbuckle_users::{MASK, Secret};

use crate::entry::Group;
use crate::findings::Findings;
use crate::problem::{Origin, Problem};
use crate::row::{Row, Setting, Topic, each, one};
use crate::value::Kind;

/// The standard alphabet, padded or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Shorter keys can be guessed.
const KEY_LEN_MIN: usize = 16;

/// The given values about authorization servers.
#[derive(Default)]
pub(crate) struct GivenThirdParties {
    is_wanted: bool,
    server_name: Option<String>,
    keys: Vec<(TokenKey, Origin)>,
}

/// Authorization servers, and this server's name to them.
#[derive(Debug, Clone)]
pub struct ThirdParties {
    /// The name in THIRD-PARTY-AUTHORIZATION; 1 to 255 bytes.
    pub server_name: Box<str>,
    /// Keys shared with them; not empty.
    pub keys: Vec<TokenKey>,
}

/// A key shared with an authorization server.
#[derive(Debug, Clone)]
pub struct TokenKey {
    /// The name that clients send as USERNAME.
    pub name: Box<str>,
    /// The cipher that seals tokens.
    pub cipher: TokenCipher,
    /// The key; what it lacks to the cipher's is filled with zeros.
    pub key: Secret,
}

impl Topic for GivenThirdParties {
    type Settings = Option<ThirdParties>;
}

type Key = Row<GivenThirdParties>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-050",
        "oauth",
        Group::Authentication,
        Kind::Flag,
        "Third-party authorization (RFC 7635): who shows a token of an authorization server \
         needs no password here. The keys are those of `oauth-key` and of the table `oauth_key` \
         of the user database.",
    )
    .default("false")
    .stricter(
        "needs oauth-key or userdb; a key in the table `oauth_key` whose lifetime cannot be read \
         is left out",
    )
    .live()
    .works(Setting {
        take: |given, written| {
            given.is_wanted = written.value.flag();
            Ok(())
        },
        show: |parties| one(parties.is_some()),
    }),
    Key::new(
        "O-051",
        "server-name",
        Group::Authentication,
        Kind::Text(255),
        "Name of this server in third-party authorization.",
    )
    .default("(realm)")
    .example("turn.example.org")
    .live()
    .works(Setting {
        take: |given, written| {
            given.server_name = Some(written.value.text().to_owned());
            Ok(())
        },
        show: |parties| each(parties.iter().map(|parties| &parties.server_name)),
    }),
    Key::own(
        "O-051",
        "oauth-key",
        Group::Authentication,
        Kind::Text(512),
        "Key that this server shares with an authorization server: name (kid), key in base64, \
         and A256GCM or A128GCM if it is not the former.",
    )
    .repeatable()
    .secret()
    .example("north:bm90LWEtc2VjcmV0LWJ1dC1hcy1sb25nLWFzLW9uZS4=")
    .live()
    .works(Setting {
        take: |given, written| {
            let key = token_key(written.value.text())?;
            given.keys.push((key, written.origin.clone()));
            Ok(())
        },
        show: |parties| {
            let keys = parties.iter().flat_map(|parties| &parties.keys);
            each(keys.map(|key| format!("{}:{MASK}", key.name)))
        },
    }),
];

/// Reads `name:base64`, perhaps with `:A128GCM` or `:A256GCM` behind it. Errors never repeat the text.
fn token_key(text: &str) -> Result<TokenKey, String> {
    let mut parts = text.split(':');
    let (Some(name), Some(key), cipher, None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err("is not written as name:key or name:key:cipher".to_owned());
    };
    if name.is_empty() {
        return Err("has no name before the `:`".to_owned());
    }
    let cipher = match cipher {
        None | Some("A256GCM") => TokenCipher::Aes256Gcm,
        Some("A128GCM") => TokenCipher::Aes128Gcm,
        Some(_) => return Err("has a cipher that is neither A256GCM nor A128GCM".to_owned()),
    };
    match decoded_key(key) {
        Some(key) => Ok(TokenKey {
            name: name.into(),
            cipher,
            key,
        }),
        None => Err("has a key that is not base64".to_owned()),
    }
}

/// Returns the bytes of a key in base64; `None` for other text, and for none.
#[must_use]
pub fn decoded_key(text: &str) -> Option<Secret> {
    let key = BASE64.decode(text).ok()?;
    (!key.is_empty()).then(|| Secret::new(key))
}

/// Reports contradictions, and drops the settings concerned.
pub(crate) fn finish(
    given: GivenThirdParties,
    realm: &str,
    has_database: bool,
    findings: &mut Findings,
) -> Option<ThirdParties> {
    if !given.is_wanted {
        for key in ["server-name", "oauth-key"] {
            if findings.is_given(key) && !findings.is_given("oauth") {
                findings.problem(
                    key,
                    "has no effect without `oauth`; give that or remove the line",
                );
            }
        }
        return None;
    }
    if given.keys.is_empty() && !findings.is_given("oauth-key") && !has_database {
        let message = "would refuse every token; give `oauth-key` or `userdb` too";
        findings.problem("oauth", message);
    }
    let server_name = given.server_name.unwrap_or_else(|| realm.to_owned());
    let mut rules = match Rules::new(&server_name) {
        Ok(rules) => rules,
        Err(error) => {
            findings.problem("server-name", format!("{error}; allowed: 1 to 255 bytes"));
            return None;
        }
    };
    let mut taken = Vec::new();
    for (key, origin) in given.keys {
        if key.key.expose().len() < KEY_LEN_MIN {
            let text = format!(
                "`{}` is shorter than {KEY_LEN_MIN} bytes: tokens can be forged by guessing",
                key.name.escape_debug()
            );
            findings.note("oauth-key", text);
        }
        match rules.add_key(&key.name, key.cipher, key.key.expose(), None, None) {
            Ok(()) => taken.push(key),
            Err(error) => {
                let message = format!("{error}; allowed: each name once");
                let problem = Problem::new(&origin, "oauth-key", message);
                findings.problems.push(problem);
            }
        }
    }
    Some(ThirdParties {
        server_name: server_name.into(),
        keys: taken,
    })
}
