//! The network devices that `listening-device` and `relay-device` name.

use if_addrs::get_if_addrs;
use turnbuckle_datapath::probe_device;
use turnbuckle_engine::InterfaceAddress;

use crate::config::Config;

/// Says which device there is not. A relay socket is opened only when a client asks for one.
pub(super) fn probe_devices(config: &Config) -> Result<(), String> {
    let devices = &config.addresses.devices;
    let devices = [
        ("listening-device", &devices.listening),
        ("relay-device", &devices.relay),
    ];
    for (key, device) in devices {
        if let Some(device) = device {
            probe_device(device).map_err(|error| format!("{key}: {error}"))?;
        }
    }
    Ok(())
}

/// Returns those of `addresses` that sockets bound to `device` can have.
pub(super) fn on_device(
    device: Option<&str>,
    addresses: &[InterfaceAddress],
) -> Vec<InterfaceAddress> {
    let Some(device) = device else {
        return addresses.to_vec();
    };
    let interfaces = get_if_addrs().unwrap_or_default();
    let is_there = |address: &&InterfaceAddress| {
        let mut on_device = interfaces.iter().filter(|it| it.name == device);
        on_device.any(|it| it.ip() == address.ip)
    };
    addresses.iter().filter(is_there).copied().collect()
}
