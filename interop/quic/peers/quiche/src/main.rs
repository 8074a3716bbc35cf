//! quiche as a client of `turnbuckle quic-server`. It speaks the exchange of `turnbuckle quic-client`, checks lengths and CRC-32 as that does, and
//! prints the same events, without figures.
#![forbid(unsafe_code)]

mod connection;

use clap::Parser;
use exchange::{ALPN, Payload, Task};
use serde_json::json;

use crate::connection::{Connection, DATAGRAM_MAX};

/// Bytes that may be on their way, as of our client.
const WINDOW: u64 = 8 << 20;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    task: Task,
    /// Resume the session of the first connection
    #[arg(long)]
    resume: bool,
    /// Go on from another port in the middle of each transfer
    #[arg(long)]
    change_path: bool,
}

fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    let (mut config, block) = (config()?, exchange::block());
    let mut session = None;
    for (is_up, size) in command.task.transfers() {
        let (server, timeout) = (command.task.server, command.task.timeout());
        let mut connection = Connection::open(server, &mut config, session.as_deref(), timeout)?;
        let (payload, none) = (Payload::new(&block, size), Payload::new(&[], 0));
        let (sent, wanted) = if is_up { (payload, none) } else { (none, payload) };
        let done = connection.exchange(sent, wanted, command.change_path)?;
        if command.resume && session.is_none() {
            session = done.session;
        }
        println!(
            "{}",
            json!({
                "event": "run",
                "direction": if is_up { "up" } else { "down" },
                "bytes": size,
                "resumed": done.is_resumed,
                "paths": done.paths,
            })
        );
    }
    Ok(())
}

fn config() -> quiche::Result<quiche::Config> {
    let mut config = quiche::Config::new(quiche::PROTOCOL_VERSION)?;
    config.set_application_protos(&[ALPN])?;
    config.verify_peer(false);
    config.set_max_idle_timeout(30_000);
    config.set_max_recv_udp_payload_size(DATAGRAM_MAX);
    config.set_max_send_udp_payload_size(DATAGRAM_MAX);
    config.set_initial_max_data(WINDOW);
    config.set_initial_max_stream_data_bidi_local(WINDOW);
    // Another path has connection ids of its own, on both sides.
    config.set_active_connection_id_limit(4);
    Ok(config)
}
