//! The servers of a cluster, of which one serves at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::Error;

use crate::failure::{Server, no_time};
use crate::options::{Endpoint, RemoteOptions};
use crate::socket::{Dialer, Stream};

/// A server of a cluster, and what a backend has learned of it.
pub struct Member<T = ()> {
    dialer: Dialer,
    server: Server,
    /// What the backend has learned of this member.
    pub learned: T,
}

impl<T> Member<T> {
    /// Returns the server, as errors name it.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Connects within `limit`.
    ///
    /// # Errors
    /// The member cannot be reached, or it does not speak TLS as the options say.
    pub fn dial(&self, limit: Duration) -> Result<Stream, Error> {
        match limit.is_zero() {
            true => Err(self.server.no_time_to_connect()),
            false => self.dialer.dial(&self.server, limit),
        }
    }
}

/// The members of a cluster. One of them serves all connections until it fails, and then the next one does.
pub struct Members<T = ()> {
    members: Vec<Member<T>>,
    /// The member that serves: this number modulo the number of members. It only grows.
    serving: AtomicUsize,
    connect_timeout: Duration,
}

impl<T: Default> Members<T> {
    /// Makes the members that the options name, which speak `protocol`.
    ///
    /// # Errors
    /// The files of certificates cannot be read.
    pub fn new(protocol: &'static str, options: &RemoteOptions) -> Result<Self, Error> {
        let member = |endpoint: &Endpoint| {
            Ok(Member {
                dialer: Dialer::new(&options.at(endpoint.clone()))?,
                server: Server::new(protocol, endpoint),
                learned: T::default(),
            })
        };
        Ok(Self {
            members: options
                .endpoints()
                .map(member)
                .collect::<Result<_, Error>>()?,
            serving: AtomicUsize::new(0),
            connect_timeout: options.connect_timeout,
        })
    }
}

impl<T> Members<T> {
    /// Returns the members, in the order in which they are tried.
    pub fn all(&self) -> &[Member<T>] {
        &self.members
    }

    /// Returns whether the member that [`connect`](Self::connect) called by this number serves.
    pub fn is_serving(&self, number: usize) -> bool {
        self.serving.load(Ordering::Relaxed) == number
    }

    /// Makes the next connections lead to the member after this one.
    pub fn avoid(&self, number: usize) {
        let (set, next) = (Ordering::Relaxed, number.wrapping_add(1));
        // It fails if another thread has done so.
        let _ = self.serving.compare_exchange(number, next, set, set);
    }

    /// Returns what `open` makes of the first member that it can open a connection to, within `left` and the connect
    /// timeout. `open` gets the number of the member, for [`avoid`](Self::avoid), and its share of the time.
    ///
    /// # Errors
    /// The first error of `open`, or the last one if that cannot be retried.
    pub fn connect<C>(
        &self,
        left: Duration,
        mut open: impl FnMut(&Member<T>, usize, Duration) -> Result<C, Error>,
    ) -> Result<C, Error> {
        let limit = left.min(self.connect_timeout);
        let began = Instant::now();
        let mut failed = None;
        for untried in (1..=self.members.len()).rev() {
            let number = self.serving.load(Ordering::Relaxed);
            let Some(member) = self.members.get(number % self.members.len()) else {
                break;
            };
            match open(member, number, share(limit, began, untried)) {
                Ok(opened) => return Ok(opened),
                Err(error) => {
                    self.avoid(number);
                    if !error.is_retryable() {
                        return Err(error);
                    }
                    failed = failed.or(Some(error));
                }
            }
        }
        Err(failed.unwrap_or_else(|| no_time().into_error()))
    }

    /// Returns the answer of each member, or its error. Each has a share of `limit`.
    pub fn ask_all<'m, A>(
        &'m self,
        limit: Duration,
        ask: impl Fn(&'m Member<T>, Duration) -> A,
    ) -> Vec<A> {
        let began = Instant::now();
        let members = self.members.iter().zip((1..=self.members.len()).rev());
        members
            .map(|(member, untried)| ask(member, share(limit, began, untried)))
            .collect()
    }
}

/// Returns the share of one of the `untried` members in the rest of `limit`.
fn share(limit: Duration, began: Instant, untried: usize) -> Duration {
    limit.saturating_sub(began.elapsed()) / u32::try_from(untried).unwrap_or(u32::MAX)
}
