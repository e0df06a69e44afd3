//! The entries of a namespace.

mod sessions;
mod write;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    Capabilities, Capability, Clock, Error, ErrorKind, Finding, LeaseVerifier, StoreInfo, Usage,
};
use lockkeeper_register::{Call, Entry, Key, Read, RegisterStore, SessionId, Version, View, Write};
use lockkeeper_remote::{Failure, nothing_granted, senseless};

use crate::connection::Notices;
use crate::connection::connector::Connector;
use crate::connection::link::{Link, SESSION};
use crate::operate::examine;
use crate::wire::paths::Paths;
use crate::wire::{Code, Reply, Request};
use crate::{BACKEND, ZooKeeperOptions};
use sessions::Sessions;
use write::{NONCE, pack};

/// The most entries in one call.
const BATCH: usize = 64;
/// The most entries that a list reads at once. Each has 64 KiB at most, and the replies together 16 MiB.
const PAGE: usize = 128;

/// The entries of a namespace in an ensemble, for
/// [`RegisterProvider`](lockkeeper_register::RegisterProvider).
///
/// The ensemble decides by majority, so the loss of a member neither loses a lock nor grants it twice. If a member is
/// down or has no leader, that is an outage for the requests that it had. The next requests go to another member, within
/// the same session.
///
/// One connection serves all reads, writes and waits, and a thread reads it. Each ttl in use has a session with a
/// connection of its own.
///
/// # Limits
/// - The ttl is a whole number of milliseconds, and between minSessionTimeout and maxSessionTimeout of the servers: by
///   default 2 to 20 ticks.
/// - Sessions end at multiples of tickTime. So the name of a dead holder is free up to one tick after its ttl. A new leader
///   begins every session's time anew.
/// - Finding a host's addresses takes as long as the system's resolver does.
/// - Do not use it on both sides of a fork; open it after forking.
pub struct ZooKeeperStore {
    pub(crate) options: ZooKeeperOptions,
    namespace: String,
    pub(crate) paths: Paths,
    pub(crate) link: Link,
    sessions: Sessions,
    /// The shortest time-out of a session that the server takes.
    pub(crate) min_ttl: Duration,
}

impl ZooKeeperStore {
    /// Connects, logs in, and makes what a namespace has once, within the connect timeout. Namespaces are separate.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`] if no member can be reached, or there is no leader.
    /// - [`ErrorKind::PermissionDenied`] for a wrong password, a missing permission, or a certificate that is not
    ///   trusted.
    /// - [`ErrorKind::Incompatible`] if a server is no ZooKeeper server, or does not speak TLS.
    /// - [`ErrorKind::InvalidValue`] for options out of bounds, and a path that does not exist.
    pub fn open(
        options: &ZooKeeperOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let opened = Self::open_with(options, namespace, clock);
        opened.map_err(|error| error.with_backend(BACKEND))
    }

    fn open_with(
        options: &ZooKeeperOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        let paths = Paths::new(&options.chroot, namespace);
        let connector = Arc::new(Connector::new(options)?);
        let limit = options.remote.connect_timeout;
        let deadline = clock.now() + limit;
        let left = || deadline.saturating_since(clock.now());
        let opened = connector.connect(None, SESSION, limit)?;
        let (mut connection, session) = opened.ok_or_else(senseless)?;
        let mut ask = |requests: &[Request]| {
            let replies = connection.ask(requests, left());
            replies.map_err(nothing_granted)
        };
        make_folders(&paths, &connector, &mut ask)?;
        let trial = paths.session(&format!("{:x}-trial", session.id));
        for reply in ask(&[
            Request::get(&paths.entries, false),
            Request::create(&trial, "", connector.acl(), true),
            Request::close(),
        ])? {
            reply.done().map_err(Code::error)?;
        }
        let min_ttl = connector.shortest_session(left())?;
        let notices = Notices::new(&paths.sessions);
        let sessions = Sessions::new(Arc::clone(&connector));
        Ok(Self {
            options: options.clone(),
            namespace: namespace.to_owned(),
            link: Link::new(connector, notices, clock, SESSION),
            paths,
            sessions,
            min_ttl,
        })
    }

