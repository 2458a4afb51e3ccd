//! Which requests are accepted, and the error value of those that are not.
//!
//! Pure: the header of a request and the shape of the export in, a command or an error value out.
//! What it lets through lies within the export, so that nothing after it checks a range again.

use super::wire::{self, Errno, Request, command};

/// Longest read, and longest write payload, in bytes: what the protocol asks every server to take
/// ("Size constraints", 2^25), and what `INFO_BLOCK_SIZE` announces.
pub(super) const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes { keep_allocated: bool },
    Cache,
}

impl Verb {
    /// Whether it changes what the disk holds, so that FUA means something.
    pub(super) fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes { .. })
    }
}

/// A request that was accepted. Its range lies within the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) verb: Verb,
    pub(super) fua: bool,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// What the checks need to know of the export.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) size_bytes: u64,
    pub(super) is_read_only: bool,
}

/// Accepts a request or says with which error value it is refused.
///
/// `DISC` is not a command: it has no reply, and the reader handles it before.
///
/// # Errors
/// EINVAL for an unknown command or flag, a read or write above [`PAYLOAD_BYTES_MAX`], a flush with
/// a range, and a read, trim or cache past the end; ENOSPC for a write or write-zeroes past the
/// end; EPERM for a change of a read-only export.
///
/// Source: doc/proto.md, "Error values" and "Request types".
pub(super) fn check(request: &Request, shape: Shape) -> Result<Command, Errno> {
    let verb = verb(request).ok_or(Errno::INVAL)?;
    if verb.changes() && shape.is_read_only {
        return Err(Errno::PERM);
    }
    let end = request.offset.checked_add(u64::from(request.length));
    let is_past_the_end = end.is_none_or(|end| end > shape.size_bytes);
    let is_too_long = request.length > PAYLOAD_BYTES_MAX;
    match verb {
        Verb::Flush if request.offset != 0 || request.length != 0 => return Err(Errno::INVAL),
        Verb::Read | Verb::Write if is_too_long => return Err(Errno::INVAL),
        Verb::Write | Verb::WriteZeroes { .. } if is_past_the_end => return Err(Errno::NOSPC),
        _ if is_past_the_end => return Err(Errno::INVAL),
        _ => {}
    }
    Ok(Command {
        verb,
        fua: request.flags & wire::COMMAND_FLAG_FUA != 0,
        cookie: request.cookie,
        offset: request.offset,
        length: request.length,
    })
}

/// The verb of a request, if the command is known and has no flag it does not allow.
fn verb(request: &Request) -> Option<Verb> {
    let keep_allocated = request.flags & wire::COMMAND_FLAG_NO_HOLE != 0;
    let verb = match request.command {
        command::READ => Verb::Read,
        command::WRITE => Verb::Write,
        command::FLUSH => Verb::Flush,
        command::TRIM => Verb::Trim,
        command::WRITE_ZEROES => Verb::WriteZeroes { keep_allocated },
        command::CACHE => Verb::Cache,
        _ => return None,
    };
    // Once FUA is announced it must be accepted on every command.
    let allowed = match verb {
        Verb::WriteZeroes { .. } => wire::COMMAND_FLAG_FUA | wire::COMMAND_FLAG_NO_HOLE,
        _ => wire::COMMAND_FLAG_FUA,
    };
    (request.flags & !allowed == 0).then_some(verb)
}

#[cfg(test)]
mod tests {
    //! Goal: every error value of the table in [`check`], and the exact edge of every range.
    use super::*;

    const SIZE: u64 = 1 << 30;
    const WRITABLE: Shape = Shape { size_bytes: SIZE, is_read_only: false };

    fn request(command: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 9, offset, length }
    }

    fn error(command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        check(&request(command, flags, offset, length), WRITABLE).map_or_else(Errno::to_wire, |_| 0)
    }

    #[test]
    fn ranges_end_at_the_end_of_the_export() {
        for (command, past) in [
            (command::READ, 22),
            (command::WRITE, 28),
            (command::TRIM, 22),
            (command::WRITE_ZEROES, 28),
            (command::CACHE, 22),
        ] {
            assert_eq!(error(command, 0, SIZE - 512, 512), 0);
            assert_eq!(error(command, 0, SIZE - 512, 513), past);
            assert_eq!(error(command, 0, SIZE, 0), 0);
            assert_eq!(error(command, 0, SIZE + 1, 0), past);
            assert_eq!(error(command, 0, u64::MAX, 1), past);
            assert_eq!(error(command, 0, u64::MAX - 4095, 4096), past);
        }
    }

    #[test]
    fn payloads_are_limited_and_other_lengths_are_not() {
        assert_eq!(error(command::READ, 0, 0, PAYLOAD_BYTES_MAX), 0);
        assert_eq!(error(command::READ, 0, 0, PAYLOAD_BYTES_MAX + 1), 22);
        assert_eq!(error(command::WRITE, 0, 0, PAYLOAD_BYTES_MAX), 0);
        assert_eq!(error(command::WRITE, 0, 0, PAYLOAD_BYTES_MAX + 1), 22);
        for command in [command::TRIM, command::WRITE_ZEROES, command::CACHE] {
            assert_eq!(error(command, 0, 0, SIZE as u32), 0);
        }
        assert_eq!(error(command::FLUSH, 0, 0, 0), 0);
        assert_eq!(error(command::FLUSH, 0, 0, 1), 22);
        assert_eq!(error(command::FLUSH, 0, 512, 0), 22);
    }

    #[test]
    fn flags_and_commands_that_are_unknown_are_refused() {
        for command in 0..=u16::MAX {
            let is_known = matches!(command, 0 | 1 | 3..=6);
            assert_eq!(error(command, 0, 0, 0), if is_known { 0 } else { 22 }, "{command}");
            assert_eq!(error(command, 1, 0, 0), if is_known { 0 } else { 22 }, "{command}");
            let takes_no_hole = command == command::WRITE_ZEROES;
            assert_eq!(error(command, 2, 0, 0), if takes_no_hole { 0 } else { 22 }, "{command}");
            for bit in 2..16 {
                assert_eq!(error(command, 1 << bit, 0, 0), 22, "{command}, bit {bit}");
            }
        }
    }

    #[test]
    fn a_read_only_export_refuses_changes_only() {
        let shape = Shape { is_read_only: true, ..WRITABLE };
        for command in 0..=6 {
            let expected = match command {
                command::WRITE | command::TRIM | command::WRITE_ZEROES => Err(Errno::PERM),
                command::DISC => Err(Errno::INVAL),
                _ => Ok(()),
            };
            assert_eq!(check(&request(command, 0, 0, 0), shape).map(|_| ()), expected);
        }
    }

    #[test]
    fn an_accepted_request_is_carried_over_whole() {
        let accepted = check(&request(command::WRITE_ZEROES, 3, 4096, 512), WRITABLE).unwrap();
        let verb = Verb::WriteZeroes { keep_allocated: true };
        assert_eq!(accepted, Command { verb, fua: true, cookie: 9, offset: 4096, length: 512 });
    }
}
