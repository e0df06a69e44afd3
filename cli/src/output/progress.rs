//! What is running, and what is left, while stderr is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const TEMPLATE: &str = "{spinner} {pos} of {len} done [{bar:20}] {elapsed}  {msg}";
const REDRAW: Duration = Duration::from_millis(100);

/// A bar, one step a row. It goes when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(total: usize, quiet: bool) -> Self {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let total = u64::try_from(total).unwrap_or(u64::MAX);
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(REDRAW);
        }
        Self(bar)
    }

    /// Says what is running now.
    pub(crate) fn begin(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// One row more is done.
    pub(crate) fn done(&self) {
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
