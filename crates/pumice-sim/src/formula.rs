//! Formulas for the cost of garbage collection and the endurance of a drive.

/// Returns the write amplification of uniform random writes under greedy garbage collection.
/// `ratio` is the ratio of raw to user space. The result is infinite for ratios of 1 or less.
///
/// Source: Xiang and Kurkoski, "An improved analytic expression for write amplification in NAND
/// flash", 2012.
pub fn write_amplification(ratio: f64) -> f64 {
    if ratio.is_nan() || ratio <= 1.0 {
        return f64::INFINITY;
    }
    // The root w in (0, 1) of ln w - w = ln ratio - ratio; the left side increases with w.
    let wanted = ratio.ln() - ratio;
    let (mut low, mut high) = (0.0, 1.0);
    // Each step halves the interval; 100 steps exhaust the precision.
    for _ in 0..100 {
        let middle: f64 = (low + high) / 2.0;
        if middle.ln() - middle < wanted { low = middle } else { high = middle }
    }
    ratio / (ratio - (low + high) / 2.0)
}

/// Returns the write amplification of a drive that stores the fraction `stored` of its data. To
/// first order, the stored bytes are amplified as on a drive with proportionally less data.
pub fn first_order(raw_bytes: f64, user_bytes: f64, stored: f64) -> f64 {
    stored * write_amplification(raw_bytes / (user_bytes * stored))
}

/// Returns the number of bytes that a host can write before the flash is worn out: the drive's size
/// times the cycles of a block, divided by the write amplification. Space invisible to the host is
/// not counted, and wear is assumed to be even. JESD218 specifies the retention that a drive must
/// still have at that point.
pub fn endurance_bytes(size_bytes: u64, pe_cycles: u64, write_amplification: f64) -> f64 {
    size_bytes as f64 * pe_cycles as f64 / write_amplification
}

/// Returns the number of years until `endurance_bytes` have been written, at `bytes_per_day`.
pub fn years(endurance_bytes: f64, bytes_per_day: f64) -> f64 {
    endurance_bytes / bytes_per_day / 365.25
}

#[cfg(test)]
mod tests {
    //! Goal: the formulas reproduce published results. Method: tables, and sums calculated by hand.

    use super::*;

    #[test]
    fn write_amplification_is_as_published() {
        for (ratio, published) in [
            (1.05, 10.67),
            (1.0737, 7.46),
            (1.12, 4.85),
            (1.2, 3.19),
            (1.28, 2.48),
            (1.374, 2.04),
            (1.5, 1.72),
        ] {
            let computed = write_amplification(ratio);
            assert!((computed - published).abs() < 0.006, "{ratio}: {computed}");
        }
        assert!((write_amplification(20.0) - 1.0).abs() < 1e-6);
        for none in [1.0, 0.5, f64::NAN] {
            assert_eq!(write_amplification(none), f64::INFINITY);
        }
    }

    #[test]
    fn compression_makes_the_vendors_figure() {
        let gib = f64::from(1 << 30);
        let published = [(100e9, 0.46), (120e9, 0.49)];
        for (user_bytes, expected) in published {
            let computed = first_order(128.0 * gib, user_bytes, 0.44);
            assert!((computed - expected).abs() < 0.006, "{user_bytes}: {computed}");
        }
    }

    #[test]
    fn endurance_is_a_product() {
        assert_eq!(endurance_bytes(60_000_000_000, 5000, 2.0), 150e12);
        assert!((years(150e12, 20e9) - 20.53).abs() < 0.01);
    }
}
