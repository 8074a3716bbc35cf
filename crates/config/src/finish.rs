//! Checks that the values fit together, and completes them for this machine.

use crate::config::Config;
use crate::draft::Draft;
use crate::entry::Need;
use crate::findings::Findings;
use crate::machine::Machine;
use crate::table;
use crate::topics::http::Masque;
use crate::topics::log::form::LogFormat;
use crate::topics::{
    addresses, authentication, console, datapath, exporter, limits, log, peers, proxies,
    redirection, relays, tls,
};

/// Checks the draft as a whole and completes it with the properties of `machine`. The result is valid only if no problem was found.
pub(crate) fn finish(mut draft: Draft, machine: &Machine, findings: &mut Findings) -> Config {
    if findings.is_lenient() {
        tls::find_files(&mut draft.tls, findings);
    }
    relays::note_default(&draft.relays, findings);
    peers::open_private(&mut draft.relays.peers, findings);
    log::complete(&mut draft.log, findings);
    if draft.tls.port == 0 {
        draft.tls.port = draft.addresses.listening_port;
    }
    exporter::find_address(
        std::mem::take(&mut draft.process.metrics_address),
        &mut draft.process.settings.exporter,
        machine,
        findings,
    );
    draft.tls.alpn.has_http = draft.protocols.http.masque != Masque::Off;
    draft.tls.alpn.serves_any = findings.is_lenient();
    check(&mut draft, findings);
    if findings.is_lenient() && !draft.stun.stun_only {
        peers::note_own_addresses(&draft.relays.peers, machine, findings);
    }
    let others = addresses::Others {
        tls: &draft.tls,
        denied_peers: &draft.relays.peers.denied,
        answers_binding: !draft.stun.no_binding,
    };
    let addresses = addresses::finish(draft.addresses, &others, machine, findings);
    let redirection = redirection::finish(draft.redirection, &addresses, machine, findings);
    let others = authentication::Others {
        addresses: &addresses,
        is_stun_only: draft.stun.stun_only,
        keeps_lines: draft.log.file.is_some() || draft.log.syslog.is_any_used(),
    };
    let authentication = authentication::finish(draft.authentication, &others, machine, findings);
    Config {
        persona: findings.persona,
        addresses,
        datapath: datapath::finish(&draft.datapath, draft.offload, machine, findings),
        authentication,
        relays: draft.relays,
        limits: draft.limits,
        redirection,
        stun: draft.stun,
        tls: draft.tls,
        protocols: draft.protocols,
        log: draft.log,
        process: draft.process.settings,
    }
}

/// Reports contradictions, within topics and between them.
fn check(draft: &mut Draft, findings: &mut Findings) {
    log::check(&draft.log, findings);
    let needs_credentials = draft.authentication.requests.binding_needs_credentials;
    if draft.stun.rfc3489_binding && needs_credentials {
        findings.problem(
            "rfc3489-compatibility",
            "contradicts `secure-stun`: classic STUN has no credentials; give one of the two",
        );
    }
    if draft.stun.stun_only && draft.stun.no_binding {
        findings.problem(
            "no-stun",
            "together with `stun-only` nothing would be served; give one of the two",
        );
    }
    if draft.tls.quic.wanted && draft.stun.rfc5766_channel_numbers {
        findings.problem(
            "rfc5766-channel-numbers",
            "contradicts `quic`: packets of QUIC begin with these numbers too (RFC 9443); give one \
             of the two",
        );
    }
    relays::check(&draft.relays, findings);
    tls::check(&draft.tls, findings);
    if draft.addresses.no_udp && draft.addresses.no_tcp && !draft.tls.is_spoken() {
        findings.problem(
            "no-udp",
            "together with `no-tcp` and without TLS or DTLS nothing would be served; remove one \
             of them",
        );
    }
    let has_plain_tcp = !draft.addresses.no_tcp;
    let has_tls = draft.tls.files().is_some();
    proxies::check(
        &mut draft.protocols.proxies,
        has_plain_tcp,
        has_tls,
        findings,
    );
    console::check(&mut draft.process.settings.console, findings);
    exporter::check(&draft.process.settings.exporter, &draft.tls, findings);
    note_without_effect(draft, findings);
    addresses::check(&mut draft.addresses, findings);
    datapath::check(&draft.datapath, findings);
    limits::check(&draft.limits, findings);
    peers::check(&draft.relays.peers, findings);
}

/// Notes each given key that has no effect because its condition is not met.
fn note_without_effect(draft: &Draft, findings: &mut Findings) {
    for need in Need::ALL {
        if is_met(need, draft, findings) {
            continue;
        }
        let needing = table::entries().filter(|entry| entry.holds.needs == Some(need));
        let mut names: Vec<&str> = needing.map(|entry| entry.name).collect();
        names.sort_unstable();
        for name in names {
            if findings.is_given(name) {
                findings.note(name, format!("has no effect without {}", need.what()));
            }
        }
    }
}

fn is_met(need: Need, draft: &Draft, findings: &Findings) -> bool {
    match need {
        Need::Tls => draft.tls.is_spoken(),
        Need::Dtls => draft.tls.dtls_files().is_some(),
        Need::DtlsOrQuic => draft.tls.dtls_files().is_some() || draft.tls.quic_files().is_some(),
        Need::Quic => draft.tls.quic_files().is_some(),
        Need::TcpRelays => draft.relays.tcp,
        Need::Database => draft.authentication.database.source.is_some(),
        Need::Secrets => draft.authentication.takes_secrets(),
        Need::RequestLines => draft.log.tells_requests(findings),
        Need::LogFile => draft.log.file.is_some() || draft.log.usual_file,
        Need::Syslog => {
            draft.log.syslog.is_any_used() || draft.log.form.format == LogFormat::Rfc5424
        }
        Need::BatchCounters => draft.datapath.log_receive || draft.datapath.log_send,
        Need::MetricsTls => draft.process.settings.exporter.has_tls,
        Need::Metrics => draft.process.settings.exporter.is_served(),
        Need::Console => draft.process.settings.console.is_on,
    }
}
