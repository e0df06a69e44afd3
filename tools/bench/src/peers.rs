//! Other ways to lock on the same servers, with the same work as this library, in the same run.

mod asynchronous;
mod blocking;

use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use lockkeeper_compare::html::{Figures, Table, TableRow};
use lockkeeper_testkit::{Fault, Proxy};

use crate::many::{Run, Tally};
use crate::store::{Kind, Missing, Server, Store};

/// The argument that runs this instead of the budgets.
pub(crate) const PEERS: &str = "peers";
const HTML: &str = "--html";
/// This library, as the tables name it.
const OURS: &str = "lockkeeper";
const RUNS: usize = 5;
/// No thread of a run asks for another grant after this time.
const SPAN: Duration = Duration::from_secs(10);

/// What the threads of a run do.
#[derive(Clone, Copy)]
struct Work {
    what: &'static str,
    threads: usize,
    /// Of each thread.
    grants: u32,
    names: Names,
    held: Duration,
    /// Other work of a thread between two pairs.
    between: Duration,
}

#[derive(Clone, Copy)]
enum Names {
    OneForEach,
    OneForAll,
}

const WORKS: [Work; 5] = [
    Work {
        what: "1 thread, a free name",
        threads: 1,
        grants: 2_000,
        names: Names::OneForEach,
        held: Duration::ZERO,
        between: Duration::ZERO,
    },
    Work {
        what: "1 thread, 1 ms of work between pairs",
        threads: 1,
        grants: 500,
        names: Names::OneForEach,
        held: Duration::ZERO,
        between: Duration::from_millis(1),
    },
    Work {
        what: "64 threads, a name each",
        threads: 64,
        grants: 300,
        names: Names::OneForEach,
        held: Duration::ZERO,
        between: Duration::ZERO,
    },
    Work {
        what: "100 threads, one name",
        threads: 100,
        grants: 10,
        names: Names::OneForAll,
        held: Duration::ZERO,
        between: Duration::ZERO,
    },
    Work {
        what: "100 threads, one name, 1 ms held",
        threads: 100,
        grants: 10,
        names: Names::OneForAll,
        held: Duration::from_millis(1),
        between: Duration::ZERO,
    },
];

impl Work {
    fn name(&self, thread: usize) -> String {
        match self.names {
            Names::OneForEach => format!("seat:{thread}"),
            Names::OneForAll => "seat:all".to_owned(),
        }
    }

    /// Tells whether a thread has done its part.
    fn is_done(&self, tally: &Tally) -> bool {
        tally.grants == self.grants || tally.began.elapsed() > SPAN
    }
}

type Ran = Result<Run, Box<dyn Error>>;

/// A way to lock on a server.
struct Peer<'a> {
    name: &'static str,
    run: Box<dyn Fn(&Work) -> Ran + 'a>,
}

impl<'a> Peer<'a> {
    fn new(name: &'static str, run: impl Fn(&Work) -> Ran + 'a) -> Self {
        let run = Box::new(run);
        Self { name, run }
    }
}

