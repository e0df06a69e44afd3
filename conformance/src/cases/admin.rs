//! The admin interface of a store: listing holders, forced release, and findings. The contract does
//! not require an [`Admin`]; stores without one are ignored here.

use std::thread;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{
    Admin, Clock, ErrorKind, Finding, HeldName, HostInstant, LockKeeper, LockName, Released,
    Severity, SystemClock, WaitOutcome,
};

use crate::rig::{NAMESPACE, Outcome, Rig, Skip, build, take};

pub(super) fn needs_admin(rig: &Rig<'_>) -> Outcome {
    if rig.provider().admin().is_some() {
        return Ok(());
    }
    Err(Skip("the store has no admin interface".to_owned()))
}

pub(super) fn admin(keeper: &LockKeeper) -> &dyn Admin {
    keeper.admin().expect("the store has an admin interface")
}

pub(super) fn deadline(rig: &Rig<'_>) -> HostInstant {
    SystemClock.now() + rig.timeout()
}

/// Lists all held names. Returns `None` if the store supports only listing by name.
fn list_all(rig: &Rig<'_>, keeper: &LockKeeper) -> Option<Vec<HeldName>> {
    match admin(keeper).held(None, deadline(rig)) {
        Ok(held) => Some(held),
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        Err(error) => panic!("the store does not reply: {error:?}"),
    }
}

fn nothing_is_held(rig: &Rig<'_>, keeper: &LockKeeper) -> bool {
    list_all(rig, keeper).is_none_or(|held| held.is_empty())
}

pub(super) fn find(rig: &Rig<'_>, keeper: &LockKeeper, name: &str) -> Option<HeldName> {
    let mut held = find_all(rig, keeper, name);
    assert!(held.len() <= 1, "{held:?}");
    held.pop()
}

pub(super) fn find_all(rig: &Rig<'_>, keeper: &LockKeeper, name: &str) -> Vec<HeldName> {
    let name = LockName::new(name).expect("the name is valid");
    let held = admin(keeper).held(Some(&name), deadline(rig));
    held.expect("the store replies")
}

pub(super) fn held_lists_the_holders(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    let (holder, asker) = (rig.keeper(), rig.keeper());
    assert!(nothing_is_held(rig, &asker));
    rig.until("the name is free", || find(rig, &asker, "a").is_none());
    let before = SystemTime::now();
    let odd = "{자리} 1%\n: *[b]";
    let (a, b) = (take(&holder, "a"), take(&holder, odd));
    if let Some(held) = list_all(rig, &asker) {
        let names: Vec<_> = held.iter().map(|held| held.name.as_str()).collect();
        if held.iter().all(|held| held.is_whole) {
            assert_eq!(names, ["a", odd]);
        } else {
            assert_eq!(names.len(), 2, "{names:?}");
        }
    }
    assert!(find(rig, &asker, odd).is_some_and(|held| held.name == odd));
    let seen = find(rig, &asker, "a").expect("the name is held");
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
        // The store may round to seconds, and may use another clock of this host.
        let early = before.duration_since(since).unwrap_or_default();
        let late = since.duration_since(SystemTime::now()).unwrap_or_default();
        assert!(early.max(late) < Duration::from_secs(2), "{since:?}");
    }
    assert!(seen.waiting.is_none_or(|waiting| waiting == 0));
    drop((a, b));
    // On a busy machine, a drop leaves the release to the keeper's threads.
    rig.until("nothing is held", || nothing_is_held(rig, &asker));
    rig.until("the name is free", || find(rig, &asker, "a").is_none());

    // Locks of another namespace are not listed.
    let other = build(rig.builder_on(rig.provider_in("elsewhere")));
    let _elsewhere = take(&other, "a");
    assert!(nothing_is_held(rig, &asker));
    rig.until("the name is free", || find(rig, &asker, "a").is_none());
    Ok(())
}

