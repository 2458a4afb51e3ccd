//! Progress on stderr, shown only on a terminal: the amount done, the total, and the remaining
//! time. The numbers come first, so that a narrow terminal shortens only the bar.

use indicatif::{ProgressBar, ProgressStyle};

use pumice_drive::base::units::format_size;

/// Returns the progress of work on `total` bytes.
pub(super) fn bytes(total: u64) -> ProgressBar {
    let bar = shown("{bytes} of {total_bytes} ({bytes_per_sec}, {eta} left) {wide_bar}");
    bar.set_length(total);
    bar
}

/// Returns the progress of work on segments, see [`set_segments`].
pub(super) fn segments() -> ProgressBar {
    shown("{pos} of {len} segments, {msg}, {eta} left {wide_bar}").with_message("0 B")
}

/// Sets the progress of work on segments, and the bytes read so far.
pub(super) fn set_segments(bar: &ProgressBar, done: u64, total: u64, bytes: u64) {
    bar.set_length(total);
    bar.set_message(format_size(bytes));
    bar.set_position(done);
}

/// The progress of work that brings a number down to a goal.
pub(super) struct Descent {
    bar: ProgressBar,
    /// The initial distance to the goal, which is the maximum.
    from: u64,
}

impl Descent {
    /// Returns the progress of work whose message states the progress.
    pub(super) fn new() -> Self {
        Self { bar: shown("{msg}, {eta} left {wide_bar}"), from: 0 }
    }

    /// Shows the distance to the goal.
    pub(super) fn set(&mut self, left: u64, message: String) {
        self.from = self.from.max(left);
        self.bar.set_length(self.from);
        self.bar.set_message(message);
        self.bar.set_position(self.from - left);
    }

    /// Shows how many segments a resize has yet to empty.
    pub(super) fn set_segments_left(&mut self, left: u64) {
        self.set(left, format!("{left} segments left to empty"));
    }
}

impl Drop for Descent {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn shown(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a constant template");
    ProgressBar::no_length().with_style(style)
}

#[cfg(test)]
mod tests {
    //! Goal: a decreasing number is shown as progress that reaches its end.
    use super::*;

    #[test]
    fn a_descent_ends_at_its_goal() {
        let mut descent = Descent::new();
        let states = [70, 100, 40, 0].map(|left| {
            descent.set_segments_left(left);
            (descent.bar.position(), descent.bar.length())
        });
        assert_eq!(states, [(0, Some(70)), (0, Some(100)), (60, Some(100)), (100, Some(100))]);
    }
}
