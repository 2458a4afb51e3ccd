//! The kinds of requests of a job of fio.

use super::sizes::{percent, size};

/// One kind of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) bytes: u64,
    pub(super) share_percent: u32,
    pub(super) reads_percent: u32,
}

/// Returns the kinds of requests of a job with `reads_percent` of reads, from `bssplit` or `bs`.
///
/// # Errors
/// A size or share is malformed.
pub(super) fn kinds(
    split: Option<&str>,
    sizes: &str,
    reads_percent: u32,
) -> Result<Vec<Kind>, String> {
    let whole = |text: &str| Ok(vec![(size(text).map_err(|what| format!("bs: {what}"))?, 100)]);
    if split.is_none() && sizes.contains('-') {
        return Err(format!("bs={sizes}: a range of sizes is not supported; use bssplit"));
    }
    let text = split.unwrap_or(sizes);
    // One value for all directions, or one for each.
    let mut parts = text.split(',').map(str::trim);
    let of_reads = parts.next().unwrap_or_default();
    let of_writes = parts.next().filter(|part| !part.is_empty()).unwrap_or(of_reads);
    let of_reads = if of_reads.is_empty() { "4k" } else { of_reads };
    let of_writes = if of_writes.is_empty() { "4k" } else { of_writes };
    let parse = |part: &str| if split.is_some() { shares(part) } else { whole(part) };
    let (reads, writes) = (parse(of_reads)?, parse(of_writes)?);
    let kind = |&(bytes, share_percent): &(u64, u32), reads_percent| Kind {
        bytes,
        share_percent,
        reads_percent,
    };
    if reads_percent == 100 {
        return Ok(reads.iter().map(|it| kind(it, 100)).collect());
    }
    if reads_percent == 0 {
        return Ok(writes.iter().map(|it| kind(it, 0)).collect());
    }
    if reads == writes && split.is_some() {
        return Ok(reads.iter().map(|it| kind(it, reads_percent)).collect());
    }
    // Each direction has its own sizes and, if sequential, its own position.
    let mut kinds = Vec::new();
    for (list, share, of) in [(reads, reads_percent, 100), (writes, 100 - reads_percent, 0)] {
        for (bytes, percent) in list {
            let product = percent * share;
            if !product.is_multiple_of(100) {
                return Err(format!("{percent} % of {share} % is not a whole percentage"));
            }
            kinds.push(Kind { bytes, share_percent: product / 100, reads_percent: of });
        }
    }
    Ok(kinds)
}

/// Parses sizes with their shares, such as `512/10:4k/90`. Sizes without a share divide the
/// remainder.
fn shares(text: &str) -> Result<Vec<(u64, u32)>, String> {
    let wrong = |what: String| format!("bssplit: {what}");
    let mut sizes = Vec::new();
    for part in text.split(':') {
        let (bytes, share) = part.split_once('/').unwrap_or((part, ""));
        let share = Some(share).filter(|share| !share.is_empty()).map(percent).transpose();
        sizes.push((size(bytes).map_err(wrong)?, share.map_err(wrong)?));
    }
    let given: u32 = sizes.iter().filter_map(|(_, share)| *share).sum();
    let open = sizes.iter().filter(|(_, share)| share.is_none()).count() as u32;
    let rest = 100u32.checked_sub(given).ok_or_else(|| wrong(format!("{given} % in all")))?;
    if (open == 0 && rest > 0) || (open > 0 && !rest.is_multiple_of(open)) {
        return Err(wrong(format!("{rest} % are left: expected shares that add up to 100 %")));
    }
    Ok(sizes
        .into_iter()
        .map(|(bytes, share)| (bytes, share.unwrap_or(rest / open.max(1))))
        .collect())
}
