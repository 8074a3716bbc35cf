//! A request for a tunnel, whichever version of HTTP it came by.

use crate::credentials::BasicCredentials;
use crate::target::Target;

/// A request for a tunnel that is well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Whom it is for: the host that it names, perhaps with a port. The realm follows from it.
    pub authority: Box<str>,
    /// Where the tunnel is to lead.
    pub target: Target,
    /// Who asks; `None` for a request that does not say so in a form that is served here.
    pub credentials: Option<BasicCredentials>,
}
