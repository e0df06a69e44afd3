//! On Redis and Valkey servers that run already.

use libtest_mimic::Trial;
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer};

use crate::rig::{compare, of, rows, trial};

/// What must show nowhere.
const PASSWORD: &str = "swordfish-4711";

type Case = (&'static str, fn(RedisKind));

const CASES: &[Case] = &[
    ("five_of_a_hundred_get_in", five_of_a_hundred_get_in),
    (
        "every_scenario_is_as_it_must_be",
        every_scenario_is_as_it_must_be,
    ),
    ("every_door_leads_there", every_door_leads_there),
    ("no_secret_is_shown", no_secret_is_shown),
];

pub(crate) fn trials() -> Vec<Trial> {
    let cases = RedisKind::ALL
        .into_iter()
        .flat_map(|kind| CASES.iter().map(move |case| (kind, *case)));
    let trial = |(kind, (name, case)): (RedisKind, Case)| {
        trial(format!("{name}::{kind}"), vec![kind.ignored()], move || {
            case(kind);
        })
    };
    cases.map(trial).collect()
}

fn start(kind: RedisKind, options: &RedisOptions) -> RedisServer {
    RedisServer::start(kind, options).unwrap()
}

/// Nothing stays but the locks' last epochs, and all of it ends by itself.
fn nothing_stays(server: &RedisServer) {
    let mut client = server.client().unwrap();
    for key in client.command(&["KEYS", "*"]).unwrap().items() {
        let key = key.text().unwrap();
        assert!(!key.starts_with("{lockkeeper-compare-"), "{key}");
        let left = client.command(&["PTTL", &key]).unwrap().int();
        assert!(left > Some(0), "{key} stays for ever");
    }
}

fn five_of_a_hundred_get_in(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let url = server.url();
    let before = server.calls().unwrap();
    // Others run scripts, too.
    let only = ["--strategy=none", "--strategy=lockkeeper"];
    let args = [&["--scenario=gather", "--url", &url], &only[..]].concat();
    let rows = rows(&args, PASSWORD);
    let calls = server.calls().unwrap();
    let (control, ours) = (of(&rows, "none"), of(&rows, "lockkeeper"));
    assert!(control["admitted"].as_u64() > Some(5), "{control:#}");
    assert_eq!(ours["store"], "redis");
    assert_eq!(ours["admitted"], 5, "{ours:#}");
    assert_eq!(ours["turned_away"], 95, "{ours:#}");
    assert_eq!(ours["verdict"], "right", "{ours:#}");
    // Nobody else takes the lock, so that nobody is waited for on a channel.
    assert_eq!(ours["connections"], 1, "{ours:#}");

    // What is shown is what the server counted: the state sends no EVALSHA.
    let shown = ours["commands_per_grant"].as_f64().unwrap() * 100.0;
    let evalsha = calls["evalsha"] - before.get("evalsha").copied().unwrap_or(0);
    let evalsha = f64::from(u32::try_from(evalsha).unwrap());
    // Beside it, a script that is not known yet is sent whole.
    assert!(
        shown >= evalsha - 0.1 && shown <= evalsha + 3.1,
        "{shown} shown, {evalsha} counted"
    );
    nothing_stays(&server);
}

fn every_scenario_is_as_it_must_be(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let url = server.url();
    let rows = rows(&["--threads=20", "--url", &url], PASSWORD);
    assert_eq!(rows.len(), 52);
    for row in &rows {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
    }
    let of = |scenario: &str, strategy: &str, field: &str| {
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| row["scenario"] == scenario)
            .collect();
        let row = rows.iter().find(|row| row["strategy"] == strategy);
        row.unwrap()[field].clone()
    };
    // What each technique is known for.
    let commands = |strategy| {
        of("gather", strategy, "commands_per_grant")
            .as_f64()
            .unwrap()
    };
    assert!(commands("lockkeeper") < 1.0);
    assert!(commands("setnx-spin") > 2.0 && commands("pubsub") > 2.0);
    assert!(of("gather", "optimistic", "connections").as_u64() > Some(5));
    assert_eq!(of("gather", "setnx-spin", "connections"), 1);
    assert_eq!(of("gather", "pubsub", "connections"), 2);
    let faults = |scenario, strategy| of(scenario, strategy, "faults").to_string();
    assert!(faults("slow", "setnx-unsafe").contains("a third was let in"));
    assert!(!faults("slow", "setnx-once").contains("a third was let in"));
    assert!(faults("slow", "pubsub").contains("the late write was let through"));
    assert!(faults("crash", "setnx-unsafe").contains("still locked"));
    nothing_stays(&server);
}

fn every_door_leads_there(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new().password(PASSWORD).tls());
    let authority = server.certificates().unwrap().authority.clone();
    let urls = [
        format!("{}/3", server.url()),
        format!(
            "redis://{}?db=3&user=default&password={PASSWORD}",
            server.addr()
        ),
        format!("unix:{}?password={PASSWORD}", server.socket().display()),
        format!(
            "{}?ca_file={}",
            server.tls_url().unwrap(),
            authority.display()
        ),
    ];
    for url in urls {
        let args = [
            "--scenario=gather",
            "--strategy=lockkeeper",
            "--strategy=optimistic",
            "--threads=10",
            "--url",
            &url,
        ];
        let rows = rows(&args, PASSWORD);
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert_eq!(row["admitted"], 5, "{row:#}");
        }
        nothing_stays(&server);
    }
}

fn no_secret_is_shown(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new().password("another one"));
    let addr = server.addr();
    for (url, code) in [
        (format!("redis://:{PASSWORD}@{addr}"), 1),
        (format!("redis://{addr}?password={PASSWORD}"), 1),
        (format!("redis://:{PASSWORD}@{addr}/x"), 2),
        (format!("redis://:{PASSWORD}@{addr}?tlt=5s"), 2),
        (format!("redis://:{PASSWORD}@[::1/"), 2),
    ] {
        let output = compare(&["--url", &url], PASSWORD);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
