//! A job is locked where it is queued, and freed where it is done. The ticket of the lock is in the job's row.
//!
//! `cargo run --example job_queue`

use std::error::Error;
use std::time::Duration;

use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, LockKeeper, Ticket};
use rusqlite::{Connection, OptionalExtension};

/// How long a job may lie in the queue before its lock ends.
const QUEUED: Duration = Duration::from_secs(600);

/// The web process: queues one export of a shop at a time. Returns whether it did.
fn enqueue(jobs: &Connection, keeper: &LockKeeper, shop: &str) -> Result<bool, Box<dyn Error>> {
    let ttl = QUEUED;
    let options = AcquireOptions::new().lease(LeasePolicy::Renewed { ttl });
    let Some(guard) = keeper.acquire(format!("export:{shop}"), &options.wait(Duration::ZERO))?
    else {
        return Ok(false); // one is queued, or under way
    };
    let ticket = guard.detach()?;
    let row = (shop, ticket.to_string());
    if let Err(error) = jobs.execute("INSERT INTO job (shop, ticket) VALUES (?1, ?2)", row) {
        keeper.resume(&ticket)?.release()?; // nobody else has the ticket
        return Err(error.into());
    }
    Ok(true)
}

/// A worker: claims the first job for a minute, does it, and frees its lock. Returns whether there was one. If the worker
/// dies meanwhile, the next one claims the job after that minute, reads the same ticket, and goes on.
///
/// Without the claim, two workers could resume one ticket. The first one notices only at its next renewal.
fn work(
    jobs: &Connection,
    keeper: &LockKeeper,
    export: impl Fn(&str, u64),
) -> Result<bool, Box<dyn Error>> {
    let claim = "UPDATE job SET claimed_until = unixepoch() + 60
         WHERE id = (SELECT id FROM job WHERE claimed_until <= unixepoch() ORDER BY id LIMIT 1)
         RETURNING id, shop, ticket";
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let Some((id, shop, ticket)) = jobs.query_row(claim, [], read).optional()? else {
        return Ok(false);
    };
    let (id, shop, ticket): (i64, String, String) = (id, shop, ticket);
    match keeper.resume(&ticket.parse::<Ticket>()?) {
        Ok(guard) => {
            // From here on the lock is renewed. A worker that is resumed elsewhere has a smaller token.
            export(&shop, guard.token().get());
            guard.ensure_held()?;
            jobs.execute("DELETE FROM job WHERE id = ?1", [id])?;
            guard.release()?;
        }
        // It lay for too long, and the shop may be locked by a later job.
        Err(error) if error.kind() == ErrorKind::Lost => {
            jobs.execute("DELETE FROM job WHERE id = ?1", [id])?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(true)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let jobs = Connection::open(folder.path().join("jobs.db"))?;
    jobs.execute_batch(
        "CREATE TABLE job (id INTEGER PRIMARY KEY, shop TEXT, ticket TEXT, claimed_until INTEGER DEFAULT 0)",
    )?;
    let locks = folder.path().join("locks.db");
    let url = format!("sqlite:{}?require=tickets", locks.display());

    // In a real service these are two processes.
    let web = lockkeeper::open(&url)?;
    assert!(enqueue(&jobs, &web, "berlin")?);
    assert!(!enqueue(&jobs, &web, "berlin")?, "queued twice");
    drop(web); // the lock stays

    let worker = lockkeeper::open(&url)?;
    let export = |shop: &str, token| println!("exporting {shop} under token {token}");
    assert!(work(&jobs, &worker, export)?);
    assert!(!work(&jobs, &worker, export)?);
    assert!(
        enqueue(&jobs, &worker, "berlin")?,
        "the worker has freed it"
    );
    Ok(())
}
