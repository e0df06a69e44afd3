//! The scripts that run in the server. Every script can be sent again without harm.
//!
//! The lock's key holds the time of its epoch and its owner, or `kept ` and a waiter. A woken waiter has
//! the name reserved for it for [`RESERVED_MS`]: others find the name busy meanwhile.
//!
//! One key keeps the last epoch of a namespace. It never expires: a lock may live for any time. It is
//! no `KEYS` of a script, since it has another slot than the lock; a node that has all slots runs the
//! script nevertheless.

use std::sync::LazyLock;
use std::time::Duration;

use lockkeeper_remote::Failure;
use redis::Value;

use crate::connection::Connection;
use crate::failure::from_primary;

/// The time that a name is reserved for a woken waiter, in milliseconds.
const RESERVED_MS: u64 = 100;
/// The time that a wait queue outlives the last attempt of its waiters, in milliseconds. Waiters make an
/// attempt every second.
const QUEUE_MS: u64 = 10_000;
/// The prefix of the channels that wake waiters, followed by a provider's number.
pub(crate) const WAKE_CHANNEL: &str = "lockkeeper:wake:";
/// The prefix of what the lock's key holds while the name is reserved, followed by the waiter.
pub(crate) const RESERVED: &str = "kept ";

pub(crate) struct Script {
    code: String,
    sha: String,
}

impl Script {
    fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { code, sha }
    }

    /// Returns the command that runs the script if the server has it.
    pub(crate) fn by_sha(&self, keys: &[&str], args: &[&str]) -> Vec<u8> {
        packed("EVALSHA", &self.sha, keys, args)
    }

    /// Returns the command that runs the script, and loads it.
    pub(crate) fn by_code(&self, keys: &[&str], args: &[&str]) -> Vec<u8> {
        packed("EVAL", &self.code, keys, args)
    }

    /// Runs the script on a primary.
    pub(crate) fn run(
        &self,
        connection: &mut Connection,
        keys: &[&str],
        args: &[&str],
        limit: Duration,
    ) -> Result<Value, Failure> {
        let mut answer = connection.ask(&self.by_sha(keys, args), limit)?;
        if is_no_script(&answer) {
            answer = connection.ask(&self.by_code(keys, args), limit)?;
        }
        from_primary(answer)
    }
}

/// Returns whether the server does not have the script: it is new there, or was forgotten by SCRIPT FLUSH
/// or a restart.
pub(crate) fn is_no_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

fn packed(command: &str, script: &str, keys: &[&str], args: &[&str]) -> Vec<u8> {
    let mut command = redis::cmd(command);
    command.arg(script).arg(keys.len()).arg(keys).arg(args);
    command.get_packed_command()
}

/// Wakes the first waiter of a process that listens, and reserves the name for it. A channel without a
/// subscriber means that the process is gone. `NUMSUB` counts these: the reply to `PUBLISH` includes
/// the subscribers of patterns, such as a monitor.
fn wake_next() -> String {
    format!(
        "while true do
  local first = call('LPOP', KEYS[2])
  if not first then break end
  local channel = '{WAKE_CHANNEL}' .. string.match(first, '^[^.]*')
  if call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    call('PUBLISH', channel, first .. ' ' .. KEYS[1])
    call('SET', KEYS[1], '{RESERVED}' .. first, 'PX', '{RESERVED_MS}')
    break
  end
end
"
    )
}

