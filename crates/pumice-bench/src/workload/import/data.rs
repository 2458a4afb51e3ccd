//! The data written by an fio job, as a level of a preset.

use super::options::Options;
use super::sizes::{percent, size, switch};

/// Data of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Data {
    /// Kind of data, as in a preset.
    pub(super) kind: String,
    /// Requested saving in percent.
    pub(super) saved_percent: Option<u32>,
    /// Share of duplicates in percent.
    pub(super) duplicates_percent: Option<u32>,
}

impl Data {
    /// Removes and parses the options that describe the data. `writes` states whether the job
    /// writes, in which case differences must be noted.
    ///
    /// # Errors
    /// A value is malformed or not supported.
    pub(super) fn take(
        options: &mut Options<'_>,
        writes: bool,
        notes: &mut Vec<String>,
    ) -> Result<Self, String> {
        let zeroes = options.take_as(&["zero_buffers"], switch)?.unwrap_or(false);
        let refilled = options.take_as(&["refill_buffers"], switch)?.unwrap_or(false);
        let pattern = options.take(&["buffer_pattern"]);
        let saved = options.take_as(&["buffer_compress_percentage"], percent)?;
        let chunk = options.take_as(&["buffer_compress_chunk"], size)?;
        let duplicates = options.take_as(&["dedupe_percentage"], percent)?;
        let (kind, saved_percent) = match (zeroes, pattern, saved) {
            (true, None, _) => ("byte:0x00".to_owned(), None),
            (_, Some(pattern), _) => (byte(pattern)?, None),
            (false, None, Some(saved)) if saved > 0 => ("exact".to_owned(), Some(saved)),
            (false, None, _) => ("random".to_owned(), None),
        };
        if writes && saved_percent.is_some() && chunk != Some(4096) {
            notes.push(
                "fio fills this share of every buffer_compress_chunk with zeroes; here a codec \
                 saves this share of every 4 KiB"
                    .into(),
            );
        }
        // fio refills the buffers itself when it generates compressible or duplicate data.
        let repeats = !refilled && saved_percent.is_none() && duplicates.unwrap_or(0) == 0;
        if writes && kind == "random" && repeats {
            notes.push(
                "without refill_buffers fio writes one buffer again and again, changed in a few \
                 bytes; here every write has new random bytes"
                    .into(),
            );
        }
        Ok(Self { kind, saved_percent, duplicates_percent: duplicates.filter(|it| *it > 0) })
    }

    /// Returns the level as a table.
    pub(super) fn table(&self) -> toml::Table {
        let mut table = super::table([("kind", self.kind.clone().into())]);
        let shares = [("saved", self.saved_percent), ("duplicates", self.duplicates_percent)];
        for (key, percent) in shares {
            if let Some(percent) = percent {
                table.insert(key.to_owned(), format!("{percent}%").into());
            }
        }
        table
    }
}

/// Returns the kind of data that repeats a single byte.
fn byte(pattern: &str) -> Result<String, String> {
    let digits = pattern.to_ascii_lowercase();
    let byte = match digits.strip_prefix("0x") {
        // A longer pattern consists of repeated bytes.
        Some(digits) if !digits.is_empty() && digits.len() <= 16 && digits.is_ascii() => {
            let even = if digits.len() == 1 { format!("0{digits}") } else { digits.to_owned() };
            let first = even.get(..2).unwrap_or_default().to_owned();
            let repeats = even.len().is_multiple_of(2)
                && even.as_bytes().chunks(2).all(|pair| pair == first.as_bytes());
            repeats.then(|| u8::from_str_radix(&first, 16).ok()).flatten()
        }
        Some(_) => None,
        None => digits.parse().ok(),
    };
    let byte = byte.ok_or_else(|| {
        format!("buffer_pattern={pattern} is not supported: expected one byte such as 0xff")
    })?;
    Ok(format!("byte:0x{byte:02x}"))
}

#[cfg(test)]
mod tests {
    //! Goal: only patterns of one repeated byte are accepted.
    use super::byte;

    #[test]
    fn patterns_are_one_byte_or_refused() {
        for (pattern, kind) in [
            ("0xff", "byte:0xff"),
            ("0x5", "byte:0x05"),
            ("42", "byte:0x2a"),
            ("0xabab", "byte:0xab"),
        ] {
            assert_eq!(byte(pattern).as_deref(), Ok(kind));
        }
        for pattern in ["0xdeadface", "\"abcd\"", "0x", "300", "0xaba", "'x'", "0xé"] {
            assert!(byte(pattern).is_err(), "{pattern}");
        }
    }
}
