//! The table against a naive oracle.
