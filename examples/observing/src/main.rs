//! Locks as an application's tracing and metrics show them. Run it with `scripts/examples observing`.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lockkeeper::Config;
use lockkeeper::observers::{MetricsObserver, TracingObserver};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tracing::Level;
use tracing_subscriber::fmt::format::FmtSpan;

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE) // a line at the end of each acquisition
        .with_writer(std::io::stderr)
        .init();
    // The recorder comes before the observer, which describes its metrics to it.
    let buckets = [0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0];
    let prometheus = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &buckets)?
        .install_recorder()?;

    let metrics = Arc::new(MetricsObserver::new().group_prefixes(["seat:", "report:"]));
    let config = Config::from_url("memory:?wait=1s")?
        .observer(Arc::new(TracingObserver::new()))
        .observer(Arc::clone(&metrics) as _);
    let keeper = lockkeeper::open_config(&config)?;

    thread::scope(|scope| {
        for customer in 0..3 {
            let keeper = &keeper;
            scope.spawn(move || {
                let _span = tracing::info_span!("booking", customer).entered();
                let _seat = keeper.lock("seat:42")?;
                thread::sleep(Duration::from_millis(5)); // the work
                Ok::<(), lockkeeper::Error>(())
            });
        }
    });

    // What a handler of `/metrics` returns.
    metrics.collect(&keeper);
    let page = prometheus.render();
    println!("{page}");
    let count = r#"lockkeeper_acquisitions_total{store="memory:",group="seat:*",mode="exclusive",outcome="acquired"} 3"#;
    if !page.contains(count) {
        return Err("the three bookings are not counted".into());
    }
    Ok(())
}
