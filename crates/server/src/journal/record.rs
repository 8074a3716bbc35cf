//! The bytes of one change.
//!
//! Integers are little-endian. What a rebuild ignores has no record. The decoder takes exactly what the encoder makes: a kind, a length, an option or
//! a text that the encoder would not have made is an error, and so is a byte too many.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::NonZeroU32;
use std::sync::Arc;

use turnbuckle_engine::{
    AllocationId, Brought, CanonicalOrigin, Change, ChannelNumber, Connection, Created, EndCause,
    Ended, Family, Moved, Path, RelayProtocol, Relayed, ReservationToken, Reserved, Resumed, Time,
    Traffic, TransactionId, Transport, Usage, User, UserRecord,
};

/// Bytes that are not the record of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotAChange;

const CHANNEL_EXPIRED: u8 = 1;
const CHANNEL_INSTALLED: u8 = 2;
const CREATED: u8 = 3;
const ENDED: u8 = 4;
const FAMILY_ENDED: u8 = 5;
const PEER_CLAIMED: u8 = 6;
const MOVED: u8 = 7;
const PERMISSION_EXPIRED: u8 = 8;
const PERMISSION_INSTALLED: u8 = 9;
const REAUTHORIZED: u8 = 10;
const REFRESHED: u8 = 11;
const RESUMED: u8 = 12;
const NUMBERED: u8 = 13;

/// Relayed transport addresses of one allocation.
const RELAYS_MAX: u8 = 2;

/// What one record says.
pub(super) enum Record {
    Change(Change),
    /// The number of a session.
    Number(AllocationId, u64),
}

/// Appends the record of the number of a session to `bytes`.
pub(super) fn encode_number(allocation: AllocationId, number: u64, bytes: &mut Vec<u8>) {
    let out = &mut Encoder(bytes);
    out.head(NUMBERED, allocation);
    out.u64(number);
}

/// Appends the record of a change to `bytes`. Returns false, and appends nothing, if a rebuild does not need it.
pub(super) fn encode(change: &Change, bytes: &mut Vec<u8>) -> bool {
    let out = &mut Encoder(bytes);
    match change {
        Change::ChannelExpired { allocation, number } => {
            out.head(CHANNEL_EXPIRED, *allocation);
            out.u16(number.get());
        }
        Change::ChannelInstalled {
            allocation,
            number,
            peer,
            expires,
        } => {
            out.head(CHANNEL_INSTALLED, *allocation);
            out.u16(number.get());
            out.address(*peer);
            out.time(*expires);
        }
        Change::Created(created) => out.created(created),
        Change::Ended(ended) => out.ended(ended),
        Change::FamilyEnded {
            allocation,
            family,
            cause,
            time,
        } => {
            out.head(FAMILY_ENDED, *allocation);
            out.family(*family);
            out.cause(*cause);
            out.time(*time);
        }
        Change::PeerClaimed { allocation, peer } => {
            out.head(PEER_CLAIMED, *allocation);
            out.address(*peer);
        }
        Change::Moved(moved) => {
            out.head(MOVED, moved.allocation);
            out.path(&moved.path);
            out.time(moved.time);
        }
        Change::PermissionExpired { allocation, peer } => {
            out.head(PERMISSION_EXPIRED, *allocation);
            out.ip(*peer);
        }
        Change::PermissionInstalled {
            allocation,
            peer,
            expires,
            ..
        } => {
            out.head(PERMISSION_INSTALLED, *allocation);
            out.ip(*peer);
            out.time(*expires);
        }
        Change::Reauthorized { allocation, user } => {
            out.head(REAUTHORIZED, *allocation);
            out.user(user);
        }
        Change::Refreshed {
            allocation,
            family,
            expires,
            usage,
        } => {
            out.head(REFRESHED, *allocation);
            out.option(*family, Encoder::family);
            out.time(*expires);
            out.usage(usage);
        }
        Change::Resumed(resumed) => {
            out.head(RESUMED, resumed.allocation);
            out.path(&resumed.path);
            out.transaction(resumed.transaction);
            out.u32(resumed.number);
            out.time(resumed.until);
        }
        // Connections end with the process that holds them, and a limit that was reached is no state.
        Change::PeerBound { .. }
        | Change::PeerConnected { .. }
        | Change::PeerDisconnected { .. }
        | Change::PeerLimitReached { .. } => return false,
    }
    true
}

