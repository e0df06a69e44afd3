//! Threads that block and are woken, as the callers of a store are.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

struct Rounds {
    threads: usize,
    state: Mutex<State>,
    woken: Condvar,
    all_block: Condvar,
}

#[derive(Default)]
struct State {
    round: u64,
    /// How many threads block in this round.
    blocked: usize,
    is_over: bool,
}

/// Runs `work` while as many threads block. Its argument wakes all of them, and returns when they block again.
pub(crate) fn beside_blocked<T>(threads: usize, work: impl FnOnce(&dyn Fn()) -> T) -> T {
    let rounds = Rounds {
        threads,
        state: Mutex::default(),
        woken: Condvar::new(),
        all_block: Condvar::new(),
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| rounds.follow());
        }
        let result = work(&|| rounds.wake_all());
        rounds.lock().is_over = true;
        rounds.woken.notify_all();
        result
    })
}

impl Rounds {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks in each round until the next one.
    fn follow(&self) {
        let mut state = self.lock();
        while !state.is_over {
            let round = state.round;
            state.blocked += 1;
            if state.blocked == self.threads {
                self.all_block.notify_one();
            }
            let in_round = |state: &mut State| state.round == round && !state.is_over;
            let woken = self.woken.wait_while(state, in_round);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn wake_all(&self) {
        let mut state = self.wait_until_blocked(self.lock());
        state.blocked = 0;
        state.round += 1;
        drop(state);
        self.woken.notify_all();
        drop(self.wait_until_blocked(self.lock()));
    }

    fn wait_until_blocked<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let some_run = |state: &mut State| state.blocked < self.threads;
        let blocked = self.all_block.wait_while(state, some_run);
        blocked.unwrap_or_else(PoisonError::into_inner)
    }
}
