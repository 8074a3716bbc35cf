//! TLS: which suites and groups a list in OpenSSL's words means, and whether the keys of the configuration fit together.

use super::draft::Draft;
use super::persona::Persona;

/// The suites there are, by OpenSSL's names, best first.
pub(crate) const CIPHER_SUITES: [&str; 9] = [
    "TLS_AES_256_GCM_SHA384",
    "TLS_AES_128_GCM_SHA256",
    "TLS_CHACHA20_POLY1305_SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

/// The groups there are, by OpenSSL's names, best first.
pub(crate) const KEY_EXCHANGE_GROUPS: [&str; 4] =
    ["X25519", "prime256v1", "secp384r1", "X25519MLKEM768"];

/// Words of OpenSSL's lists that stand for all suites that are any good.
const ALL: [&str; 6] = [
    "ALL",
    "COMPLEMENTOFDEFAULT",
    "DEFAULT",
    "ECDHE",
    "HIGH",
    "kECDHE",
];

/// A list of suites in the form of `openssl ciphers`: names that are not served are passed over, as OpenSSL does with names it
/// does not know, and so is what follows `!`, `-` or `@`, because nothing of that kind is served.
///
/// # Errors
///
/// Nothing remains, or something that is served is to be excluded.
pub(super) fn cipher_suites(text: &str) -> Result<Vec<&'static str>, String> {
    let mut wanted = Vec::new();
    for word in text
        .split([':', ',', ' ', ';'])
        .filter(|word| !word.is_empty())
    {
        let excluded = word.strip_prefix(['!', '-']);
        if let Some(name) = excluded {
            if let Some(served) = CIPHER_SUITES.iter().find(|served| **served == name) {
                return Err(format!(
                    "excludes {served}; list the suites that are wanted instead"
                ));
            }
            continue;
        }
        if ALL.contains(&word) {
            wanted.extend(CIPHER_SUITES);
        }
        wanted.extend(CIPHER_SUITES.into_iter().find(|served| *served == word));
    }
    let mut suites: Vec<&str> = Vec::new();
    for suite in wanted {
        if !suites.contains(&suite) {
            suites.push(suite);
        }
    }
    if suites.is_empty() {
        let all = CIPHER_SUITES.join(":");
        return Err(format!(
            "names none of the suites that are served; allowed: {all}"
        ));
    }
    // The versions have suites of their own. A list that says nothing about one leaves its suites as they are, as in OpenSSL.
    for is_tls13 in [true, false] {
        let of_version = |suite: &&str| suite.starts_with("TLS_") == is_tls13;
        if !suites.iter().any(of_version) && is_tls13 {
            suites.extend(CIPHER_SUITES.into_iter().filter(|suite| of_version(suite)));
        }
    }
    Ok(suites)
}

/// A list of groups, separated by colons.
///
/// # Errors
///
/// A group that there is not.
pub(super) fn groups(text: &str) -> Result<Vec<&'static str>, String> {
    let mut groups = Vec::new();
    for word in text.split([':', ',', ' ']).filter(|word| !word.is_empty()) {
        let same = |known: &&str| {
            let alias = match *known {
                "prime256v1" => "P-256",
                "secp384r1" => "P-384",
                _ => known,
            };
            known.eq_ignore_ascii_case(word) || alias.eq_ignore_ascii_case(word)
        };
        let known = KEY_EXCHANGE_GROUPS.into_iter().find(|known| same(known));
        let known = known.ok_or_else(|| {
            format!(
                "names a group that there is not; allowed: {}",
                KEY_EXCHANGE_GROUPS.join(":")
            )
        })?;
        if !groups.contains(&known) {
            groups.push(known);
        }
    }
    if groups.is_empty() {
        return Err(format!(
            "is empty; allowed: {}",
            KEY_EXCHANGE_GROUPS.join(":")
        ));
    }
    Ok(groups)
}

/// Reports what stands in the way of DTLS.
fn check_dtls(draft: &mut Draft) {
    if draft.persona == Persona::Turnserver && draft.is_given("no-dtls") {
        // In coturn's words, which scripts look for.
        draft.note(
            "no-dtls",
            match draft.tls.dtls_wanted && !draft.is_given("dtls") {
                true => "no-dtls=false is deprecated; `dtls` says the same",
                false => "no-dtls is deprecated; there is no DTLS unless `dtls` is given",
            },
        );
    }
    if !draft.tls.dtls_wanted {
        return;
    }
    let key = if draft.is_given("dtls") {
        "dtls"
    } else {
        "no-dtls"
    };
    if draft.tls.dtls_files().is_none() {
        draft.note(
            key,
            "there is none all the same: DTLS needs `cert` and `pkey`",
        );
        return;
    }
    if draft.tls.only_tls13 {
        draft.problem(
            key,
            "together with `no-tlsv1_2` nothing remains: DTLS is served in version 1.2; give one of the two",
        );
    }
    if draft
        .tls
        .cipher_suites
        .iter()
        .all(|suite| suite.starts_with("TLS_"))
    {
        draft.problem(
            "cipher-list",
            "has only suites of TLS 1.3, and DTLS is served in version 1.2; allowed: a list with at least one that begins with ECDHE",
        );
    }
    if draft.tls.groups == ["X25519MLKEM768"] {
        draft.problem(
            "ec-curve-name",
            "has no group for DTLS; allowed: a list with X25519, prime256v1 or secp384r1",
        );
    }
}

/// Reports what is missing.
pub(super) fn check(draft: &mut Draft) {
    let (certificate, key) = (draft.tls.certificate.is_some(), draft.tls.key.is_some());
    if certificate != key {
        let (given, missing) = if certificate {
            ("cert", "pkey")
        } else {
            ("pkey", "cert")
        };
        draft.problem(
            given,
            format!("needs `{missing}` too; one file may hold both"),
        );
    }
    check_dtls(draft);
    if draft.no_udp && draft.no_tcp && !draft.tls.is_spoken() {
        draft.problem(
            "no-udp",
            "together with `no-tcp` and without TLS or DTLS nothing would be served; remove one of them",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_openssls_lists() {
        assert_eq!(cipher_suites("DEFAULT").unwrap(), CIPHER_SUITES);
        assert_eq!(
            cipher_suites("TLS_AES_128_GCM_SHA256:ECDHE-RSA-AES128-GCM-SHA256:!aNULL:@STRENGTH")
                .unwrap(),
            ["TLS_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        // What is not served is passed over, and TLS 1.3 keeps its suites.
        assert_eq!(
            cipher_suites("ECDHE-ECDSA-AES256-GCM-SHA384:DHE-RSA-AES256-SHA").unwrap(),
            [
                "ECDHE-ECDSA-AES256-GCM-SHA384",
                "TLS_AES_256_GCM_SHA384",
                "TLS_AES_128_GCM_SHA256",
                "TLS_CHACHA20_POLY1305_SHA256",
            ]
        );
        for wrong in [
            "",
            "RC4",
            "DHE-RSA-AES256-SHA",
            "HIGH:!ECDHE-RSA-CHACHA20-POLY1305",
        ] {
            assert!(cipher_suites(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reads_groups_by_either_name() {
        assert_eq!(
            groups("P-256:x25519:prime256v1").unwrap(),
            ["prime256v1", "X25519"]
        );
        assert!(groups("P-256:brainpoolP256r1").is_err());
        assert!(groups(":").is_err());
    }
}