/// Returns what a record says.
///
/// # Errors
///
/// It is neither of a change nor of a number.
pub(super) fn decode(record: &[u8]) -> Result<Record, NotAChange> {
    let input = &mut Decoder(record);
    let kind = input.u8()?;
    let allocation = AllocationId::from_u64(input.u64()?);
    let said = match kind {
        NUMBERED => Record::Number(allocation, input.u64()?),
        _ => Record::Change(change(kind, allocation, input)?),
    };
    input.0.is_empty().then_some(said).ok_or(NotAChange)
}

fn change(
    kind: u8,
    allocation: AllocationId,
    input: &mut Decoder<'_>,
) -> Result<Change, NotAChange> {
    Ok(match kind {
        CHANNEL_EXPIRED => Change::ChannelExpired {
            allocation,
            number: input.channel()?,
        },
        CHANNEL_INSTALLED => Change::ChannelInstalled {
            allocation,
            number: input.channel()?,
            peer: input.address()?,
            expires: input.time()?,
        },
        CREATED => Change::Created(Box::new(input.created(allocation)?)),
        ENDED => Change::Ended(Box::new(input.ended(allocation)?)),
        FAMILY_ENDED => Change::FamilyEnded {
            allocation,
            family: input.family()?,
            cause: input.cause()?,
            time: input.time()?,
        },
        PEER_CLAIMED => Change::PeerClaimed {
            allocation,
            peer: input.address()?,
        },
        MOVED => Change::Moved(Box::new(Moved {
            allocation,
            path: input.path()?,
            time: input.time()?,
        })),
        PERMISSION_EXPIRED => Change::PermissionExpired {
            allocation,
            peer: input.ip()?,
        },
        PERMISSION_INSTALLED => Change::PermissionInstalled {
            allocation,
            peer: input.ip()?,
            expires: input.time()?,
            is_new: true,
        },
        REAUTHORIZED => Change::Reauthorized {
            allocation,
            user: input.user()?,
        },
        REFRESHED => Change::Refreshed {
            allocation,
            family: input.option(Decoder::family)?,
            expires: input.time()?,
            usage: input.usage()?,
        },
        RESUMED => Change::Resumed(Box::new(Resumed {
            allocation,
            path: input.path()?,
            transaction: input.transaction()?,
            number: input.u32()?,
            until: input.time()?,
        })),
        _ => return Err(NotAChange),
    })
}

/// Appends values to a record.
struct Encoder<'a>(&'a mut Vec<u8>);

