//! The cost of a drive in a bucket: counters of requests and stored bytes, times prices.
//!
//! An estimate: traffic out of the store's network, minimum sizes, minimum times and taxes are not
//! included.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use pumice_drive::media::tier::Status;

/// Maximum accepted price, in dollars. Arbitrary: far beyond any, and no sum overflows.
const USD_MAX: f64 = 1e6;

/// Prices of a store. The defaults are the list prices of S3 Standard in us-east-1, 2026, where
/// deletions cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, clap::Args, JsonSchema)]
#[group(skip)]
#[command(next_help_heading = "Prices of a bucket")]
pub(crate) struct Prices {
    /// Price of storing 1 GB (10^9 bytes) for a month, in dollars
    #[arg(long = "price-storage", default_value = "0.023", value_parser = usd, value_name = "USD")]
    pub(crate) storage_usd: f64,

    /// Price of 1000 PUT or LIST requests, in dollars
    #[arg(long = "price-puts", default_value = "0.005", value_parser = usd, value_name = "USD")]
    pub(crate) puts_usd: f64,

    /// Price of 1000 GET or HEAD requests, in dollars
    #[arg(long = "price-gets", default_value = "0.0004", value_parser = usd, value_name = "USD")]
    pub(crate) gets_usd: f64,
}

/// The cost of a drive in a bucket, in dollars.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Cost {
    /// Requests since the opening.
    pub(crate) requests_usd: f64,
    /// Storage of the current data for a month.
    pub(crate) storage_usd_per_month: f64,
    /// The prices that were used.
    pub(crate) prices: Prices,
}

impl Default for Prices {
    fn default() -> Self {
        Self { storage_usd: 0.023, puts_usd: 0.005, gets_usd: 0.0004 }
    }
}

impl Prices {
    /// Returns the cost of a drive at these prices.
    pub(crate) fn cost(&self, bucket: &Status) -> Cost {
        let requests = &bucket.requests;
        let writes = (requests.puts + requests.lists) as f64;
        let reads = requests.gets as f64;
        Cost {
            requests_usd: (writes * self.puts_usd + reads * self.gets_usd) / 1000.0,
            storage_usd_per_month: bucket.stored_bytes as f64 / 1e9 * self.storage_usd,
            prices: *self,
        }
    }
}

/// Parses a price.
fn usd(text: &str) -> Result<f64, String> {
    let price = text.parse().ok().filter(|price| (0.0..=USD_MAX).contains(price));
    price.ok_or_else(|| "expected a number of dollars such as 0.023".to_owned())
}

#[cfg(test)]
mod tests {
    //! Goal: the flags' defaults equal those of the type, sums are right, and nonsensical prices
    //! are refused.
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        prices: Prices,
    }

    fn prices(args: &[&str]) -> Option<Prices> {
        let args = ["command"].iter().chain(args);
        Command::try_parse_from(args).ok().map(|command| command.prices)
    }

    #[test]
    fn a_cost_is_a_count_times_its_price() {
        assert_eq!(prices(&[]), Some(Prices::default()));
        let mut bucket = Status { stored_bytes: 2_000_000_000, ..Status::default() };
        (bucket.requests.puts, bucket.requests.lists) = (3000, 1000);
        (bucket.requests.gets, bucket.requests.deletes) = (10_000, 1 << 40);
        let args = ["--price-storage=0.5", "--price-puts=0.25", "--price-gets=0.125"];
        let cost = prices(&args).unwrap().cost(&bucket);
        assert_eq!((cost.requests_usd, cost.storage_usd_per_month), (2.25, 1.0));
        for wrong in ["-1", "NaN", "inf", "1e7", "x", ""] {
            assert_eq!(prices(&[&format!("--price-puts={wrong}")]), None, "{wrong}");
        }
    }
}
