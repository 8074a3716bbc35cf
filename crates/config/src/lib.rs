//! Configuration: one option table, the turnserver.conf format, the command line, and the settings that result.
//!
//! Every key is one row of the option table. The rows of a topic are in the file of the topic (`topics/`), beside the settings that they set.
//! Parser, help texts, reference page and sample file are made from them. The default of a setting is the text in its row. Reading takes
//! three steps: text to typed values (`file`, `command_line`), values to the given values of each topic (`load`, by the table), and those
//! to one [`Config`] (`finish`). The reader is strict: it refuses everything that it does not understand, and it reports everything that is
//! wrong at once.
#![forbid(unsafe_code)]

mod choice;
mod command_line;
mod config;
mod draft;
mod edit;
mod effective;
mod entry;
mod file;
mod findings;
mod finish;
mod host;
mod lenient;
mod load;
mod machine;
mod names;
mod persona;
mod problem;
mod raw;
mod reload;
mod removed;
mod render;
mod row;
mod search;
mod source;
mod table;
#[cfg(test)]
mod tests;
mod topics;
mod usage;
mod value;

pub use config::{Config, Protocols};
pub use edit::{Edit, edit};
pub use effective::{Effective, effective, report, report_json};
pub use entry::{Coturn, Entry, Group, Reload, Status, Values};
pub use load::{
    Loaded, Origins, Request, from_text, load, load_again, load_named, load_successor,
    load_turnserver, placed,
};
pub use machine::Machine;
pub use names::Names;
pub use persona::{COTURN_VERSION, Persona};
pub use problem::{Note, Origin, Problem, Problems};
pub use reload::{Reloaded, reload};
pub use render::{compatibility, help, help_one, man, markdown, sample};
pub use table::{entries, removed_keys, suggest};
pub use topics::addresses::external::ExternalAddress;
pub use topics::addresses::former::FormerRelays;
pub use topics::addresses::local::{Devices, LaterAddresses};
pub use topics::addresses::{Addresses, PortRange};
pub use topics::authentication::{Authentication, Credential, StaticUser};
pub use topics::clients::ClientLimits;
pub use topics::console::Console;
pub use topics::database::UserDatabase;
pub use topics::datapath::{Datapath, SharedRelayPorts};
pub use topics::exporter::Exporter;
pub use topics::guests::Guests;
pub use topics::http::{Http, Masque};
pub use topics::limits::Limits;
pub use topics::log::Log;
pub use topics::log::form::{Form, LogFormat, Timestamps};
pub use topics::log::level::Level;
pub use topics::log::syslog::Syslog;
pub use topics::nat_discovery::NatDiscovery;
pub use topics::offload::{Offload, Xdp};
pub use topics::peers::PeerRules;
pub use topics::process::{ControlSocket, Process, Survive};
pub use topics::proxies::Proxies;
pub use topics::redirection::Redirection;
pub use topics::relays::Relays;
pub use topics::requests::Requests;
pub use topics::statsdb::StatsDatabase;
pub use topics::stun::Stun;
pub use topics::third_parties::{ThirdParties, TokenKey, decoded_key};
pub use topics::tls::{Alpn, CIPHER_SUITES, KEY_EXCHANGE_GROUPS, Quic, Tls};
pub use turnbuckle_users::{MASK, Secret};
pub use value::Kind;
