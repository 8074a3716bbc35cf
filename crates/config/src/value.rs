//! Kinds of values, and reading one from text. Strict: text that is not exactly a value of its kind is refused, with what would be.

use turnbuckle_engine::AddressRange;

/// What an option's value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// On or off; without a value it means on.
    Flag,
    /// Whole number from `min` to `max`.
    Integer {
        /// The lowest number allowed.
        min: u32,
        /// The highest number allowed.
        max: u32,
        /// What is counted, such as `seconds`.
        unit: &'static str,
    },
    /// Like [`Kind::Integer`], and without a value it means the default.
    OptionalInteger {
        /// The lowest number allowed.
        min: u32,
        /// The highest number allowed.
        max: u32,
        /// What is counted, such as `seconds`.
        unit: &'static str,
    },
    /// Port number from 1 to 65535.
    Port,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Text of at least 1 and at most this many bytes, without control characters.
    Text(usize),
    /// One printable ASCII character that is neither letter nor digit.
    Separator,
    /// IP address or host name.
    Address,
    /// Address with an optional port; IPv6 in brackets.
    AddressPort,
    /// `public` or `public/private`.
    ExternalAddress,
    /// Address, `first-last`, or prefix such as `10.0.0.0/8`.
    PeerRange,
    /// `name:password` or `name:0x` and 32 hexadecimal digits.
    User,
    /// Name of a file.
    File,
}

/// A value that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Flag(bool),
    Integer(u32),
    Text(String),
    Choice(&'static str),
    Range(AddressRange),
}

impl Value {
    // An accessor of the wrong kind is a mistake in the option table, which `every_working_key_takes_its_example` finds.
    pub(crate) fn flag(&self) -> bool {
        match self {
            Self::Flag(value) => *value,
            _ => unreachable!("not a flag in the option table"),
        }
    }

    /// Returns the number in the type of its setting, which holds every number that the row allows.
    pub(crate) fn number<T: TryFrom<u32>>(&self) -> Result<T, String> {
        match self {
            Self::Integer(value) => T::try_from(*value).map_err(|_| "is out of range".to_owned()),
            _ => unreachable!("not a number in the option table"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(value) => value,
            Self::Choice(value) => value,
            _ => unreachable!("not text in the option table"),
        }
    }

    pub(crate) fn range(&self) -> AddressRange {
        match self {
            Self::Range(value) => *value,
            _ => unreachable!("not an address range in the option table"),
        }
    }
}

impl Kind {
    /// Describes a whole number from `min` to `max` of what `unit` says.
    pub(crate) const fn number(min: u32, max: u32, unit: &'static str) -> Self {
        Self::Integer { min, max, unit }
    }

    /// Describes a whole number like [`Kind::number`]; without a value the key means the default.
    pub(crate) const fn optional_number(min: u32, max: u32, unit: &'static str) -> Self {
        Self::OptionalInteger { min, max, unit }
    }

    /// Says which values are allowed.
    #[must_use]
    pub fn allowed(self) -> String {
        match self {
            Self::Flag => "true or false".to_owned(),
            Self::Integer { min, max, unit } | Self::OptionalInteger { min, max, unit } => {
                format!(
                    "{min} to {max}{}{unit}",
                    if unit.is_empty() { "" } else { " " }
                )
            }
            Self::Port => "1 to 65535".to_owned(),
            Self::Choice(words) => words.join(", "),
            Self::Text(max) => format!("text of 1 to {max} bytes"),
            Self::Separator => {
                "one ASCII character that is neither letter, digit nor space".to_owned()
            }
            Self::Address => "an IP address or host name".to_owned(),
            Self::AddressPort => "address, address:port or [IPv6 address]:port".to_owned(),
            Self::ExternalAddress => "a public address, or public/private".to_owned(),
            Self::PeerRange => "an address, first-last, or a prefix such as 10.0.0.0/8".to_owned(),
            Self::User => {
                "name:password, or name:0x and the 32 hexadecimal digits of the key".to_owned()
            }
            Self::File => "the name of a file".to_owned(),
        }
    }

    /// Returns the name of the value in help texts; nothing for flags.
    #[must_use]
    pub fn placeholder(self) -> &'static str {
        match self {
            Self::Flag => "",
            Self::Integer { .. } => "NUMBER",
            Self::OptionalInteger { .. } => "[NUMBER]",
            Self::Port => "PORT",
            Self::Choice(_) => "WORD",
            Self::Text(_) => "TEXT",
            Self::Separator => "CHARACTER",
            Self::Address => "ADDRESS",
            Self::AddressPort => "ADDRESS[:PORT]",
            Self::ExternalAddress => "PUBLIC[/PRIVATE]",
            Self::PeerRange => "RANGE",
            Self::User => "NAME:PASSWORD",
            Self::File => "FILE",
        }
    }

    /// Returns whether the key may stand without a value.
    #[must_use]
    pub fn takes_no_value(self) -> bool {
        matches!(self, Self::Flag | Self::OptionalInteger { .. })
    }

    /// Reads `text`, or says what is wrong with it (without repeating it, since it may be a secret).
    pub(crate) fn parse(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Flag => flag(text).map(Value::Flag),
            Self::Integer { min, max, .. } | Self::OptionalInteger { min, max, .. } => {
                integer(text, min, max).map(Value::Integer)
            }
            Self::Port => integer(text, 1, u16::MAX.into()).map(Value::Integer),
            Self::Choice(words) => {
                let found = words.iter().find(|word| word.eq_ignore_ascii_case(text));
                found
                    .map(|word| Value::Choice(word))
                    .ok_or_else(|| "is not one of the words".to_owned())
            }
            Self::Text(max) => sized(text, max),
            Self::Separator => match text.as_bytes() {
                [byte] if byte.is_ascii_punctuation() => Ok(Value::Text(text.to_owned())),
                _ => Err("is not such a character".to_owned()),
            },
            Self::PeerRange => match text.parse() {
                Ok(range) => Ok(Value::Range(range)),
                Err(error) => Err(format!("is refused: {error}")),
            },
            Self::Address | Self::AddressPort | Self::ExternalAddress => sized(text, 512),
            Self::User => sized(text, 1024),
            Self::File => sized(text, 4095),
        }
    }
}

fn sized(text: &str, max: usize) -> Result<Value, String> {
    match text.len() {
        0 => Err("is empty".to_owned()),
        len if len > max => Err(format!("has {len} bytes, more than {max}")),
        _ => Ok(Value::Text(text.to_owned())),
    }
}

fn flag(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "" | "true" | "yes" | "on" | "1" | "t" | "y" => Ok(true),
        "false" | "no" | "off" | "0" | "f" | "n" => Ok(false),
        _ => Err("is neither on nor off".to_owned()),
    }
}

fn integer(text: &str, min: u32, max: u32) -> Result<u32, String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("is not a whole number in decimal digits".to_owned());
    }
    match text.parse::<u32>() {
        Ok(number) if number < min => Err("is too small".to_owned()),
        Ok(number) if number <= max => Ok(number),
        _ => Err("is too large".to_owned()),
    }
}
