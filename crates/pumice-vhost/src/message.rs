//! Messages of the vhost-user protocol, decoded from the bytes of the front end.
//!
//! Source: QEMU, docs/interop/vhost-user.rst. The `vhost` crate defines the layouts of the bodies.
//! This module checks form and ranges, not order, and does no I/O.

use vhost::vhost_user::message::{
    FrontendReq, MAX_MSG_SIZE, VhostUserConfig, VhostUserMemory, VhostUserMemoryRegion,
    VhostUserMsgValidator, VhostUserSingleMemoryRegion, VhostUserU64, VhostUserVringAddr,
    VhostUserVringState,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Longest body in bytes.
pub(crate) const BODY_BYTES_MAX: usize = MAX_MSG_SIZE;

/// Maximum number of descriptors of a message: one for each region of memory.
pub(crate) const DESCRIPTORS_MAX: usize = 32;

/// Bits of [`Head::flags`]: the version, a reply, a request for a reply.
const VERSION_MASK: u32 = 0x3;
const VERSION: u32 = 0x1;
const REPLY: u32 = 0x4;
const NEED_REPLY: u32 = 0x8;

/// In the index of a ring's eventfd: the message carries no descriptor.
const NO_DESCRIPTOR: u64 = 0x100;

/// The header of each body. As everywhere in this protocol, in the byte order of the machine.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Head {
    code: u32,
    flags: u32,
    body_bytes: u32,
}

/// A message of the front end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNumber,
    GetMemorySlots,
    /// One descriptor for each region.
    SetMemory(Vec<Region>),
    /// With its descriptor.
    AddMemory(Region),
    RemoveMemory(Region),
    SetRingSize {
        ring: usize,
        size: u32,
    },
    SetRingAddresses {
        ring: usize,
        addresses: Addresses,
    },
    SetRingBase {
        ring: usize,
        base: u32,
    },
    GetRingBase {
        ring: usize,
    },
    SetRingEnabled {
        ring: usize,
        enabled: bool,
    },
    /// With a descriptor, if `has_descriptor`. This also applies to the next two variants.
    SetKick {
        ring: usize,
        has_descriptor: bool,
    },
    SetCall {
        ring: usize,
        has_descriptor: bool,
    },
    SetError {
        ring: usize,
        has_descriptor: bool,
    },
    GetConfig {
        offset: u32,
        size: u32,
    },
    SetConfig,
    /// With the descriptor of a socket.
    SetBackChannel,
}

/// A region of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) guest_address: u64,
    /// The address at which the front end has mapped it.
    pub(crate) user_address: u64,
    pub(crate) bytes: u64,
    pub(crate) file_offset: u64,
}

/// Addresses of the parts of a ring in the front end's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

/// The error for a message that cannot be decoded. The bytes after it cannot be trusted either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl Head {
    /// Returns the length of the body.
    ///
    /// # Errors
    /// The body is too long, or the message does not have the supported version.
    pub(crate) fn body_bytes(&self) -> Result<usize, Malformed> {
        if self.flags & VERSION_MASK != VERSION {
            return Err(Malformed("another version of the protocol"));
        }
        if self.flags & REPLY != 0 {
            return Err(Malformed("an unrequested reply"));
        }
        match usize::try_from(self.body_bytes) {
            Ok(bytes) if bytes <= BODY_BYTES_MAX => Ok(bytes),
            _ => Err(Malformed("longer than 4096 bytes")),
        }
    }

    /// Returns whether the front end waits for a reply, even to a message that normally has none.
    pub(crate) fn needs_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// Returns the number of the message, for logs.
    pub(crate) fn code(&self) -> u32 {
        self.code
    }

    /// Returns the head of the reply to this message.
    #[expect(clippy::cast_possible_truncation, reason = "a body is at most 4096 bytes long")]
    pub(crate) fn reply(&self, body_bytes: usize) -> Self {
        debug_assert!(body_bytes <= BODY_BYTES_MAX);
        Self { code: self.code, flags: VERSION | REPLY, body_bytes: body_bytes as u32 }
    }

    /// Returns the head of the message by which the device reports that its configuration has
    /// changed: number 2 of the back channel, without a body.
    pub(crate) fn config_changed() -> Self {
        Self { code: 2, flags: VERSION, body_bytes: 0 }
    }
}

