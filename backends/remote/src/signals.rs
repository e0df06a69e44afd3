//! Calls of clients that begin again after each signal, or fail.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Makes a call while this thread handles no signals: other threads of the program handle those of the process meanwhile,
/// or this one does afterwards.
///
/// For clients that wait for a socket with a time-out, which every signal interrupts that the program handles. They fail
/// then, or wait again for the whole time-out, which a profiler's signals could repeat without end. Our own streams need
/// no such call.
pub fn without_signals<T>(call: impl FnOnce() -> T) -> T {
    /// The signals that the thread blocked before.
    struct Before(Option<SigSet>);

    impl Drop for Before {
        fn drop(&mut self) {
            if let Some(before) = &self.0 {
                let _ = before.thread_set_mask();
            }
        }
    }

    let mut blocked = SigSet::all();
    // The kernel sends these to a thread for what it does, and ends the program if they are blocked; see sigprocmask(2). A
    // seccomp filter sends SIGSYS.
    for fault in [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGFPE,
        Signal::SIGILL,
        Signal::SIGSYS,
        Signal::SIGTRAP,
    ] {
        blocked.remove(fault);
    }
    let _before = Before(blocked.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok());
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_blocked_during_the_call_except_faults() {
        let mask = || SigSet::thread_get_mask().unwrap();
        let before = mask();
        let during = without_signals(mask);
        assert!(during.contains(Signal::SIGTERM) && during.contains(Signal::SIGPROF));
        assert!(!during.contains(Signal::SIGSYS) && !during.contains(Signal::SIGTRAP));
        assert_eq!(mask(), before);
    }
}
