//! The progress of a comparison, shown while standard error is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lockkeeper_compare::Event;

const TEMPLATE: &str = "{spinner} {pos} of {len} done [{bar:20}] {elapsed}  {msg}";
const REDRAW: Duration = Duration::from_millis(100);

/// A bar with one step for each row.
#[derive(Clone, Debug)]
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    pub(super) fn on_event(&self, event: Event<'_>) {
        match event {
            Event::ServersStarting => self.begin("starting servers".to_owned()),
            Event::Planned(rows) => self.0.set_length(u64::try_from(rows).unwrap_or(u64::MAX)),
            Event::RowStarted {
                scenario,
                store,
                strategy,
            } => self.begin(format!("{scenario} on {store} with {strategy}")),
            Event::RowFinished(_) => self.0.inc(1),
            _ => {}
        }
    }

    fn begin(&self, what: String) {
        if !self.0.is_hidden() {
            self.0.enable_steady_tick(REDRAW);
        }
        self.0.set_message(what);
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}
