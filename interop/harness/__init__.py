"""Black-box harness: network namespaces, the server under test, and what real clients talk to."""
