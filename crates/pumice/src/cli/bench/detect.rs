//! `pumice bench --detect-compression`: finds out whether a target compresses or deduplicates.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::super::output::columns;
use super::super::{Outcome, print, print_schema};
use super::Args;
use crate::signals::Interrupt;
use pumice_bench::detect::{Settings, detect};
use pumice_bench::target::{Access, Location};

/// Default amount of each kind of data in bytes: enough to show in a usage that is reported in
/// large units.
const SPAN_BYTES: u64 = 64 << 20;

/// Runs the detection and prints the findings.
///
/// # Errors
/// Errors of the target; a span that is too small.
pub(super) fn run(args: &Args, location: &Location) -> Result<Outcome> {
    let interrupt = Interrupt::catch()?;
    let style = ProgressStyle::with_template("[{percent} %] {wide_msg}");
    let bar = ProgressBar::new(1000).with_style(style.expect("a constant template"));
    let mut show = |what: &str, share: f64| {
        bar.set_message(what.to_owned());
        bar.set_position((share * 1000.0) as u64);
    };
    let access = Access { direct: args.direct };
    let settings = Settings {
        access,
        destroy: args.destroy_data,
        span_bytes: args.span.unwrap_or(SPAN_BYTES),
        seed: args.seed.unwrap_or(1),
    };
    let found = detect(location, settings, interrupt.flag(), &mut show);
    bar.finish_and_clear();
    let found = found?;
    if args.json {
        print_schema("detect-1", &found)?;
    } else {
        print(&found.document().to_text_within(columns()))?;
    }
    if found.stopped {
        super::super::say_error("interrupted: the findings so far are above");
        return Ok(Outcome::Code(2));
    }
    Ok(Outcome::Good)
}
