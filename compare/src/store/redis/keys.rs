//! Keys of their own on the server with the locks, under a prefix that no other run has.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lockkeeper::FencingToken;
use redis::{Cmd, Connection, FromRedisValue, RedisResult, cmd};

use super::Door;
use crate::error::Failure;
use crate::store::state::State;

/// As for SQLite: not one for each of 10,000 threads, and more than one, so that the server sees
/// several writers.
const CONNECTIONS: usize = 4;
/// Removes what a run that was killed left behind. Every write starts it anew.
const TTL_SECONDS: u32 = 3_600;
/// Tokens are compared as text: the server's numbers are not exact to the last digit.
const WRITE_FENCED: &str = "local last, new = redis.call('GET', KEYS[2]) or '', ARGV[2]
if #last > #new or (#last == #new and last > new) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
redis.call('SET', KEYS[2], new, 'EX', ARGV[3])
return 1";

/// Keys, reached over a few connections that the threads take in turn, for a command at a time.
pub(crate) struct Keys {
    connections: Vec<Mutex<Connection>>,
    turn: AtomicUsize,
    prefix: String,
    /// How many cells there ever were.
    cells: AtomicU32,
    sent: Tally,
}

/// What was sent for the state, so that it does not count for the locks.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<BTreeMap<&'static str, u64>>);

impl Tally {
    fn add(&self, command: &'static str) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sent.entry(command).or_default() += 1;
    }

    /// How often one of `commands` was sent.
    pub(crate) fn of(&self, commands: &[&str]) -> u64 {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        commands.iter().filter_map(|name| sent.get(name)).sum()
    }
}

impl Keys {
    /// Connects. `folder` and `number` tell these keys from all others.
    pub(crate) fn create(door: &Door, folder: &Path, number: usize) -> Result<Self, Failure> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Mutex::new(door.connect()?));
        }
        // The folder's name is unique on this machine only.
        let run = folder.file_name().unwrap_or_default().to_string_lossy();
        let salt = tempfile::Builder::new()
            .rand_bytes(16)
            .prefix("")
            .tempdir_in(folder)
            .map_err(|error| Failure::Failed(format!("no folder to take a name from: {error}")))?;
        let salt = salt
            .path()
            .file_name()
            .unwrap_or_default()
            .to_string_lossy();
        Ok(Self {
            connections,
            turn: AtomicUsize::new(0),
            prefix: format!("{{{run}-{salt}-{number}}}"),
            cells: AtomicU32::new(1),
            sent: Tally::default(),
        })
    }

    /// The key of a cell.
    pub(crate) fn cell(&self, cell: u32) -> String {
        format!("{}:cell-{cell}", self.prefix)
    }

    /// The key of the list of users.
    pub(crate) fn users(&self) -> String {
        format!("{}:users", self.prefix)
    }

    fn token(&self) -> String {
        format!("{}:token", self.prefix)
    }

    /// What was sent for this so far.
    pub(crate) fn sent(&self) -> &Tally {
        &self.sent
    }

    /// Runs one command on the connection whose turn it is.
    fn with<T>(
        &self,
        command: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, Failure> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let connection = self
            .connections
            .get(turn)
            .ok_or_else(|| Failure::Failed("there is no connection to the state".to_owned()))?;
        let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(command(&mut connection)?)
    }

    fn ask<T: FromRedisValue>(&self, name: &'static str, command: &Cmd) -> Result<T, Failure> {
        self.sent.add(name);
        self.with(|connection| command.query(connection))
    }

    fn remove(&self) -> Result<(), Failure> {
        let cells = 0..self.cells.load(Ordering::Relaxed);
        let keys: Vec<_> = cells
            .map(|cell| self.cell(cell))
            .chain([self.token(), self.users()])
            .collect();
        self.ask("del", cmd("DEL").arg(&keys))
    }
}

impl State for Keys {
    fn reset(&self, values: &[i64]) -> Result<(), Failure> {
        self.remove()?;
        let cells = u32::try_from(values.len()).unwrap_or(u32::MAX);
        self.cells.fetch_max(cells, Ordering::Relaxed);
        for (cell, &value) in (0..cells).zip(values) {
            self.write(cell, value)?;
        }
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Failure> {
        self.ask("get", cmd("GET").arg(self.cell(cell)))
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Failure> {
        let mut set = cmd("SET");
        set.arg(self.cell(cell)).arg(value);
        self.ask("set", set.arg("EX").arg(TTL_SECONDS))
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure> {
        let mut eval = cmd("EVAL");
        eval.arg(WRITE_FENCED).arg(2);
        eval.arg(self.cell(0)).arg(self.token());
        self.ask("eval", eval.arg(value).arg(token.as_i64()).arg(TTL_SECONDS))
    }

    fn record(&self, user: u32) -> Result<(), Failure> {
        let mut both = redis::pipe();
        both.atomic();
        both.cmd("RPUSH").arg(self.users()).arg(user).ignore();
        both.cmd("EXPIRE").arg(self.users()).arg(TTL_SECONDS);
        let both = both.ignore();
        self.with(|connection| both.query(connection))
    }

    fn recorded(&self) -> Result<i64, Failure> {
        self.ask("llen", cmd("LLEN").arg(self.users()))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // Where the server is gone, their time to live removes them.
        let _ = self.remove();
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
