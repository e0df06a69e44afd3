//! The checks of `doctor`: every step in the life of a lock, with two keepers, under names that no program
//! uses.

use std::hash::{BuildHasher, RandomState};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::admin::Finding;
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{
    AcquireOptions, Capability, Error, LeasePolicy, LockGuard, LockKeeper, Outage, Released,
};

use crate::failure::Failure;

/// The longest time that a step may take.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time after its ttl at which a store may free an expired lease.
const LATE: Duration = Duration::from_secs(1);
const ROUND_TRIPS: u32 = 20;
/// Acquiring and releasing a lock within this time needs no warning.
const SLOW: Duration = Duration::from_millis(50);

/// Returns the options of each acquisition. They do not wait for an outage to end: an outage is a finding.
fn step_options() -> AcquireOptions {
    AcquireOptions::new()
        .wait(STEP_TIMEOUT)
        .outage(Outage::Fail)
}

/// Runs all checks. A check that fails is a finding, too. `open` opens the store once more.
pub(super) fn all(
    open: &dyn Fn() -> Result<LockKeeper, Failure>,
    keeper: &LockKeeper,
) -> Vec<Finding> {
    let mut findings = vec![Finding::fine(
        "connect",
        format!("the store can be opened: {}", keeper.backend()),
    )];
    // A second keeper stands for another program, if processes can share the store.
    let is_shared = keeper.capabilities().has(Capability::CrossProcess);
    let other = match is_shared.then(open).transpose() {
        Ok(other) => other.unwrap_or_else(|| keeper.clone()),
        Err(failure) => {
            let what = format!("a second connection is refused: {failure}");
            findings.push(broken("connect", what));
            return findings;
        }
    };
    findings.push(scope(keeper));
    let unique = RandomState::new().hash_one(std::process::id());
    let pair = Pair {
        keeper,
        other: &other,
        name: format!("lockkeeper-doctor/{unique:016x}"),
    };
    for (topic, check) in CHECKS {
        let found = check(&pair, topic);
        let is_broken = found.is_err();
        findings.push(found.unwrap_or_else(|error| broken(topic, error.to_string())));
        if is_broken {
            break;
        }
    }
    if let Some(admin) = keeper.admin() {
        findings.push(match admin.held(None, SystemClock.now() + STEP_TIMEOUT) {
            Ok(_) => Finding::fine("names", "this user may list the holders"),
            Err(error) => Finding::warning(
                "names",
                "this user cannot list the names that are held",
                error.message(),
                "as above; locks themselves work without it",
            ),
        });
        match admin.examine(SystemClock.now() + STEP_TIMEOUT) {
            Ok(found) => findings.extend(found),
            Err(error) => findings.push(Finding::warning(
                "examine",
                format!("the settings of the store cannot be checked: {error}"),
                "they may break locks",
                "run this as a user with the right to read them",
            )),
        }
    }
    findings
}

/// A finding; or an error of the store, or a text that says what the store did wrong.
type Checked = Result<Finding, Box<dyn std::error::Error>>;
type Check = fn(&Pair<'_>, &'static str) -> Checked;
const CHECKS: [(&str, Check); 4] = [
    ("round trip", round_trip),
    ("contend", contend),
    ("hand over", hand_over),
    ("expire", expire),
];

struct Pair<'a> {
    keeper: &'a LockKeeper,
    other: &'a LockKeeper,
    name: String,
}

impl Pair<'_> {
    /// Acquires the lock within the time of a step. The config's own wait may be endless.
    fn lock(&self, keeper: &LockKeeper) -> Result<LockGuard, Box<dyn std::error::Error>> {
        let options = step_options();
        let guard = keeper.acquire(&self.name, &options)?;
        guard.ok_or_else(|| "the name is busy: another program holds it".into())
    }
}

fn broken(topic: &'static str, what: String) -> Finding {
    Finding::unusable(
        topic,
        what,
        "locks do not work here",
        "correct that, and run this again",
    )
}

