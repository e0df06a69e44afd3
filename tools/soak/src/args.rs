//! The command line.

use std::time::Duration;

use clap::{Parser, ValueEnum};

/// Breaks processes, networks and servers for a while, and checks what guards said meanwhile.
///
/// Worker processes lock names on one store at a time, and record what each guard said. A store runs in rounds of
/// at most a minute. After each round a checker reads the records. Guards that exclude each other must not overlap
/// in time, and must be in the order of their tokens. No token may occur twice. Waits must end on time, and nothing
/// may be left in the store. The first round that breaks a rule is the last on its store, and is shown with the
/// evidence.
///
/// Every fourth name is a semaphore with three permits, where the store can, and the others are locks. Half of the calls
/// for a lock with an odd number share it, where the store can. Some calls lock up to three names together.
///
/// Two faults must not stop the grants. These are a stopped node of a cluster, for the names of the other nodes,
/// and a slow member of a quorum. When an operator takes 30 names in quick succession, each guard must be notified
/// at once. The clock of `redis` is set forward and back, where libfaketime is installed (`scripts/servers`). The
/// closing lines count all this.
///
/// The seed decides which faults come when, and what each thread does. The machine decides the rest, so a seed
/// repeats a campaign, but not to the microsecond.
///
/// Exit status: 0 if all rules held, 1 if one was broken, 2 if the campaign could not run.
#[derive(Debug, Parser)]
#[command(name = "lockkeeper-soak", version)]
pub(crate) struct Args {
    /// A store to lock on; can be repeated. A server that is not installed is an error, with `all` it is left out.
    #[arg(long, value_name = "STORE", default_value = "all")]
    pub(crate) store: Vec<StoreChoice>,

    /// Hours of faults on each store, such as 1 or 0.5.
    #[arg(long, value_name = "N", value_parser = parse_length)]
    hours: Option<f64>,

    /// Minutes of faults on each store, added to the hours. Default: 1 minute in total.
    #[arg(long, value_name = "N", value_parser = parse_length)]
    minutes: Option<f64>,

    /// Seconds of faults on each store, added to the minutes.
    #[arg(long, value_name = "N", value_parser = parse_length)]
    seconds: Option<f64>,

    /// The seed of the first round; each further round has the next. Default: a random one.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Worker processes: 1 to 64. `memory` has one, with the threads of all.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) processes: u32,

    /// Threads of a worker process: 1 to 256.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,

    /// Names that are locked: 1 to 10000.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) names: u32,

    /// The longest time that guards are held. Those of a quarter of the names are held for up to twice the ttl.
    #[arg(long, value_name = "DUR", default_value = "20ms", value_parser = humantime::parse_duration)]
    pub(crate) hold: Duration,

    /// The ttl of all leases.
    #[arg(long, value_name = "DUR", default_value = "2s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,

    /// Opens servers with `restart_grace` of this length. From the ttl on, no overlap is allowed after a restart.
    #[arg(long, value_name = "DUR", value_parser = humantime::parse_duration)]
    pub(crate) restart_grace: Option<Duration>,
}

/// What `--store` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreChoice {
    Memory,
    Sqlite,
    Redis,
    /// A primary with two replicas, and three sentinels.
    Sentinel,
    /// Three primaries with a replica each.
    Cluster,
    /// A majority of three Redis servers.
    Quorum,
    #[value(name = "mariadb")]
    MariaDb,
    #[value(name = "mysql")]
    MySql,
    Postgres,
    Etcd,
    Consul,
    /// A table of MariaDB.
    #[value(name = "mariadb-table")]
    MariaDbTable,
    /// A table of MySQL.
    #[value(name = "mysql-table")]
    MySqlTable,
    /// A table of PostgreSQL.
    PostgresTable,
    #[value(name = "zookeeper")]
    ZooKeeper,
    /// All of them, one after the other.
    All,
}

impl StoreChoice {
    /// Returns all stores.
    fn each() -> Vec<Self> {
        let all = Self::value_variants().iter().copied();
        all.filter(|store| *store != Self::All).collect()
    }

    /// Returns the word that `--store` takes.
    pub(crate) fn name(self) -> String {
        let word = self.to_possible_value();
        word.map_or_else(String::new, |word| word.get_name().to_owned())
    }
}

impl Args {
    /// Returns the stores to run on, and whether one that is not installed is left out.
    pub(crate) fn stores(&self) -> (Vec<StoreChoice>, bool) {
        if self.store.contains(&StoreChoice::All) {
            (StoreChoice::each(), true)
        } else {
            (self.store.clone(), false)
        }
    }

    /// Returns how long faults go on, on each store.
    pub(crate) fn length(&self) -> Duration {
        let parts = [
            (self.hours, 3600.0),
            (self.minutes, 60.0),
            (self.seconds, 1.0),
        ];
        if parts.iter().all(|(part, _)| part.is_none()) {
            return Duration::from_secs(60);
        }
        let seconds = parts.iter().map(|(part, unit)| part.unwrap_or(0.0) * unit);
        Duration::from_secs_f64(seconds.sum())
    }

    /// Returns the seed of the first round.
    pub(crate) fn seed(&self) -> u64 {
        // Short, because a person copies it.
        self.seed.unwrap_or_else(|| fastrand::u64(..1_000_000))
    }

    /// Returns the command that repeats one round.
    pub(crate) fn repeat(&self, store: StoreChoice, seed: u64, length: Duration) -> String {
        let store = store.name();
        let seconds = length.as_secs_f64();
        let (hold, ttl) = [self.hold, self.ttl].map(humantime::format_duration).into();
        let mut command = format!(
            "cargo run --release -p lockkeeper-soak -- --store {store} --seed {seed} --seconds {seconds} \
             --processes {} --threads {} --names {} --hold {hold} --ttl {ttl}",
            self.processes, self.threads, self.names,
        );
        if let Some(grace) = self.restart_grace {
            let grace = humantime::format_duration(grace);
            command.push_str(&format!(" --restart-grace {grace}"));
        }
        command
    }
}

/// Parses a number of hours, minutes or seconds, at most a year.
fn parse_length(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=31_536_000.0).contains(&number) => Ok(number),
        _ => Err("not a number from 0 to 31536000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Args {
        Args::try_parse_from(format!("soak {words}").split_whitespace()).unwrap()
    }

    #[test]
    fn command_line_definition_is_sound() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn length_is_the_sum_of_its_units() {
        assert_eq!(parse("").length(), Duration::from_secs(60));
        let sum = parse("--hours 1 --minutes 0.5 --seconds 3").length();
        assert_eq!(sum, Duration::from_secs(3633));
        for bad in ["-1", "nan", "inf", "1h"] {
            assert!(parse_length(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn missing_servers_are_left_out_only_with_all() {
        assert_eq!(parse("").stores(), (StoreChoice::each(), true));
        let one = parse("--store redis --store mysql").stores();
        assert_eq!(one, (vec![StoreChoice::Redis, StoreChoice::MySql], false));
    }

    #[test]
    fn repeating_command_has_all_that_decides_a_round() {
        let given = "--store redis --seed 7 --seconds 12.5 --processes 2 --threads 3 --names 4 \
                     --hold 5ms --ttl 1s --restart-grace 3s";
        let length = Duration::from_millis(12_500);
        let repeat = parse(given).repeat(StoreChoice::Redis, 7, length);
        assert_eq!(
            repeat,
            format!("cargo run --release -p lockkeeper-soak -- {given}")
        );
    }
}