    /// Makes requests that grant nothing.
    pub(crate) fn ask(&self, requests: &[Request], call: Call<'_>) -> Result<Vec<Reply>, Error> {
        self.link.call(requests, call).map_err(Failure::into_error)
    }

    /// Reads entries and looks for sessions, of which some are watched.
    fn read_all(
        &self,
        keys: &[&Key],
        sessions: &[(&str, bool)],
        call: Call<'_>,
    ) -> Result<View, Error> {
        let mut requests = vec![Request::sync(&self.paths.root)];
        requests.extend(
            keys.iter()
                .map(|key| Request::get(&self.paths.entry(key), false)),
        );
        requests.extend(sessions.iter().map(|(session, is_watched)| {
            Request::exists(&self.paths.session(session), *is_watched)
        }));
        let replies = self.ask(&requests, call)?;
        let [synced, found @ ..] = &replies[..] else {
            return Err(senseless());
        };
        synced.done().map_err(Code::error)?;
        let (entries, states) = found.split_at_checked(keys.len()).ok_or_else(senseless)?;
        let entries = entries.iter().map(entry);
        let mut view = View {
            entries: entries.collect::<Result<_, Error>>()?,
            ended: Vec::new(),
        };
        for ((session, _), state) in sessions.iter().zip(states) {
            if state.stat()?.is_none() {
                view.ended.push((*session).to_owned());
            }
        }
        Ok(view)
    }

    fn make_folders(&self, call: Call<'_>) -> Result<(), Error> {
        make_folders(&self.paths, &self.link.connector, |requests| {
            self.ask(requests, call)
        })
    }
}

/// Reads an entry, if it exists. What only another program can have written makes an empty entry, which is refused for its
/// name alone.
fn entry(reply: &Reply) -> Result<Option<Entry>, Error> {
    let Some((value, stat)) = reply.data()? else {
        return Ok(None);
    };
    let (nonce, value) = value.split_at_checked(NONCE).unwrap_or_default();
    let nonce = u64::from_str_radix(nonce, 16).ok();
    let (nonce, value) = nonce.map(|it| (it, value)).unwrap_or_default();
    Ok(Some(Entry {
        version: pack(nonce, stat.version),
        value: value.to_owned(),
    }))
}

/// Makes the nodes that a namespace has once, where they do not exist.
fn make_folders(
    paths: &Paths,
    connector: &Connector,
    mut ask: impl FnMut(&[Request]) -> Result<Vec<Reply>, Error>,
) -> Result<(), Error> {
    let folders = paths.folders();
    let present = ask(&folders.map(|path| Request::exists(path, false)))?;
    let missing = folders.iter().zip(&present).map(|(path, state)| {
        let is_missing = state.stat()?.is_none();
        Ok(is_missing.then(|| Request::create(path, "", connector.acl(), false)))
    });
    let missing: Vec<_> = missing.collect::<Result<Vec<_>, Error>>()?;
    let missing: Vec<_> = missing.into_iter().flatten().collect();
    for reply in ask(&missing)? {
        match reply.done() {
            Ok(()) | Err(Code::NODE_EXISTS) => {}
            Err(Code::NO_NODE) => {
                let text = format!(
                    "the path {} of the URL does not exist on the server; create it (`zkCli.sh create PATH`), or correct the URL",
                    paths.chroot()
                );
                return Err(Error::new(ErrorKind::InvalidValue, text));
            }
            Err(code) => return Err(code.error()),
        }
    }
    Ok(())
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperStore")
            .field("options", &self.options)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl StoreInfo for ZooKeeperStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let (options, query) = (&self.options, [("namespace", self.namespace.as_str())]);
        let chroot = options.chroot.strip_prefix('/');
        options.remote.location(BACKEND, chroot, &query)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::CrossHost)
            .with_min_ttl(self.min_ttl)
            .with_ttl_step(Duration::from_millis(1))
            .with_batch(BATCH)
            .with_attempt_limit(self.options.remote.attempt_time())
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.link.connector.learned.counts.usage())
    }
}