impl Encoder<'_> {
    fn head(&mut self, kind: u8, allocation: AllocationId) {
        self.u8(kind);
        self.u64(allocation.to_u64());
    }

    fn created(&mut self, created: &Created) {
        self.head(CREATED, created.allocation);
        self.path(&created.path);
        self.user(&created.user);
        self.transaction(created.transaction);
        self.bool(created.protocol == RelayProtocol::Tcp);
        self.u8(u8::try_from(created.relays.len()).unwrap_or(u8::MAX));
        for relayed in &created.relays {
            self.address(relayed.local);
            self.address(relayed.external);
        }
        self.option(created.missing_family, |out, (family, code)| {
            out.family(family);
            out.u16(code);
        });
        self.option(created.reservation, |out, reserved| {
            out.bytes(&reserved.token.0);
            out.address(reserved.local);
            out.time(reserved.expires);
        });
        let brought = &created.brought;
        self.option(brought.redeemed, |out, token| out.bytes(&token.0));
        self.bool(brought.is_mobile);
        self.option(brought.origin, |out, origin| out.text(origin.as_bytes()));
        self.option(created.bytes_per_s, |out, rate| out.u32(rate.get()));
        self.time(created.created);
        self.time(created.expires);
    }

    fn ended(&mut self, ended: &Ended) {
        self.head(ENDED, ended.allocation);
        self.path(&ended.path);
        self.user(&ended.user);
        self.cause(ended.cause);
        self.time(ended.created);
        self.time(ended.time);
        self.transaction(ended.created_by);
        self.option(ended.redeemed, |out, token| out.bytes(&token.0));
        self.option(ended.created_from, |out, path| out.path(&path));
        self.usage(&ended.totals);
    }

    fn path(&mut self, path: &Path) {
        self.address(path.server);
        self.address(path.client);
        self.u8(match path.transport {
            Transport::Dtls => 0,
            Transport::Tcp => 1,
            Transport::Tls => 2,
            Transport::Udp => 3,
            Transport::Quic => 4,
        });
        self.u32(path.connection.place);
        self.u64(path.connection.serial);
    }

    fn user(&mut self, user: &User) {
        let record = user.record();
        for text in [record.name, record.realm, record.quota_name] {
            self.text(text.as_bytes());
        }
        self.option(record.expires_unix_s, Self::u64);
        self.u64(record.lifetime_max_s);
        self.option(record.mac_key, |out, key| out.bytes(&key));
    }

    fn cause(&mut self, cause: EndCause) {
        match cause {
            EndCause::Cancelled => self.u8(0),
            EndCause::Disconnected => self.u8(1),
            EndCause::Expired => self.u8(2),
            EndCause::Lost => self.u8(3),
            EndCause::Released(transaction) => {
                self.u8(4);
                self.transaction(transaction);
            }
            // those of tunnels, of which nothing is written
            EndCause::Forbidden | EndCause::Idle | EndCause::Unreachable | EndCause::UserGone => {
                self.u8(0)
            }
        }
    }

    fn usage(&mut self, usage: &Usage) {
        for traffic in [
            usage.client_received,
            usage.client_sent,
            usage.peer_received,
            usage.peer_sent,
        ] {
            self.u64(traffic.datagrams);
            self.u64(traffic.bytes);
        }
    }

    fn address(&mut self, address: SocketAddr) {
        self.ip(address.ip());
        self.u16(address.port());
        if let SocketAddr::V6(address) = address {
            self.u32(address.flowinfo());
            self.u32(address.scope_id());
        }
    }

    fn ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(ip) => {
                self.u8(4);
                self.bytes(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.u8(6);
                self.bytes(&ip.octets());
            }
        }
    }

    fn family(&mut self, family: Family) {
        self.u8(match family {
            Family::V4 => 4,
            Family::V6 => 6,
        });
    }

    fn transaction(&mut self, transaction: TransactionId) {
        self.bytes(transaction.as_bytes());
    }

    fn time(&mut self, time: Time) {
        self.u64(time.as_nanos());
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Appends a text and its length. Names are at most 763 bytes long (RFC 8489 §14.3).
    fn text(&mut self, text: &[u8]) {
        let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
        self.u16(len);
        self.bytes(&text[..usize::from(len)]);
    }

    fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// Takes values from the front of a record.
struct Decoder<'a>(&'a [u8]);

type Decoded<T> = Result<T, NotAChange>;

