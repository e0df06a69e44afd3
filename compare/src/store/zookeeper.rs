//! `zookeeper:` and `zookeepers:`: how to connect, and the state beside the locks, as nodes of the same ensemble. The
//! ensemble counts no requests by their program, so the strategies count.

use std::time::Duration;

use lockkeeper::FencingToken;
use lockkeeper::backends::zookeeper::PlainWrite::{Create, Delete, Set};
use lockkeeper::backends::zookeeper::{PlainClient, PlainWrite, ZooKeeperOptions};

use super::cells::{Cell, Cells};
use super::state::State;
use crate::error::Error;
use crate::random::random;

/// The time-out of the session that reads and writes the state.
const SESSION: Duration = Duration::from_secs(30);

/// How to connect to an ensemble, with the settings of the backend's URL.
#[derive(Clone)]
pub(crate) struct ZooKeeperConfig {
    pub(crate) options: ZooKeeperOptions,
}

impl ZooKeeperConfig {
    /// Makes a client whose session has this time-out.
    pub(crate) fn client(&self, session: Duration) -> Result<PlainClient, Error> {
        Ok(PlainClient::new(&self.options, session)?)
    }
}

/// Returns the path of the node of all locks of a run, which the strategy that has nodes as locks uses.
pub(crate) fn locks(prefix: &str) -> String {
    format!("/{prefix}/locks")
}

/// Nodes of one run.
pub(crate) struct ZooKeeperNodes {
    client: PlainClient,
    /// The node that all others are below.
    root: String,
}

impl ZooKeeperNodes {
    /// Connects, and makes the folders `/prefix/…`.
    pub(crate) fn open(config: &ZooKeeperConfig, prefix: &str) -> Result<Self, Error> {
        let nodes = Self {
            client: config.client(SESSION)?,
            root: format!("/{prefix}"),
        };
        let below = [nodes.folder("cells"), nodes.folder("users"), locks(prefix)];
        let folders = [&nodes.root].into_iter().chain(&below);
        let folders: Vec<_> = folders.map(|path| Create(path, "")).collect();
        nodes.write_all(&folders)?;
        Ok(nodes)
    }

    fn folder(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    fn cell(&self, cell: u32) -> String {
        self.folder(&format!("cells/{cell}"))
    }

    fn token(&self) -> String {
        self.folder("cells/token")
    }

    fn new_user(&self, user: u32) -> String {
        self.folder(&format!("users/{user}-{:016x}", random()))
    }

    /// Reads a number and its version.
    fn number(&self, path: &str) -> Result<(i64, i32), Error> {
        let found = self.client.get(path)?;
        let number = found.and_then(|(value, version)| Some((value.parse().ok()?, version)));
        number.ok_or_else(gone)
    }

    fn write_all(&self, writes: &[PlainWrite<'_>]) -> Result<(), Error> {
        match self.client.write(writes)? {
            true => Ok(()),
            false => Err(gone()),
        }
    }

    fn remove_below(&self, path: &str) -> Result<(), Error> {
        for child in self.client.children(path)? {
            let child = format!("{path}/{child}");
            self.remove_below(&child)?;
            // A node of a dead program goes by itself.
            self.client.write(&[Delete(&child)])?;
        }
        Ok(())
    }

    /// Removes the nodes.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        self.remove_below(&self.root)?;
        Ok(self.client.write(&[Delete(&self.root)]).map(drop)?)
    }
}

fn gone() -> Error {
    Error::failed("the scenario's data is gone; did another program delete its nodes?")
}

impl Cells for ZooKeeperNodes {
    fn read_cells(&self, cells: &[u32]) -> Result<Vec<Cell>, Error> {
        let read = |&cell: &u32| {
            let (value, version) = self.number(&self.cell(cell))?;
            Ok(Cell {
                value,
                revision: version.into(),
            })
        };
        cells.iter().map(read).collect()
    }

    fn write_cells(&self, cells: &[(u32, Cell, i64)], user: u32) -> Result<(bool, u64), Error> {
        let write = |&(cell, read, value): &(u32, Cell, i64)| {
            let version = i32::try_from(read.revision).unwrap_or(i32::MAX);
            (self.cell(cell), value.to_string(), version)
        };
        let cells: Vec<_> = cells.iter().map(write).collect();
        let user = self.new_user(user);
        let sets = cells
            .iter()
            .map(|(path, value, version)| Set(path, value, *version));
        let writes: Vec<_> = sets.chain([Create(&user, "")]).collect();
        Ok((self.client.write(&writes)?, 1))
    }
}

/// The version that any node has.
const ANY: i32 = -1;

impl State for ZooKeeperNodes {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        self.remove_below(&self.folder("users"))?;
        self.remove_below(&self.folder("cells"))?;
        let cells = (0..).zip(values);
        let cells = cells.map(|(cell, value)| (self.cell(cell), value.to_string()));
        let nodes: Vec<_> = cells.chain([(self.token(), "0".to_owned())]).collect();
        let creates = nodes.iter().map(|(path, value)| Create(path, value));
        self.write_all(&creates.collect::<Vec<_>>())
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        Ok(self.number(&self.cell(cell))?.0)
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        self.write_all(&[Set(&self.cell(cell), &value.to_string(), ANY)])
    }

    /// ZooKeeper compares no values, so the token is written if it has not changed since it was read.
    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        let (node, new) = (self.token(), token.as_i64());
        loop {
            let (last, version) = self.number(&node)?;
            if last > new {
                return Ok(false);
            }
            let written = self.client.write(&[
                Set(&node, &new.to_string(), version),
                Set(&self.cell(0), &value.to_string(), ANY),
            ])?;
            if written {
                return Ok(true);
            }
        }
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        self.write_all(&[Create(&self.new_user(user), "")])
    }

    fn recorded(&self) -> Result<i64, Error> {
        let count = self.client.children(&self.folder("users"))?.len();
        Ok(count.try_into().unwrap_or(i64::MAX))
    }
}
