//! The budgets of `lockkeeper`. Each row is a ratio to a floor that is measured alternately with it, in the
//! same run.
//!
//! `cargo run --release -p lockkeeper-bench` runs all rows; with words it runs those that have
//! one of them in their name. `peers` runs other ways to lock beside this library instead, and
//! `peers --html FILE` writes a page with charts as well. A row is never a test: a busy machine makes it
//! worse.

mod contended;
mod etcd;
mod free;
mod held;
mod keepers;
mod loss;
mod many;
mod memory;
mod modes;
mod mysql;
mod once;
mod pairs;
mod passes;
mod peers;
mod pinning;
mod postgres;
mod process;
mod quorum;
mod scale;
mod server;
mod threads;
mod waiting;
mod wakes;

use std::error::Error;
use std::process::ExitCode;

use lockkeeper_testkit::{MySqlKind, PostgresKind};

/// A row of the table.
struct Row {
    what: String,
    measured: String,
    floor: String,
    /// The measured value divided by the floor if there is one, else the measured value.
    value: f64,
    /// Infinite if there is none.
    budget: f64,
    unit: &'static str,
}

impl Row {
    /// Makes a row without a floor; `measured` shows this many decimals.
    fn plain(what: String, value: f64, decimals: usize, unit: &'static str, budget: f64) -> Self {
        Self {
            what,
            measured: format!("{value:.decimals$}{unit}"),
            floor: "-".to_owned(),
            value,
            budget,
            unit,
        }
    }

    /// Makes a row that shows how a value grows: the floor is that of the smaller size. It has no budget.
    fn growth(what: String, value: f64, smaller: f64, unit: &str) -> Self {
        Self {
            what,
            measured: format!("{value:.0}{unit}"),
            floor: format!("{smaller:.0}{unit}"),
            value: value / smaller,
            budget: f64::INFINITY,
            unit: "x",
        }
    }

    fn shown_budget(&self) -> String {
        if self.budget.is_finite() {
            format!("{}{}", self.budget, self.unit)
        } else {
            "-".to_owned()
        }
    }
}

type Rows = Result<Vec<Row>, Box<dyn Error>>;

type Group = fn() -> Rows;

const MARIADB: MySqlKind = MySqlKind::MariaDb10;
const MYSQL: MySqlKind = MySqlKind::MySql9;
const POSTGRES: PostgresKind = PostgresKind::Postgres15;

const GROUPS: [(&str, Group); 64] = [
    ("free in-process", free::memory),
    ("free sqlite", free::sqlite),
    ("free redis", free::redis),
    ("free quorum", quorum::rows),
    ("free mariadb", || free::mysql(MARIADB)),
    ("free mysql", || free::mysql(MYSQL)),
    ("free postgres", || free::postgres(POSTGRES)),
    ("free etcd", free::etcd),
    ("many sqlite", many::sqlite),
    ("many redis", many::redis),
    ("many cluster", many::cluster),
    ("many mariadb", || many::mysql(MARIADB)),
    ("many mysql", || many::mysql(MYSQL)),
    ("many postgres", || many::postgres(POSTGRES)),
    ("many etcd", many::etcd),
    ("passes memory", passes::memory),
    ("passes sqlite", passes::sqlite),
    ("passes redis", passes::redis),
    ("passes mariadb", || passes::on_mysql(MARIADB)),
    ("passes mysql", || passes::on_mysql(MYSQL)),
    ("passes postgres", || passes::on_postgres(POSTGRES)),
    ("passes etcd", passes::on_etcd),
    ("modes memory", modes::memory),
    ("modes sqlite", modes::sqlite),
    ("modes redis", modes::redis),
    ("modes mariadb", || modes::on_mysql(MARIADB)),
    ("modes mysql", || modes::on_mysql(MYSQL)),
    ("modes postgres", || modes::on_postgres(POSTGRES)),
    ("modes etcd", modes::on_etcd),
    ("contended threads", contended::threads),
    ("contended threads redis", contended::threads_redis),
    ("contended threads mariadb", || {
        contended::threads_mysql(MARIADB)
    }),
    ("contended threads mysql", || {
        contended::threads_mysql(MYSQL)
    }),
    ("contended threads postgres", || {
        contended::threads_postgres(POSTGRES)
    }),
    ("contended threads etcd", contended::threads_etcd),
    ("contended processes", contended::processes),
    ("contended processes redis", contended::processes_redis),
    ("contended processes mariadb", || {
        contended::processes_mysql(MARIADB)
    }),
    ("contended processes mysql", || {
        contended::processes_mysql(MYSQL)
    }),
    ("contended processes postgres", || {
        contended::processes_postgres(POSTGRES)
    }),
    ("contended processes etcd", contended::processes_etcd),
    ("pairs mariadb", || pairs::rows_mysql(MARIADB)),
    ("pairs mysql", || pairs::rows_mysql(MYSQL)),
    ("pairs postgres", || pairs::rows_postgres(POSTGRES)),
    ("waiting", waiting::rows),
    ("waiting redis", waiting::rows_redis),
    ("waiting mariadb", || waiting::rows_mysql(MARIADB)),
    ("waiting mysql", || waiting::rows_mysql(MYSQL)),
    ("waiting postgres", || waiting::rows_postgres(POSTGRES)),
    ("waiting etcd", waiting::rows_etcd),
    ("scale held redis", held::redis),
    ("scale keepers redis", keepers::redis),
    ("scale memory", scale::memory),
    ("scale sqlite", scale::sqlite),
    ("scale redis", scale::redis),
    ("scale mariadb", || scale::on_mysql(MARIADB)),
    ("scale mysql", || scale::on_mysql(MYSQL)),
    ("scale postgres", || scale::on_postgres(POSTGRES)),
    ("scale etcd", scale::on_etcd),
    ("loss redis", loss::redis),
    ("loss mariadb", || loss::on_mysql(MARIADB)),
    ("loss mysql", || loss::on_mysql(MYSQL)),
    ("loss postgres", || loss::on_postgres(POSTGRES)),
    ("loss etcd", loss::on_etcd),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == process::CHILD => return done(process::child(rest)),
        Some((word, rest)) if word == peers::PEERS => return done(peers::run(rest)),
        _ => {}
    }
    println!(
        "{:<50} {:>12} {:>12} {:>9} {:>9}",
        "", "measured", "floor", "", "budget"
    );
    let mut over = 0;
    for (name, group) in GROUPS {
        if !words.is_empty() && !words.iter().any(|word| name.contains(word.as_str())) {
            continue;
        }
        let rows = match group() {
            Ok(rows) => rows,
            Err(error) if error.is::<server::Missing>() => {
                println!("{name:<50} not measured: {error}");
                continue;
            }
            Err(error) => {
                eprintln!("{name}: {error}");
                return ExitCode::FAILURE;
            }
        };
        for row in rows {
            let within = row.value <= row.budget;
            over += u32::from(!within);
            println!(
                "{:<50} {:>12} {:>12} {:>9} {:>9} {}",
                row.what,
                row.measured,
                row.floor,
                format!("{:.2}{}", row.value, row.unit),
                row.shown_budget(),
                if within { "" } else { "OVER" },
            );
        }
    }
    println!("{over} over budget");
    ExitCode::SUCCESS
}

fn done(result: Result<(), Box<dyn Error>>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the median of some measurements.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
