//! A data path between two ordinary sockets on the loopback interface.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use turnbuckle_datapath::{
    Backend, Bind, Datapath, EndpointKind, Handler, Received, Run, SendQueue, Settings,
};

/// Sends everything back to where it came from.
struct Echo;

impl Handler for Echo {
    fn received(&mut self, message: &Received<'_>, tx: &mut SendQueue) {
        let last_len = message.bytes.len() - (message.segment_count() - 1) * message.segment;
        let run = Run {
            start: 0,
            stride: message.segment,
            len: message.segment,
            last_len,
            count: message.segment_count(),
        };
        tx.forward(message.endpoint, message.remote, message, run, &[], 0);
    }
}

#[test]
fn every_backend_echoes() {
    for backend in [Backend::Single, Backend::Mmsg, Backend::Gso] {
        let mut datapath = Datapath::new(Settings {
            backend,
            ..Settings::default()
        })
        .unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let bind = Bind {
            address,
            kind: EndpointKind::Listener { reuseport: true },
            token: 0,
        };
        let endpoint = datapath.bind(bind).unwrap();
        let client = UdpSocket::bind(address).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let server = datapath.local_addr(endpoint).unwrap();
        for text in ["one", "two", ""] {
            client.send_to(text.as_bytes(), server).unwrap();
            datapath
                .turn(Some(Duration::from_secs(5)), &mut Echo)
                .unwrap();
            let mut buffer = [0; 100];
            let (len, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..len], from), (text.as_bytes(), server));
        }
    }
}
