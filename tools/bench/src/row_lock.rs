//! Measures a lock around a transaction beside the lock of the transaction's own row: `SELECT … FOR UPDATE`.

use mysql::prelude::Queryable as _;
use parking_lot::Mutex;

use crate::free::{alternately, row};
use crate::raw::Done;
use crate::raw::postgres::RawPostgres;
use crate::row::{NONE, Rows};
use crate::store::{Kind, Server, Store, connect_mysql};
use crate::threads::together;

/// How often each thread changes the row in a round.
const CHANGES: usize = 20;
const THREADS: usize = 16;

const TABLE: [&str; 2] = [
    "CREATE TABLE seat (id INT PRIMARY KEY, sold INT)",
    "INSERT INTO seat VALUES (42, 0)",
];

/// A connection of the application.
enum Client {
    MySql(Box<mysql::Conn>),
    Postgres(Box<RawPostgres>),
}

impl Client {
    fn open(store: &Store) -> Done<Self> {
        Ok(match &store.server {
            Server::MySql(server, _) => Self::MySql(Box::new(connect_mysql(server)?)),
            Server::Postgres(server) => Self::Postgres(Box::new(RawPostgres::open(server)?)),
            _ => return Err("the store has no rows".into()),
        })
    }

    fn run(&mut self, sql: &str) -> Done {
        match self {
            Self::MySql(connection) => connection.query_drop(sql)?,
            Self::Postgres(connection) => connection.query(sql)?,
        }
        Ok(())
    }

    /// Reads the row and changes it, in one transaction. `lock` is the end of the statement that reads.
    fn change(&mut self, lock: &str) -> Done {
        self.run("BEGIN")?;
        self.run(&format!("SELECT sold FROM seat WHERE id = 42{lock}"))?;
        self.run("UPDATE seat SET sold = sold + 1 WHERE id = 42")?;
        self.run("COMMIT")
    }
}

/// The rows of one and of several threads. The floor is the lock of the row.
pub(crate) fn rows(kind: Kind) -> Rows {
    let store = Store::start(kind)?;
    let mut client = Client::open(&store)?;
    TABLE.iter().try_for_each(|sql| client.run(sql))?;
    let keeper = store.open("wait=60s")?;
    let mut rows = Vec::new();
    for threads in [1, THREADS] {
        let clients = (0..threads).map(|_| Client::open(&store));
        let clients = Mutex::new(clients.collect::<Done<Vec<_>>>()?);
        let run = |change: &(dyn Fn(&mut Client) -> Done + Sync)| {
            let changed = together(threads, |_| {
                let mut client = clients.lock().pop().ok_or("no client")?;
                let changed = (0..CHANGES).try_for_each(|_| change(&mut client));
                clients.lock().push(client);
                Ok(changed.map_err(|error| error.to_string())?)
            });
            changed.map(drop)
        };
        let row_lock = || run(&|client| client.change(" FOR UPDATE"));
        let ours = || {
            run(&|client| {
                let _guard = keeper.lock("seat:42")?;
                client.change("")
            })
        };
        let measured = alternately(1, row_lock, ours)?;
        let name = store.name();
        let what = format!("{threads} x {CHANGES} changes of a row, {name}");
        rows.push(row(what, measured, NONE));
    }
    Ok(rows)
}