impl RegisterStore for ZooKeeperStore {
    fn read(&self, read: &Read<'_>, call: Call<'_>) -> Result<View, Error> {
        let mut ended = Vec::new();
        let mut sessions: Vec<_> = read.check.iter().map(|session| (*session, false)).collect();
        for (session, ttl) in read.keep {
            let (node, left) = (self.paths.session(session), self.link.left(call.deadline));
            match self.sessions.keep(session, node, *ttl, left, call.cancel)? {
                true => sessions.push((*session, true)),
                false => ended.push((*session).to_owned()),
            }
        }
        let mut view = self.read_all(read.keys, &sessions, call)?;
        view.ended.extend(ended);
        Ok(view)
    }

    fn write(&self, writes: &[Write<'_>], call: Call<'_>) -> Result<Vec<Option<Version>>, Error> {
        self.write_all(writes, call).map_err(Failure::into_error)
    }

    fn open_session(&self, ttl: Duration, call: Call<'_>) -> Result<SessionId, Error> {
        let left = || self.link.left(call.deadline);
        let mut opened = self.sessions.open(&self.paths, ttl, left(), call.cancel);
        // The namespace may have been wiped.
        if let Err(error) = &opened
            && error.kind() == ErrorKind::Unavailable
            && !error.is_unreachable()
            && !left().is_zero()
        {
            self.make_folders(call)?;
            opened = self.sessions.open(&self.paths, ttl, left(), call.cancel);
        }
        let session = opened?;
        // A notice of its end comes from now on.
        self.ask(
            &[Request::exists(&self.paths.session(&session), true)],
            call,
        )?;
        Ok(session)
    }

    fn end_sessions(&self, sessions: &[&str], call: Call<'_>) -> Result<(), Error> {
        let left = || self.link.left(call.deadline);
        let is_open = |session: &&&str| !self.sessions.end(session, left(), call.cancel);
        let open: Vec<_> = sessions.iter().filter(is_open).collect();
        let nodes = open.iter().map(|session| self.paths.session(session));
        let requests: Vec<_> = nodes.map(|node| Request::delete(&node, -1)).collect();
        self.ask(&requests, call).map(drop)
    }

    fn wait(&self, key: &Key, seen: Option<Version>, call: Call<'_>) -> Option<Result<(), Error>> {
        Some(self.wait_for(key, seen, call))
    }

    fn list(&self, call: Call<'_>) -> Result<Vec<Entry>, Error> {
        let requests = [
            Request::sync(&self.paths.root),
            Request::children(&self.paths.entries),
        ];
        let replies = self.ask(&requests, call)?;
        let [_, names] = &replies[..] else {
            return Err(senseless());
        };
        let names = names.children()?.unwrap_or_default();
        let mut entries = Vec::new();
        for page in names.chunks(PAGE) {
            let get =
                |name: &String| Request::get(&format!("{}/{name}", self.paths.entries), false);
            let requests: Vec<_> = page.iter().map(get).collect();
            for reply in self.ask(&requests, call)? {
                entries.extend(entry(&reply)?);
            }
        }
        Ok(entries)
    }

    fn examine(&self, call: Call<'_>) -> Result<Vec<Finding>, Error> {
        examine(self, call)
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.link.notices.verifiers.add(verifier);
    }
}

impl ZooKeeperStore {
    fn wait_for(&self, key: &Key, seen: Option<Version>, call: Call<'_>) -> Result<(), Error> {
        let path = self.paths.entry(key);
        let waiter = self.link.notices.enter(&path);
        // Only the second notices that a node is made, and only the first tells whether it was made anew.
        let request = match seen {
            Some(_) => Request::get(&path, true),
            None => Request::exists(&path, true),
        };
        let replies = self.ask(&[request], call)?;
        let reply = replies.first().ok_or_else(senseless)?;
        let is_seen = match seen {
            Some(seen) => entry(reply)?.is_some_and(|entry| entry.version == seen),
            None => reply.stat()?.is_none(),
        };
        if is_seen {
            waiter.wait(self.link.left(call.deadline), call.cancel);
        }
        Ok(())
    }
}
