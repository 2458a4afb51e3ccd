//! Fuzz targets for the input of a vhost-user device: the messages of any front end, and a ring in
//! the memory of any guest.
//!
//! ```text
//! vhost_message   head (12 bytes), body
//! vhost_request   the memory of the guest, from address 0:
//!                 0x000 16 descriptors | 0x100 available ring | 0x200 used ring | 0x300 free
//! ```

use pumice_vhost::fuzzing;

/// Decodes a message. Accepted if it is one.
pub fn vhost_message(input: &[u8]) -> bool {
    fuzzing::message(input)
}

/// Takes requests from a ring. Accepted if one of them may be carried out.
pub fn vhost_request(input: &[u8]) -> bool {
    fuzzing::request(input)
}
