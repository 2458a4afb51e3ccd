//! The space that compression saves, as text.

use pumice_drive::base::units::format_size;
use pumice_drive::controller::Info;

/// Returns the ratio of a drive's data to its stored size, and the bytes that this saves, as in
/// "1.9x, 412 GiB"; "-" if it holds no data.
pub(crate) fn saved_text(info: &Info) -> String {
    let (mapped, stored) = (info.mapped_bytes, info.live_bytes);
    if mapped == 0 || stored == 0 {
        return "-".into();
    }
    let ratio = mapped as f64 / stored as f64;
    // Data that is nearly all zeroes.
    let ratio = if ratio >= 1000.0 { "over 1000x".into() } else { format!("{ratio:.1}x") };
    format!("{ratio}, {}", format_size(mapped.saturating_sub(stored)))
}
