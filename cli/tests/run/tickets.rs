//! `acquire`, `renew` and `release`: a lock that no process has.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Output, Stdio};

use lockkeeper_testkit::{RedisServer, cases};
use rustix::process::Signal;

use crate::operate::out;
use crate::rig::{Case, RedisCase, Rig, Running, contains, exits, fails};

pub(crate) const CASES: &[Case] = cases![
    ticket_is_good_until_the_lock_is_released,
    ticket_takes_its_ttl_before_that_of_the_store,
    ticket_that_nobody_gets_is_released,
    lock_of_a_ticket_ends_with_its_ttl,
    lock_of_a_ticket_that_was_taken_away_is_told,
    wrong_tickets_are_refused,
];

pub(crate) const ON_REDIS: &[RedisCase] = cases![signal_leaves_no_place_in_the_queue];

fn command(rig: &Rig, args: &[&str]) -> Output {
    rig.lockkeeper(args).output().unwrap()
}

/// Acquires a name, and returns the ticket.
pub(crate) fn acquire(rig: &Rig, args: &[&str]) -> String {
    let acquired = command(rig, &[&["acquire"], args].concat());
    exits(&acquired, 0);
    assert!(acquired.stderr.is_empty(), "{acquired:?}");
    out(&acquired).trim_end().to_owned()
}

fn ticket_is_good_until_the_lock_is_released(rig: &Rig) {
    let ticket = acquire(rig, &["deploy", "--ttl", "10m", "--label", "the job"]);
    let held = rig.who("deploy");
    assert!(held["pid"].is_null(), "no process has it: {held}");
    assert_eq!(held["label"], "the job");
    assert!(held["remaining_ms"].as_u64().unwrap() > 500_000, "{held}");
    let busy = command(rig, &["acquire", "--no-wait", "deploy"]);
    contains(
        &fails(&busy, 75),
        &["\"deploy\" is held by another process"],
    );
    exits(&command(rig, &["acquire", "-n", "-E", "0", "deploy"]), 0);
    exits(&rig.run(&["-n", "deploy"], "true"), 75);

    let renew = ["renew", "--ttl", "20m", "--label", "step 2", "--ticket"];
    let renewed = command(rig, &[&renew[..], &[&ticket]].concat());
    exits(&renewed, 0);
    assert_ne!(out(&renewed).trim_end(), ticket);
    let held = rig.who("deploy");
    assert_eq!(held["label"], "step 2");
    assert!(held["remaining_ms"].as_u64().unwrap() > 1_100_000, "{held}");

    // The first ticket, from standard input.
    rig.write("ticket", &format!("{ticket}\n"));
    let mut release = rig.lockkeeper(&["release", "--ticket", "-"]);
    release.stdin(std::fs::File::open(rig.path("ticket")).unwrap());
    exits(&release.output().unwrap(), 0);
    exits(&rig.run(&["-n", "deploy"], "true"), 0);
    for verb in ["release", "renew"] {
        let late = fails(&command(rig, &[verb, "--ticket", &ticket]), 79);
        contains(&late, &["the lock of the ticket has ended"]);
    }
}

fn ticket_takes_its_ttl_before_that_of_the_store(rig: &Rig) {
    let url = format!("{}?ttl=5m", rig.url());
    let of_url = |args: &[&str]| command(rig, &[args, &["--url", &url]].concat());
    let remaining = || rig.who("a")["remaining_ms"].as_u64().unwrap() / 60_000;
    for (ttl, minutes) in [(&[][..], 4), (&["--ttl", "10m"], 9)] {
        let acquired = of_url(&[&["acquire", "a"], ttl].concat());
        exits(&acquired, 0);
        assert_eq!(remaining(), minutes);
        let ticket = out(&acquired);
        let renewed = of_url(&["renew", "--ttl", "20m", "--ticket", ticket.trim_end()]);
        exits(&renewed, 0);
        assert_eq!(remaining(), 19);
        exits(&of_url(&["release", "--ticket", ticket.trim_end()]), 0);
        assert!(rig.who("a").is_null());
    }
    exits(&of_url(&["acquire", "a", "--ttl", "10ms"]), 64);
}

fn ticket_that_nobody_gets_is_released(rig: &Rig) {
    let full = std::fs::File::create("/dev/full").unwrap();
    let mut acquire = rig.lockkeeper(&["acquire", "a"]);
    let output = acquire
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    contains(&fails(&output, 71), &["cannot print"]);
    exits(&rig.run(&["-n", "a"], "true"), 0);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut acquire = rig.lockkeeper(&["acquire", "a"]);
    let output = acquire
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    contains(&fails(&output, 71), &["no program reads the ticket"]);
    exits(&rig.run(&["-n", "a"], "true"), 0);
}

fn lock_of_a_ticket_ends_with_its_ttl(rig: &Rig) {
    let ticket = acquire(rig, &["a", "--ttl", "300ms"]);
    // Waits until then.
    exits(&rig.run(&["a"], "true"), 0);
    fails(&command(rig, &["release", "--ticket", &ticket]), 79);
}

fn lock_of_a_ticket_that_was_taken_away_is_told(rig: &Rig) {
    let ticket = acquire(rig, &["a"]);
    exits(&command(rig, &["unlock", "--force", "--yes", "a"]), 0);
    let late = fails(&command(rig, &["renew", "--ticket", &ticket]), 79);
    contains(&late, &["was taken away"]);
}

/// The next waiter waited for a dead one until the server forgot that.
fn signal_leaves_no_place_in_the_queue(rig: &Rig, _: &RedisServer) {
    let ticket = acquire(rig, &["a"]);
    for signal in [Signal::TERM, Signal::INT] {
        let waiting = rig.lockkeeper(&["acquire", "a"]).spawn().unwrap();
        let mut waiting = Running(Some(waiting));
        rig.until_waited_for("a", 1);
        waiting.signal(signal);
        assert_eq!(waiting.ended().signal(), Some(signal.as_raw()));
        assert_eq!(rig.who("a")["waiting"], 0);
    }
    exits(&command(rig, &["release", "--ticket", &ticket]), 0);
}

fn wrong_tickets_are_refused(rig: &Rig) {
    let ticket = acquire(rig, &["a"]);
    let changed = ticket.replacen("sqlite", "sqlitf", 1);
    let release = |args: &[&str]| command(rig, &[&["release"], args].concat());
    for wrong in [changed.as_str(), "a"] {
        fails(&release(&["--ticket", wrong]), 64);
    }
    contains(
        &fails(&release(&["--ticket", ""]), 64),
        &["did `acquire` fail?"],
    );
    fails(&release(&[]), 64);
    let other = format!("{}?namespace=other", rig.url());
    let refused = fails(&release(&["--url", &other, "--ticket", &ticket]), 78);
    contains(&refused, &["the ticket is of sqlite:", "namespace=other"]);
    let memory = fails(&command(rig, &["acquire", "--url", "memory:", "a"]), 78);
    contains(&memory, &["tickets"]);
    exits(&release(&["--ticket", &ticket]), 0);
}