/// Decodes the message of `head` and `body`.
///
/// # Errors
/// The number is unknown, the length of the body does not match the message, or a field is out of
/// range.
pub(crate) fn decode(head: &Head, body: &[u8]) -> Result<Message, Malformed> {
    let Ok(code) = FrontendReq::try_from(head.code) else { return Err(Malformed("unknown")) };
    Ok(match code {
        FrontendReq::GET_FEATURES => empty(body, Message::GetFeatures)?,
        FrontendReq::SET_FEATURES => Message::SetFeatures(number(body)?),
        FrontendReq::SET_OWNER => empty(body, Message::SetOwner)?,
        FrontendReq::RESET_OWNER => empty(body, Message::ResetOwner)?,
        FrontendReq::GET_PROTOCOL_FEATURES => empty(body, Message::GetProtocolFeatures)?,
        FrontendReq::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(number(body)?),
        FrontendReq::GET_QUEUE_NUM => empty(body, Message::GetQueueNumber)?,
        FrontendReq::GET_MAX_MEM_SLOTS => empty(body, Message::GetMemorySlots)?,
        FrontendReq::SET_BACKEND_REQ_FD => empty(body, Message::SetBackChannel)?,
        FrontendReq::SET_MEM_TABLE => Message::SetMemory(regions(body)?),
        FrontendReq::ADD_MEM_REG => Message::AddMemory(single_region(body)?),
        FrontendReq::REM_MEM_REG => Message::RemoveMemory(single_region(body)?),
        FrontendReq::GET_CONFIG => {
            let (VhostUserConfig { offset, size, .. }, _) = config(body)?;
            Message::GetConfig { offset, size }
        }
        FrontendReq::SET_CONFIG => {
            config(body)?;
            Message::SetConfig
        }
        _ => ring_message(code, body)?,
    })
}

/// Returns the message about one ring.
fn ring_message(code: FrontendReq, body: &[u8]) -> Result<Message, Malformed> {
    let state = || {
        let VhostUserVringState { index, num } = whole(body)?;
        Ok((index as usize, num))
    };
    let event = || {
        let index = number(body)?;
        let ring = usize::from(index.to_le_bytes()[0]);
        Ok((ring, index & NO_DESCRIPTOR == 0))
    };
    Ok(match code {
        FrontendReq::SET_VRING_NUM => {
            let (ring, size) = state()?;
            Message::SetRingSize { ring, size }
        }
        FrontendReq::SET_VRING_BASE => {
            let (ring, base) = state()?;
            Message::SetRingBase { ring, base }
        }
        FrontendReq::GET_VRING_BASE => Message::GetRingBase { ring: state()?.0 },
        FrontendReq::SET_VRING_ENABLE => match state()? {
            (ring, number @ (0 | 1)) => Message::SetRingEnabled { ring, enabled: number == 1 },
            _ => return Err(Malformed("a ring is neither enabled nor disabled")),
        },
        FrontendReq::SET_VRING_ADDR => {
            let VhostUserVringAddr { index, descriptor, used, available, .. } = whole(body)?;
            let addresses = Addresses { descriptors: descriptor, available, used };
            Message::SetRingAddresses { ring: index as usize, addresses }
        }
        FrontendReq::SET_VRING_KICK => {
            let (ring, has_descriptor) = event()?;
            Message::SetKick { ring, has_descriptor }
        }
        FrontendReq::SET_VRING_CALL => {
            let (ring, has_descriptor) = event()?;
            Message::SetCall { ring, has_descriptor }
        }
        FrontendReq::SET_VRING_ERR => {
            let (ring, has_descriptor) = event()?;
            Message::SetError { ring, has_descriptor }
        }
        _ => return Err(Malformed("not supported")),
    })
}

fn empty(body: &[u8], message: Message) -> Result<Message, Malformed> {
    if body.is_empty() { Ok(message) } else { Err(WRONG_LENGTH) }
}

fn number(body: &[u8]) -> Result<u64, Malformed> {
    whole::<VhostUserU64>(body).map(|number| number.value)
}

const WRONG_LENGTH: Malformed = Malformed("of the wrong length");

/// Returns a body that consists of one structure.
fn whole<T: VhostUserMsgValidator + Default>(body: &[u8]) -> Result<T, Malformed> {
    match first(body)? {
        (value, []) => Ok(value),
        _ => Err(WRONG_LENGTH),
    }
}

/// Returns the structure at the beginning of a body, and the rest.
fn first<T: VhostUserMsgValidator + Default>(body: &[u8]) -> Result<(T, &[u8]), Malformed> {
    let (bytes, rest) = body.split_at_checked(size_of::<T>()).ok_or(WRONG_LENGTH)?;
    // A copy, because the body need not be aligned.
    let mut value = T::default();
    value.as_mut_slice().copy_from_slice(bytes);
    if value.is_valid() { Ok((value, rest)) } else { Err(Malformed("with a field out of range")) }
}

