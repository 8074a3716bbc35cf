//! Control messages: the 16-bit `UDP_SEGMENT` going out, the 32-bit `UDP_GRO` coming in, extended errors.

/// Bytes of a control message that carries at most 8 bytes of data.
pub(crate) const SMALL_LEN: usize = size_of::<libc::cmsghdr>() + 8;
const HEADER_LEN: usize = size_of::<libc::cmsghdr>();

/// Room for one small control message, aligned as the kernel wants it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct SmallControl(pub(crate) [u8; SMALL_LEN]);

impl SmallControl {
    pub(crate) const EMPTY: Self = Self([0; SMALL_LEN]);

    /// Returns the control message that makes one send a train of `segment`-byte datagrams.
    #[inline]
    pub(crate) fn segment(segment: u16) -> Self {
        let mut bytes = [0; SMALL_LEN];
        bytes[..8].copy_from_slice(&(HEADER_LEN + 2).to_ne_bytes());
        bytes[8..12].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
        bytes[12..16].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
        bytes[16..18].copy_from_slice(&segment.to_ne_bytes());
        Self(bytes)
    }
}

/// Walks the control messages in `control`: level, type, data.
pub(crate) fn messages(control: &[u8]) -> impl Iterator<Item = (i32, i32, &[u8])> {
    let mut rest = control;
    std::iter::from_fn(move || {
        let header = rest.get(..HEADER_LEN)?;
        let len = usize::from_ne_bytes(header.get(..8)?.try_into().ok()?);
        let level = i32::from_ne_bytes(header.get(8..12)?.try_into().ok()?);
        let kind = i32::from_ne_bytes(header.get(12..16)?.try_into().ok()?);
        let data = rest.get(HEADER_LEN..len)?;
        rest = rest
            .get(len.next_multiple_of(align_of::<libc::cmsghdr>())..)
            .unwrap_or(&[]);
        Some((level, kind, data))
    })
}

/// Returns the segment size of a GRO buffer, from its control messages. The kernel passes a 4-byte int.
#[inline]
pub(crate) fn gro_segment(control: &[u8]) -> Option<usize> {
    messages(control).find_map(|(level, kind, data)| {
        if level != libc::SOL_UDP || kind != libc::UDP_GRO {
            return None;
        }
        usize::try_from(i32::from_ne_bytes(data.get(..4)?.try_into().ok()?)).ok()
    })
}

// The layout above is written for the two facts below; a target where they differ must not compile.
const _: () = assert!(size_of::<libc::cmsghdr>() == 16 && align_of::<libc::cmsghdr>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_all_messages_and_stops_at_nonsense() {
        let mut bytes = SmallControl::segment(1200).0.to_vec();
        let gro: Vec<u8> = [
            &20usize.to_ne_bytes()[..],
            &libc::SOL_UDP.to_ne_bytes(),
            &libc::UDP_GRO.to_ne_bytes(),
            &140i32.to_ne_bytes(),
            &[0; 4],
        ]
        .concat();
        bytes.extend_from_slice(&gro);
        assert_eq!(gro_segment(&bytes), Some(140));
        assert_eq!(messages(&bytes).count(), 2);
        bytes[24..32].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(gro_segment(&bytes), None);
        bytes[24..32].copy_from_slice(&3usize.to_ne_bytes());
        assert_eq!(gro_segment(&bytes), None);
        assert_eq!(gro_segment(&[]), None);
    }
}
