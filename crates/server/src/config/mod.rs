//! Configuration: one option table, the turnserver.conf format, the command line, and what comes of them.
//!
//! Every key is one [`Entry`] of the table in `table/`; parser, help texts, reference page and sample file are made from it. Reading takes three
//! steps: text to settings (`file`, `command_line`), settings to single values (`load`, by the table), values to one [`Config`] (`finish`).
//! The reader is strict: what it does not understand it refuses, and it reports everything that is wrong at once.

mod addresses;
mod auxiliary;
mod command_line;
mod draft;
mod effective;
mod entry;
mod file;
mod finish;
mod lenient;
mod load;
mod machine;
mod nat_discovery;
mod persona;
mod problem;
mod proxies;
mod redirection;
mod render;
mod secret;
mod settings;
mod syslog;
mod table;
#[cfg(test)]
mod tests;
mod third_parties;
mod tls;
mod unused;
mod usage;
mod value;

pub use effective::{Effective, effective, report, report_json};
pub use entry::{Entry, Group, Status};
pub use load::{Loaded, Request, from_text, load, load_named, load_turnserver};
pub use machine::Machine;
pub use persona::{COTURN_VERSION, Persona};
pub use problem::{Note, Origin, Problem, Problems};
pub use render::{compatibility, help, help_one, man, markdown, sample};
pub use secret::{MASK, Secret};
pub use settings::{
    Accept, Addresses, Authentication, Backend, Coalesce, Config, Credential, Datapath,
    DefaultFamily, ExternalAddress, Http, Level, Limits, Log, NatDiscovery, PeerRules, PortRange,
    Process, Proxies, Redirection, Relays, StaticUser, Stun, ThirdParties, Threads, Timestamps,
    Tls, TokenKey, UserDatabase,
};
pub use table::{entries, removed_keys, suggest};
pub(crate) use third_parties::decoded_key;
pub(crate) use tls::CIPHER_SUITES;
#[cfg(test)]
pub(crate) use tls::KEY_EXCHANGE_GROUPS;
pub use value::Kind;
