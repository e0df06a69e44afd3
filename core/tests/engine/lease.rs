//! Deadlines, renewal and loss.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, Clock, Error, ErrorKind, FencingToken, HostInstant, LeasePolicy, LockGuard,
    LockKeeper, LockName, ManualClock, Observer, Released, WaitOutcome,
};

use crate::script::{Grants, PATIENCE, Renewals, Script, eventually};

const SECOND: Duration = Duration::from_secs(1);

/// Moves the clock on by the time between two renewals, and waits until there is one more.
fn next_renewal(script: &Script, name: &str) {
    let before = script.count(name, "renew");
    script.clock.advance(4 * SECOND);
    script.until(name, "renew", before + 1);
}

fn held_for(guard: &LockGuard, span: Duration) {
    eventually("the deadline should move", || guard.remaining() == span);
    assert!(guard.is_held());
}

#[test]
fn renewed_over_many_ttls() {
    let script = Script::new();
    let guard = script.keeper().lock("a").unwrap();
    assert_eq!(guard.remaining(), 11 * SECOND, "the ttl less the margin");
    for _ in 0..20 {
        next_renewal(&script, "a");
        held_for(&guard, 11 * SECOND);
    }
    assert_eq!(guard.release().unwrap(), Released::Done);
}

#[test]
fn an_unknown_renewal_moves_no_deadline_and_is_tried_again() {
    struct Unknown(Mutex<mpsc::Sender<()>>);
    impl Observer for Unknown {
        fn renewal_unknown(&self, _: &LockName, _: FencingToken, _: &Error) {
            let _ = self.0.lock().unwrap().send(());
        }
    }
    let script = Script::new();
    let (send, unknown) = mpsc::channel();
    let observer = Arc::new(Unknown(Mutex::new(send)));
    let keeper = script.builder().observer(observer).build().unwrap();
    let guard = keeper.lock("a").unwrap();
    script.renewals("a", Renewals::Fail);
    next_renewal(&script, "a");
    // The next one is counted from when the answer of this one is seen.
    unknown.recv_timeout(PATIENCE).unwrap();
    assert_eq!(guard.remaining(), 7 * SECOND);
    script.renewals("a", Renewals::Work);
    next_renewal(&script, "a");
    held_for(&guard, 11 * SECOND);
}

#[test]
fn a_loss_by_the_clock_is_for_good_whatever_the_store_says_later() {
    let script = Script::new();
    let guard = script.keeper().lock("a").unwrap();
    script.renewals("a", Renewals::Hang);
    next_renewal(&script, "a");
    script.clock.advance(7 * SECOND);
    assert!(!guard.is_held());
    // The answer comes after all, and says that the store had renewed it.
    script.renewals("a", Renewals::Work);
    script.until("a", "release", 1);
    assert!(!guard.is_held());
    assert_eq!(guard.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
}

#[test]
fn an_answer_after_the_deadline_revives_nothing_even_if_nobody_looked_before() {
    let script = Script::new();
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl: 12 * SECOND });
    let guard = script.keeper().acquire("a", &fixed).unwrap().unwrap();
    // Asked for 3 s before the deadline at 11 s, and answered 4 s after it: by then the store's
    // lease would run on until 20 s.
    script.clock.advance(8 * SECOND);
    script.renewals("a", Renewals::Late(7 * SECOND));
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!guard.is_held());
}

#[test]
fn the_stores_word_is_a_loss_at_once_and_told_once() {
    #[derive(Default)]
    struct Told(Mutex<Vec<FencingToken>>);
    impl Observer for Told {
        fn lost(&self, _: &LockName, token: FencingToken) {
            self.0.lock().unwrap().push(token);
        }
    }
    let script = Script::new();
    let told = Arc::new(Told::default());
    let keeper = script
        .builder()
        .observer(Arc::clone(&told) as _)
        .build()
        .unwrap();
    let guard = keeper.lock("a").unwrap();
    let signal = guard.lost_signal();
    let (send, called) = mpsc::channel();
    signal.on_lost(move || send.send(()).unwrap());
    assert_eq!(signal.wait(Duration::ZERO), WaitOutcome::TimedOut);

    script.renewals("a", Renewals::Lost);
    let waiting = signal.clone();
    let waiter = thread::spawn(move || waiting.wait(PATIENCE));
    next_renewal(&script, "a");
    assert_eq!(waiter.join().unwrap(), WaitOutcome::Lost);
    called.recv_timeout(PATIENCE).unwrap();
    assert!(signal.is_lost() && !guard.is_held());
    let (send, late) = mpsc::channel();
    signal.on_lost(move || send.send(()).unwrap());
    late.try_recv().unwrap();

    let token = guard.token();
    drop(guard);
    assert_eq!(*told.0.lock().unwrap(), [token]);
    drop(keeper.lock("a").unwrap());
}

