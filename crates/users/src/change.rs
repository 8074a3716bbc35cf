//! What `turnadmin` writes and lists.

/// A change of a database's rows. What is put where there is one already replaces it; what is deleted and not there is no error.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// A user with the hexadecimal digits of its MD5 key.
    PutUser {
        /// The user's realm.
        realm: &'a str,
        /// The username.
        name: &'a str,
        /// 32 hexadecimal digits.
        key: &'a str,
    },
    /// A user is no more.
    DeleteUser {
        /// The user's realm.
        realm: &'a str,
        /// The username.
        name: &'a str,
    },
    /// One more secret of time-limited credentials.
    AddSecret {
        /// The realm in which it counts.
        realm: &'a str,
        /// The secret.
        secret: &'a str,
    },
    /// One secret is no more.
    DeleteSecret {
        /// The realm in which it counted.
        realm: &'a str,
        /// The secret.
        secret: &'a str,
    },
    /// A realm has no secrets any more.
    DeleteSecrets {
        /// The realm.
        realm: &'a str,
    },
    /// Requests with this ORIGIN belong to a realm.
    PutOrigin {
        /// The origin, in the form in which databases store them.
        origin: &'a str,
        /// The realm.
        realm: &'a str,
    },
    /// An origin belongs to no realm any more.
    DeleteOrigin {
        /// The origin, in the form in which databases store them.
        origin: &'a str,
    },
    /// Quotas and rates of a realm, all at once.
    PutRealmOptions {
        /// The realm.
        realm: &'a str,
        /// Names and values; 0 removes the option.
        options: &'a [(&'static str, u64)],
    },
    /// An administrator.
    PutAdmin {
        /// The administrator's name.
        name: &'a str,
        /// The realm that it administers; empty for all.
        realm: &'a str,
        /// The hash of its password.
        password: &'a str,
    },
    /// An administrator is no more.
    DeleteAdmin {
        /// The administrator's name.
        name: &'a str,
    },
}

/// What can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// Users: usernames.
    Users,
    /// Secrets of time-limited credentials: the secrets.
    Secrets,
    /// Origins: the origins.
    Origins,
    /// Quotas and rates of realms: option names with values.
    RealmOptions,
    /// Administrators: their names.
    Admins,
}

/// One row of a list. Sorted by realm, then name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listed {
    /// The realm; empty if there is none.
    pub realm: String,
    /// What [`Listing`] says.
    pub name: String,
    /// The value of a realm option, and empty for everything else.
    pub value: String,
}