fn config(body: &[u8]) -> Result<(VhostUserConfig, &[u8]), Malformed> {
    let (config, bytes) = first::<VhostUserConfig>(body)?;
    if config.size as usize == bytes.len() { Ok((config, bytes)) } else { Err(WRONG_LENGTH) }
}

fn regions(body: &[u8]) -> Result<Vec<Region>, Malformed> {
    let (VhostUserMemory { num_regions, .. }, mut rest) = first(body)?;
    let mut regions = Vec::new();
    for _ in 0..num_regions {
        let (region, others) = first::<VhostUserMemoryRegion>(rest)?;
        regions.push(Region::from(&region));
        rest = others;
    }
    if rest.is_empty() { Ok(regions) } else { Err(WRONG_LENGTH) }
}

fn single_region(body: &[u8]) -> Result<Region, Malformed> {
    whole::<VhostUserSingleMemoryRegion>(body).map(|region| Region::from(&*region))
}

impl From<&VhostUserMemoryRegion> for Region {
    fn from(region: &VhostUserMemoryRegion) -> Self {
        Self {
            guest_address: region.guest_phys_addr,
            user_address: region.user_addr,
            bytes: region.memory_size,
            file_offset: region.mmap_offset,
        }
    }
}

/// Decodes `bytes` as one message. Returns whether they are one. Must not panic.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) -> bool {
    let Ok((head, rest)) = Head::read_from_prefix(bytes) else { return false };
    let Ok(length) = head.body_bytes() else { return false };
    let Some(body) = rest.get(..length) else { return false };
    let Ok(message) = decode(&head, body) else { return false };
    if let Message::SetMemory(regions) = message {
        assert!(regions.len() <= DESCRIPTORS_MAX);
    }
    true
}

#[cfg(test)]
mod tests {
    //! Goal: messages of the specification are accepted, and all others are refused. Method: bodies
    //! built from their definitions.
    use super::*;

    fn message(code: u32, body: &[u8]) -> Result<Message, Malformed> {
        let head = Head { code, flags: VERSION, body_bytes: body.len() as u32 };
        assert_eq!(head.body_bytes(), Ok(body.len()));
        decode(&head, body)
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn messages_of_the_specification_are_understood() {
        assert_eq!(message(1, &[]), Ok(Message::GetFeatures));
        assert_eq!(message(2, &words(&[5])), Ok(Message::SetFeatures(5)));
        assert_eq!(message(8, &words(&[3 | 128 << 32])), {
            Ok(Message::SetRingSize { ring: 3, size: 128 })
        });
        let addresses = Addresses { descriptors: 0x1000, used: 0x2000, available: 0x3000 };
        assert_eq!(
            message(9, &words(&[1, 0x1000, 0x2000, 0x3000, 0])),
            Ok(Message::SetRingAddresses { ring: 1, addresses })
        );
        assert_eq!(message(12, &words(&[2])), {
            Ok(Message::SetKick { ring: 2, has_descriptor: true })
        });
        assert_eq!(message(13, &words(&[0x102])), {
            Ok(Message::SetCall { ring: 2, has_descriptor: false })
        });
        let region = Region {
            guest_address: 1 << 20,
            bytes: 2 << 20,
            user_address: 3 << 20,
            file_offset: 0,
        };
        let mut body = words(&[1, 1 << 20, 2 << 20, 3 << 20, 0]);
        assert_eq!(message(5, &body), Ok(Message::SetMemory(vec![region])));
        body.extend([0; 8]);
        assert_eq!(message(5, &body), Err(WRONG_LENGTH));
        assert_eq!(message(37, &words(&[0, 1 << 20, 2 << 20, 3 << 20, 0])), {
            Ok(Message::AddMemory(region))
        });
    }

    #[test]
    fn everything_else_is_refused() {
        assert_eq!(message(1, &[0; 8]), Err(WRONG_LENGTH));
        assert_eq!(message(2, &[0; 4]), Err(WRONG_LENGTH));
        assert_eq!(message(99, &[]), Err(Malformed("unknown")));
        // The log of dirty pages.
        assert!(message(6, &words(&[0, 0])).is_err());
        // A ring is enabled by 1, disabled by 0.
        assert!(message(18, &words(&[2 << 32])).is_err());
        // A region whose end is beyond the address space, and more regions than allowed.
        assert!(message(5, &words(&[1, u64::MAX, 2, 0, 0])).is_err());
        assert!(message(5, &words(&[33])).is_err());
        let head = |flags, body_bytes| Head { code: 1, flags, body_bytes };
        assert!(head(VERSION, 4097).body_bytes().is_err());
        assert!(head(2, 0).body_bytes().is_err());
        assert!(head(VERSION | REPLY, 0).body_bytes().is_err());
    }
}
