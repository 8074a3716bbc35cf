//! quinn on either side of the QUIC bench. It speaks the exchange of `turnbuckle quic-server` and `turnbuckle quic-client`, checks lengths and CRC-32
//! as they do, and prints the same events, so that either side of a pair can be another program.
//!
//! One thread (`tokio`'s `current_thread`), as ours; windows, packet size and idle time as ours.
#![forbid(unsafe_code)]

mod datagrams;
mod stream;
mod tls;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, Parser, ValueEnum};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use serde_json::json;

use crate::datagrams::Exchange;
use exchange::{Payload, Suite};

/// Bytes that may wait in a connection, each way.
const WINDOW: u32 = 16 * 1024 * 1024;
const MIB: f64 = 1024.0 * 1024.0;

#[derive(Parser)]
enum Command {
    /// Takes what clients send, and sends what they ask for
    Server {
        /// Address to receive at
        #[arg(long)]
        listen: SocketAddr,
        /// Largest packet, bytes of UDP payload
        #[arg(long, default_value_t = 1_350)]
        mtu: u16,
        /// Say nothing of connections
        #[arg(long)]
        quiet: bool,
    },
    /// Moves bytes, run after run
    Client(Client),
}

#[derive(Args)]
struct Client {
    /// Address of the server
    server: SocketAddr,
    /// Bytes to send, in MiB
    #[arg(long, value_delimiter = ',')]
    up: Vec<u64>,
    /// Bytes to ask for, in MiB
    #[arg(long, value_delimiter = ',')]
    down: Vec<u64>,
    #[command(flatten)]
    exchange: Exchange,
    #[arg(long, default_value_t = 10)]
    runs: u16,
    /// Runs before these that do not count
    #[arg(long, default_value_t = 1)]
    warm_up: u16,
    /// Seconds that a run may take
    #[arg(long, default_value_t = 30)]
    timeout: u64,
    /// Seconds after which an attempt to connect is given up and another is made, from another port; without it there is one, which quinn gives up after a minute
    #[arg(long, value_name = "SECONDS")]
    again_after: Option<u64>,
    /// Largest packet, bytes of UDP payload
    #[arg(long, default_value_t = 1_350)]
    mtu: u16,
    /// The one cipher suite that is offered
    #[arg(long)]
    suite: Option<Suite>,
    /// Resume the session of the first connection
    #[arg(long)]
    resume: bool,
    /// What becomes another in the middle of each transfer
    #[arg(long)]
    change: Option<Change>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Change {
    /// The port, and with it the connection id of the server
    Path,
    /// The keys
    Key,
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match Command::parse() {
        Command::Server { listen, mtu, quiet } => runtime.block_on(serve(listen, mtu, quiet)),
        Command::Client(client) => runtime.block_on(measure(&client)),
    }
}

fn transport(mtu: u16) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .initial_mtu(mtu)
        .mtu_discovery_config(None)
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into());
    Arc::new(transport)
}

fn endpoint(socket: UdpSocket, mtu: u16, server: Option<ServerConfig>) -> anyhow::Result<Endpoint> {
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(mtu.max(1_472))?;
    Ok(Endpoint::new(config, server, socket, Arc::new(TokioRuntime))?)
}

async fn serve(listen: SocketAddr, mtu: u16, is_quiet: bool) -> anyhow::Result<()> {
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls::server()?)?));
    config.transport_config(transport(mtu));
    let socket = UdpSocket::bind(listen).with_context(|| listen.to_string())?;
    let endpoint = endpoint(socket, mtu, Some(config))?;
    println!("{}", json!({"event": "ready", "listen": endpoint.local_addr()?.to_string()}));
    let block: Arc<[u8]> = exchange::block().into();
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    loop {
        tokio::select! {
            _ = end.recv() => {
                // Each connection says what became of it.
                endpoint.close(VarInt::from_u32(0), b"the server stops");
                endpoint.wait_idle().await;
                return Ok(());
            }
            incoming = endpoint.accept() => {
                let Some(incoming) = incoming else { return Ok(()) };
                // As ours: an address proves itself first.
                if !incoming.remote_address_validated() {
                    incoming.retry()?;
                    continue;
                }
                let block = Arc::clone(&block);
                tokio::spawn(async move {
                    let connection = incoming.await?;
                    tokio::spawn(datagrams::answer(connection.clone()));
                    while let Ok((sending, receiving)) = connection.accept_bi().await {
                        tokio::spawn(stream::answer(sending, receiving, Arc::clone(&block)));
                    }
                    let path = connection.stats().path;
                    if !is_quiet {
                        println!(
                            "{}",
                            json!({"event": "connection", "sent_packets": path.sent_packets, "lost_packets": path.lost_packets})
                        );
                    }
                    anyhow::Ok(())
                });
            }
        }
    }
}

