//! Ranks of values, doubled so that the mean rank of equal values is an integer and sums of ranks
//! compare exactly.

/// Returns twice the rank of each value; ranks start at 1. Equal values share the mean of their
/// ranks.
///
/// `values` must not contain NaN.
pub(super) fn doubled_ranks(values: &[f64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0; values.len()];
    let mut before = 0;
    for equal in order.chunk_by(|&a, &b| values[a] == values[b]) {
        // The ranks are before + 1 ..= before + count; twice their mean is the sum of the first and
        // the last.
        let doubled = (2 * before + equal.len() + 1) as u64;
        equal.iter().for_each(|&index| ranks[index] = doubled);
        before += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    //! Goal: ranks agree with the definition. Method: ranks calculated by hand.
    use super::*;

    #[test]
    fn equal_values_share_their_ranks() {
        assert_eq!(doubled_ranks(&[3.0, 1.0, 2.0]), [6, 2, 4]);
        assert_eq!(doubled_ranks(&[5.0, 1.0, 5.0, 5.0]), [6, 2, 6, 6]);
        assert_eq!(doubled_ranks(&[0.0, -0.0]), [3, 3]);
        assert!(doubled_ranks(&[]).is_empty());
    }
}
