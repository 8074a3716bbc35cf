//! s2n-quic as a client of `turnbuckle quic-server`. It speaks the exchange of `turnbuckle quic-client`, checks lengths and CRC-32 as that does, and
//! prints the same events, without figures.
#![forbid(unsafe_code)]

use anyhow::{bail, ensure};
use clap::Parser;
use exchange::{Payload, Suite, Task, head};
use s2n_quic::client::Connect;
use s2n_quic::provider::io::tokio::Provider as Io;
use s2n_quic::provider::tls::rustls::Client as Tls;
use s2n_quic::{Client, Connection};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    task: Task,
    /// The one cipher suite that is offered
    #[arg(long)]
    suite: Option<Suite>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let command = Command::parse();
    let tls = exchange::Client::new(command.suite, false)?;
    let io = Io::builder().with_rx_socket(exchange::socket(command.task.server)?)?.build()?;
    let client = Client::builder().with_tls(Tls::from(tls.config))?.with_io(io)?.start()?;
    let (block, timeout) = (exchange::block(), command.task.timeout());
    for (is_up, size) in command.task.transfers() {
        let run = async {
            let mut connection = client.connect(Connect::new(command.task.server).with_server_name("localhost")).await?;
            ask(&mut connection, is_up, Payload::new(&block, size)).await?;
            connection.close(0_u32.into());
            anyhow::Ok(())
        };
        let Ok(done) = tokio::time::timeout(timeout, run).await else {
            bail!("not done within {timeout:?}");
        };
        done?;
        let direction = if is_up { "up" } else { "down" };
        println!("{}", json!({"event": "run", "direction": direction, "bytes": size}));
    }
    Ok(())
}

/// Moves one transfer, and compares what arrived.
async fn ask(connection: &mut Connection, is_up: bool, payload: Payload<'_>) -> anyhow::Result<()> {
    let none = Payload::new(&[], 0);
    let (sent, wanted) = if is_up { (payload, none) } else { (none, payload) };
    let (mut receiving, mut sending) = connection.open_bidirectional_stream().await?.split();
    let send = async {
        sending.write_all(&wanted.checked().0.to_be_bytes()).await?;
        for piece in sent.pieces() {
            sending.write_all(piece).await?;
        }
        sending.finish()?;
        anyhow::Ok(())
    };
    let mut answer = Vec::new();
    let (sending, received) = tokio::join!(send, receiving.read_to_end(&mut answer));
    sending?;
    received?;
    let is_whole = answer.split_at_checked(12).is_some_and(|(head_came, came)| {
        head_came == head(sent.checked()) && (came.len() as u64, crc32fast::hash(came)) == wanted.checked()
    });
    ensure!(is_whole, "other bytes arrived than were sent");
    Ok(())
}
