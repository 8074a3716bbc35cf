//! Values of single-letter flags, for the programs that take coturn's. `name` is the flag as it is typed.

use std::fmt;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::process::ExitCode;

use lexopt::{Arg, Parser};

/// What is wrong with a command line: a sentence that says which flag, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    sentence: String,
    is_unknown_flag: bool,
}

impl Wrong {
    /// Makes the error for a flag that does not exist, or for a value that belongs to no flag.
    pub(crate) fn unknown(argument: Arg<'_>) -> Self {
        Self {
            sentence: argument.unexpected().to_string(),
            is_unknown_flag: true,
        }
    }

    /// Returns the code that coturn's programs exit with.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(if self.is_unknown_flag { 1 } else { 255 })
    }
}

impl From<String> for Wrong {
    fn from(sentence: String) -> Self {
        Self {
            sentence,
            is_unknown_flag: false,
        }
    }
}

impl From<&str> for Wrong {
    fn from(sentence: &str) -> Self {
        sentence.to_owned().into()
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

/// Reads a flag's value, any text.
pub(crate) fn text(name: &str, parser: &mut Parser) -> Result<String, String> {
    let value = parser
        .value()
        .map_err(|_| format!("{name} needs a value"))?;
    let value = value.into_string();
    value.map_err(|_| format!("{name}: not a text in UTF-8"))
}

/// Reads a flag's value, a number within bounds.
pub(crate) fn number<N>(name: &str, parser: &mut Parser, min: N, max: N) -> Result<N, String>
where
    N: std::str::FromStr + PartialOrd + fmt::Display,
{
    let value = text(name, parser)?;
    match value.parse() {
        Ok(number) if (&min..=&max).contains(&&number) => Ok(number),
        _ => Err(format!("{name} {value}: allowed: {min} to {max}")),
    }
}

/// Reads a flag's value, an IP address or a name, and returns the address or the name's first one.
pub(crate) fn address(name: &str, parser: &mut Parser) -> Result<IpAddr, String> {
    let value = text(name, parser)?;
    let found = (value.as_str(), 0).to_socket_addrs();
    let found = found.map_err(|error| format!("{name} {value}: {error}"))?;
    let address = found.map(|address| address.ip()).next();
    address.ok_or_else(|| format!("{name} {value}: the name has no address"))
}
