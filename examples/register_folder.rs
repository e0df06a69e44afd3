//! A register store of your own, complete, with the suite that all backends pass: locks between the processes of a host,
//! with a file for each namespace: see docs/writing-a-backend.md. `cargo run --example register_folder` runs the suite.
//! Sessions end by the host's clock, so use a folder that is emptied when the host starts, such as /run.

use std::path::{Path, PathBuf};
use std::{collections::BTreeMap, fs, io, process::ExitCode, sync::Arc, thread, time::Duration};

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
    entries: BTreeMap<String, Entry>,
    sessions: BTreeMap<SessionId, u64>,
}

impl Namespace {
    fn write(&mut self, write: &Write<'_>) -> Option<Version> {
        let has = |key, seen| self.entries.get(key).map(|it| it.version) == seen;
        let is_met = has(write.key.as_str(), write.seen)
            && (write.session).is_none_or(|id| self.sessions.contains_key(id))
            && (write.also).is_none_or(|(key, seen)| has(key.as_str(), Some(seen)));
        // No two writes have the same version, also if the file is deleted between them.
        let (key, version) = (write.key.as_str().to_owned(), SystemClock.now().as_nanos());
        let entry = write.value.map(str::to_owned);
        match entry.map(|value| Entry { version, value }) {
            _ if !is_met => return None,
            Some(entry) => self.entries.insert(key, entry),
            None => self.entries.remove(&key),
        };
        Some(version)
    }
}

#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn open(folder: &str, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        let escaped: String = namespace.bytes().map(|it| format!("{it:02x}/")).collect();
        let store = Self(Path::new(folder).join(escaped).join("namespace"));
        let provider = RegisterProvider::new(store, Arc::new(SystemClock))?;
        Ok(Arc::new(provider))
    }

    /// Reads the file, changes its content, and replaces it. No other process does so meanwhile.
    fn with<T>(&self, call: Call<'_>, change: impl Fn(&mut Namespace) -> T) -> Result<T, Error> {
        let failed = |error: io::Error| Error::unreachable("check the folder").with_source(error);
        fs::create_dir_all(self.0.with_file_name("")).map_err(failed)?;
        let lock = fs::File::create(self.0.with_extension("lock")).map_err(failed)?;
        while lock.try_lock().is_err() {
            if SystemClock.now() >= call.deadline {
                return Err(Error::unreachable("another process is stopped in a write"));
            }
            thread::sleep(Duration::from_micros(200));
        }
        let mut namespace = Namespace::default();
        if self.0.try_exists().map_err(failed)? {
            let text = fs::read(&self.0).map_err(failed)?;
            namespace = serde_json::from_slice(&text).map_err(|it| failed(it.into()))?;
        }
        (namespace.sessions).retain(|_, ends| SystemClock.now().as_nanos() < *ends);
        let changed = change(&mut namespace);
        let text = serde_json::to_vec(&namespace).map_err(|it| failed(it.into()))?;
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
            for (id, ttl) in read.keep {
                let ends = (SystemClock.now() + *ttl).as_nanos();
                it.sessions
                    .entry((*id).to_owned())
                    .and_modify(|it| *it = ends);
            }
            let sessions = read.keep.iter().map(|kept| &kept.0).chain(read.check);
            let ended = sessions.filter(|id| !it.sessions.contains_key(**id));
            let entries = read
                .keys
                .iter()
                .map(|key| it.entries.get(key.as_str()).cloned());
            View {
                ended: ended.map(ToString::to_string).collect(),
                entries: entries.collect(),
            }
        })
    }

    fn write(&self, writes: &[Write<'_>], call: Call<'_>) -> Result<Vec<Option<Version>>, Error> {
        let write = |it: &mut Namespace| writes.iter().map(|write| it.write(write)).collect();
        self.with(call, write)
    }

    fn open_session(&self, ttl: Duration, call: Call<'_>) -> Result<SessionId, Error> {
        self.with(call, |it| {
            let id = SystemClock.now().as_nanos().to_string();
            (it.sessions).insert(id.clone(), (SystemClock.now() + ttl).as_nanos());
            id
        })
    }

    fn list(&self, call: Call<'_>) -> Result<Vec<Entry>, Error> {
        self.with(call, |it| it.entries.values().cloned().collect())
    }
}

/// A throw-away folder for each case.
struct Fresh(tempfile::TempDir);

impl Fixture for Fresh {
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        Folder::open(&self.0.path().to_string_lossy(), namespace)
    }

    fn address(&self) -> Option<String> {
        Some(self.0.path().to_string_lossy().into_owned())
    }
}

fn main() -> ExitCode {
    #[expect(clippy::expect_used, reason = "the suite needs a folder")]
    let fresh = || Box::new(Fresh(tempfile::tempdir().expect("a folder"))) as Box<_>;
    let suite = Suite::new("register_folder", "folder", fresh);
    Run::new().suite(suite.processes(Folder::open)).main()
}