async fn measure(client: &Client) -> anyhow::Result<()> {
    let tls = exchange::Client::new(client.suite, client.resume)?;
    // Initial packets have the keys of this suite whichever is offered (RFC 9001 §5.2).
    let initial = TLS13_AES_128_GCM_SHA256.tls13().and_then(rustls::Tls13CipherSuite::quic_suite);
    let initial = initial.context("no keys for Initial packets")?;
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::with_initial(Arc::new(tls.config.clone()), initial)?));
    config.transport_config(transport(client.mtu));
    let (block, timeout) = (exchange::block(), Duration::from_secs(client.timeout));
    let sizes = |is_up, sizes: &[u64]| sizes.iter().map(|size| (is_up, size << 20)).collect::<Vec<_>>();
    for (is_up, size) in [sizes(true, &client.up), sizes(false, &client.down)].concat() {
        let payload = Payload::new(&block, size);
        let checked = payload.checked();
        for number in 0..client.warm_up + client.runs {
            let shown = tls.shown();
            let began = Instant::now();
            let (endpoint, connection) = connect(client, &config).await?;
            let (connected, cpu_before_ns) = (Instant::now(), cpu_ns());
            let change = || {
                match client.change {
                    Some(Change::Path) => endpoint.rebind(exchange::socket(client.server)?)?,
                    Some(Change::Key) => connection.force_key_update(),
                    None => {}
                }
                Ok(())
            };
            let work = stream::ask(&connection, is_up, payload, checked, change);
            let Ok(done) = tokio::time::timeout(timeout, work).await else {
                bail!("not done within {timeout:?}: {:?}", connection.stats());
            };
            done?;
            let (took, cpu_ns) = (connected.elapsed(), cpu_ns() - cpu_before_ns);
            let path = connection.stats().path;
            connection.close(VarInt::from_u32(0), b"done");
            endpoint.wait_idle().await;
            if number < client.warm_up {
                continue;
            }
            println!(
                "{}",
                json!({
                    "event": "run",
                    "direction": if is_up { "up" } else { "down" },
                    "bytes": size,
                    "mib_per_s": size as f64 / MIB / took.as_secs_f64(),
                    "seconds": took.as_secs_f64(),
                    "handshake_ms": (connected - began).as_secs_f64() * 1e3,
                    "cpu_ns_per_byte": cpu_ns as f64 / size as f64,
                    "sent_packets": path.sent_packets,
                    "lost_packets": path.lost_packets,
                    "resumed": tls.shown() == shown,
                })
            );
        }
    }
    for &size in &client.exchange.datagrams {
        for number in 0..client.warm_up + client.runs {
            let (endpoint, connection) = connect(client, &config).await?;
            let work = datagrams::ask(&connection, &client.exchange, size, &block);
            let Ok(done) = tokio::time::timeout(timeout, work).await else {
                bail!("not done within {timeout:?}");
            };
            let done = done?;
            connection.close(VarInt::from_u32(0), b"done");
            endpoint.wait_idle().await;
            if number >= client.warm_up {
                println!("{done}");
            }
        }
    }
    Ok(())
}

/// Makes a connection from a socket of its own.
///
/// quinn counts a Retry whose integrity tag is wrong as one that it has processed (quinn-proto 0.11.19), and discards every later one (RFC 9000
/// §17.2.5.2): where a bit of the first one is changed on the way, the attempt comes to nothing, and only another one helps.
async fn connect(client: &Client, config: &ClientConfig) -> anyhow::Result<(Endpoint, Connection)> {
    loop {
        let endpoint = endpoint(exchange::socket(client.server)?, client.mtu, None)?;
        let connecting = endpoint.connect_with(config.clone(), client.server, "localhost")?;
        let Some(seconds) = client.again_after else {
            return Ok((endpoint, connecting.await?));
        };
        match tokio::time::timeout(Duration::from_secs(seconds), connecting).await {
            Ok(connection) => return Ok((endpoint, connection?)),
            Err(_) => eprintln!("not connected within {seconds} s; once more"),
        }
    }
}

/// Returns the CPU time of the process so far, user and system.
fn cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
