//! A confidence interval of a mean that is valid for any population and any stopping rule.
//!
//! A gambler bets against each candidate mean on every draw. The amount may depend on earlier
//! draws. If a candidate is the true mean, the game is fair, and the wealth reaches `2 / alpha`
//! with a probability of at most `alpha / 2` (Ville's inequality). Candidates that lead to this
//! wealth are therefore rejected, with half of alpha on each side. No normal distribution is
//! assumed, and checking the interval after every draw costs no confidence, so an adaptive scan may
//! stop as soon as it is narrow enough. With bets adjusted to the variance seen so far, the
//! half-width is `sigma * sqrt(2 ln(2 / alpha) / n)`: 2.72 sigma / sqrt(n) at 95 %, compared with
//! 1.96 for the normal distribution, which can be wrong for skewed data.
//!
//! If draws hardly differ, no interval that is valid for all data can be as narrow as the interval
//! of the normal distribution. Even after `n` identical draws, one value in a hundred may be
//! different, which changes the mean. A mean remains possible up to a distance of
//! `ln(2 / alpha) / n` times the distance to the end of the range (the probability that no draw has
//! such a value is then `alpha / 2`). At 95 % and 512 draws with the value 0.45, this is 0.32 and
//! 0.43 points. The intervals here are at most 1.5 times as wide as this limit, and at most twice
//! as wide as the intervals of the normal distribution where these are wider than the limit (see
//! the tests).
//!
//! Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
//! JRSS-B 86(1), 2024: the capital process with predictable plug-in bets (eq. 25 and theorem 3),
//! each truncated at a share of the largest safe bet against the candidate ("truncation", section
//! 4). The wealth is monotone in the candidate, because the bet before truncation does not depend
//! on the candidate, so each end is found by bisection.

/// Largest value of a draw: the largest stored fraction, including all headers.
pub(super) const VALUE_MAX: f64 = 1.05;

/// Number of draws after which the plan is first revised; it then doubles each time. This is the
/// minimum that determines a variance to a quarter. Until then, the bets assume the largest
/// possible variance.
const PLAN_FIRST: usize = 32;

/// Number of bisections in the search for an end of the interval, for a precision of 1e-9 of the
/// range.
const HALVINGS: u32 = 30;

/// Limit on a bet, as a share of the bet that would be ruined by the worst draw. Simulated with
/// populations like the ones in the tests: with a half, the interval of identical data is half as
/// wide again; with nine tenths, the interval of rare large values is a tenth wider.
const BOLDNESS: f64 = 0.75;

/// Smallest distance between a candidate and a possible draw in the limit on bets, which prevents
/// division by zero.
const DISTANCE_MIN: f64 = 1e-3;

/// One draw and the bet on it.
#[derive(Clone, Copy, Debug)]
struct Bet {
    draw: f64,
    /// The smallest and the largest value that were possible for the draw.
    least: f64,
    most: f64,
    bet: f64,
}

impl Bet {
    /// Returns the logarithmic gain of a bet that the mean is above `mean`. The gain decreases in
    /// `mean`.
    fn up(&self, mean: f64) -> f64 {
        let safe = BOLDNESS / (mean - self.least).max(DISTANCE_MIN);
        (self.bet.min(safe) * (self.draw - mean)).ln_1p()
    }

    /// Returns the logarithmic gain of a bet that the mean is below `mean`. The gain increases in
    /// `mean`.
    fn down(&self, mean: f64) -> f64 {
        let safe = BOLDNESS / (self.most - mean).max(DISTANCE_MIN);
        (self.bet.min(safe) * (mean - self.draw)).ln_1p()
    }
}

/// The number of draws used to optimize the bets. The interval is valid for any number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plan {
    /// The number expected from the draws so far for this half-width, which is a fraction.
    Aim(f64),
    /// A number known in advance.
    Draws(f64),
    /// An unknown number.
    Any,
}