#[test]
fn a_fixed_lease_runs_out_and_the_next_in_line_may_ask_while_the_guard_still_lives() {
    let script = Script::new();
    let keeper = script.keeper();
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl: 2 * SECOND });
    let guard = keeper.acquire("a", &fixed).unwrap().unwrap();
    let (send, called) = mpsc::channel();
    guard.lost_signal().on_lost(move || send.send(()).unwrap());
    let waiter = {
        let keeper = keeper.clone();
        thread::spawn(move || keeper.try_lock_for("a", Duration::from_secs(100)))
    };
    script.clock.advance(Duration::from_millis(1799));
    assert!(guard.is_held());
    script.clock.advance(Duration::from_millis(1));
    assert!(!guard.is_held());
    called.recv_timeout(PATIENCE).unwrap();
    // The scripted store still holds the name, so the head is told that it is busy.
    assert!(waiter.join().unwrap().unwrap().is_none());
    assert_eq!(script.count("a", "renew"), 0);
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
}

#[test]
fn a_look_for_another_reason_renews_nothing_early() {
    let script = Script::new();
    let keeper = script.keeper();
    let renewed = keeper.lock("a").unwrap();
    // They end while the renewal is due soon, and what a look finds is done in its order.
    let short = [("b", 3800), ("c", 4100)].map(|(name, ttl)| {
        let ttl = Duration::from_millis(ttl);
        let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
        keeper.acquire(name, &fixed).unwrap().unwrap()
    });
    for guard in &short {
        let (send, called) = mpsc::channel();
        guard.lost_signal().on_lost(move || send.send(()).unwrap());
        script.clock.advance(guard.remaining());
        called.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!(script.count("a", "renew"), 0);
    script.clock.advance(SECOND);
    script.until("a", "renew", 1);
    held_for(&renewed, 11 * SECOND);
}

#[test]
fn what_is_due_soon_is_renewed_along_with_what_is_due() {
    let script = Script::new();
    let keeper = script.keeper();
    let _due = keeper.lock("a").unwrap();
    script.clock.advance(SECOND / 2);
    let _soon = keeper.lock("b").unwrap();
    script.clock.advance(SECOND * 7 / 2);
    script.until("a", "renew", 1);
    script.until("b", "renew", 1);
}

#[test]
fn a_released_guard_is_not_renewed_and_its_signal_says_so() {
    let script = Script::new();
    let keeper = script.keeper();
    let (gone, stays) = (keeper.lock("gone").unwrap(), keeper.lock("stays").unwrap());
    let signal = gone.lost_signal();
    gone.release().unwrap();
    assert_eq!(signal.wait(PATIENCE), WaitOutcome::Released);
    next_renewal(&script, "stays");
    next_renewal(&script, "stays");
    assert_eq!(script.count("gone", "renew"), 0);
    assert!(!signal.is_lost() && stays.is_held());
}

#[test]
fn calls_that_hang_or_panic_cost_nobody_else_the_lease() {
    let script = Script::new();
    let keeper = script.keeper();
    let bad: Vec<_> = [
        ("h1", Renewals::Hang),
        ("h2", Renewals::Hang),
        ("p", Renewals::Panic),
    ]
    .into_iter()
    .map(|(name, how)| {
        script.renewals(name, how);
        keeper.lock(name).unwrap()
    })
    .collect();
    let good = keeper.lock("good").unwrap();
    for _ in 0..4 {
        next_renewal(&script, "good");
        held_for(&good, 11 * SECOND);
    }
    assert!(bad.iter().all(|guard| !guard.is_held()));
    for name in ["h1", "h2", "p"] {
        script.renewals(name, Renewals::Work);
    }
}

#[test]
fn idle_threads_renew_beside_calls_that_hang() {
    let script = Script::new();
    let clock = Hooked::on(&script, "lockkeeper-watch");
    let due = Arc::new(AtomicU64::new(u64::MAX));
    let (go_on, stop) = mpsc::channel::<()>();
    {
        let (inner, due) = (script.clock.clone(), Arc::clone(&due));
        let (mut times, mut found) = (0, false);
        // It asks for the time three times a round: before its look, for its look, and (with a
        // mutex held) before it sleeps. It finds what is due, once; then it stands still.
        *clock.hook.lock().unwrap() = Some(Box::new(move || {
            match times % 3 {
                0 if found => drop(stop.recv()),
                1 => found |= inner.now().as_nanos() >= due.load(Ordering::SeqCst),
                _ => {}
            }
            times += 1;
        }));
    }
    let keeper = script.builder().clock(Arc::clone(&clock) as _).build();
    let keeper = keeper.unwrap();
    let take = |names: &[String], how| -> Vec<LockGuard> {
        let take = |name: &String| {
            script.renewals(name, how);
            keeper.lock(name.as_str()).unwrap()
        };
        names.iter().map(take).collect()
    };
    let names =
        |kind: &str, count| -> Vec<_> { (0..count).map(|n| format!("{kind}{n}")).collect() };
    // All threads that there can be.
    let first = names("first", 4);
    let guards = take(&first, Renewals::Hang);
    script.clock.advance(4 * SECOND);
    for name in &first {
        script.until(name, "renew", 1);
    }
    for name in &first {
        script.renewals(name, Renewals::Work);
    }
    drop(guards);

    let (hanging, good) = (names("hanging", 3), names("good", 8));
    let guards = (take(&hanging, Renewals::Hang), take(&good, Renewals::Work));
    // Where the test fails, nobody waits for the release of what hangs.
    let guards = std::mem::ManuallyDrop::new(guards);
    due.store(
        (script.clock.now() + 4 * SECOND).as_nanos(),
        Ordering::SeqCst,
    );
    script.clock.advance(4 * SECOND);
    for name in &good {
        script.until(name, "renew", 1);
    }
    drop(go_on);
    for name in &hanging {
        script.renewals(name, Renewals::Work);
    }
    drop(std::mem::ManuallyDrop::into_inner(guards));
}

/// A clock that stands still for the watching thread: a loss is noticed by the guard.
#[derive(Debug)]
struct Unwatched {
    inner: ManualClock,
    began: HostInstant,
}

impl Clock for Unwatched {
    fn now(&self) -> HostInstant {
        if thread::current().name() == Some("lockkeeper-watch") {
            return self.began;
        }
        self.inner.now()
    }
}

#[test]
fn a_callback_of_a_loss_may_lock_the_name() {
    let script = Script::new();
    let clock = Arc::new(Unwatched {
        inner: script.clock.clone(),
        began: script.clock.now(),
    });
    let keeper = script.builder().clock(clock).build().unwrap();
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl: 2 * SECOND });
    let guard = keeper.acquire("a", &fixed).unwrap().unwrap();
    let (send, called) = mpsc::channel();
    let again = keeper.clone();
    guard.lost_signal().on_lost(move || {
        let granted = again.try_lock("a").map(|guard| guard.is_some());
        let _ = send.send(granted);
    });
    script.clock.advance(2 * SECOND);
    thread::scope(|scope| {
        let dropped = scope.spawn(|| drop(guard));
        // Time for a callback that waits for itself to give up.
        eventually("the guard is dropped", || {
            script.clock.advance(Duration::from_millis(1));
            dropped.is_finished()
        });
    });
    let granted = called.recv_timeout(PATIENCE).unwrap();
    assert!(granted.unwrap(), "the callback waited for itself");
}

