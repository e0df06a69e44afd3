//! What the one on call is told and can do, where a store has an [`Admin`]. No rule of the
//! contract: a store without one is ignored here.

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    Admin, Clock, ErrorKind, Finding, HeldName, HostInstant, LockKeeper, LockName, Released,
    Severity, SystemClock, WaitOutcome,
};

use crate::rig::{Outcome, Rig, Skip, build, take, take_with};

fn needs_operator(rig: &Rig<'_>) -> Outcome {
    if rig.provider().admin().is_some() {
        return Ok(());
    }
    Err(Skip("the store has no answers for operators".to_owned()))
}

fn admin(keeper: &LockKeeper) -> &dyn Admin {
    keeper.admin().expect("it had one")
}

fn soon(rig: &Rig<'_>) -> HostInstant {
    SystemClock.now() + rig.patience()
}

/// `None`: the store tells this user about one name at a time only, and says so.
fn all(rig: &Rig<'_>, keeper: &LockKeeper) -> Option<Vec<HeldName>> {
    match admin(keeper).held(None, soon(rig)) {
        Ok(held) => Some(held),
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        Err(error) => panic!("the store does not answer: {error:?}"),
    }
}

fn nothing_is_held(rig: &Rig<'_>, keeper: &LockKeeper) -> bool {
    all(rig, keeper).is_none_or(|held| held.is_empty())
}

fn one(rig: &Rig<'_>, keeper: &LockKeeper, name: &str) -> Option<HeldName> {
    let name = LockName::new(name).expect("a good name");
    let held = admin(keeper).held(Some(&name), soon(rig));
    let mut held = held.expect("the store answers");
    assert!(held.len() <= 1, "{held:?}");
    held.pop()
}

pub(super) fn tells_who_holds(rig: &Rig<'_>) -> Outcome {
    needs_operator(rig)?;
    let (holder, asker) = (rig.keeper(), rig.keeper());
    assert!(nothing_is_held(rig, &asker));
    assert_eq!(one(rig, &asker, "a"), None);
    let before = SystemTime::now();
    let odd = "{자리} 1%\n: *[b]";
    let (a, b) = (take(&holder, "a"), take(&holder, odd));
    if let Some(held) = all(rig, &asker) {
        let names: Vec<_> = held.iter().map(|held| held.name.as_str()).collect();
        if held.iter().all(|held| held.is_whole) {
            assert_eq!(names, ["a", odd]);
        } else {
            assert_eq!(names.len(), 2, "{names:?}");
        }
    }
    assert!(one(rig, &asker, odd).is_some_and(|held| held.name == odd));
    let seen = one(rig, &asker, "a").expect("it is held");
    assert_eq!(seen.name, "a");
    if let Some(token) = seen.token() {
        assert_eq!(token, a.token());
    }
    if let Some(left) = seen.remaining {
        assert!(
            left >= a.remaining() && left <= Duration::from_secs(61),
            "{left:?}"
        );
    }
    if let Some(pid) = seen.holder.pid {
        assert_eq!(pid, std::process::id());
    }
    if let Some(since) = seen.holder.since {
        // The store may count in whole seconds, and by another clock of this host.
        let early = before.duration_since(since).unwrap_or_default();
        let late = since.duration_since(SystemTime::now()).unwrap_or_default();
        assert!(early.max(late) < Duration::from_secs(2), "{since:?}");
    }
    assert!(seen.waiting.is_none_or(|waiting| waiting == 0));
    drop((a, b));
    assert!(nothing_is_held(rig, &asker));
    assert_eq!(one(rig, &asker, "a"), None);

    // Another namespace is none of this one's business.
    let other = build(rig.builder_on(rig.provider_in("elsewhere")));
    let _elsewhere = take(&other, "a");
    assert!(nothing_is_held(rig, &asker));
    assert_eq!(one(rig, &asker, "a"), None);
    Ok(())
}

