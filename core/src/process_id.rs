//! The id of this process, without a system call each time.

use std::sync::atomic::{AtomicU32, Ordering};

/// The id; 0 while it is unknown.
static ID: AtomicU32 = AtomicU32::new(0);

/// Returns the id of this process. After a fork, the child has its own.
///
/// It takes a system call once in each process. A child that the program made without the C library, such as by the system
/// call `clone`, has its parent's.
pub fn process_id() -> u32 {
    match ID.load(Ordering::Relaxed) {
        0 => {
            let id = std::process::id();
            if is_forgotten_in_children() {
                ID.store(id, Ordering::Relaxed);
            }
            id
        }
        id => id,
    }
}

/// Makes forked children forget the id, and returns whether they do.
fn is_forgotten_in_children() -> bool {
    use std::sync::OnceLock;

    static DOES: OnceLock<bool> = OnceLock::new();

    extern "C" fn forget() {
        ID.store(0, Ordering::Relaxed);
    }

    *DOES.get_or_init(|| {
        #[expect(
            unsafe_code,
            reason = "no safe crate has it, and it replaces a system call for each request"
        )]
        // SAFETY: the function may run in a child of a process with threads, since it only stores to an atomic.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(forget)) };
        failed == 0
    })
}
