//! coturn's console, which takes commands as text over TCP (coturn inventory §1.12).

use std::net::IpAddr;

use turnbuckle_users::{MASK, Secret, is_hashed};

use crate::entry::{Group, Need};
use crate::findings::Findings;
use crate::row::{Row, Setting, Topic, each, flag, number, one};
use crate::value::Kind;

/// Where the console listens, and for whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Console {
    /// Whether there is one.
    pub is_on: bool,
    /// The address.
    pub address: IpAddr,
    /// The TCP port.
    pub port: u16,
    /// The password, or its hash in coturn's form; `None` only where there is no console.
    pub password: Option<Secret>,
    /// Sessions that one listing shows.
    pub sessions_max: u32,
}

impl Default for Console {
    fn default() -> Self {
        Self {
            is_on: false,
            address: IpAddr::from([127, 0, 0, 1]),
            port: 0,
            password: None,
            sessions_max: 0,
        }
    }
}

impl Topic for Console {
    type Settings = Self;
}

type Key = Row<Console>;

pub(crate) const ROWS: &[Key] = &[
    Key::new(
        "O-200",
        "cli",
        Group::Console,
        Kind::Flag,
        "coturn's console for scripts that use it: commands as text over TCP, with `cli-password`. \
         Whoever has no such script has turnbuckle ctl.",
    )
    .default("false")
    .stricter("refused without cli-password, by the name of turnserver passed over")
    .live()
    .works(flag!(is_on)),
    Key::new(
        "O-200",
        "no-cli",
        Group::Console,
        Kind::Flag,
        "No console, as without `cli` (of old versions of coturn).",
    )
    .default("true")
    .only(&["true"], "the console is switched on by `cli`"),
    Key::new(
        "O-201",
        "cli-ip",
        Group::Console,
        Kind::Text(45),
        "IP address of the console. Its password and all that it shows go over it in the clear.",
    )
    .default("127.0.0.1")
    .stricter(
        "an IP address, no host name; one that is not of the loopback interface is refused, and by \
         the name of turnserver warned of",
    )
    .needs(Need::Console)
    .live()
    .works(Setting {
        take: |console, written| {
            console.address = written
                .value
                .text()
                .parse()
                .map_err(|_| "is no IP address; allowed: an IPv4 or IPv6 address".to_owned())?;
            Ok(())
        },
        show: |console| one(console.address),
    }),
    Key::new(
        "O-202",
        "cli-port",
        Group::Console,
        Kind::Port,
        "TCP port of the console.",
    )
    .default("5766")
    .needs(Need::Console)
    .live()
    .works(number!(port)),
    Key::new(
        "O-203",
        "cli-password",
        Group::Console,
        Kind::Text(255),
        "Password of the console, or what turnadmin -P makes of it ($5$, salt and hash).",
    )
    .secret()
    .stricter("what begins with $5$ and is no such hash is refused")
    .example("the-password-of-the-console")
    .needs(Need::Console)
    .live()
    .works(Setting {
        take: |console, written| {
            let text = written.value.text().as_bytes();
            if text.starts_with(b"$5$") && !is_hashed(text) {
                return Err("begins with $5$ and is no hash as turnadmin -P makes it".to_owned());
            }
            console.password = Some(Secret::new(text));
            Ok(())
        },
        show: |console| each(console.password.iter().map(|_| MASK)),
    }),
    Key::new(
        "O-204",
        "cli-max-output-sessions",
        Group::Console,
        Kind::number(0, u32::MAX, "sessions"),
        "Sessions that one listing of the console shows. Its command cc changes it.",
    )
    .default("256")
    .needs(Need::Console)
    .live()
    .works(number!(sessions_max)),
];

/// Reports a console that everybody could use, and one that is no use.
pub(crate) fn check(console: &mut Console, findings: &mut Findings) {
    if !console.is_on {
        return;
    }
    if console.password.is_none() {
        findings.grave_problem(
            "cli",
            "needs `cli-password`; give it, without it there is no console",
        );
        console.is_on = false;
        return;
    }
    if !console.address.is_loopback() {
        findings.problem(
            "cli-ip",
            "is no address of the loopback interface, and the console's password goes over the \
             network in the clear; give one of it, and use ssh from elsewhere",
        );
    }
}
