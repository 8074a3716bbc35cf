//! Bytes as a list of writer calls, so that a fuzzer can write messages and not only break them.

use super::ID;
use turnbuckle_wire::{
    AccessToken, AddressFamily, AttributeError, AttributeType, ChangeRequest, ChannelNumber, Class,
    Icmp, IntegrityKey, Message, MessageWriter, Method, PasswordAlgorithm, PasswordAlgorithmEntry,
    WriteError,
};

/// Takes bytes as a list of writer calls with arguments, then reads back the first attribute of each kind that was written.
pub(super) fn run_script(bytes: &[u8]) {
    let mut script = Script(bytes);
    let class = [
        Class::Request,
        Class::Indication,
        Class::Success,
        Class::Error,
    ][usize::from(script.u8() % 4)];
    let method = Method::new(u16::from(script.u8()) << 4).expect("twelve bits");
    let mut buf = [0xEE; 2048];
    let mut writer = MessageWriter::new(&mut buf, class, method, ID);
    let mut expected: Vec<(AttributeType, Check)> = Vec::new();
    let mut values_fit = true;
    while !script.0.is_empty() {
        let (kind, check, fits) = script.step(&mut writer);
        values_fit &= fits;
        if expected.iter().all(|(written, _)| *written != kind) {
            expected.push((kind, check));
        }
    }
    let key = IntegrityKey::sha256(b"key");
    writer
        .integrity(&IntegrityKey::sha1(b"key"))
        .integrity(&key)
        .fingerprint();
    let len = match writer.finish() {
        Ok(len) => len,
        Err(error) => {
            assert!(error == WriteError::Overflow || !values_fit, "{error}");
            return;
        }
    };
    assert!(values_fit);
    let message = Message::parse(&buf[..len]).expect("our own message parses");
    assert_eq!((message.class(), message.method()), (class, method));
    assert!(message.has_fingerprint());
    assert_eq!(message.check_integrity(&key), Ok(()));
    assert_eq!(message.check_integrity(&IntegrityKey::sha1(b"key")), Ok(()));
    assert!(!message.has_unknown_required());
    for (kind, check) in expected {
        assert!(check(&message), "{kind:?}");
    }
}