#[test]
fn a_callback_that_panics_when_it_is_dropped_or_called_late_does_no_harm() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as the test wants");
        }
    }
    let script = Script::new();
    let keeper = script.keeper();
    let guard = keeper.lock("a").unwrap();
    let signal = guard.lost_signal();
    let bomb = Bomb;
    signal.on_lost(move || drop(bomb));
    assert_eq!(guard.release().unwrap(), Released::Done);

    let guard = keeper.try_lock("a").unwrap().expect("it is free");
    script.clock.advance(60 * SECOND);
    let bomb = Bomb;
    guard.lost_signal().on_lost(move || drop(bomb));
    assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
}

#[test]
fn a_release_waits_for_a_renewal_under_way_and_comes_after_it() {
    let script = Script::new();
    let guard = script.keeper().lock("a").unwrap();
    script.renewals("a", Renewals::Hang);
    next_renewal(&script, "a");
    let release = thread::spawn(move || guard.release());
    script.renewals("a", Renewals::Work);
    assert_eq!(release.join().unwrap().unwrap(), Released::Done);
    assert_eq!(script.count("a", "release"), 1);
}

#[test]
fn a_release_does_not_wait_for_ever_and_is_made_up_for() {
    let script = Script::new();
    let ttl = Duration::from_millis(120);
    let keeper = script.builder().lease(LeasePolicy::Renewed { ttl }).build();
    let guard = keeper.unwrap().lock("a").unwrap();
    script.renewals("a", Renewals::Hang);
    script.clock.advance(ttl / 3);
    script.until("a", "renew", 1);
    let signal = guard.lost_signal();
    let release = thread::spawn(move || guard.release());
    // The guard has ended once its signal says so; from then on the release's own time counts.
    assert_eq!(signal.wait(PATIENCE), WaitOutcome::Released);
    eventually("the release gives up", || {
        script.clock.advance(ttl);
        release.is_finished()
    });
    let error = release.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    script.renewals("a", Renewals::Work);
    script.until("a", "release", 1);
}

