//! A row of the table, and the figures in it.

use std::error::Error;

/// A row of the table.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) measured: String,
    pub(crate) floor: String,
    /// The measured value, divided by the floor if there is one.
    pub(crate) value: f64,
    /// The largest allowed value; infinite if there is no budget.
    pub(crate) budget: f64,
    pub(crate) unit: &'static str,
}

pub(crate) type Rows = Result<Vec<Row>, Box<dyn Error>>;

/// The budget of a row that has none.
pub(crate) const NONE: f64 = f64::INFINITY;

impl Row {
    /// Makes a row without a floor. The measured value has `decimals` decimals.
    pub(crate) fn plain(
        what: impl Into<String>,
        value: f64,
        decimals: usize,
        unit: &'static str,
        budget: f64,
    ) -> Self {
        Self {
            what: what.into(),
            measured: format!("{value:.decimals$}{unit}"),
            floor: "-".to_owned(),
            value,
            budget,
            unit,
        }
    }

    /// Makes a row of a time and its floor, which `show` formats.
    pub(crate) fn times(
        what: impl Into<String>,
        measured: f64,
        floor: f64,
        show: impl Fn(f64) -> String,
        budget: f64,
    ) -> Self {
        Self {
            what: what.into(),
            measured: show(measured),
            floor: show(floor),
            value: measured / floor,
            budget,
            unit: "x",
        }
    }

    /// Makes a row without a budget that shows how a value grows. The floor is the value of the smaller size.
    pub(crate) fn growth(what: impl Into<String>, value: f64, smaller: f64, unit: &str) -> Self {
        Self::times(what, value, smaller, |it| format!("{it:.0}{unit}"), NONE)
    }

    /// Prints the row, and returns whether it is within its budget.
    pub(crate) fn print(&self) -> bool {
        let budget = match self.budget {
            budget if budget.is_finite() => format!("{budget}{}", self.unit),
            _ => "-".to_owned(),
        };
        let is_within = self.value <= self.budget;
        println!(
            "{:<50} {:>12} {:>12} {:>9} {budget:>9} {}",
            self.what,
            self.measured,
            self.floor,
            format!("{:.2}{}", self.value, self.unit),
            if is_within { "" } else { "OVER" },
        );
        is_within
    }
}

/// Shows seconds in milliseconds.
pub(crate) fn millis(seconds: f64) -> String {
    format!("{:.0} ms", seconds * 1e3)
}

/// Shows seconds in microseconds.
pub(crate) fn micros(seconds: f64) -> String {
    format!("{:.2} µs", seconds * 1e6)
}

/// Returns the median of some measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures `ours` and `floor` alternately, and returns the medians of both.
pub(crate) fn medians(
    runs: usize,
    mut floor: impl FnMut() -> Result<f64, Box<dyn Error>>,
    mut ours: impl FnMut() -> Result<f64, Box<dyn Error>>,
) -> Result<(f64, f64), Box<dyn Error>> {
    let (mut all, mut floors) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        floors.push(floor()?);
        all.push(ours()?);
    }
    Ok((median(all), median(floors)))
}
