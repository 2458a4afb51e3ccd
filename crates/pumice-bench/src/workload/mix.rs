//! Mixed workloads with several kinds of requests, as in an Iometer access specification.
//!
//! The kind of each request is drawn according to the kinds' shares. The shares of that kind then
//! determine whether the request is a read or a write, and whether its offset is random or
//! continues after the previous request of the kind. At the end of the span, a sequential request
//! continues at the start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use pumice_drive::base::units::format_size_exact;

/// Maximum number of kinds in a mix: the number of lines in an access specification.
///
/// Source: Iometer 1.1.0, `MAX_ACCESS_SPECS`.
pub(crate) const ACCESSES_MAX: usize = 100;

/// Bytes of a sector, the unit of requests.
const SECTOR_BYTES: u64 = 512;

/// Maximum pause between bursts, in milliseconds: a minute (arbitrary).
const PAUSE_MS_MAX: u32 = 60_000;

/// One kind of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Access {
    /// Request size in bytes, a multiple of 512.
    pub bytes: u64,
    /// Share of all requests, in percent; the shares in a mix add up to 100.
    pub share_percent: u32,
    /// Share of reads, in percent.
    pub reads_percent: u32,
    /// Share of random offsets, in percent.
    pub random_percent: u32,
    /// Alignment of random offsets in bytes, a multiple of 512; 0 stands for 512-byte sectors.
    pub align_bytes: u64,
    /// Number of requests of a thread between two pauses.
    pub burst: u32,
    /// Duration of a pause in milliseconds; 0 for none.
    pub pause_ms: u32,
}

impl Access {
    /// Returns the distance between possible random offsets in bytes.
    pub(crate) fn step_bytes(&self) -> u64 {
        self.align_bytes.max(SECTOR_BYTES)
    }
}

/// Returns the greatest common divisor.
pub(super) fn common(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { common(other, one % other) }
}

/// Checks a mix whose largest request is a valid record of `record_bytes`.
///
/// # Errors
/// [`Error::Invalid`] with the invalid number and its range.
pub(super) fn check(mix: &[Access], record_bytes: u64) -> Result<()> {
    let wrong = |what: String| Err(Error::invalid(what));
    if mix.len() > ACCESSES_MAX {
        return wrong(format!("{} kinds of requests: expected up to {ACCESSES_MAX}", mix.len()));
    }
    if mix.iter().map(|access| access.bytes).max() != Some(record_bytes) {
        return wrong("the record of a mix is not its largest request".into());
    }
    for access in mix {
        let Access { share_percent, reads_percent, random_percent, .. } = *access;
        if access.bytes == 0 || !access.bytes.is_multiple_of(SECTOR_BYTES) {
            return wrong(format!("requests of {} bytes: expected sectors of 512", access.bytes));
        }
        if share_percent > 100 || reads_percent > 100 || random_percent > 100 {
            let size = format_size_exact(access.bytes);
            return wrong(format!("a share of the requests of {size} is above 100 %"));
        }
        if !access.align_bytes.is_multiple_of(SECTOR_BYTES) {
            return wrong(format!(
                "an alignment of {} bytes: expected sectors",
                access.align_bytes
            ));
        }
        if access.burst == 0 || access.pause_ms > PAUSE_MS_MAX {
            let (burst, pause) = (access.burst, access.pause_ms);
            return wrong(format!(
                "a pause of {pause} ms after {burst} requests: expected up to {PAUSE_MS_MAX} ms \
                 after at least 1"
            ));
        }
    }
    match mix.iter().map(|access| access.share_percent).sum() {
        100u32 => Ok(()),
        sum => wrong(format!("the shares of a mix have the sum {sum} %: expected 100 %")),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: an impossible mix is refused, and the error includes the number.
    use super::*;
    use crate::bench::results::sample::workload;
    use crate::workload::Operation;

    #[test]
    fn impossible_mixes_are_refused() {
        let access = Access {
            bytes: 4096,
            share_percent: 100,
            reads_percent: 80,
            random_percent: 100,
            align_bytes: 0,
            burst: 1,
            pause_ms: 0,
        };
        let with = |change: &dyn Fn(&mut Access)| {
            let mut changed = access.clone();
            change(&mut changed);
            let mut workload = workload(Operation::Mixed, changed.bytes.max(512));
            workload.mix = vec![changed];
            workload.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(&|_| {}), Ok(()));
        for (change, words) in [
            (&(|it: &mut Access| it.bytes = 5000) as &dyn Fn(&mut Access), "5000 bytes"),
            (&|it| it.bytes = 0, "not its largest"),
            (&|it| it.share_percent = 60, "the sum 60 %"),
            (&|it| it.reads_percent = 101, "above 100 %"),
            (&|it| it.align_bytes = 100, "alignment of 100"),
            (&|it| it.burst = 0, "after 0 requests"),
            (&|it| it.pause_ms = 60_001, "60001 ms"),
        ] {
            let error = with(change).expect_err(words);
            assert!(error.contains(words), "{words}: {error}");
        }
        let mut read = workload(Operation::RandomRead, 4096);
        read.mix = vec![access.clone()];
        assert!(read.check().unwrap_err().to_string().contains("only mixed"));
        let mut many = workload(Operation::Mixed, 4096);
        many.mix = vec![access; 101];
        assert!(many.check().unwrap_err().to_string().contains("101 kinds"));
    }

    #[test]
    fn pieces_divide_every_request() {
        for (sizes, piece) in
            [(&[4096u64][..], 4096), (&[512, 65536], 512), (&[6144, 4096], 2048), (&[], 8192)]
        {
            let largest = sizes.iter().copied().max().unwrap_or(8192);
            let mut workload = workload(Operation::Mixed, largest);
            let access = |bytes: &u64| Access {
                bytes: *bytes,
                share_percent: 50,
                reads_percent: 0,
                random_percent: 0,
                align_bytes: 0,
                burst: 1,
                pause_ms: 0,
            };
            workload.mix = sizes.iter().map(access).collect();
            assert_eq!(workload.piece_bytes(), piece);
        }
    }
}