impl Decoder<'_> {
    fn created(&mut self, allocation: AllocationId) -> Decoded<Created> {
        let (path, user, transaction) = (self.path()?, self.user()?, self.transaction()?);
        let protocol = match self.bool()? {
            true => RelayProtocol::Tcp,
            false => RelayProtocol::Udp,
        };
        let count = self.u8()?;
        if count > RELAYS_MAX {
            return Err(NotAChange);
        }
        let relays = (0..count).map(|_| {
            Ok(Relayed {
                local: self.address()?,
                external: self.address()?,
            })
        });
        let relays = relays.collect::<Decoded<_>>()?;
        let missing_family = self.option(|input| Ok((input.family()?, input.u16()?)))?;
        let reservation = self.option(|input| {
            Ok(Reserved {
                token: input.token()?,
                local: input.address()?,
                expires: input.time()?,
            })
        })?;
        let brought = Brought {
            redeemed: self.option(Self::token)?,
            is_mobile: self.bool()?,
            origin: self.option(|input| {
                let text = input.text()?;
                CanonicalOrigin::from_canonical(text.as_bytes()).ok_or(NotAChange)
            })?,
            tunnel_to: None,
        };
        Ok(Created {
            allocation,
            path,
            user,
            transaction,
            protocol,
            relays,
            missing_family,
            reservation,
            brought,
            bytes_per_s: self.option(|input| NonZeroU32::new(input.u32()?).ok_or(NotAChange))?,
            created: self.time()?,
            expires: self.time()?,
        })
    }

    fn ended(&mut self, allocation: AllocationId) -> Decoded<Ended> {
        Ok(Ended {
            allocation,
            path: self.path()?,
            user: self.user()?,
            tunnel_to: None,
            cause: self.cause()?,
            created: self.time()?,
            time: self.time()?,
            created_by: self.transaction()?,
            redeemed: self.option(Self::token)?,
            created_from: self.option(Self::path)?,
            totals: self.usage()?,
        })
    }

    fn path(&mut self) -> Decoded<Path> {
        Ok(Path {
            server: self.address()?,
            client: self.address()?,
            transport: match self.u8()? {
                0 => Transport::Dtls,
                1 => Transport::Tcp,
                2 => Transport::Tls,
                3 => Transport::Udp,
                4 => Transport::Quic,
                _ => return Err(NotAChange),
            },
            connection: Connection::new(self.u32()?, self.u64()?),
        })
    }

    fn user(&mut self) -> Decoded<Arc<User>> {
        let (name, realm, quota_name) = (self.text()?, self.text()?, self.text()?);
        let record = UserRecord {
            name: &name,
            realm: &realm,
            quota_name: &quota_name,
            expires_unix_s: self.option(Self::u64)?,
            lifetime_max_s: self.u64()?,
            mac_key: self.option(Self::array)?,
        };
        Ok(Arc::new(record.user()))
    }

    fn cause(&mut self) -> Decoded<EndCause> {
        Ok(match self.u8()? {
            0 => EndCause::Cancelled,
            1 => EndCause::Disconnected,
            2 => EndCause::Expired,
            3 => EndCause::Lost,
            4 => EndCause::Released(self.transaction()?),
            _ => return Err(NotAChange),
        })
    }

    fn usage(&mut self) -> Decoded<Usage> {
        Ok(Usage {
            client_received: self.traffic()?,
            client_sent: self.traffic()?,
            peer_received: self.traffic()?,
            peer_sent: self.traffic()?,
        })
    }

    fn traffic(&mut self) -> Decoded<Traffic> {
        Ok(Traffic {
            datagrams: self.u64()?,
            bytes: self.u64()?,
        })
    }

    fn channel(&mut self) -> Decoded<ChannelNumber> {
        ChannelNumber::from_rfc5766(self.u16()?).map_err(|_| NotAChange)
    }

    fn address(&mut self) -> Decoded<SocketAddr> {
        let (ip, port) = (self.ip()?, self.u16()?);
        Ok(match ip {
            IpAddr::V4(ip) => SocketAddrV4::new(ip, port).into(),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, self.u32()?, self.u32()?).into(),
        })
    }

    fn ip(&mut self) -> Decoded<IpAddr> {
        Ok(match self.family()? {
            Family::V4 => Ipv4Addr::from(self.array::<4>()?).into(),
            Family::V6 => Ipv6Addr::from(self.array::<16>()?).into(),
        })
    }

    fn family(&mut self) -> Decoded<Family> {
        match self.u8()? {
            4 => Ok(Family::V4),
            6 => Ok(Family::V6),
            _ => Err(NotAChange),
        }
    }

    fn token(&mut self) -> Decoded<ReservationToken> {
        self.array().map(ReservationToken)
    }

    fn transaction(&mut self) -> Decoded<TransactionId> {
        self.array().map(TransactionId::new)
    }

    fn time(&mut self) -> Decoded<Time> {
        self.u64().map(Time::from_nanos)
    }

    fn option<T>(&mut self, read: impl FnOnce(&mut Self) -> Decoded<T>) -> Decoded<Option<T>> {
        match self.bool()? {
            true => read(self).map(Some),
            false => Ok(None),
        }
    }

    fn text(&mut self) -> Decoded<Box<str>> {
        let len = self.u16()?;
        let (text, rest) = self
            .0
            .split_at_checked(usize::from(len))
            .ok_or(NotAChange)?;
        self.0 = rest;
        std::str::from_utf8(text)
            .map(Into::into)
            .map_err(|_| NotAChange)
    }

    fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NotAChange),
        }
    }

    fn u8(&mut self) -> Decoded<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Decoded<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Decoded<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Decoded<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn array<const LEN: usize>(&mut self) -> Decoded<[u8; LEN]> {
        let (array, rest) = self.0.split_first_chunk().ok_or(NotAChange)?;
        self.0 = rest;
        Ok(*array)
    }
}