pub(super) fn held_in_all_namespaces_names_them(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    let asker = rig.keeper();
    let all = || admin(&asker).held_in_all_namespaces(deadline(rig));
    match all() {
        Ok(held) => assert_eq!(held, []),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            return Err(Skip(
                "the store lists no other namespaces to this user".to_owned(),
            ));
        }
        Err(error) => panic!("the store does not reply: {error:?}"),
    }
    let other = build(rig.builder_on(rig.provider_in("elsewhere")));
    let _guards = [
        take(&other, "b"),
        take(&other, "a"),
        take(&rig.keeper(), "b"),
    ];
    let held = all().expect("the store replies");
    let names: Vec<_> = held
        .iter()
        .map(|(namespace, held)| (namespace.as_str(), held.name.as_str()))
        .collect();
    let expected = [(NAMESPACE, "b"), ("elsewhere", "a"), ("elsewhere", "b")];
    assert_eq!(names, expected);
    // The namespace of the keeper that asks is described as by a question for it alone.
    let own = find(rig, &asker, "b").expect("the name is held");
    let listed = held.first().map(|(_, held)| held);
    assert_eq!(
        listed.map(|held| (&held.mark, &held.holder)),
        Some((&own.mark, &own.holder))
    );
    Ok(())
}

pub(super) fn held_counts_the_waiters(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    let (holder, asker) = (rig.keeper(), rig.keeper());
    let guard = take(&holder, "a");
    let counts = find(rig, &asker, "a").is_some_and(|held| held.waiting.is_some());
    if !counts {
        return Err(Skip("the store does not count waiters".to_owned()));
    }
    let waiters = [rig.keeper(), rig.keeper()];
    thread::scope(|scope| {
        for keeper in &waiters {
            // The threads of one keeper are one waiter in the store.
            scope.spawn(|| drop(take(keeper, "a")));
            scope.spawn(|| drop(take(keeper, "a")));
        }
        rig.until("two waiters are counted", || {
            find(rig, &asker, "a").is_some_and(|held| held.waiting == Some(2))
        });
        drop(guard);
    });
    rig.until("the name is free", || find(rig, &asker, "a").is_none());
    rig.nothing_left();
    Ok(())
}

pub(super) fn forced_release_loses_the_guard(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    let asker = rig.keeper();
    let holder = rig.keeper_with(rig.renewed(6_000));
    let guard = take(&holder, "a");
    let other = take(&holder, "b");
    let find = |name| find(rig, &asker, name);
    let seen = find("a").expect("the name is held");
    // If the store names a session, the release ends that, with all names that it holds.
    let session = seen.holder.session.as_ref();
    let is_of_session = |held: &HeldName| held.holder.session.as_ref() == session;
    let ends_other = session.is_some() && find("b").as_ref().is_some_and(is_of_session);
    let force = |seen: &HeldName| admin(&asker).force_release(seen, deadline(rig));
    assert!(force(&seen).expect("the store replies"));
    rig.until("the name is free", || find("a").is_none());
    if ends_other {
        rig.until("the session is gone", || find("b").is_none());
    } else {
        assert!(find("b").is_some(), "only one lease is ended");
        other.renew().expect("the other name is still held");
    }
    drop(other);
    let next = take(&rig.keeper(), "a");
    assert!(next.token() > guard.token());
    assert_eq!(guard.lost_signal().wait(rig.timeout()), WaitOutcome::Lost);

    // The entry that was listed earlier no longer matches.
    assert!(
        !force(&seen).expect("the store replies"),
        "the entry is of an earlier grant"
    );
    assert!(next.is_held());
    next.renew().expect("the next holder keeps the lock");
    let released = guard.release().expect("the store replies");
    assert_eq!(released, Released::AlreadyLost);
    next.renew()
        .expect("the late release does not free the next lock");
    drop(next);
    assert!(
        !force(&seen).expect("the store replies"),
        "the name is not held"
    );
    rig.nothing_left();
    Ok(())
}

pub(super) fn examine_reports_findings(rig: &Rig<'_>) -> Outcome {
    needs_admin(rig)?;
    let keeper = rig.keeper();
    let _guard = take(&keeper, "a");
    let findings = admin(&keeper).examine(deadline(rig));
    let findings: Vec<Finding> = findings.expect("the store replies");
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
    assert!(
        find(rig, &keeper, "a").is_some(),
        "examining must not change the store"
    );
    Ok(())
}