type Check = Box<dyn Fn(&Message<'_>) -> bool>;

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        for byte in &mut taken {
            if let Some((&first, rest)) = self.0.split_first() {
                (*byte, self.0) = (first, rest);
            }
        }
        taken
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = usize::from(self.u8()).min(self.0.len());
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken.to_vec()
    }

    fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn address(&mut self) -> core::net::SocketAddr {
        if self.u8() & 1 == 0 {
            (self.take::<4>(), self.u16()).into()
        } else {
            (self.take::<16>(), self.u16()).into()
        }
    }

    fn family(&mut self) -> AddressFamily {
        if self.u8() & 1 == 0 {
            AddressFamily::V4
        } else {
            AddressFamily::V6
        }
    }

    /// Makes one call, and returns the type it writes, how to recognise the value, and whether the writer may accept it.
    fn step(&mut self, writer: &mut MessageWriter<'_>) -> (AttributeType, Check, bool) {
        match self.u8() % 22 {
            0 => {
                let address = self.address();
                writer.xor_mapped_address(address);
                step(AttributeType::XOR_MAPPED_ADDRESS, move |message| {
                    message.xor_mapped_address() == Ok(Some(address))
                })
            }
            1 => {
                let address = self.address();
                writer.xor_peer_address(address);
                step(AttributeType::XOR_PEER_ADDRESS, move |message| {
                    message.xor_peer_address() == Ok(Some(address))
                })
            }
            2 => {
                let address = self.address();
                writer.xor_relayed_address(address);
                step(AttributeType::XOR_RELAYED_ADDRESS, move |message| {
                    message.xor_relayed_address() == Ok(Some(address))
                })
            }
            3 => {
                let address = self.address();
                writer.other_address(address);
                step(AttributeType::OTHER_ADDRESS, move |message| {
                    message.other_address() == Ok(Some(address))
                })
            }
            4 => {
                let name = self.bytes();
                writer.username(&name);
                step(AttributeType::USERNAME, move |message| {
                    message.username() == Ok(Some(&name))
                })
            }
            5 => {
                let realm = self.bytes();
                writer.realm(&realm);
                let fits = is_short(&realm);
                let check = move |message: &Message<'_>| message.realm() == Ok(Some(&realm));
                (AttributeType::REALM, Box::new(check), fits)
            }
            6 => {
                let nonce = self.bytes();
                writer.nonce(&nonce);
                let fits = is_short(&nonce);
                let check = move |message: &Message<'_>| message.nonce() == Ok(Some(&nonce));
                (AttributeType::NONCE, Box::new(check), fits)
            }
            7 => {
                let (code, reason) = (self.u16() % 1000, self.text());
                writer.error_code(code, &reason);
                let fits = (300..700).contains(&code)
                    && is_short(reason.as_bytes())
                    && reason.len() <= 509;
                let check = move |message: &Message<'_>| {
                    message.error_code().is_ok_and(|found| {
                        found.is_some_and(|error| {
                            error.code == code && error.reason == reason.as_bytes()
                        })
                    })
                };
                (AttributeType::ERROR_CODE, Box::new(check), fits)
            }
            8 => {
                let seconds = self.u32();
                writer.lifetime(seconds);
                step(AttributeType::LIFETIME, move |message| {
                    message.lifetime() == Ok(Some(seconds))
                })
            }
            9 => {
                let data = self.bytes();
                writer.data(&data);
                step(AttributeType::DATA, move |message| {
                    message.data() == Some(&data)
                })
            }
            10 => {
                let number =
                    ChannelNumber::try_from(0x4000 | self.u16() & 0xFFF).expect("in range");
                writer.channel_number(number);
                step(AttributeType::CHANNEL_NUMBER, move |message| {
                    message.channel_number() == Ok(Some(number.get()))
                })
            }
            11 => {
                let family = self.family();
                writer.requested_address_family(family);
                step(AttributeType::REQUESTED_ADDRESS_FAMILY, move |message| {
                    message.requested_address_family() == Ok(Some(family))
                })
            }
            12 => {
                let reserve = self.u8() & 1 == 1;
                writer.even_port(reserve);
                step(AttributeType::EVEN_PORT, move |message| {
                    message.even_port() == Ok(Some(reserve))
                })
            }
            13 => {
                let token = self.take();
                writer.reservation_token(token);
                step(AttributeType::RESERVATION_TOKEN, move |message| {
                    message.reservation_token() == Ok(Some(token))
                })
            }
            14 => {
                let icmp = Icmp {
                    kind: self.u8(),
                    code: self.u16() & 0x3FF,
                    data: self.u32(),
                };
                writer.icmp(icmp);
                let fits = icmp.kind < 128 && icmp.code < 512;
                let check = move |message: &Message<'_>| message.icmp() == Ok(Some(icmp));
                (AttributeType::ICMP, Box::new(check), fits)
            }
            15 => {
                let (algorithm, parameters) = (self.u16(), self.bytes());
                let algorithm = PasswordAlgorithm::from(algorithm);
                let entry = PasswordAlgorithmEntry {
                    algorithm,
                    parameters: &parameters,
                };
                writer.password_algorithm_entry(entry);
                // the writer writes what it is told; a reader refuses parameters where there are none
                let is_legal =
                    parameters.is_empty() || matches!(algorithm, PasswordAlgorithm::Unknown(_));
                step(AttributeType::PASSWORD_ALGORITHM, move |message| {
                    let read = message.password_algorithm_entry();
                    if is_legal {
                        read == Ok(Some(PasswordAlgorithmEntry {
                            algorithm,
                            parameters: &parameters,
                        }))
                    } else {
                        read == Err(AttributeError::Value)
                    }
                })
            }
            16 => {
                let types: Vec<_> = self
                    .bytes()
                    .into_iter()
                    .map(|low| AttributeType::new(0x7F00 | u16::from(low)))
                    .collect();
                writer.unknown_attributes(types.iter().copied());
                step(AttributeType::UNKNOWN_ATTRIBUTES, move |message| {
                    let found = message.unknown_attributes().ok().flatten();
                    found.is_some_and(|list| list.iter().eq(types.iter().copied()))
                })
            }
            17 => {
                let change = ChangeRequest {
                    change_ip: self.u8() & 1 == 1,
                    change_port: self.u8() & 1 == 1,
                };
                writer.change_request(change);
                step(AttributeType::CHANGE_REQUEST, move |message| {
                    message.change_request() == Ok(Some(change))
                })
            }
            18 => {
                let (nonce, encrypted_block) = (self.bytes(), self.bytes());
                writer.access_token(AccessToken {
                    nonce: &nonce,
                    encrypted_block: &encrypted_block,
                });
                step(AttributeType::ACCESS_TOKEN, move |message| {
                    message.access_token()
                        == Ok(Some(AccessToken {
                            nonce: &nonce,
                            encrypted_block: &encrypted_block,
                        }))
                })
            }
            19 => {
                let (family, code, reason) = (self.family(), self.u16() % 1000, self.text());
                writer.address_error_code(family, code, &reason);
                let fits = (300..700).contains(&code)
                    && is_short(reason.as_bytes())
                    && reason.len() <= 509;
                let check = move |message: &Message<'_>| {
                    let first = message.address_error_codes().next();
                    first.is_some_and(|first| {
                        first.is_ok_and(|error| {
                            (error.family, error.code, error.reason)
                                == (family, code, reason.as_bytes())
                        })
                    })
                };
                (AttributeType::ADDRESS_ERROR_CODE, Box::new(check), fits)
            }
            20 => {
                writer.dont_fragment();
                step(AttributeType::DONT_FRAGMENT, |message| {
                    message.dont_fragment() == Ok(true)
                })
            }
            _ => {
                let ticket = self.bytes();
                writer.mobility_ticket(&ticket);
                step(AttributeType::MOBILITY_TICKET, move |message| {
                    message.mobility_ticket() == Some(&ticket)
                })
            }
        }
    }
}

/// Returns a step whose value the writer always accepts.
fn step(
    kind: AttributeType,
    check: impl Fn(&Message<'_>) -> bool + 'static,
) -> (AttributeType, Check, bool) {
    (kind, Box::new(check), true)
}

/// Returns whether a text has fewer than 128 characters; bytes that continue none count as none.
fn is_short(text: &[u8]) -> bool {
    text.iter().filter(|&&byte| byte & 0xC0 != 0x80).count() < 128
}
