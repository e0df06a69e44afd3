//! All verbs of the command on each kind of server. What differs between the stores beyond that is in the suites of the
//! library.

use std::time::Duration;

use libtest_mimic::Trial;
use lockkeeper_testkit::{
    ConsulKind, ConsulOptions, ConsulServer, MySqlKind, MySqlServer, Shared, StoreKind,
    TestServer as _, suite,
};
use serde_json::Value;

use crate::loss::force;
use crate::modes::has_mode;
use crate::operate::{fits, out};
use crate::rig::{Rig, code, contains, exits, fails, stderr_of};
use crate::tickets;

const CONSUL: ConsulKind = ConsulKind::Consul1_8;

/// The conformance suite covers how other versions differ.
pub(crate) fn trials() -> Vec<Trial> {
    let trial = |kind: StoreKind| {
        let name = format!("{kind}::all_verbs_work");
        suite::named_trial(name, move || kind.ignored(), move || on(kind))
    };
    let mut trials: Vec<_> = StoreKind::servers().into_iter().map(trial).collect();
    let name = format!("{CONSUL}::doctor_waits_for_the_shortest_ttl");
    trials.push(suite::named_trial(
        name,
        || CONSUL.ignored(),
        || {
            // Consul's own, which makes the shortest ttl 20 s.
            let usual = ConsulOptions::new().min_ttl(Duration::from_secs(10));
            let server = ConsulServer::start(CONSUL, &usual).unwrap();
            is_healthy(&Rig::on_server(&server.url()));
        },
    ));
    trials
}

fn on(kind: StoreKind) {
    if kind != StoreKind::MySql(MySqlKind::MySql9) {
        return all_verbs(&kind.start().unwrap().url());
    }
    let server = Shared::<MySqlServer>::take(kind).unwrap();
    // The right that `who` needs to list all holders.
    let user = MySqlServer::USER;
    let grant = format!("GRANT SELECT ON performance_schema.* TO '{user}'@'%'");
    server.execute(&grant).unwrap();
    all_verbs(&server.url_at(&server.addr().to_string(), false));
}

fn all_verbs(url: &str) {
    let rig = Rig::on_server(url);
    let script = "echo $LOCKKEEPER_TOKEN > new; mv new held; while :; do sleep 0.2; done";
    let holder = rig.start(&["--label", "the job", "a"], script);
    rig.until_file("held");
    let busy = rig.run(&["-n", "a"], "touch started");
    exits(&busy, 75);
    let next = rig.start(&["a"], "echo $LOCKKEEPER_TOKEN");
    rig.until_waited_for("a", 1);

    let (held, token) = (rig.who("a"), rig.read("held"));
    let pid = holder.pid().as_raw_nonzero().get();
    let is_null_or = |key: &str, value: Value| held[key].is_null() || held[key] == value;
    assert!(is_null_or("pid", pid.into()), "{held}");
    assert!(is_null_or("token", token.trim().into()), "{held}");
    assert!(is_null_or("label", "the job".into()), "{held}");
    assert_eq!(held["label"].is_null(), held["pid"].is_null(), "{held}");
    let all = rig.lockkeeper(&["who", "--all-namespaces"]).output();
    let all = all.unwrap();
    if code(&all) == 0 {
        let all = out(&all);
        fits(&all);
        let row = all.lines().find(|line| line.starts_with("default"));
        assert!(row.is_some_and(|row| row.contains(" a ")), "{all}");
    } else {
        contains(&fails(&all, 78), &["one namespace only"]);
    }

    force(&rig);
    let ended = holder.output();
    exits(&ended, 79);
    let next = next.output();
    exits(&next, 0);
    let tokens = [token, out(&next)].map(|text| text.trim().parse::<u64>().unwrap());
    assert!(tokens[0] < tokens[1], "{tokens:?}");

    if has_mode(&rig, &["--slots", "2"]) {
        let slot = rig.run(&["--slots", "2", "a"], "echo $LOCKKEEPER_SLOT");
        assert_eq!(out(&slot), "0\n", "{}", stderr_of(&slot));
    }
    if has_tickets(&rig) {
        let ticket = tickets::acquire(&rig, &["t"]);
        let release = ["release", "--ticket", &ticket];
        exits(&rig.lockkeeper(&release).output().unwrap(), 0);
    }
    let several = rig.run(&["-n", "c", "--also", "a"], "exit 7");
    exits(&several, 7);
    is_healthy(&rig);
}

/// Returns whether the store has tickets. Otherwise the error says so.
fn has_tickets(rig: &Rig) -> bool {
    let acquire = rig.lockkeeper(&["acquire", "t", "--ttl", "3s"]).output();
    let acquire = acquire.unwrap();
    if code(&acquire) != 0 {
        contains(&fails(&acquire, 78), &["tickets"]);
    }
    code(&acquire) == 0
}

fn is_healthy(rig: &Rig) {
    let nothing = rig.lockkeeper(&["who"]).output().unwrap();
    assert_eq!(out(&nothing), "No lock is held.\n", "a lock is left");
    let doctor = rig.lockkeeper(&["doctor"]).output().unwrap();
    fits(&out(&doctor));
    // A server without persistence, and one on a busy machine, get a warning.
    assert!([0, 1].contains(&code(&doctor)), "{}", out(&doctor));
}
