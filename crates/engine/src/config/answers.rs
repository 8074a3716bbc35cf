//! The configuration of answers.

/// Which protocols are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Binding and all TURN methods.
    #[default]
    StunAndTurn,
    /// Binding only (coturn's `stun-only`); TURN requests are dropped in silence.
    StunOnly,
    /// TURN only (coturn's `no-stun`); Binding requests are dropped in silence.
    TurnOnly,
}

/// When an answer carries FINGERPRINT (RFC 8489 §14.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fingerprint {
    /// In every answer (coturn's `fingerprint`).
    Always,
    /// When the request had one.
    #[default]
    Mirror,
}

/// What answers have in them, and who gets none.
#[derive(Clone, Debug, Default)]
pub struct AnswerConfig {
    /// When answers carry FINGERPRINT.
    pub fingerprint: Fingerprint,
    /// The SOFTWARE text, at most 127 characters; `None` leaves the attribute out.
    pub software: Option<Box<str>>,
    /// Whether SOFTWARE also goes to sources that proved nothing (V-65: not by default).
    pub software_to_unverified: bool,
    /// Whether reason phrases say what was wrong with a bad request, and go to sources that proved nothing too (V-40: not by default).
    pub detailed_reasons: bool,
    /// Whether there are users who are not known yet, of allocations that were taken over. A request that would be refused for its user or key is
    /// dropped then ([`crate::DropReason::UsersDue`]): its client sends it again, and it is answered once they are known.
    pub are_users_due: bool,
    /// Whether there are rules for peers that are not known yet. A request that names a peer without a permission is dropped then, as one of
    /// [`Self::are_users_due`] is, and no tunnel is opened. Permissions that were taken over go on.
    pub are_peer_rules_due: bool,
}

/// How Binding requests are answered.
#[derive(Clone, Debug, Default)]
pub struct BindingConfig {
    /// Whether Binding requests have to be authenticated with the long-term mechanism (coturn's `secure-stun`).
    pub secure_stun: bool,
    /// Whether Binding answers carry MAPPED-ADDRESS beside XOR-MAPPED-ADDRESS, for clients of RFC 3489's time.
    pub mapped_address: bool,
    /// Whether Binding requests of RFC 3489, without magic cookie, are answered over UDP and IPv4 (coturn's
    /// `rfc3489-compatibility`). They cannot be authenticated, whatever [`Self::secure_stun`] says.
    pub rfc3489_binding: bool,
    /// Whether RESPONSE-PORT and PADDING are passed over where NAT behaviour discovery is not served, as coturn does; else they are unknown
    /// attributes there (420).
    pub passes_over_discovery: bool,
}
