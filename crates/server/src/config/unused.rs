//! Keys that do nothing by themselves: whoever gives one without what it needs is told so.

use super::draft::Draft;
use super::persona::Persona;

/// Keys that need the same.
struct Need {
    keys: &'static [&'static str],
    is_met: fn(&Draft) -> bool,
    /// What is needed.
    what: &'static str,
}

const NEEDS: [Need; 9] = [
    Need {
        keys: &[
            "CA-file",
            "cipher-list",
            "ec-curve-name",
            "no-tlsv1_2",
            "pkey-pwd",
            "tls-alternate-server",
            "tls-listening-port",
        ],
        is_met: |draft| draft.tls.is_spoken(),
        what: "TLS or DTLS, which need `cert` and `pkey`",
    },
    Need {
        keys: &[
            "max-dtls-sessions",
            "max-dtls-sessions-without-allocation",
            "max-dtls-sessions-without-allocation-per-address",
        ],
        is_met: |draft| draft.tls.dtls_files().is_some(),
        what: "`dtls`, `cert` and `pkey`",
    },
    Need {
        keys: &[
            "mask-connect-errors",
            "max-connects-per-second",
            "max-peer-connections",
            "max-pending-connects",
            "min-connect-port",
        ],
        is_met: |draft| draft.relays.tcp,
        what: "`no-tcp-relay=false`",
    },
    Need {
        keys: &["no-dynamic-ip-list", "no-dynamic-realms"],
        is_met: |draft| draft.user_database.is_some(),
        what: "`userdb`",
    },
    Need {
        keys: &["rest-api-separator"],
        is_met: |draft| draft.rest_enabled.unwrap_or(!draft.rest_secrets.is_empty()),
        what: "`use-auth-secret` or `static-auth-secret`",
    },
    Need {
        keys: &["log-binding"],
        is_met: |draft| {
            let tells_requests = draft.persona == Persona::Turnserver && draft.log.sessions;
            draft.log.requests || tells_requests
        },
        what: "`Verbose`",
    },
    Need {
        keys: &["simple-log"],
        is_met: |draft| draft.log.file.is_some() || draft.log.usual_file,
        what: "`log-file`",
    },
    Need {
        keys: &["syslog-facility"],
        is_met: |draft| draft.log.syslog.is_some(),
        what: "`syslog`",
    },
    Need {
        keys: &["statistics-interval"],
        is_met: |draft| draft.log_receive || draft.log_send,
        what: "`udp-recvmmsg-log` or `udp-sendmmsg-log`",
    },
];

/// Notes each key that is given and has no effect.
pub(super) fn note(draft: &mut Draft) {
    for need in &NEEDS {
        let is_met = (need.is_met)(draft);
        for key in need.keys.iter().filter(|_| !is_met) {
            if draft.is_given(key) {
                draft.note(key, format!("has no effect without {}", need.what));
            }
        }
    }
}
