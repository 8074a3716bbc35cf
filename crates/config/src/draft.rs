//! The configuration while lines are being taken over: values are single and valid, but not yet known to fit together.

use crate::config::Protocols;
use crate::topics::limits::Limits;
use crate::topics::log::Log;
use crate::topics::offload::Offload;
use crate::topics::process::GivenProcess;
use crate::topics::relays::Relays;
use crate::topics::stun::Stun;
use crate::topics::tls::Tls;
use crate::topics::{addresses, authentication, datapath, redirection};

/// The given values of each topic. If a topic has nothing to complete, these are its settings.
#[derive(Default)]
pub(crate) struct Draft {
    pub(crate) addresses: addresses::GivenAddresses,
    pub(crate) datapath: datapath::GivenDatapath,
    pub(crate) offload: Offload,
    pub(crate) authentication: authentication::GivenAuthentication,
    pub(crate) relays: Relays,
    pub(crate) limits: Limits,
    pub(crate) redirection: redirection::GivenRedirection,
    pub(crate) stun: Stun,
    pub(crate) tls: Tls,
    pub(crate) protocols: Protocols,
    pub(crate) log: Log,
    pub(crate) process: GivenProcess,
}
