//! Warnings before certificates and certificate revocation lists expire.

use std::sync::Arc;

use crate::environment::unix_seconds;
use pumice_drive::base::Clock;
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Tally, Validity};

const DAY_S: i64 = 86_400;

/// A warning is logged this long before the end, or when a third of the validity is left if that is
/// less: revocation lists are often renewed each week. Arbitrary.
const NOTICE_S: i64 = 14 * DAY_S;

/// Interval between two checks.
const LOOK_NS: u64 = DAY_S as u64 * 1_000_000_000;

/// State of a validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Good,
    EndsSoon,
    Over,
}

/// Warns once a day of validities that end soon.
pub(super) async fn watch(runtime: Runtime, tally: Arc<Tally>) {
    loop {
        warn(&tally.validities());
        runtime.sleep_ns(LOOK_NS).await;
    }
}

/// Warns of validities that end soon.
pub(super) fn warn(validities: &[Validity]) {
    let now_s = unix_seconds().cast_signed();
    for validity in validities {
        let file = &validity.file;
        let days_left = (validity.until_s - now_s) / DAY_S;
        match standing(validity, now_s) {
            Standing::Good => {}
            Standing::EndsSoon => {
                tracing::warn!(%file, days_left, "expires soon: renew it, then reload with SIGHUP");
            }
            Standing::Over => {
                tracing::error!(%file, "has expired: clients are refused until it is renewed");
            }
        }
    }
}

fn standing(validity: &Validity, now_s: i64) -> Standing {
    let Validity { from_s, until_s, .. } = *validity;
    let notice_s = NOTICE_S.min(until_s.saturating_sub(from_s) / 3);
    if now_s > until_s {
        Standing::Over
    } else if now_s > until_s - notice_s {
        Standing::EndsSoon
    } else {
        Standing::Good
    }
}

#[cfg(test)]
mod tests {
    //! Goal: notice is given in time, and not permanently for lists that are renewed often.
    use super::*;

    #[test]
    fn notice_is_two_weeks_or_a_third() {
        let of = |days: i64, now_days: i64| {
            let validity = Validity { file: String::new(), from_s: 0, until_s: days * DAY_S };
            standing(&validity, now_days * DAY_S)
        };
        assert_eq!(of(90, 75), Standing::Good);
        assert_eq!(of(90, 77), Standing::EndsSoon);
        assert_eq!(of(90, 90), Standing::EndsSoon);
        assert_eq!(of(90, 91), Standing::Over);
        assert_eq!(of(6, 3), Standing::Good);
        assert_eq!(of(6, 5), Standing::EndsSoon);
    }
}
