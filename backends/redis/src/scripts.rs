//! What runs in the server. Every script can be sent again without harm.
//!
//! The lock's key holds its owner, or `kept ` and a waiter for which the name is kept for a moment
//! after it was woken: others find the name busy, so that nobody snatches it.

use std::sync::LazyLock;

/// For how long a name is kept for a woken waiter, in milliseconds.
pub(crate) const GRACE_MS: u64 = 100;
/// For how long a line outlives the last look of its waiters, in milliseconds: they look every
/// second.
const LINE_MS: u64 = 10_000;
/// For how long the last epoch of a name is kept, in milliseconds. Epochs follow the server's
/// clock, so it matters only where that steps back.
const EPOCH_MS: u64 = 86_400_000;

/// How channels begin; a provider's number follows.
pub(crate) const CHANNEL: &str = "lockkeeper:wake:";
/// What the lock's key holds while the name is kept.
pub(crate) const KEPT: &str = "kept ";

pub(crate) struct Script {
    pub(crate) code: String,
    pub(crate) sha: String,
    pub(crate) does: Deed,
}

/// What is to be heeded about a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// It is not to grant when nobody waits for its answer any more, and the replicas are to know.
    Grants,
    /// The replicas are to know.
    Renews,
    Other,
}

impl Script {
    fn new(does: Deed, code: String) -> Self {
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { code, sha, does }
    }
}

/// Wakes the first waiter whose process listens, and keeps the name for it. A channel without a
/// subscriber means that the process is gone. `NUMSUB` tells; the number that `PUBLISH` answers
/// includes the subscribers of patterns, such as a monitor.
fn pass_on() -> String {
    format!(
        "while true do
  local first = call('LPOP', KEYS[2])
  if not first then break end
  local channel = '{CHANNEL}' .. string.match(first, '^[^.]*')
  if call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    call('PUBLISH', channel, first .. ' ' .. KEYS[1])
    call('SET', KEYS[1], '{KEPT}' .. first, 'PX', '{GRACE_MS}')
    break
  end
end
"
    )
}

/// Keys: lock, epoch, line. Arguments: when it is too late, in microseconds by the server's clock;
/// owner; ttl in milliseconds; and from who waits: the waiter, and how it stands: `new`, `again` (it
/// was in line before) or `last` (it will not wait any longer).
///
/// Answers the epoch of a grant, as a string; or the milliseconds that the name is taken for, and
/// how many are before the waiter; or, when it came too late, the server's time.
///
/// Numbers that the server gets are written as strings: it would have to print them.
pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        Deed::Grants,
        format!(
            "local call, owner, ttl = redis.call, ARGV[2], ARGV[3]
local me, stands = ARGV[4] or '', ARGV[5] or 'new'
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return now end
local mine = call('SET', KEYS[1], owner, 'NX', 'PX', ttl)
if not mine then
  local holder = call('GET', KEYS[1])
  if holder == owner then
    call('PEXPIRE', KEYS[1], ttl)
    local epoch = call('GET', KEYS[2])
    if epoch then
      if stands ~= 'new' then call('LREM', KEYS[3], '0', me) end
      return epoch
    end
    mine = true
  elseif me ~= '' and holder == '{KEPT}' .. me then
    call('SET', KEYS[1], owner, 'PX', ttl)
    mine = true
  end
end
if mine then
  if stands ~= 'new' then call('LREM', KEYS[3], '0', me) end
  local epoch = string.format('%.0f', now)
  local last = redis.pcall('SET', KEYS[2], epoch, 'PX', '{EPOCH_MS}', 'GET')
  if type(last) == 'table' and last.err then
    -- Nothing is rolled back here: a name that cannot be granted must not stay taken.
    call('DEL', KEYS[1])
    return last
  end
  if last and last - now >= 0 then
    epoch = string.format('%.0f', last + 1)
    call('SET', KEYS[2], epoch, 'PX', '{EPOCH_MS}')
  end
  return epoch
end
local before = 0
if stands == 'last' then
  call('LREM', KEYS[3], '0', me)
elseif me ~= '' then
  before = call('LPOS', KEYS[3], me)
  if not before then
    if stands == 'again' then
      call('LPUSH', KEYS[3], me)
      before = 0
    else
      before = call('RPUSH', KEYS[3], me) - 1
    end
  end
  call('PEXPIRE', KEYS[3], '{LINE_MS}')
end
return {{call('PTTL', KEYS[1]), before}}
"
        ),
    )
});

/// Key: lock. Arguments: owner, ttl in milliseconds. Answers 1, or 0 where it is lost.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        Deed::Renews,
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"
        .to_owned(),
    )
});

/// Keys: lock, line. Argument: owner. Answers 1, or 0 where it was lost.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        Deed::Other,
        format!(
            "local call = redis.call
if call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
call('DEL', KEYS[1])
{}return 1
",
            pass_on()
        ),
    )
});

/// Keys: lock, line. Argument: a waiter that does not wait any more. What is kept for it goes to
/// the next.
pub(crate) static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        Deed::Other,
        format!(
            "local call = redis.call
call('LREM', KEYS[2], '0', ARGV[1])
if call('GET', KEYS[1]) == '{KEPT}' .. ARGV[1] then
  call('DEL', KEYS[1])
  {}end
return 1
",
            pass_on()
        ),
    )
});

/// Keys: lock, epoch, line. Changes nothing. Answers who holds it, for how many milliseconds, the
/// last epoch, and how many wait.
pub(crate) const LOOK: &str = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]),
 redis.call('GET', KEYS[2]), redis.call('LLEN', KEYS[3])}";

/// Keys: lock, epoch and line of the empty name, which no lock has. Argument: a waiter. Runs every
/// command that the other scripts use, so that what is not allowed or not there shows on opening.
///
/// Answers the server's time in microseconds, or the first command that failed and how: the error
/// alone does not name it.
pub(crate) static PROBE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        Deed::Other,
        format!(
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
try('SET', KEYS[2], '1', 'PX', 1000, 'GET')
try('RPUSH', KEYS[3], ARGV[1])
try('LPUSH', KEYS[3], ARGV[1])
try('PEXPIRE', KEYS[3], 1000)
try('LPOS', KEYS[3], ARGV[1])
try('LREM', KEYS[3], 1, ARGV[1])
try('LPOP', KEYS[3])
local channel = '{CHANNEL}' .. string.match(ARGV[1], '^[^.]*')
try('PUBSUB', 'NUMSUB', channel)
try('PUBLISH', channel, '')
try('DEL', KEYS[1])
try('DEL', KEYS[2])
try('DEL', KEYS[3])
return failed or time[1] * 1000000 + time[2]
"
        ),
    )
});
