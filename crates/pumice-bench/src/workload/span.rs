//! Spans relative to the machine's memory size.

use pumice_drive::base::units::parse_size;

/// Granularity of a span that depends on the memory size: the largest record, so that every record
/// size divides it.
const GRAIN_BYTES: u64 = super::RECORD_BYTES_MAX;

/// Maximum multiple of the memory size (arbitrary).
const FACTOR_MAX: f64 = 1000.0;

/// Returns the memory size of this machine in bytes; `None` if unknown.
pub fn memory_bytes() -> Option<u64> {
    memory_of(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

/// Returns the memory size in bytes according to the text of `/proc/meminfo`; `None` if it is
/// missing.
pub(crate) fn memory_of(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses a span: a size such as `64G`, or a multiple of the memory size such as `2xmem`, which is
/// rounded up to 64 MiB.
///
/// # Errors
/// The text is neither, or the memory size is unknown.
pub fn parse_span(text: &str) -> Result<u64, String> {
    match text.strip_suffix("xmem") {
        None => parse_size(text),
        Some(factor) => {
            let memory = memory_bytes().ok_or("the size of the memory is unknown")?;
            of_memory(factor, memory)
        }
    }
}

fn of_memory(factor: &str, memory: u64) -> Result<u64, String> {
    let factor = factor.parse().ok().filter(|factor| *factor > 0.0 && *factor <= FACTOR_MAX);
    let factor: f64 = factor.ok_or("expected a multiple of the memory such as 2xmem")?;
    Ok(((memory as f64 * factor) as u64).next_multiple_of(GRAIN_BYTES))
}

#[cfg(test)]
mod tests {
    //! Goal: a span of twice the memory size is at least that large.
    use super::*;

    #[test]
    fn multiples_of_the_memory_are_sizes() {
        assert_eq!(of_memory("2", 3 << 30), Ok(6 << 30));
        assert_eq!(of_memory("2", (3 << 30) + 4096), Ok((6 << 30) + (64 << 20)));
        assert_eq!(of_memory("0.5", 1 << 30), Ok(512 << 20));
        let memory = memory_bytes().expect("Linux");
        let twice = parse_span("2xmem").expect("a span");
        assert!((2 * memory..2 * memory + (64 << 20)).contains(&twice));
        assert_eq!(parse_span("64M"), Ok(64 << 20));
        for wrong in ["xmem", "-1xmem", "0xmem", "nanxmem", "1e9xmem", "2 x mem"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }
}
