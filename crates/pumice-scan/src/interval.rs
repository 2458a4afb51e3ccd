//! How sure a mean is: an interval that is true whatever the population looks like, and whenever
//! one stops drawing.
//!
//! A gambler bets against each candidate mean, on every draw, an amount that depends on the draws
//! before. If a candidate is the true mean, the game is fair, and the wealth grows to `2 / alpha`
//! with a probability of at most `alpha / 2` (Ville's inequality), so candidates that make the
//! gambler that rich are refused: on each side with half of alpha. No normal distribution is
//! assumed, and looking at the interval after every draw costs nothing, so an adaptive scan may
//! stop when it is narrow enough. With bets tuned to the variance seen so far the half-width comes
//! to `sigma * sqrt(2 ln(2 / alpha) / n)`: 2.72 sigma / sqrt(n) at 95 %, where the normal
//! distribution, which may err for skewed data, has 1.96.
//!
//! Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
//! JRSS-B 86(1), 2024: the capital process with predictable plug-in bets (there eq. 25 and
//! theorem 3), here with bets that do not depend on the candidate, so that the wealth is monotone
//! in it and each end is found by bisection.

/// Largest value of a draw: what is stored of a byte at most, all headers included.
pub(super) const VALUE_MAX: f64 = 1.05;

/// Draws after which the plan is made anew, doubling from there.
const PLAN_FIRST: usize = 256;

/// Halvings of the range in which an end is searched: 1e-9 of it.
const HALVINGS: u32 = 30;

/// The share of the largest safe bet that is bet at most.
const BOLDNESS: f64 = 0.5;

/// One draw and the bets on it.
#[derive(Clone, Copy, Debug)]
struct Bet {
    draw: f64,
    up: f64,
    down: f64,
}

/// For how many draws the bets are to be the best; the interval is true for any number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plan {
    /// As many as a half-width of this fraction is thought to need, by what was seen so far.
    Aim(f64),
    /// So many, known before.
    Draws(f64),
    /// Nobody knows.
    Any,
}

/// A game that goes on draw by draw.
#[derive(Clone, Debug)]
pub(super) struct Betting {
    /// `ln(2 / alpha)`: the wealth, as a logarithm, that refuses a candidate.
    refusal: f64,
    plan: Plan,
    /// Draws that are aimed at, as of the last time it was looked.
    aimed: f64,
    mean: f64,
    squares: f64,
    bets: Vec<Bet>,
}

impl Betting {
    /// A game for intervals with this confidence, such as 0.95, in 0..1.
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

    /// Adds a draw in `0..=VALUE_MAX`. `offset`, at most [`VALUE_MAX`] in size, is taken off it: it
    /// must be known before the draw and have the mean 0 over the population.
    pub(super) fn push(&mut self, value: f64, offset: f64) {
        let count = self.bets.len();
        let variance = (0.25 + self.squares) / (count + 1) as f64;
        let planned = self.planned(count, variance);
        let bet = (2.0 * self.refusal / (planned * variance)).sqrt();
        // A draw is at least -offset and at most VALUE_MAX - offset, a candidate in 0..=VALUE_MAX.
        let safe = |most: f64| BOLDNESS / most.max(1e-3);
        let draw = value.clamp(0.0, VALUE_MAX) - offset;
        self.bets.push(Bet {
            draw,
            up: bet.min(safe(offset + VALUE_MAX)),
            down: bet.min(safe(VALUE_MAX - offset)),
        });
        let step = draw - self.mean;
        self.mean += step / (count + 1) as f64;
        self.squares += step * (draw - self.mean);
    }

    /// For how many draws the bets are to be the best.
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

    /// Draws so far.
    pub(super) fn count(&self) -> usize {
        self.bets.len()
    }

    /// Draws that the plan is thought to need, by what was seen so far; at least one.
    pub(super) fn needed(&self) -> f64 {
        let variance = (0.25 + self.squares) / (self.count() + 1) as f64;
        match self.plan {
            Plan::Aim(aim) => draws_at(self.refusal, variance, aim),
            Plan::Draws(draws) => draws,
            Plan::Any => 1.0,
        }
    }

    /// The interval that holds the mean, in `0..=VALUE_MAX`.
    pub(super) fn interval(&self) -> (f64, f64) {
        let gain_up = |mean: f64| self.bets.iter().map(|b| (b.up * (b.draw - mean)).ln_1p()).sum();
        let gain_down =
            |mean: f64| self.bets.iter().map(|b| (b.down * (mean - b.draw)).ln_1p()).sum();
        let low = self.border(gain_up, (0.0, VALUE_MAX));
        let high = self.border(gain_down, (VALUE_MAX, 0.0));
        (low, high)
    }

    /// The last candidate from `refused` on towards `kept` that is refused, if the first one is.
    fn border(&self, gain: impl Fn(f64) -> f64, (mut refused, mut kept): (f64, f64)) -> f64 {
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

/// Draws for an interval of half-width `aim` at this confidence, both fractions.
pub(super) fn draws_needed(confidence: f64, variance: f64, aim: f64) -> f64 {
    draws_at(refusal(confidence), variance, aim)
}

fn refusal(confidence: f64) -> f64 {
    (2.0 / (1.0 - confidence)).ln()
}

fn draws_at(refusal: f64, variance: f64, aim: f64) -> f64 {
    // A tenth more: the plan is made from few draws, and bets before it were for another one.
    (1.1 * 2.0 * refusal * variance / (aim * aim)).max(1.0)
}

#[cfg(test)]
mod tests {
    //! Goal: the interval holds the mean at least as often as it says, also for populations that
    //! deceive a normal distribution and with stopping that looks every time; and it is as narrow
    //! as the formula.
    //! Method: many seeded games against populations whose mean is known.

    use rand::RngExt;

    use super::*;
    use pumice_drive::base::seed::random;

    type Population = fn(f64) -> f64;

    /// From a uniform number: hardly anything, but for one in 250; much or nothing; all alike;
    /// spread; nearly everything, but for one in 20.
    const POPULATIONS: [(Population, f64); 5] = [
        (|u| if u < 0.004 { 1.0 } else { 0.02 }, 0.004 + 0.996 * 0.02),
        (|u| if u < 0.6 { 1.0 } else { 0.0 }, 0.6),
        (|_| 0.37, 0.37),
        (|u| u, 0.5),
        (|u| if u < 0.05 { 0.0 } else { 1.007 }, 0.95 * 1.007),
    ];

    /// Draws until the interval is as narrow as asked, looked at after every 64th draw.
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
            // 5 % of 300 and three standard deviations.
            assert!(missed <= 26, "population {number}: {missed} of {games}");
        }
    }

    #[test]
    fn few_draws_of_a_rare_kind_do_not_deceive() {
        // Four draws in a thousand are stored whole; without one of them the normal distribution
        // has an interval of width 0.
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
    fn the_width_is_that_of_the_formula() {
        let sd = (1.0f64 / 12.0).sqrt();
        let (low, high, count) = play(POPULATIONS[3].0, 7, 0.02);
        let formula = sd * (2.0 * 40f64.ln() / count as f64).sqrt();
        let ratio = (high - low) / 2.0 / formula;
        assert!((0.9..1.1).contains(&ratio), "{ratio}");
        let needed = draws_needed(0.95, sd * sd, 0.02);
        assert!((count as f64) < 1.1 * needed, "{count} of {needed}");
    }

    #[test]
    fn an_offset_takes_away_what_was_known() {
        // Two kinds, 0.2 and 0.8, which the offset knows: the interval closes at once.
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