/// A game played draw by draw.
#[derive(Clone, Debug)]
pub(super) struct Betting {
    /// `ln(2 / alpha)`: the logarithmic wealth at which a candidate is rejected.
    refusal: f64,
    plan: Plan,
    /// Planned number of draws, as of the last revision.
    aimed: f64,
    mean: f64,
    squares: f64,
    bets: Vec<Bet>,
}

impl Betting {
    /// Creates a game for intervals with this confidence, in 0..1, such as 0.95.
    pub(super) fn new(confidence: f64, plan: Plan) -> Self {
        Self {
            refusal: refusal(confidence),
            plan,
            aimed: 0.0,
            mean: 0.0,
            squares: 0.0,
            bets: Vec::new(),
        }
    }

    /// Adds a draw in `0..=VALUE_MAX`. `offset`, whose magnitude is at most [`VALUE_MAX`], is
    /// subtracted from the draw. The offset must be known before the draw, and its mean over the
    /// population must be 0.
    pub(super) fn push(&mut self, value: f64, offset: f64) {
        let count = self.bets.len();
        let variance = (0.25 + self.squares) / (count + 1) as f64;
        let planned = self.planned(count, variance);
        let bet = (2.0 * self.refusal / (planned * variance)).sqrt();
        let draw = value.clamp(0.0, VALUE_MAX) - offset;
        self.bets.push(Bet { draw, least: -offset, most: VALUE_MAX - offset, bet });
        let step = draw - self.mean;
        self.mean += step / (count + 1) as f64;
        self.squares += step * (draw - self.mean);
    }

    /// Returns the number of draws used to optimize the bets.
    fn planned(&mut self, count: usize, variance: f64) -> f64 {
        let next = (count + 1) as f64;
        match self.plan {
            Plan::Any => return next * (next + 1.0).ln(),
            Plan::Draws(draws) => return draws.max(next),
            Plan::Aim(aim) => {
                if count == 0 || (count >= PLAN_FIRST && count.is_power_of_two()) {
                    self.aimed = draws_at(self.refusal, variance, aim);
                }
            }
        }
        self.aimed.max(next)
    }

    /// Returns the number of draws so far.
    pub(super) fn count(&self) -> usize {
        self.bets.len()
    }

    /// Returns the number of draws that the plan is expected to need, estimated from the draws so
    /// far; at least one.
    pub(super) fn needed(&self) -> f64 {
        let variance = (0.25 + self.squares) / (self.count() + 1) as f64;
        match self.plan {
            Plan::Aim(aim) => {
                let at_least = self.refusal * VALUE_MAX / (2.0 * BOLDNESS * aim);
                draws_at(self.refusal, variance, aim).max(at_least)
            }
            Plan::Draws(draws) => draws,
            Plan::Any => 1.0,
        }
    }

    /// Returns the interval that contains the mean, within `0..=VALUE_MAX`.
    pub(super) fn interval(&self) -> (f64, f64) {
        let low = self.border(|mean| self.bets.iter().map(|b| b.up(mean)).sum(), 0.0, VALUE_MAX);
        let high = self.border(|mean| self.bets.iter().map(|b| b.down(mean)).sum(), VALUE_MAX, 0.0);
        // Draws that are not a sample of any population could cause all candidates to be rejected.
        if low <= high { (low, high) } else { (high, low) }
    }

    /// Returns the last rejected candidate between `refused` and `kept`, provided that `refused` is
    /// rejected.
    fn border(&self, gain: impl Fn(f64) -> f64, mut refused: f64, mut kept: f64) -> f64 {
        if gain(refused) < self.refusal {
            return refused;
        }
        for _ in 0..HALVINGS {
            let middle = (refused + kept) / 2.0;
            if gain(middle) < self.refusal { kept = middle } else { refused = middle }
        }
        refused
    }
}

/// Returns the number of draws for an interval with the half-width `aim` at this confidence, both
/// as fractions.
pub(super) fn draws_needed(confidence: f64, variance: f64, aim: f64) -> f64 {
    draws_at(refusal(confidence), variance, aim)
}

