use super::*;
use crate::configured::configured;
use crate::offload::Features;
use turnbuckle_datapath::RELAY_START_BYTES;
use turnbuckle_datapath::offload::Rings;

/// Takes something away.
type Spoil = fn(&mut Facts);

fn config(options: &[&str]) -> Config {
    configured(&[&["--listening-ip=127.0.0.1"], options].concat())
}

fn device() -> Device {
    Device {
        name: "eth0".into(),
        mtu: 1500,
        driver: "virtio_net".into(),
        rings: None,
        features: Some(Features {
            is_native: true,
            redirects: true,
            is_target: true,
        }),
        has_program: false,
        joins_datagrams: true,
    }
}

fn facts() -> Facts {
    Facts {
        release: "6.18".into(),
        jit: Some(1),
        lacking: Vec::new(),
        program: Ok(()),
        devices: vec![device()],
        chosen_ports: Some((32768, 60999)),
        reserved_ports: vec![(40000, 65535)],
        unusable_relays: Vec::new(),
        descriptors: None,
        receive_buffer: Some(RELAY_START_BYTES),
    }
}

fn judged(options: &[&str], facts: Facts) -> Vec<(String, Verdict, String)> {
    let options = [&["--min-port=49152", "--max-port=65535"], options].concat();
    let all = findings(&config(&options), &facts);
    let all = all.into_iter().filter(|it| it.verdict != Verdict::Good);
    all.map(|it| (it.topic, it.verdict, it.text)).collect()
}

#[test]
fn a_machine_that_has_everything_gets_no_advice() {
    assert_eq!(judged(&["--xdp=on"], facts()), []);
}

#[test]
fn what_is_missing_is_wrong_where_the_configuration_insists_on_it_and_advice_elsewhere() {
    let spoil: [(&str, &str, Spoil); 6] = [
        ("JIT", "net.core.bpf_jit_enable is 0", |it| it.jit = Some(0)),
        ("capabilities", "lacks CAP_BPF", |it| {
            it.lacking = vec!["CAP_BPF"]
        }),
        ("XDP program", "does not take it: no", |it| {
            it.program = Err("no".into())
        }),
        ("devices", "no device", |it| it.devices.clear()),
        ("eth0", "no native XDP", |it| {
            it.devices[0].features = Some(Features {
                is_native: false,
                redirects: false,
                is_target: false,
            });
        }),
        ("eth0", "another XDP program", |it| {
            it.devices[0].has_program = true
        }),
    ];
    for (topic, text, spoil) in spoil {
        for (option, verdict) in [
            ("--xdp=on", Verdict::Wrong),
            ("--xdp=auto", Verdict::Advice),
            ("--xdp=off", Verdict::Advice),
        ] {
            let mut facts = facts();
            spoil(&mut facts);
            let [found] = &judged(&[option], facts)[..] else {
                panic!("{topic}: one finding");
            };
            assert_eq!((&found.0[..], found.1), (topic, verdict));
            assert!(found.2.contains(text), "{}", found.2);
        }
    }
    // Generic needs no driver, but whole datagrams.
    let [found] = &judged(&["--xdp=generic"], facts())[..] else {
        panic!("one finding");
    };
    assert!(found.2.contains("`ethtool -K eth0 gro off`"), "{}", found.2);
}

#[test]
fn relay_ports_that_the_kernel_may_give_away_are_counted() {
    let mut facts = facts();
    facts.reserved_ports = vec![(49152, 50000)];
    let [found] = &judged(&["--xdp=on"], facts)[..] else {
        panic!("one finding");
    };
    assert_eq!(found.1, Verdict::Advice);
    assert!(
        found
            .2
            .contains(&format!("choose {} of them", 60999 - 50000)),
        "{}",
        found.2
    );
    assert!(
        found.2.contains("ip_local_reserved_ports=49152-65535"),
        "{}",
        found.2
    );
}

#[test]
fn rings_that_could_be_larger_and_descriptors_that_are_too_few_are_advice() {
    let mut facts = facts();
    facts.descriptors = Some(1024);
    facts.devices[0].rings = Some(Rings {
        receive: 256,
        receive_max: 4096,
        send: 256,
        send_max: 4096,
    });
    let found = judged(&["--xdp=on"], facts);
    let verdicts: Vec<_> = found.iter().map(|it| (&it.0[..], it.1)).collect();
    assert_eq!(
        verdicts,
        [("eth0", Verdict::Advice), ("descriptors", Verdict::Advice)]
    );
    assert!(
        found[0].2.contains("`ethtool -G eth0 rx 4096`"),
        "{}",
        found[0].2
    );
}

#[test]
fn a_bound_of_receive_buffers_below_a_burst_is_advice_with_the_setting() {
    let mut facts = facts();
    facts.receive_buffer = Some(212_992);
    let found = judged(&["--xdp=on"], facts);
    let [(topic, Verdict::Advice, text)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(topic, "buffers");
    assert!(text.contains("sysctl -w net.core.rmem_max="), "{text}");
}

#[test]
fn xdp_that_is_off_on_a_machine_that_could_is_advice_with_the_line_to_write() {
    if !cfg!(target_arch = "x86_64") {
        return;
    }
    let [found] = &judged(&[], facts())[..] else {
        panic!("one finding");
    };
    assert_eq!((&found.0[..], found.1), ("xdp", Verdict::Advice));
    assert!(
        found.2.contains("eth0") && found.2.ends_with("`xdp=auto`"),
        "{}",
        found.2
    );
}
