//! Under which name the server was started, which decides how it reads its configuration.

/// How a configuration is read, and which defaults apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Persona {
    /// `turnbuckle serve`: unknown settings are refused, and nothing is open unless configured.
    #[default]
    Turnbuckle,
    /// `turnserver`: coturn's files and command lines run unchanged. Options that this server does not support, and unusable values, are reported
    /// and ignored. They are errors where ignoring them would open access or lock everybody out.
    Turnserver,
}

impl Persona {
    /// Every persona with the name of its program.
    pub const NAMES: [(&str, Self); 2] = [
        ("turnbuckle", Self::Turnbuckle),
        ("turnserver", Self::Turnserver),
    ];
}

/// The version of coturn whose options [`Persona::Turnserver`] takes.
pub const COTURN_VERSION: &str = "4.17.1";