#[test]
fn renew_by_hand_moves_the_deadline_of_a_fixed_lease() {
    let script = Script::new();
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl: 2 * SECOND });
    let guard = script.keeper().acquire("a", &fixed).unwrap().unwrap();
    script.clock.advance(SECOND);
    guard.renew().unwrap();
    assert_eq!(guard.remaining(), Duration::from_millis(1800));
    script.renewals("a", Renewals::Fail);
    script.clock.advance(SECOND);
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(guard.remaining(), Duration::from_millis(800));
    script.renewals("a", Renewals::Lost);
    assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn renew_by_hand_waits_for_the_renewal_under_way_and_renews_after_it() {
    let script = Script::new();
    let guard = script.keeper().lock("a").unwrap();
    script.renewals("a", Renewals::Hang);
    next_renewal(&script, "a");
    thread::scope(|scope| {
        let by_hand = scope.spawn(|| guard.renew());
        // The keeper's renewal has no answer. What was asked by hand gets one of its own.
        script.renewals("a", Renewals::Fail);
        let error = by_hand.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
    });
    assert_eq!(guard.remaining(), 7 * SECOND);
    script.renewals("a", Renewals::Work);
    guard.renew().unwrap();
    assert_eq!(guard.remaining(), 11 * SECOND);

    // It waits no longer than the guard is held.
    script.renewals("a", Renewals::Hang);
    next_renewal(&script, "a");
    thread::scope(|scope| {
        let by_hand = scope.spawn(|| guard.renew());
        script.clock.advance(11 * SECOND);
        let error = by_hand.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    });
    script.renewals("a", Renewals::Work);
}

#[test]
fn a_renewal_has_an_end_although_its_guard_goes_meanwhile() {
    let script = Script::new();
    let clock = Hooked::on(&script, "lockkeeper-renew");
    let keeper = script.builder().clock(Arc::clone(&clock) as _).build();
    let guard = keeper.unwrap().lock("a").unwrap();
    let signal = guard.lost_signal();
    let (send, release) = mpsc::channel();
    // The renewal takes the lease, and then looks at the clock once more.
    let mut looks = 0;
    let mut guard = Some(guard);
    *clock.hook.lock().unwrap() = Some(Box::new(move || {
        looks += 1;
        if looks == 2 {
            let guard = guard.take();
            let _ = send.send(thread::spawn(move || drop(guard)));
            assert_eq!(signal.wait(PATIENCE), WaitOutcome::Released);
        }
    }));
    script.clock.advance(4 * SECOND);
    script.until("a", "renew", 1);
    script.set(|state| assert!(state.patience <= 11 * SECOND, "{:?}", state.patience));
    release.recv_timeout(PATIENCE).unwrap().join().unwrap();
}

type Hook = Box<dyn FnMut() + Send>;

/// A clock that does something whenever a thread of this name looks at it.
struct Hooked {
    inner: ManualClock,
    thread: &'static str,
    hook: Mutex<Option<Hook>>,
}

impl Hooked {
    fn on(script: &Script, thread: &'static str) -> Arc<Self> {
        Arc::new(Self {
            inner: script.clock.clone(),
            thread,
            hook: Mutex::new(None),
        })
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hooked")
    }
}

impl Clock for Hooked {
    fn now(&self) -> HostInstant {
        if thread::current().name() == Some(self.thread)
            && let Ok(mut hook) = self.hook.try_lock()
            && let Some(hook) = hook.as_mut()
        {
            hook();
        }
        self.inner.now()
    }

    fn on_jump(&self, wake: Arc<dyn Fn() + Send + Sync>) {
        self.inner.on_jump(wake);
    }
}

