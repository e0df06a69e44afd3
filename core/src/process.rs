//! The id of this process, without a system call each time, and what stores show to people beside it: the host and a
//! label.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Error, ErrorKind};

/// The longest label. A name of PostgreSQL's sessions has 63 bytes, of which the process takes 22.
const MAX_BYTES: usize = 40;

static LABEL: OnceLock<String> = OnceLock::new();

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

/// Labels this process, such as `nightly-report`. Every hold that it acquires from then on shows the label in
/// [`Holder::label`](crate::Holder::label), and `lockkeeper who` prints it.
///
/// Call it before the first keeper is opened: a session with a server keeps the label that it began with.
///
/// # Errors
/// [`ErrorKind::InvalidValue`] if the label is empty, longer than 40 characters, or has others than ASCII's visible ones
/// and spaces, or if the process has a label already. PostgreSQL keeps no other texts.
pub fn set_process_label(label: &str) -> Result<(), Error> {
    let is_shown = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    let is_fit = (1..=MAX_BYTES).contains(&label.len()) && label.bytes().all(is_shown);
    let refused = |text| Err(Error::new(ErrorKind::InvalidValue, text));
    if !is_fit {
        return refused(
            "a label has 1 to 40 characters of ASCII, none of them a control character",
        );
    }
    match LABEL.set(label.to_owned()) {
        Ok(()) => Ok(()),
        Err(_) => refused("the process has a label already; set it once, at the start"),
    }
}

/// Returns the name of this host, which stores show to people. It is read once in each process.
pub fn host_name() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| {
        let name = rustix::system::uname();
        name.nodename().to_string_lossy().into_owned()
    })
}

/// Returns the [label](set_process_label) of this process, if it has one.
pub fn process_label() -> Option<&'static str> {
    LABEL.get().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_short_visible_ascii_and_set_once() {
        for refused in ["", "a\nb", "자리", &"x".repeat(41)] {
            let error = set_process_label(refused).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{refused:?}");
        }
        assert_eq!(process_label(), None);
        let label = "x".repeat(40);
        set_process_label(&label).unwrap();
        assert!(set_process_label("b").is_err());
        assert_eq!(process_label(), Some(label.as_str()));
    }
}
