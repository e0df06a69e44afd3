//! A register store of your own, complete, with the suite that all backends pass: locks between the processes of a host,
//! with a file for each namespace. docs/writing-a-backend.md explains it. `cargo run --example register_folder` runs the
//! suite. Sessions end by the host's clock, so use a folder that is emptied when the host starts, such as /run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{process::ExitCode, thread, time::Duration};

use lockkeeper_conformance::{Fixture, Run, Suite};
use lockkeeper_core::{
    Capabilities, Capability, Clock, Error, LockProvider, StoreInfo, SystemClock,
};
use lockkeeper_register::{
    Call, Entry, Read, RegisterProvider, RegisterStore, SessionId, Version, View, Write,
};

/// A file: the entries, and when each session ends.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Namespace {
    entries: BTreeMap<String, (Version, String)>,
    sessions: BTreeMap<SessionId, u64>,
}

impl Namespace {
    fn entry(&self, key: &str) -> Option<Entry> {
        let (version, value) = self.entries.get(key).cloned()?;
        Some(Entry { version, value })
    }

    fn has_ended(&self, session: &str) -> bool {
        let ends = self.sessions.get(session);
        ends.is_none_or(|ends| *ends <= SystemClock.now().as_nanos())
    }

    fn keep(&mut self, session: &str, ttl: Duration) {
        let ends = SystemClock.now() + ttl;
        self.sessions.insert(session.to_owned(), ends.as_nanos());
    }

    fn write(&mut self, write: &Write<'_>) -> Option<Version> {
        let has = |key, seen| self.entry(key).map(|it| it.version) == seen;
        let is_met = has(write.key.as_str(), write.seen)
            && write.session.is_none_or(|it| !self.has_ended(it))
            && (write.also).is_none_or(|(key, seen)| has(key.as_str(), Some(seen)));
        // No two writes have the same version, also if the file is deleted between them.
        let (key, version) = (write.key.as_str(), SystemClock.now().as_nanos());
        match write.value.map(str::to_owned) {
            _ if !is_met => return None,
            Some(value) => self.entries.insert(key.to_owned(), (version, value)),
            None => self.entries.remove(key),
        };
        Some(version)
    }
}

#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn open(folder: &str, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        // Any text is the name of a file then, of any length.
        let escaped: String = namespace.bytes().map(|it| format!("{it:02x}/")).collect();
        let file = Path::new(folder).join(escaped).join("namespace");
        let provider = RegisterProvider::new(Self(file), Arc::new(SystemClock))?;
        Ok(Arc::new(provider))
    }

    /// Reads the file, changes its content, and replaces it. No other process does so meanwhile.
    fn with<T>(&self, call: Call<'_>, change: impl Fn(&mut Namespace) -> T) -> Result<T, Error> {
        let failed = |error| Error::unreachable("check the folder").with_source(error);
        fs::create_dir_all(self.0.with_file_name("")).map_err(failed)?;
        let lock = File::create(self.0.with_extension("lock")).map_err(failed)?;
        while lock.try_lock().is_err() {
            if SystemClock.now() >= call.deadline {
                return Err(Error::unreachable("another process is stopped in a write"));
            }
            thread::sleep(Duration::from_micros(200));
        }
        let text = fs::read_to_string(&self.0).unwrap_or_default();
        let mut namespace = serde_json::from_str(&text).unwrap_or_default();
        let changed = change(&mut namespace);
        let text = serde_json::to_string(&namespace).unwrap_or_default();
        fs::write(self.0.with_extension("new"), text).map_err(failed)?;
        fs::rename(self.0.with_extension("new"), &self.0).map_err(failed)?;
        Ok(changed)
    }
}

impl StoreInfo for Folder {
    fn backend(&self) -> &'static str {
        "folder"
    }

    fn location(&self) -> String {
        format!("folder:{}", self.0.display())
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities::new().with(Capability::CrossProcess);
        capabilities.with_batch(100)
    }
}

impl RegisterStore for Folder {
    fn read(&self, read: &Read<'_>, call: Call<'_>) -> Result<View, Error> {
        self.with(call, |it| {
            for (session, ttl) in read.keep {
                if !it.has_ended(session) {
                    it.keep(session, *ttl);
                }
            }
            let sessions = read.keep.iter().map(|kept| &kept.0).chain(read.check);
            let ended = sessions.filter(|session| it.has_ended(session));
            let entries = read.keys.iter().map(|key| it.entry(key.as_str()));
            View {
                ended: ended.map(ToString::to_string).collect(),
                entries: entries.collect(),
            }
        })
    }

    fn write(&self, writes: &[Write<'_>], call: Call<'_>) -> Result<Vec<Option<Version>>, Error> {
        self.with(call, |it| {
            writes.iter().map(|write| it.write(write)).collect()
        })
    }

    fn open_session(&self, ttl: Duration, call: Call<'_>) -> Result<SessionId, Error> {
        self.with(call, |it| {
            let session = SystemClock.now().as_nanos().to_string();
            it.keep(&session, ttl);
            session
        })
    }

    fn list(&self, call: Call<'_>) -> Result<Vec<Entry>, Error> {
        self.with(call, |it| {
            it.entries.keys().filter_map(|key| it.entry(key)).collect()
        })
    }
}

/// A new folder for each case.
struct Fresh(String);

impl Fixture for Fresh {
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        Folder::open(&self.0, namespace)
    }

    fn address(&self) -> Option<String> {
        Some(self.0.clone())
    }
}

fn main() -> std::io::Result<ExitCode> {
    let folder = tempfile::tempdir()?;
    let cases = AtomicU64::new(0);
    let make = move || {
        let case = folder
            .path()
            .join(cases.fetch_add(1, Ordering::Relaxed).to_string());
        Box::new(Fresh(case.to_string_lossy().into_owned())) as Box<dyn Fixture>
    };
    let suite = Suite::new("register_folder", "folder", make).processes(Folder::open);
    Ok(Run::new().suite(suite).main())
}
