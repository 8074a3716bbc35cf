//! Which of the attributes that are not always understood are understood in a request.

use crate::allocate;
use crate::request::{Request, Served};
use crate::rules::Rules;

/// Returns which of these attributes are understood, by the configuration and by the listener that the request came to.
pub(crate) fn served(request: &Request<'_>, rules: &Rules) -> Served {
    let config = &rules.config;
    Served {
        connections: config.relays.tcp.is_some(),
        discovery: rules.listeners.discovery(request.from.listener).is_some(),
        dont_fragment: allocate::serves_dont_fragment(request, config),
        passes_over_discovery: config.binding.passes_over_discovery,
        tokens: config.auth.third_parties.is_some(),
    }
}
