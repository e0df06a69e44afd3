//! Servers that are used again by the next test, for kinds that are slow to start.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Servers that run and that no test uses at the moment. A server is used by one test at a time.
///
/// ```no_run
/// # #[cfg(all(unix, feature = "mysql"))] fn run() -> std::io::Result<()> {
/// use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, ServerPool};
///
/// static SERVERS: ServerPool<MySqlKind, MySqlServer> = ServerPool::new(
///     |kind| MySqlServer::start(kind, &MySqlOptions::new()),
///     MySqlServer::end_sessions,
/// );
/// let server = SERVERS.take(MySqlKind::MySql9)?;
/// # let _ = server.url();
/// # Ok(()) }
/// ```
pub struct ServerPool<K, S> {
    idle: Mutex<Vec<(K, Arc<S>)>>,
    start: fn(K) -> io::Result<S>,
    clean: fn(&S) -> io::Result<()>,
}

impl<K: Copy + PartialEq, S> ServerPool<K, S> {
    /// Makes an empty pool. `clean` makes a used server as good as new; a server for which it fails is
    /// not used again.
    pub const fn new(start: fn(K) -> io::Result<S>, clean: fn(&S) -> io::Result<()>) -> Self {
        Self {
            idle: Mutex::new(Vec::new()),
            start,
            clean,
        }
    }

    /// Returns an idle server of this kind, or starts one.
    ///
    /// # Errors
    /// Those of starting a server.
    pub fn take(&'static self, kind: K) -> io::Result<PooledServer<K, S>> {
        let idle = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            let found = idle.iter().position(|(other, _)| *other == kind);
            found.map(|found| idle.swap_remove(found).1)
        };
        let server = match idle {
            Some(server) => server,
            None => Arc::new((self.start)(kind)?),
        };
        Ok(PooledServer {
            pool: self,
            kind,
            server,
            is_discarded: AtomicBool::new(false),
        })
    }
}

impl<K, S> fmt::Debug for ServerPool<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPool").finish_non_exhaustive()
    }
}

/// A server of a [`ServerPool`], which returns to the pool when this is dropped: unless it was
/// discarded, and unless the test is panicking.
pub struct PooledServer<K: Copy + PartialEq + 'static, S: 'static> {
    pool: &'static ServerPool<K, S>,
    kind: K,
    server: Arc<S>,
    is_discarded: AtomicBool,
}

impl<K: Copy + PartialEq, S> PooledServer<K, S> {
    /// Keeps the server from being used again, because the test changes what `clean` does not restore.
    pub fn discard(&self) -> &Arc<S> {
        self.is_discarded.store(true, Ordering::Relaxed);
        &self.server
    }
}

impl<K: Copy + PartialEq, S> Deref for PooledServer<K, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.server
    }
}

impl<K: Copy + PartialEq, S> Drop for PooledServer<K, S> {
    fn drop(&mut self) {
        let is_over = self.is_discarded.load(Ordering::Relaxed) || thread::panicking();
        if !is_over && (self.pool.clean)(&self.server).is_ok() {
            let mut idle = self
                .pool
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            idle.push((self.kind, Arc::clone(&self.server)));
        }
    }
}

impl<K: Copy + PartialEq, S> fmt::Debug for PooledServer<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledServer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    static STARTED: AtomicUsize = AtomicUsize::new(0);
    static POOL: ServerPool<char, usize> = ServerPool::new(
        |_| Ok(STARTED.fetch_add(1, Ordering::SeqCst)),
        |server| match server {
            0 => Err(io::ErrorKind::Other.into()),
            _ => Ok(()),
        },
    );

    #[test]
    fn only_a_clean_server_of_the_same_kind_is_used_again() {
        let take = |kind| POOL.take(kind).unwrap();
        assert_eq!(*take('a'), 0);
        assert_eq!(*take('a'), 1, "clean failed for the first server");
        let used = take('a');
        assert_eq!((*used, *take('b')), (1, 2), "the other kind has its own");
        assert_eq!(*take('a'), 3, "server 1 is in use");
        used.discard();
        drop(used);
        let both = (take('a'), take('a'));
        assert_eq!((*both.0, *both.1), (3, 4), "server 1 was discarded");
        let panicked = thread::spawn(move || {
            let _used = both;
            std::panic::resume_unwind(Box::new("as a test does"));
        });
        panicked.join().unwrap_err();
        assert_eq!(*take('a'), 5, "the test of servers 3 and 4 panicked");
    }
}
