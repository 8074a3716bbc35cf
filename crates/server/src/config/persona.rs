//! Under which name the server was started, which decides how it reads its configuration.

/// How a configuration is read, and what holds where it says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Persona {
    /// `turnbuckle serve`: what is not understood is refused, and nothing special is open.
    #[default]
    Turnbuckle,
    /// `turnserver`: coturn's files and command lines run unchanged. What this server does not do, and values that nobody can use, are named and passed
    /// over, except where passing over would open something or leave everybody out.
    Turnserver,
}

/// The version of coturn whose options [`Persona::Turnserver`] takes.
pub const COTURN_VERSION: &str = "4.17.1";
