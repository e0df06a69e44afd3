//! The state of `redis:`: keys on the server with the locks, under a prefix that no other run has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use lockkeeper::FencingToken;
use parking_lot::Mutex;
use redis::{Cmd, Connection, FromRedisValue, cmd};

use super::client::RedisConfig;
use crate::error::Error;
use crate::store::pool::{FEW, POOL_TIMEOUT, Pool};
use crate::store::state::State;

/// Removes what a run that was killed left behind. Every write restarts it.
const TTL_SECONDS: u32 = 3_600;
/// Compares tokens as text, since numbers in Lua are not exact to the last digit.
const WRITE_FENCED: &str = "local last, new = redis.call('GET', KEYS[2]) or '', ARGV[2]
if #last > #new or (#last == #new and last > new) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
redis.call('SET', KEYS[2], new, 'EX', ARGV[3])
return 1";

/// Keys of one run.
pub(crate) struct Keys {
    pub(crate) config: RedisConfig,
    connections: Pool<Connection>,
    prefix: String,
    /// The largest number of cells so far.
    cells: AtomicU32,
    /// How often each command was sent.
    sent: Mutex<BTreeMap<&'static str, u64>>,
}

impl Keys {
    /// Connects. All keys begin with `prefix`.
    pub(crate) fn open(config: &RedisConfig, prefix: &str) -> Result<Self, Error> {
        Ok(Self {
            config: config.clone(),
            connections: config.pool(FEW)?,
            prefix: format!("{{{prefix}}}"),
            cells: AtomicU32::new(1),
            sent: Mutex::default(),
        })
    }

    pub(crate) fn cell(&self, cell: u32) -> String {
        format!("{}:cell-{cell}", self.prefix)
    }

    pub(crate) fn users(&self) -> String {
        format!("{}:users", self.prefix)
    }

    fn token(&self) -> String {
        format!("{}:token", self.prefix)
    }

    /// Returns how many of `commands` were sent for these keys so far.
    pub(crate) fn sent(&self, commands: &[&str]) -> u64 {
        let sent = self.sent.lock();
        commands.iter().filter_map(|name| sent.get(name)).sum()
    }

    fn send<T: FromRedisValue>(&self, name: &'static str, command: &Cmd) -> Result<T, Error> {
        *self.sent.lock().entry(name).or_default() += 1;
        Ok(command.query(&mut *self.connections.get(POOL_TIMEOUT)?)?)
    }

    pub(crate) fn remove(&self) -> Result<(), Error> {
        let cells = 0..self.cells.load(Ordering::Relaxed);
        let keys: Vec<_> = cells
            .map(|cell| self.cell(cell))
            .chain([self.token(), self.users()])
            .collect();
        self.send("del", cmd("DEL").arg(&keys))
    }
}

impl State for Keys {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        self.remove()?;
        let cells = u32::try_from(values.len()).unwrap_or(u32::MAX);
        self.cells.fetch_max(cells, Ordering::Relaxed);
        for (cell, &value) in (0..cells).zip(values) {
            self.write(cell, value)?;
        }
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        self.send("get", cmd("GET").arg(self.cell(cell)))
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        let mut set = cmd("SET");
        set.arg(self.cell(cell)).arg(value);
        self.send("set", set.arg("EX").arg(TTL_SECONDS))
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        let mut eval = cmd("EVAL");
        eval.arg(WRITE_FENCED).arg(2);
        eval.arg(self.cell(0)).arg(self.token());
        self.send("eval", eval.arg(value).arg(token.as_i64()).arg(TTL_SECONDS))
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        let mut both = redis::pipe();
        both.atomic();
        both.cmd("RPUSH").arg(self.users()).arg(user).ignore();
        both.cmd("EXPIRE").arg(self.users()).arg(TTL_SECONDS);
        Ok(both
            .ignore()
            .query(&mut *self.connections.get(POOL_TIMEOUT)?)?)
    }

    fn recorded(&self) -> Result<i64, Error> {
        self.send("llen", cmd("LLEN").arg(self.users()))
    }
}