#[test]
fn a_grant_that_came_late_is_believed_only_after_a_renewal() {
    let script = Script::new();
    let keeper = script.keeper();
    script.set(|state| state.grants = Grants::Late(60 * SECOND));
    let guard = keeper.lock("a").unwrap();
    assert_eq!(script.count("a", "renew"), 1);
    assert_eq!(guard.remaining(), 11 * SECOND, "counted from the renewal");
    drop(guard);

    // Gone by the time that it was seen: asked for once more, in the time that is left.
    script.set(|state| state.grants = Grants::Late(2 * SECOND));
    script.renewals("a", Renewals::Lost);
    let guard = keeper.lock("a").unwrap();
    assert_eq!(script.count("a", "acquire"), 3);
    drop(guard);

    // A single attempt too: nobody was seen to hold it.
    script.set(|state| state.grants = Grants::Late(2 * SECOND));
    assert!(keeper.try_lock("a").unwrap().is_some());
    assert_eq!(script.count("a", "acquire"), 5);
    script.set(|state| assert_eq!(state.patience, SECOND, "not for the rest of a lease"));

    script.set(|state| state.grants = Grants::Late(2 * SECOND));
    script.renewals("a", Renewals::Fail);
    assert_eq!(keeper.lock("a").unwrap_err().kind(), ErrorKind::Unknown);
    script.renewals("a", Renewals::Work);
    drop(keeper.lock("a").unwrap());
}

#[test]
fn guards_outlive_their_keeper() {
    let script = Script::new();
    let keeper = script.keeper();
    let guard = keeper.lock("a").unwrap();
    drop(keeper);
    next_renewal(&script, "a");
    held_for(&guard, 11 * SECOND);
    assert_eq!(guard.release().unwrap(), Released::Done);
}

#[test]
fn with_lock_keeps_the_value_and_says_whether_it_was_held() {
    let script = Script::new();
    let keeper: LockKeeper = script.keeper();
    let done = keeper.with_lock("a", |guard| guard.token().get()).unwrap();
    assert_eq!(done.value, 1 << 7);
    assert_eq!(done.held().unwrap(), 1 << 7);
    let done = keeper
        .with_lock("a", |_| script.clock.advance(60 * SECOND))
        .unwrap();
    assert_eq!(done.released.as_ref().unwrap(), &Released::AlreadyLost);
    let error: Error = done.held().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[test]
fn a_proof_is_the_leases_own_and_only_of_what_is_held() {
    let script = Script::new();
    let keeper = script.keeper();
    let guard = keeper.lock("a").unwrap();
    let proof = guard.commit_proof().unwrap();
    assert_eq!(proof.sql(), format!("a {}", guard.token().get() >> 7));
    assert_eq!(proof.statement(), "? ?");
    assert_eq!(proof.params().len(), 2);

    let unproven = keeper.lock("unproven").unwrap();
    let error = unproven.commit_proof().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    // A renewal that has the lease is waited for.
    script.renewals("a", Renewals::Hang);
    next_renewal(&script, "a");
    thread::scope(|scope| {
        let asked = scope.spawn(|| guard.commit_proof().map(|proof| proof.sql().to_owned()));
        script.renewals("a", Renewals::Work);
        assert!(asked.join().unwrap().is_ok());
    });

    script.clock.advance(20 * SECOND);
    let error = guard.commit_proof().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

/// Says when a renewal is told, and stays a while.
struct Dawdler(mpsc::Sender<()>);

impl Observer for Dawdler {
    fn renewed(&self, _: &LockName, _: FencingToken) {
        self.0.send(()).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_store_is_closed_when_the_keeper_has_gone() {
    let script = Script::new();
    let (send, told) = mpsc::channel();
    let keeper = script
        .builder()
        .observer(Arc::new(Dawdler(send)))
        .build()
        .unwrap();
    let other = keeper.clone();
    let guard = keeper.lock("a").unwrap();
    script.clock.advance(4 * SECOND);
    told.recv_timeout(PATIENCE).unwrap();
    drop(guard);
    drop(other);
    drop(keeper);
    assert_eq!(Arc::strong_count(&script), 1, "a thread has it still");
}

#[test]
fn no_thread_has_the_store_when_the_last_guard_has_gone() {
    let script = Script::new();
    // The threads are just beginning, or just ending.
    for turn in 0..2_000 {
        let keeper = script.keeper();
        let guard = keeper.lock("a").unwrap();
        if turn % 2 == 0 {
            drop(guard);
            drop(keeper);
        } else {
            drop(keeper);
            drop(guard);
        }
        assert_eq!(
            Arc::strong_count(&script),
            1,
            "a thread has it, turn {turn}"
        );
    }
}
