//! Connections that a program opens as its threads need them, and the count of its requests, for clusters that do not
//! count.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lockkeeper::Usage;
use parking_lot::Mutex;

use crate::error::Error;

/// The connections of a program.
pub(super) struct Clients<C> {
    connect: Box<dyn Fn() -> Result<C, Error> + Send + Sync>,
    /// Connections that no thread uses.
    idle: Mutex<Vec<C>>,
    open: AtomicU32,
    sent: AtomicU64,
}

impl<C> Clients<C> {
    pub(super) fn new(connect: impl Fn() -> Result<C, Error> + Send + Sync + 'static) -> Self {
        Self {
            connect: Box::new(connect),
            idle: Mutex::default(),
            open: AtomicU32::new(0),
            sent: AtomicU64::new(0),
        }
    }

    /// Makes a request on a connection that no thread uses, or on a new one.
    pub(super) fn request<T>(
        &self,
        work: impl FnOnce(&mut C) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.run(work, |_| true)
    }

    /// Makes a request that may have no reply in time. Then a reply may still come, and the connection is closed.
    pub(super) fn wait<T>(
        &self,
        work: impl FnOnce(&mut C) -> Result<Option<T>, Error>,
    ) -> Result<Option<T>, Error> {
        self.run(work, Option::is_some)
    }

    fn run<T>(
        &self,
        work: impl FnOnce(&mut C) -> Result<T, Error>,
        is_answered: impl FnOnce(&T) -> bool,
    ) -> Result<T, Error> {
        let idle = self.idle.lock().pop();
        let mut client = match idle {
            Some(client) => client,
            None => {
                let client = (self.connect)()?;
                self.open.fetch_add(1, Ordering::Relaxed);
                client
            }
        };
        self.sent.fetch_add(1, Ordering::Relaxed);
        let result = work(&mut client)?;
        match is_answered(&result) {
            true => self.idle.lock().push(client),
            false => drop(self.open.fetch_sub(1, Ordering::Relaxed)),
        }
        Ok(result)
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            commands: self.sent.load(Ordering::Relaxed),
            connections: self.open.load(Ordering::Relaxed),
        }
    }
}
