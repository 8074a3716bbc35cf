//! A TURN client, as little of it as sets up an allocation with one channel.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use turnbuckle_wire::{
    AttributeType, ChannelNumber, Class, IntegrityKey, Message, MessageWriter, Method,
    TransactionId, long_term_key_md5,
};

pub(crate) const USER: &str = "bench";
pub(crate) const PASSWORD: &str = "secret";
pub(crate) const REALM: &str = "example.org";
/// IANA's number of UDP, for REQUESTED-TRANSPORT.
const UDP: u8 = 17;

/// Allocates from `local` at `server` and binds `channel` to `peer`. The allocation outlives the socket used here.
pub(crate) fn bind_channel(
    local: SocketAddr,
    server: SocketAddr,
    peer: SocketAddr,
    channel: ChannelNumber,
) -> io::Result<()> {
    let socket = UdpSocket::bind(local)?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut client = Client {
        socket,
        nonce: Vec::new(),
        transactions: 0,
    };
    client.request(Method::ALLOCATE, |writer| {
        writer.requested_transport(UDP);
    })?;
    client.request(Method::CHANNEL_BIND, |writer| {
        writer.channel_number(channel).xor_peer_address(peer);
    })?;
    Ok(())
}

struct Client {
    socket: UdpSocket,
    nonce: Vec<u8>,
    transactions: u8,
}

impl Client {
    /// Sends a request, with credentials once a nonce is known, and repeats it when the server wants another nonce.
    fn request(
        &mut self,
        method: Method,
        attributes: impl Fn(&mut MessageWriter<'_>),
    ) -> io::Result<()> {
        for _ in 0..5 {
            let mut buffer = [0; 512];
            self.transactions += 1;
            let transaction = TransactionId::from([self.transactions; 12]);
            let mut writer = MessageWriter::new(&mut buffer, Class::Request, method, transaction);
            attributes(&mut writer);
            if !self.nonce.is_empty() {
                let key = long_term_key_md5(USER.as_bytes(), REALM.as_bytes(), PASSWORD.as_bytes());
                writer
                    .username(USER.as_bytes())
                    .realm(REALM.as_bytes())
                    .nonce(&self.nonce)
                    .bytes(
                        AttributeType::PASSWORD_ALGORITHMS,
                        &[0, 2, 0, 0, 0, 1, 0, 0],
                    )
                    .bytes(AttributeType::PASSWORD_ALGORITHM, &[0, 1, 0, 0])
                    .integrity(&IntegrityKey::sha1(&key));
            }
            let len = writer
                .finish()
                .map_err(|error| io::Error::other(format!("{error:?}")))?;
            self.socket.send(&buffer[..len])?;
            let mut answer = [0; 2048];
            let Ok(len) = self.socket.recv(&mut answer) else {
                continue;
            };
            let message = Message::parse(&answer[..len])
                .map_err(|error| io::Error::other(format!("answer: {error:?}")))?;
            match message.class() {
                Class::Success => return Ok(()),
                Class::Error if matches!(message.error_code(), Ok(Some(error)) if [401, 438].contains(&error.code)) =>
                {
                    self.nonce = message.nonce().ok().flatten().unwrap_or_default().to_vec();
                }
                _ => {
                    return Err(io::Error::other(format!(
                        "{method:?} was answered with {:?}",
                        message
                            .error_code()
                            .map(|error| error.map(|error| error.code))
                    )));
                }
            }
        }
        Err(io::Error::other(format!("no answer to {method:?}")))
    }
}
