//! Bound UDP proxying: tunnels that are bound to an address of the relay and lead to whatever address their clients name
//! (draft-ietf-masque-connect-udp-listen).
//!
//! A client registers contexts by capsules. A *compressed* context is an address, so that its datagrams have none. In the *uncompressed* one, of
//! which there may be one, each datagram has its own. [`Contexts`] is what one client has registered.
//!
//! Nothing here says who may be reached: whoever relays a datagram has its address judged, whichever context it came by.
//!
//! The relay registers no context by itself. It may do so by the draft, and each would cost a capsule and a place that a peer can ask for.

mod address;
mod contexts;
mod field;
mod numbers;

pub use contexts::{Answer, CONTEXTS_MAX, Contexts, Head, Unread, addressed, assign};
pub(crate) use field::{is_true, public_addresses};
pub use numbers::{CONNECT_UDP_BIND, ContextCapsule, PROXY_PUBLIC_ADDRESS};