fn refusal(confidence: f64) -> f64 {
    (2.0 / (1.0 - confidence)).ln()
}

fn draws_at(refusal: f64, variance: f64, aim: f64) -> f64 {
    // A tenth is added because the plan is based on few draws, and earlier bets were optimized for
    // another plan.
    (1.1 * 2.0 * refusal * variance / (aim * aim)).max(1.0)
}

#[cfg(test)]
mod tests {
    //! Goal: the interval contains the mean at least as often as stated, even for populations that
    //! mislead a normal distribution and for a stopping rule that checks every draw; and its width
    //! agrees with the formula. Method: many seeded games on populations whose mean is known.

    use rand::RngExt;

    use super::*;
    use pumice_drive::base::seed::random;

    type Population = fn(f64) -> f64;

    /// Values as functions of a uniform number: close to 0, except for one in 250; large or 0;
    /// identical; spread; close to 1, except for one in 20; many small and few large values;
    /// identical, except for one in 100 that is 0; values like logs, a database, compressed files
    /// and programs.
    const POPULATIONS: [(Population, f64); 11] = [
        (|u| if u < 0.004 { 1.0 } else { 0.02 }, 0.004 + 0.996 * 0.02),
        (|u| if u < 0.6 { 1.0 } else { 0.0 }, 0.6),
        (|_| 0.37, 0.37),
        (|u| u, 0.5),
        (|u| if u < 0.05 { 0.0 } else { 1.007 }, 0.95 * 1.007),
        (|u| u.powi(9), 0.1),
        (|u| if u < 0.01 { 0.0 } else { 0.2 }, 0.198),
        (|u| 0.45 + 0.012 * (u - 0.5), 0.45),
        (|u| 0.78 + 0.24 * (u - 0.5), 0.78),
        (|u| if u < 0.06 { 0.4 + 10.0 * u } else { 1.0008 }, 0.06 * 0.7 + 0.94 * 1.0008),
        (|u| 0.2 + 0.7 * u, 0.55),
    ];

    /// Draws until the interval is as narrow as requested, checking after every 64th draw.
    fn play(population: Population, seed: u64, aim: f64) -> (f64, f64, usize) {
        let mut draws = random(seed);
        let mut game = Betting::new(0.95, Plan::Aim(aim));
        loop {
            for _ in 0..64 {
                game.push(population(draws.random::<f64>()), 0.0);
            }
            let (low, high) = game.interval();
            if (high - low) / 2.0 <= aim {
                return (low, high, game.count());
            }
        }
    }

    #[test]
    fn the_mean_is_inside_as_often_as_promised() {
        for (number, (population, mean)) in POPULATIONS.into_iter().enumerate() {
            let games = 300;
            let missed = (0..games).filter(|seed| {
                let (low, high, _) = play(population, seed + 1000 * number as u64, 0.03);
                !(low..=high).contains(&mean)
            });
            let missed = missed.count();
            // 5 % of 300, plus three standard deviations.
            assert!(missed <= 26, "population {number}: {missed} of {games}");
        }
    }

    /// Returns the standard deviation of a population.
    fn deviation((population, mean): (Population, f64)) -> f64 {
        let values = (0..100_000).map(|step| population((f64::from(step) + 0.5) / 1e5));
        (values.map(|value| (value - mean).powi(2)).sum::<f64>() / 1e5).sqrt()
    }

