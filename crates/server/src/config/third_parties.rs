//! Third-party authorization: the keys shared with authorization servers.

use base64::Engine as _;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use turnbuckle_engine::{ThirdParties as Rules, TokenCipher};

use super::Secret;
use super::draft::Draft;
use super::problem::{Origin, Problem};
use super::settings::{ThirdParties, TokenKey};

/// The standard alphabet, padded or not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Shorter keys can be guessed.
const KEY_LEN_MIN: usize = 16;

/// As it was written.
#[derive(Default)]
pub(super) struct Written {
    pub(super) is_wanted: bool,
    pub(super) server_name: Option<String>,
    pub(super) keys: Vec<(TokenKey, Origin)>,
}

/// Reads `name:base64`, perhaps with `:A128GCM` or `:A256GCM` behind it. Errors never repeat the text.
pub(super) fn token_key(text: &str) -> Result<TokenKey, String> {
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

/// The bytes of a key in base64; `None` for other text, and for none.
pub(crate) fn decoded_key(text: &str) -> Option<Secret> {
    let key = BASE64.decode(text).ok()?;
    (!key.is_empty()).then(|| Secret::new(key))
}

/// Whether the values fit together.
pub(super) fn third_parties(
    draft: &mut Draft,
    realm: &str,
    has_database: bool,
) -> Option<ThirdParties> {
    let Written {
        is_wanted,
        server_name,
        keys,
    } = std::mem::take(&mut draft.third_parties);
    let server_name = server_name.unwrap_or_else(|| realm.to_owned());
    if !is_wanted {
        for key in ["server-name", "oauth-key"] {
            if draft.is_given(key) && !draft.is_given("oauth") {
                draft.problem(
                    key,
                    "has no effect without `oauth`; give that or remove the line",
                );
            }
        }
        return None;
    }
    if keys.is_empty() && !draft.is_given("oauth-key") && !has_database {
        let message = "would refuse every token; give `oauth-key` or `userdb` too";
        draft.problem("oauth", message);
    }
    let mut rules = match Rules::new(&server_name) {
        Ok(rules) => rules,
        Err(error) => {
            draft.problem("server-name", format!("{error}; allowed: 1 to 255 bytes"));
            return None;
        }
    };
    let mut taken = Vec::new();
    for (key, origin) in keys {
        if key.key.expose().len() < KEY_LEN_MIN {
            let text = format!(
                "`{}` is shorter than {KEY_LEN_MIN} bytes: tokens can be forged by guessing",
                key.name.escape_debug()
            );
            draft.note("oauth-key", text);
        }
        match rules.add_key(&key.name, key.cipher, key.key.expose(), None, None) {
            Ok(()) => taken.push(key),
            Err(error) => {
                let message = format!("{error}; allowed: each name once");
                draft
                    .problems
                    .push(Problem::new(&origin, "oauth-key", message));
            }
        }
    }
    Some(ThirdParties {
        server_name: server_name.into(),
        keys: taken,
    })
}
