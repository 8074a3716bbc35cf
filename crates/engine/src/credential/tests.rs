//! Keys, names and time-limited credentials.
