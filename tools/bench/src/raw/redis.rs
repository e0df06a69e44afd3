//! Redis: `SET NX PX` with a value of its own, and a release that compares it.

use redis::{Cmd, Connection, Pipeline, RedisResult, cmd};

use super::{Done, PIPELINE, Raw, expect};

pub(crate) struct RawRedis {
    connection: Connection,
    /// The SHA-1 of the script that releases.
    sha: String,
    number: u64,
    pipes: [Pipeline; 2],
}

/// Loads the script by which a lock made with `SET NX PX` is released, and returns its SHA-1. It takes the
/// key and the owner, and returns 0 if the key has another owner.
pub(crate) fn load_release(connection: &mut Connection) -> RedisResult<String> {
    let script = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])";
    cmd("SCRIPT").arg("LOAD").arg(script).query(connection)
}

/// Returns the command that takes a name.
pub(crate) fn take(key: &str, owner: &str) -> Cmd {
    let mut take = cmd("SET");
    take.arg(key).arg(owner).arg("NX").arg("PX").arg(30_000);
    take
}

/// Returns the command that releases a name.
pub(crate) fn free(sha: &str, key: &str, owner: &str) -> Cmd {
    let mut free = cmd("EVALSHA");
    free.arg(sha).arg(1).arg(key).arg(owner);
    free
}

impl RawRedis {
    pub(crate) fn new(mut connection: Connection) -> Done<Self> {
        let sha = load_release(&mut connection)?;
        let owner = "3f0c8dbe5d9b4c3c-1";
        let (mut takes, mut frees) = (redis::pipe(), redis::pipe());
        for key in (0..PIPELINE).map(|number| format!("raw:seat:{number}")) {
            takes.add_command(take(&key, owner));
            frees.add_command(free(&sha, &key, owner));
        }
        Ok(Self {
            connection,
            sha,
            number: 0,
            pipes: [takes, frees],
        })
    }
}

impl Raw for RawRedis {
    fn pair(&mut self) -> Done {
        self.number += 1;
        let (key, owner) = ("raw:seat:42", format!("3f0c8dbe5d9b4c3c-{}", self.number));
        let taken: Option<String> = take(key, &owner).query(&mut self.connection)?;
        expect(taken.is_some())?;
        let freed: i64 = free(&self.sha, key, &owner).query(&mut self.connection)?;
        expect(freed == 1)
    }

    fn pairs(&mut self) -> Done<usize> {
        let [takes, frees] = &self.pipes;
        let taken: Vec<Option<String>> = takes.query(&mut self.connection)?;
        let freed: Vec<i64> = frees.query(&mut self.connection)?;
        expect(!taken.contains(&None) && !freed.contains(&0))?;
        Ok(PIPELINE)
    }

    fn round_trip(&mut self) -> Done {
        Ok(cmd("PING").exec(&mut self.connection)?)
    }
}
