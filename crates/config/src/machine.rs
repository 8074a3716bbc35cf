//! The properties of the machine that the configuration uses: its addresses, processors, names and randomness.
//!
//! Everything is gathered into a value, so that configurations can be tested for machines other than this one.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;

use crate::names::Names;

/// Facts about the machine that defaults depend on.
#[derive(Clone)]
pub struct Machine {
    /// Addresses of all interfaces, link-local ones left out, in the system's order.
    pub addresses: Vec<IpAddr>,
    /// The same with the name of their interface each.
    pub interfaces: Vec<(String, IpAddr)>,
    /// Processors this process may use.
    pub processors: NonZeroU16,
    /// The user database of coturn, if there is one at a usual place.
    pub usual_database: Option<PathBuf>,
    /// Domain name of the host, if it has one.
    pub domain: Option<String>,
    /// Looks up host names.
    pub names: Names,
    /// Fills the buffer with unpredictable bytes.
    pub fill_random: fn(&mut [u8]) -> io::Result<()>,
}

impl Machine {
    /// Queries the system.
    ///
    /// # Errors
    /// The system does not report its interface addresses.
    pub fn discover() -> io::Result<Self> {
        let mut addresses = Vec::new();
        let mut interfaces = Vec::new();
        for interface in if_addrs::get_if_addrs()? {
            let address = interface.ip();
            if interface.is_link_local() {
                continue;
            }
            if !addresses.contains(&address) {
                addresses.push(address);
            }
            interfaces.push((interface.name, address));
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let processors = u16::try_from(processors).ok().and_then(NonZeroU16::new);
        Ok(Self {
            addresses,
            interfaces,
            processors: processors.unwrap_or(NonZeroU16::MIN),
            usual_database: turnbuckle_users::USUAL_FILES
                .into_iter()
                .map(PathBuf::from)
                .find(|path| path.exists()),
            domain: domain(),
            names: Names::of_machine(),
            fill_random: |buffer| {
                getrandom::fill(buffer).map_err(|error| io::Error::other(error.to_string()))
            },
        })
    }
}

impl Machine {
    /// Returns the addresses that sockets bound to `device` can have. An interface without an address has IPv4 loopback, which can be bound on every
    /// interface, until it gets another. Without a device all addresses are returned.
    pub(crate) fn addresses_on(&self, device: Option<&str>) -> Vec<IpAddr> {
        let Some(device) = device else {
            return self.addresses.clone();
        };
        let on_device = self.interfaces.iter().filter(|(name, _)| name == device);
        let found: Vec<IpAddr> = on_device.map(|&(_, address)| address).collect();
        if !found.is_empty() {
            return found;
        }
        let mut all = self.addresses.iter().copied();
        all.find(|address| address.is_ipv4() && address.is_loopback())
            .into_iter()
            .collect()
    }
}

/// Returns the kernel's domain name, which reads `(none)` where nobody set it.
fn domain() -> Option<String> {
    let system = rustix::system::uname();
    let name = system.domainname().to_str().ok()?;
    (!name.is_empty() && name != "(none)").then(|| name.to_owned())
}
