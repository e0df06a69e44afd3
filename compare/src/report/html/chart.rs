//! The pictures: bars, and distributions of waits.

use maud::{Markup, html};

use crate::report::row::Row;

/// The scale of the waits begins with 0.1 ms and ends with 100 s.
const FIRST_US: u32 = 100;
const DECADES: u32 = 6;
/// Steps of a decade.
const STEPS: u32 = 6;
const LABELS: [&str; 7] = ["0.1ms", "1", "10", "100", "1s", "10", "100s"];
/// The size of the picture, in its own units.
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 40.0;

/// Draws a bar in proportion to `most`, the longest one of its table, below its value as text. `what` names
/// the column in the picture's own text. Without a value there is no picture.
pub(super) fn bar(value: Option<f64>, most: f64, text: &str, what: &str) -> Markup {
    let share = value.filter(|_| most > 0.0).map(|value| value / most);
    html! {
        span.value { (text) }
        @if let Some(share) = share {
            svg.bar viewBox="0 0 100 6" preserveAspectRatio="none" role="img" {
                title { (what) ": " (text) }
                desc { (format!("{:.0}% of the longest bar of this table", share * 100.0)) }
                rect.track width="100" height="6" {}
                rect width=(format!("{:.2}", (share * 100.0).max(0.6))) height="6" {}
            }
        }
    }
}

/// Draws the scale of the distributions.
pub(super) fn axis() -> Markup {
    html! {
        span.axis aria-hidden="true" { @for label in LABELS { span { (label) } } }
    }
}

/// Draws the distribution of the waits, on the same scale for all rows.
pub(super) fn distribution(row: &Row) -> Markup {
    let Some((waits, ms)) = row.waits.as_ref().zip(row.wait_ms) else {
        return html! { span.value { "–" } };
    };
    let percentiles = format!(
        "half {}, 99 % {}, longest {}",
        time(ms.p50),
        time(ms.p99),
        time(ms.max)
    );
    let shares = waits.shares(&edges());
    let most = shares.iter().copied().fold(0.0, f64::max);
    let step = WIDTH / f64::from(DECADES * STEPS);
    html! {
        svg.waits viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) preserveAspectRatio="none" role="img" {
            title { "waits with " (row.strategy) ": " (percentiles) }
            desc { (parts(&shares)) }
            @for decade in 0..=DECADES {
                @let x = format!("{:.1}", f64::from(decade * STEPS) * step);
                line.grid x1=(x) x2=(x) y1="0" y2=(HEIGHT) {}
            }
            @for (step_number, share) in (0_u32..).zip(&shares) {
                @if *share > 0.0 {
                    // The square root keeps one wait of a hundred visible.
                    @let height = (share / most).sqrt() * HEIGHT;
                    rect x=(format!("{:.1}", f64::from(step_number) * step))
                        y=(format!("{:.1}", HEIGHT - height))
                        width=(format!("{:.1}", step - 1.0))
                        height=(format!("{height:.1}")) {}
                }
            }
        }
        (axis())
        small { (percentiles) }
    }
}

/// Returns the edges between the steps, in whole microseconds.
fn edges() -> Vec<u64> {
    let edge = |step: u32| {
        let power = f64::from(step) / f64::from(STEPS);
        (f64::from(FIRST_US) * 10_f64.powf(power)).round() as u64
    };
    (0..=DECADES * STEPS).map(edge).collect()
}

/// Says what the picture shows, by decade.
fn parts(shares: &[f64]) -> String {
    let steps = usize::try_from(STEPS).unwrap_or(1);
    let decades = shares.chunks(steps).map(|chunk| chunk.iter().sum::<f64>());
    let ends = ["1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s"];
    let parts: Vec<_> = decades
        .zip(ends)
        .filter(|&(share, _)| share > 0.0)
        .map(|(share, end)| format!("{:.0}% up to {end}", share * 100.0))
        .collect();
    parts.join(", ")
}

/// Formats a time for people.
pub(super) fn time(ms: f64) -> String {
    if ms < 0.05 {
        "0 ms".to_owned()
    } else if ms < 9.95 {
        format!("{ms:.1} ms")
    } else if ms < 999.5 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_ends_with_its_last_label() {
        let edges = edges();
        assert_eq!(edges.first(), Some(&100));
        assert_eq!(edges.last(), Some(&100_000_000));
        assert_eq!(edges.len(), 37);
        assert!(edges.is_sorted());
    }

    #[test]
    fn times_are_short() {
        let shown = [0.01, 0.31, 12.3, 999.0, 4_980.0].map(time);
        assert_eq!(shown, ["0 ms", "0.3 ms", "12 ms", "999 ms", "5.0 s"]);
    }
}
