//! Web administration (coturn inventory §1.13), of which nothing is served: no key here has a setting.

use super::process::Process;
use crate::entry::Group;
use crate::row::Row;
use crate::value::Kind;

const WEB: &str = "web administration is";
const NO_WEB: &str = "web administration is not implemented yet";

/// Rows without a setting belong to no topic; they stand with the process.
type Key = Row<Process>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-210",
        "web-admin",
        Group::WebAdmin,
        Kind::Flag,
        "Web pages for administration.",
    )
    .default("false")
    .only(&["false"], NO_WEB),
    Key::new(
        "O-211",
        "web-admin-ip",
        Group::WebAdmin,
        Kind::Address,
        "Address of the web pages.",
    )
    .default("127.0.0.1")
    .not_yet(WEB),
    Key::new(
        "O-212",
        "web-admin-port",
        Group::WebAdmin,
        Kind::Port,
        "Port of the web pages.",
    )
    .default("8080")
    .not_yet(WEB),
    Key::new(
        "O-213",
        "web-admin-listen-on-workers",
        Group::WebAdmin,
        Kind::Flag,
        "Web pages on the TURN ports too.",
    )
    .default("false")
    .only(
        &["false"],
        "administration never shares a port with clients",
    ),
];