fn scope(keeper: &LockKeeper) -> Finding {
    let has = |capability| keeper.capabilities().has(capability);
    if has(Capability::CrossHost) {
        Finding::fine("excludes", "excludes all programs that reach the server")
    } else if has(Capability::CrossProcess) {
        Finding::fine("excludes", "excludes all processes of this host")
    } else {
        Finding::warning(
            "excludes",
            "excludes the threads of one process only",
            "two programs get the same lock",
            "use sqlite: for one host, or a server for several",
        )
    }
}

fn round_trip(pair: &Pair<'_>, topic: &'static str) -> Checked {
    let mut times = Vec::new();
    let end = Instant::now() + STEP_TIMEOUT;
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        if began >= end {
            break;
        }
        let guard = pair.lock(pair.keeper)?;
        guard.release()?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    let longest = times.last().copied().unwrap_or_default();
    let what = format!("acquire and release take {middle:.0?} (longest {longest:.0?})");
    Ok(if middle < SLOW {
        Finding::fine(topic, what)
    } else {
        let advice = "put the store nearer, or find what slows it down";
        Finding::warning(topic, what, "every lock costs that much", advice)
    })
}

/// Checks that a lock that one keeper holds is busy for the other.
fn contend(pair: &Pair<'_>, topic: &'static str) -> Checked {
    let first = pair.lock(pair.keeper)?;
    if pair.other.try_lock(&pair.name)?.is_some() {
        return Err("two keepers hold one lock: the store does not exclude".into());
    }
    let token = first.token();
    if first.release()? != Released::Done {
        let what = "a lock was gone while it was held: another program removes keys or rows";
        return Err(what.into());
    }
    let second = pair.lock(pair.other)?;
    if second.token() <= token {
        return Err("the token has not grown: late writes cannot be recognised".into());
    }
    second.release()?;
    Ok(Finding::fine(
        topic,
        "a held lock is busy for others, and tokens grow",
    ))
}

/// Checks that a waiter gets the lock when its holder releases it.
fn hand_over(pair: &Pair<'_>, topic: &'static str) -> Checked {
    let first = pair.lock(pair.keeper)?;
    let started = Barrier::new(2);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let options = step_options();
            started.wait();
            let guard = pair.other.acquire(&pair.name, &options)?;
            Ok::<_, Error>((guard.is_some(), Instant::now()))
        });
        started.wait();
        // This is long enough for the waiter to queue. If it has not, only the measured time is shorter.
        thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        first.release()?;
        let Ok(answer) = waiter.join() else {
            return Err("the waiter failed: please report it".into());
        };
        let (got_it, at) = answer?;
        if !got_it {
            let what = "a released lock was not granted to the waiter: the waiter was not woken";
            return Err(what.into());
        }
        let took = at.saturating_duration_since(began);
        let what = format!("a released lock is granted to a waiter after {took:.0?}");
        Ok(if took < LATE / 2 {
            Finding::fine(topic, what)
        } else {
            let meaning = "the waiter was not woken, and found the release by polling";
            let advice = "check whether something between here and the store drops messages";
            Finding::warning(topic, what, meaning, advice)
        })
    })
}

/// Checks that a lease without renewals expires in time, and that its guard is lost.
fn expire(pair: &Pair<'_>, topic: &'static str) -> Checked {
    let least = pair.keeper.capabilities().min_ttl();
    let ttl = least.max(Duration::from_millis(500));
    let fixed = step_options().lease(LeasePolicy::Fixed { ttl });
    let began = Instant::now();
    let Some(guard) = pair.keeper.acquire(&pair.name, &fixed)? else {
        return Err("the name is busy: another program holds it".into());
    };
    let next = step_options().wait(ttl + STEP_TIMEOUT);
    let next = pair.other.acquire(&pair.name, &next)?;
    let took = began.elapsed();
    let Some(next) = next else {
        let what = "an expired lease is not granted again: a dead holder's lock stays forever";
        return Err(what.into());
    };
    if guard.is_held() || took < ttl {
        return Err("a lease was granted again before it was over: two programs hold it".into());
    }
    next.release()?;
    let what = format!("a lease of {ttl:?} is granted to a waiter after {took:.0?}");
    Ok(if took <= ttl + LATE {
        Finding::fine(topic, what)
    } else {
        let meaning = "a dead holder's lock stays longer than it should";
        Finding::warning(
            topic,
            what,
            meaning,
            "check whether the store is overloaded",
        )
    })
}
