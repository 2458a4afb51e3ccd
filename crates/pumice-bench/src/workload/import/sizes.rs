//! Parses sizes, times and switches as fio does.
//!
//! Source: fio 3.33, parse.c: `4k` and `4kb` are 4096 bytes, and with the default `kb_base` of 1024
//! `4kib` are 4000.

/// Parses a size in bytes.
///
/// # Errors
/// The text is not a size, is a percentage, or is too large.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size such as 4k");
    let lower = text.to_ascii_lowercase();
    let (digits, base) = match lower.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (lower.as_str(), 10),
    };
    let end = digits.find(|c: char| !c.is_digit(base)).unwrap_or(digits.len());
    let (number, unit) = digits.split_at(end);
    let number = u64::from_str_radix(number, base).map_err(|_| wrong())?;
    let (kilo, unit) = match unit.strip_suffix("ib") {
        Some(unit) => (1000u64, unit),
        None => (1024, unit.strip_suffix('b').unwrap_or(unit)),
    };
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|known| *known == unit);
    let power = power.ok_or_else(wrong)? as u32;
    number.checked_mul(kilo.pow(power)).ok_or_else(|| format!("'{text}' is too large"))
}

/// Parses a time in seconds.
///
/// # Errors
/// The text is not a time.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let lower = text.to_ascii_lowercase();
    let end = lower.find(|c: char| !c.is_ascii_digit()).unwrap_or(lower.len());
    let unit = match &lower[end..] {
        "" | "s" => 1.0,
        "ms" | "msec" => 1e-3,
        "us" | "usec" => 1e-6,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("'{text}' is not a time such as 30 or 5m")),
    };
    let number: f64 = lower[..end].parse().map_err(|_| format!("'{text}' is not a time"))?;
    Ok(number * unit)
}

/// Parses a number without a unit.
///
/// # Errors
/// The text is not a number, or has a unit.
pub(super) fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number"))
}

/// Parses a percentage, with or without the percent sign.
///
/// # Errors
/// The text is not a percentage, or is above 100.
pub(super) fn percent(text: &str) -> Result<u32, String> {
    let number = number(text.strip_suffix('%').unwrap_or(text))?;
    if number > 100 { Err(format!("{text}: expected 0 to 100")) } else { Ok(number) }
}

/// Parses a switch.
///
/// # Errors
/// The text is neither 0 nor 1.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err(format!("'{text}': expected 0 or 1")),
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a number has the same meaning as in fio.
    use super::*;

    #[test]
    fn numbers_match_fio() {
        for (text, bytes) in [
            ("512", 512),
            ("4k", 4096),
            ("4KB", 4096),
            ("4kib", 4000),
            ("2g", 2 << 30),
            ("0x1000", 4096),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "k", "50%", "4x", "99999999p", "-1", "4kk"] {
            assert!(size(text).is_err(), "{text}");
        }
        for (text, time) in [("30", 30.0), ("5m", 300.0), ("100ms", 0.1), ("1h", 3600.0)] {
            assert_eq!(seconds(text), Ok(time), "{text}");
        }
        assert!(seconds("x").is_err() && seconds("5y").is_err());
        assert!(percent("101").is_err() && percent("70%") == Ok(70));
        assert!(switch("1") == Ok(true) && switch("yes").is_err());
    }
}