/// A store, and how long a reply takes to come.
type Place = (Kind, Duration, &'static str);

/// The last one is on another host, as far as time is concerned.
const PLACES: [Place; 4] = [
    (Kind::Redis, Duration::ZERO, "redis"),
    (Kind::MariaDb, Duration::ZERO, "mariadb"),
    (Kind::MySql, Duration::ZERO, "mysql"),
    (
        Kind::Redis,
        Duration::from_micros(500),
        "redis, 0.5 ms away",
    ),
];

/// What a peer did: its median run of each of the [`WORKS`].
struct Measured {
    name: &'static str,
    runs: Vec<Run>,
}

/// A store with what was measured on it.
struct MeasuredStore {
    name: &'static str,
    peers: Vec<Measured>,
}

/// Runs all peers of all stores that this machine has, and prints a table in Markdown. `--html FILE` also
/// writes a page.
pub(crate) fn run(arguments: &[String]) -> Result<(), Box<dyn Error>> {
    let page = match arguments {
        [] => None,
        [flag, file] if flag == HTML => {
            let shown = |error| format!("{HTML} {file} cannot be written: {error}");
            Some(File::create(file).map_err(shown)?)
        }
        _ => return Err(format!("{PEERS} takes {HTML} FILE, and nothing else").into()),
    };
    let works = WORKS.map(|work| work.what).join(" | ");
    println!("| store | locked with | {works} |");
    println!("|---|---{}|", "|---".repeat(WORKS.len()));
    let mut stores = Vec::new();
    for (kind, delay, name) in PLACES {
        match measure(kind, delay) {
            Ok(peers) => {
                for Measured { name: peer, runs } in &peers {
                    let cells: Vec<_> = WORKS.iter().zip(runs).map(cell).collect();
                    println!("| {name} | {peer} | {} |", cells.join(" | "));
                }
                stores.push(MeasuredStore { name, peers });
            }
            Err(error) if error.is::<Missing>() => println!("| {name} | not measured: {error} |"),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    println!(
        "\nEach cell: grants a second, for one thread also the time of a pair without the work; then the longest wait. \
         Medians of {RUNS} runs, in which the peers of a store alternate."
    );
    if let Some(mut file) = page {
        file.write_all(figures(&stores).to_html().as_bytes())?;
    }
    Ok(())
}

/// Measures the peers of a store, which work alternately. If replies are late, those peers that can be told an address.
fn measure(kind: Kind, delay: Duration) -> Result<Vec<Measured>, Box<dyn Error>> {
    let store = Store::start(kind)?;
    let server = store.test_server().ok_or("the peers have a server")?;
    let away = match server.single_addr() {
        Some(addr) if !delay.is_zero() => Some(Proxy::new(addr)?),
        _ => None,
    };
    let url = match &away {
        Some(proxy) => {
            proxy.set(Fault::DelayReplies(delay));
            server.url_via(proxy.addr())
        }
        None => server.url(),
    };
    let plain = url.trim_end_matches('?');
    let mut peers = vec![Peer::new(OURS, blocking::keeper(&url)?)];
    match &store.server {
        Server::Redis(server) => {
            peers.extend([
                Peer::new("rlock", blocking::rlock(plain, None)?),
                Peer::new("rslock, tasks of one thread", asynchronous::rslock(plain)?),
            ]);
            if away.is_none() {
                let retry = Some(blocking::RETRY);
                peers.extend([
                    Peer::new("rlock, 10 ms retry", blocking::rlock(plain, retry)?),
                    Peer::new("SET NX PX, 10 ms retry", blocking::raw_redis(server)?),
                ]);
            }
        }
        Server::MySql(server, _) => peers.push(Peer::new("GET_LOCK", blocking::raw_mysql(server))),
        _ => {}
    }
    let start = |peer: &Peer<'_>| Measured {
        name: peer.name,
        runs: Vec::new(),
    };
    let mut measured: Vec<_> = peers.iter().map(start).collect();
    for work in &WORKS {
        let mut runs: Vec<Vec<Run>> = peers.iter().map(|_| Vec::new()).collect();
        for _ in 0..RUNS {
            for (peer, runs) in peers.iter().zip(&mut runs) {
                let named = |error| format!("{}, {}: {error}", peer.name, work.what);
                runs.push((peer.run)(work).map_err(named)?);
            }
        }
        for (measured, runs) in measured.iter_mut().zip(&runs) {
            measured.runs.push(Run::median(runs));
        }
    }
    Ok(measured)
}

/// Returns the page: a section for each work, with a table for each store.
fn figures(stores: &[MeasuredStore]) -> Figures {
    let row = |peer: &Measured, work| {
        let run = peer.runs.get(work);
        let figure = |value: fn(&Run) -> f64, text: fn(&Run) -> String| {
            (run.map(value), run.map(text).unwrap_or_default())
        };
        TableRow {
            name: peer.name.to_owned(),
            is_ours: peer.name == OURS,
            figures: vec![
                figure(|run| run.grants_per_second, shown_rate),
                figure(|run| run.longest_wait.as_secs_f64(), shown_wait),
            ],
        }
    };
    let columns = [
        "locked with",
        "grants per second (more is better)",
        "longest wait (less is better)",
    ];
    let table = |store: &MeasuredStore, work| Table {
        caption: store.name.to_owned(),
        columns: columns.map(str::to_owned).into(),
        rows: store.peers.iter().map(|peer| row(peer, work)).collect(),
    };
    let section = |(number, work): (usize, &Work)| {
        let tables = stores.iter().map(|store| table(store, number));
        (work.what.to_owned(), tables.collect())
    };
    Figures {
        title: "lockkeeper-bench peers".to_owned(),
        heading: "The same work, with other ways to lock".to_owned(),
        lede: format!(
            "Locks and releases alone: nothing else is done but what a heading says. Each figure is the \
             median of {RUNS} runs, in which the ways to lock on a store alternate."
        ),
        sections: WORKS.iter().enumerate().map(section).collect(),
    }
}

/// Shows a run in the table.
fn cell((work, run): (&Work, &Run)) -> String {
    let pair = match work.threads {
        1 => format!("{:.0} µs, ", run.pair * 1e6),
        _ => String::new(),
    };
    format!("{pair}{}, {}", shown_rate(run), shown_wait(run))
}

fn shown_rate(run: &Run) -> String {
    format!("{:.0}/s", run.grants_per_second)
}

fn shown_wait(run: &Run) -> String {
    format!("{:.1} ms", run.longest_wait.as_secs_f64() * 1e3)
}
