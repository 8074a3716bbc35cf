//! The `turnbuckle` command line.

fn main() {}