    /// Regression: for all data, an interval after 512 draws extended at least 1.5 points to each
    /// side, 46 times the necessary distance for uniform data.
    #[test]
    fn even_data_has_a_narrow_interval() {
        for draws in [512, 1000, 4000] {
            for (number, one) in POPULATIONS.into_iter().enumerate() {
                let seeds = 6;
                let mut points = 0.0;
                for seed in 0..seeds {
                    let mut game = Betting::new(0.95, Plan::Draws(f64::from(draws)));
                    let mut random = random(seed);
                    (0..draws).for_each(|_| game.push(one.0(random.random::<f64>()), 0.0));
                    let (low, high) = game.interval();
                    points += 50.0 * (high - low) / seeds as f64;
                }
                let normal = 196.0 * deviation(one) / f64::from(draws).sqrt();
                // The lower limit for every interval that is valid for all data.
                let limit = 50.0 * VALUE_MAX * 40f64.ln() / f64::from(draws);
                assert!(points <= 2.0 * normal.max(limit), "{number}: {points}, {normal}, {limit}");
                assert!(points >= limit.min(normal), "{number}: {points}, {normal}, {limit}");
                if normal < 0.1 * limit {
                    assert!(points < 1.5 * limit, "{number}: {points} of {limit}");
                }
            }
        }
    }

    #[test]
    fn draws_in_any_order_leave_an_interval() {
        // No sample has this order.
        for turned in [false, true] {
            let mut game = Betting::new(0.95, Plan::Any);
            for number in 0..2000 {
                game.push(if (number < 1000) == turned { 1.05 } else { 0.0 }, 0.0);
            }
            let (low, high) = game.interval();
            assert!((0.0..=high).contains(&low) && high <= VALUE_MAX, "{low} {high}");
        }
    }

    #[test]
    fn few_draws_of_a_rare_kind_do_not_deceive() {
        // Four draws in a thousand are stored uncompressed; if none of them is drawn, the normal
        // distribution's interval has a width of 0.
        let (population, mean) = POPULATIONS[0];
        for seed in 0..50 {
            let mut game = Betting::new(0.95, Plan::Aim(0.01));
            let mut draws = random(seed);
            (0..200).for_each(|_| game.push(population(draws.random::<f64>()), 0.0));
            let (low, high) = game.interval();
            assert!(low <= mean && mean <= high && high - low > 0.02, "{low} {high}");
        }
    }

    #[test]
    fn the_width_follows_the_formula() {
        let sd = (1.0f64 / 12.0).sqrt();
        let (low, high, count) = play(POPULATIONS[3].0, 7, 0.02);
        let formula = sd * (2.0 * 40f64.ln() / count as f64).sqrt();
        let ratio = (high - low) / 2.0 / formula;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
        let needed = draws_needed(0.95, sd * sd, 0.02);
        assert!((count as f64) < 1.1 * needed, "{count} of {needed}");
    }

    #[test]
    fn an_offset_removes_known_blocks() {
        // There are two kinds of draws, 0.2 and 0.8, and the offset is exactly right, so the
        // interval becomes narrow immediately.
        let width = |knows: bool| {
            let mut game = Betting::new(0.95, Plan::Aim(0.02));
            let mut draws = random(3);
            for _ in 0..500 {
                let (value, offset) = if draws.random() { (0.8, 0.3) } else { (0.2, -0.3) };
                game.push(value, if knows { offset } else { 0.0 });
            }
            let (low, high) = game.interval();
            assert!(low <= 0.5 && 0.5 <= high);
            high - low
        };
        assert!(width(true) < 0.6 * width(false), "{} {}", width(true), width(false));
    }

    #[test]
    fn a_known_number_of_draws_is_bet_for() {
        let width = |plan| {
            let mut game = Betting::new(0.95, plan);
            let mut draws = random(8);
            (0..400).for_each(|_| game.push(draws.random::<f64>(), 0.0));
            let (low, high) = game.interval();
            (high - low) / 2.0
        };
        let formula = (1.0f64 / 12.0).sqrt() * (2.0 * 40f64.ln() / 400.0).sqrt();
        let known = width(Plan::Draws(400.0));
        assert!(known < 1.1 * formula, "{known} {formula}");
        assert!(width(Plan::Any) < 2.0 * known && width(Plan::Aim(0.002)) > 2.0 * known);
    }

    #[test]
    fn without_draws_everything_is_possible() {
        assert_eq!(Betting::new(0.95, Plan::Any).interval(), (0.0, VALUE_MAX));
    }
}