/// Tries to acquire a name.
///
/// Keys: lock, wait queue. Arguments: the latest time for a grant, in microseconds of the server's
/// clock; owner; ttl in milliseconds; the namespace's epoch key. An attempt of a waiter adds the waiter
/// and its state: `new`, `queued` (it is in the queue) or `last` (it will not wait any longer).
///
/// Replies with the time of a grant's epoch, in microseconds; or with the milliseconds until the lock
/// expires and the number of waiters before this one; or, after the latest time, with the server's time
/// alone in an array. A double holds these times exactly until 2255.
pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "local call, owner, ttl = redis.call, ARGV[2], ARGV[3]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return {{now}} end
local value = time[1] .. '.' .. time[2] .. ' ' .. owner
local me, state = ARGV[5], ARGV[6]
local is_queued = state and state ~= 'new'
if not call('SET', KEYS[1], value, 'NX', 'PX', ttl) then
  local holder = call('GET', KEYS[1])
  if string.sub(holder, -#owner) == owner then
    call('PEXPIRE', KEYS[1], ttl)
    if is_queued then call('LREM', KEYS[2], '0', me) end
    local seconds, micros = string.match(holder, '^(%d+)%.(%d+) ')
    return seconds * 1000000 + micros
  end
  if not me or holder ~= '{RESERVED}' .. me then
    local before = 0
    if state == 'last' then
      call('LREM', KEYS[2], '0', me)
    elseif me then
      before = call('LPOS', KEYS[2], me)
      if not before then
        if is_queued then
          call('LPUSH', KEYS[2], me)
          before = 0
        else
          before = call('RPUSH', KEYS[2], me) - 1
        end
      end
      call('PEXPIRE', KEYS[2], '{QUEUE_MS}')
    end
    return {{call('PTTL', KEYS[1]), before}}
  end
  call('SET', KEYS[1], value, 'PX', ttl)
end
if is_queued then call('LREM', KEYS[2], '0', me) end
local last = redis.pcall('SET', ARGV[4], now, 'GET')
if last and last.err then
  -- A script is not rolled back: a name that cannot be granted must not stay taken.
  call('DEL', KEYS[1])
  return last
end
if last and last - now >= 0 then
  now = last + 1
  call('SET', ARGV[4], now)
  local micros = now % 1000000
  value = string.format('%.0f.%.0f ', (now - micros) / 1000000, micros) .. owner
  call('SET', KEYS[1], value, 'PX', ttl)
end
return now
"
    ))
});

/// Renews a lock. Key: lock. Arguments: what it holds, ttl in milliseconds. Replies with 1, or 0 if it is lost.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
",
    )
});

/// Releases a lock. Keys: lock, wait queue. Argument: what the lock's key holds, or the owner alone, where
/// the reply to the grant was lost. Replies with 1, or 0 if it was lost.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "local call = redis.call
local holder = call('GET', KEYS[1])
if holder ~= ARGV[1] and (not holder or string.sub(holder, -#ARGV[1]) ~= ARGV[1]) then return 0 end
call('DEL', KEYS[1])
{}return 1
",
        wake_next()
    ))
});

/// Removes a waiter. Keys: lock, wait queue. Argument: the waiter. A name that is reserved for it
/// goes to the next one.
pub(crate) static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "local call = redis.call
call('LREM', KEYS[2], '0', ARGV[1])
if call('GET', KEYS[1]) == '{RESERVED}' .. ARGV[1] then
  call('DEL', KEYS[1])
  {}end
return 1
",
        wake_next()
    ))
});

/// Inspects a lock without a change. Keys: lock, wait queue. Replies with what it holds, the milliseconds
/// until it expires, and the number of waiters.
pub(crate) static INSPECT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]),
 redis.call('LLEN', KEYS[2])}",
    )
});

/// Runs every command that the other scripts use, so that a missing permission or command shows on
/// opening. Keys: those of the empty name, which no lock has. Argument: a waiter.
///
/// Replies with the server's time in microseconds, or with the first command that failed and its
/// error, which alone does not name the command.
pub(crate) static PROBE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "local failed = nil
local function try(...)
  local answer = redis.pcall(...)
  if not failed and type(answer) == 'table' and answer.err then
    failed = {{(...), answer.err}}
  end
  return answer
end
try('SET', KEYS[1], ARGV[1], 'NX', 'PX', 1000)
try('GET', KEYS[1])
try('PEXPIRE', KEYS[1], 1000)
try('PTTL', KEYS[1])
local time = try('TIME')
try('SET', KEYS[1], ARGV[1], 'PX', 1000, 'GET')
try('RPUSH', KEYS[2], ARGV[1])
try('LPUSH', KEYS[2], ARGV[1])
try('PEXPIRE', KEYS[2], 1000)
try('LPOS', KEYS[2], ARGV[1])
try('LREM', KEYS[2], 1, ARGV[1])
try('LPOP', KEYS[2])
local channel = '{WAKE_CHANNEL}' .. string.match(ARGV[1], '^[^.]*')
try('PUBSUB', 'NUMSUB', channel)
try('PUBLISH', channel, '')
try('DEL', KEYS[1])
try('DEL', KEYS[2])
return failed or time[1] * 1000000 + time[2]
"
    ))
});