pub(super) fn tells_how_many_wait(rig: &Rig<'_>) -> Outcome {
    needs_operator(rig)?;
    let (holder, asker) = (rig.keeper(), rig.keeper());
    let guard = take(&holder, "a");
    let tells = one(rig, &asker, "a").is_some_and(|held| held.waiting.is_some());
    if !tells {
        return Err(Skip("the store does not tell who waits".to_owned()));
    }
    let waiters = [rig.keeper(), rig.keeper()];
    thread::scope(|scope| {
        for keeper in &waiters {
            // Two threads of a keeper are one waiter in the store.
            scope.spawn(|| drop(take(keeper, "a")));
            scope.spawn(|| drop(take(keeper, "a")));
        }
        rig.until("two that wait", || {
            one(rig, &asker, "a").is_some_and(|held| held.waiting == Some(2))
        });
        drop(guard);
    });
    assert_eq!(one(rig, &asker, "a"), None);
    rig.nothing_left();
    Ok(())
}

pub(super) fn forced_release_is_noticed_and_the_token_grows(rig: &Rig<'_>) -> Outcome {
    needs_operator(rig)?;
    let asker = rig.keeper();
    let holder = rig.keeper_with(rig.renewed(1_500));
    let guard = take(&holder, "a");
    let seen = one(rig, &asker, "a").expect("it is held");
    let force = |seen: &HeldName| admin(&asker).force_release(seen, soon(rig));
    assert!(force(&seen).expect("the store answers"));
    assert_eq!(one(rig, &asker, "a"), None);
    let next = take(&rig.keeper(), "a");
    assert!(next.token() > guard.token());
    assert_eq!(guard.lost_signal().wait(rig.patience()), WaitOutcome::Lost);

    // What was seen then is not what stands there now.
    assert!(!force(&seen).expect("the store answers"), "another's hold");
    assert!(next.is_held());
    next.renew().expect("it is still there");
    let released = guard.release().expect("the store answers");
    assert_eq!(released, Released::AlreadyLost);
    next.renew().expect("the late release freed nobody else's");
    drop(next);
    assert!(!force(&seen).expect("the store answers"), "nobody holds it");
    rig.nothing_left();
    Ok(())
}

pub(super) fn forced_release_wakes_one_waiter(rig: &Rig<'_>) -> Outcome {
    needs_operator(rig)?;
    let asker = rig.keeper();
    let guard = take_with(&rig.keeper(), "a", rig.fixed(60_000));
    let waiters: Vec<_> = (0..2).map(|_| rig.heard_keeper()).collect();
    let (tell, granted) = channel();
    thread::scope(|scope| {
        for (keeper, ear) in &waiters {
            let tell = tell.clone();
            scope.spawn(move || {
                let guard = take(keeper, "a");
                let (done, go_on) = channel::<()>();
                tell.send((guard.token(), done)).expect("somebody listens");
                let _ = go_on.recv();
            });
            ear.wait_for(crate::ear::Event::Contended, 1);
        }
        let seen = one(rig, &asker, "a").expect("it is held");
        let forced = admin(&asker).force_release(&seen, soon(rig));
        assert!(forced.expect("the store answers"));
        let (first, done) = granted.recv_timeout(rig.patience()).expect("one is woken");
        assert!(first > guard.token());
        assert!(granted.try_recv().is_err(), "two have it");
        drop(done);
        let (second, done) = granted
            .recv_timeout(rig.patience())
            .expect("then the other");
        assert!(second > first);
        drop(done);
    });
    drop(guard);
    rig.nothing_left();
    Ok(())
}

pub(super) fn examines_itself(rig: &Rig<'_>) -> Outcome {
    needs_operator(rig)?;
    let keeper = rig.keeper();
    let _guard = take(&keeper, "a");
    let findings = admin(&keeper).examine(soon(rig));
    let findings: Vec<Finding> = findings.expect("the store answers");
    assert!(!findings.is_empty());
    for finding in &findings {
        assert_ne!(finding.severity, Severity::Unusable, "{finding:?}");
        assert!(!finding.what.is_empty() && !finding.topic.is_empty());
        let explains = !finding.meaning.is_empty() && !finding.advice.is_empty();
        assert!(
            explains || finding.severity == Severity::Fine,
            "{finding:?}"
        );
    }
    assert!(one(rig, &keeper, "a").is_some(), "it changed something");
    Ok(())
}
