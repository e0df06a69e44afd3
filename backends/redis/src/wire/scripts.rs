//! The scripts that run in the server: their commands, code and replies. Every script can be repeated without harm.
//!
//! A name has one key, and the permits of a name have another. Its forms:
//! - no key while the name is free;
//! - a string while there is one lease or one reservation, and no waiter: its text, which expires with the
//!   key;
//! - otherwise a sorted set. The score of a lease or a reservation is the time at which it ends, in milliseconds of
//!   the server's clock. The waiters have negative scores, in the order of their arrival.
//!
//! The text of a lease is the time of its epoch, its slot if not 0, its mode (`x`, `s` or `/LIMIT`), and its owner.
//! Examples are `1732291200.5 x OWNER` and `1732291200.6 3/5 OWNER`. A waiter is `PROVIDER.NUMBER.MODE`. A notified
//! waiter leaves the queue, and the name is reserved for it for [`RESERVED_MS`]. Meanwhile other callers find the
//! name busy.
//!
//! One key keeps the last epoch of a namespace; in a cluster, one of each bucket of names: see
//! [`keys`](crate::wire::keys). It never expires, since a lock may live for any time. On one server it is not among the
//! `KEYS` of a script, since it has another slot than the lock; a node that has all slots runs the script nevertheless. In
//! a cluster it is, and has the lock's slot.
//!
//! The scripts mint microseconds, and Rust makes epochs of them, since a Lua number is exact only up to 2^53. A
//! single lease is a string, since SET NX PX is one command, and a sorted set needs two more. MGET reads it, since
//! GET fails on a sorted set.

use std::sync::LazyLock;

use redis::{Value, cmd};

/// The time that a name is reserved for a woken waiter, in milliseconds.
const RESERVED_MS: u64 = 500;
/// The time that a sorted set outlives its last change, in milliseconds. Waiters make an attempt every second.
const QUEUE_MS: u64 = 10_000;
/// The score of a waiter that must be the first one. For other waiters, the server's time in microseconds is
/// added. The sum is below zero, and exact.
const FIRST_WAITER: i64 = -(1 << 53);
/// The prefix of the channels that wake waiters, followed by a provider's number.
pub(crate) const WAKE_CHANNEL: &str = "lockkeeper:wake:";

pub(crate) struct Script {
    code: String,
    sha: String,
}

impl Script {
    pub(crate) fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { code, sha }
    }

    /// Returns the command that runs the script. If it does not load the script, the server must have it.
    pub(crate) fn command(&self, loads: bool, keys: &[&str], args: &[&str]) -> Vec<u8> {
        let (verb, script) = match loads {
            true => ("EVAL", &self.code),
            false => ("EVALSHA", &self.sha),
        };
        let mut command = cmd(verb);
        command.arg(script).arg(keys.len()).arg(keys).arg(args);
        command.get_packed_command()
    }
}

/// What [`ACQUIRE`] and [`PROPOSE`] reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// A lease in this slot, with an epoch of this time in microseconds of the server's clock.
    Granted { minted: i64, slot: i64 },
    /// The milliseconds until the first of the leases ends, and the number of waiters before this one.
    Busy { ends: i64, before: i64 },
    /// Permits of this other limit are held.
    OtherLimit(i64),
    /// The proposed epoch is not larger than the last one, which has this time in microseconds.
    EpochTooSmall(i64),
    /// The request arrived after the latest time for a grant, at this time in microseconds of the server's clock.
    Late(i64),
}

impl Reply {
    /// Reads a reply; `None` if it is an error, or not the script's.
    pub(crate) fn read(reply: &Value) -> Option<Self> {
        let items = match reply {
            Value::Int(minted) => {
                let minted = *minted;
                return Some(Reply::Granted { minted, slot: 0 });
            }
            Value::Array(items) => &**items,
            _ => return None,
        };
        Some(match items {
            [Value::Int(minted), Value::Int(slot)] => {
                let (minted, slot) = (*minted, *slot);
                Reply::Granted { minted, slot }
            }
            [Value::BulkString(tag), Value::Int(ends), Value::Int(before)] if tag == b"busy" => {
                let (ends, before) = (*ends, *before);
                Reply::Busy { ends, before }
            }
            [Value::BulkString(tag), Value::Int(limit)] if tag == b"limit" => {
                Reply::OtherLimit(*limit)
            }
            [Value::BulkString(tag), Value::Int(last)] if tag == b"small" => {
                Reply::EpochTooSmall(*last)
            }
            [Value::BulkString(tag), Value::Int(now)] if tag == b"late" => Reply::Late(*now),
            _ => return None,
        })
    }
}

/// Returns whether the server does not have the script: it is new there, or was forgotten by SCRIPT FLUSH
/// or a restart.
pub(crate) fn is_no_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// What the scripts have in common: the name's state, and the rule which modes can be held together.
///
/// Needs `call`, `time`, `key`, `me` (a waiter, or `nil`) and `single` (the string that the key holds, or `false`).
fn state_of_name() -> String {
    format!(
        "local sub, match = string.sub, string.match
-- As text, which the commands take fastest.
local ms = time[1] .. sub(1000000 + time[2], 2, 4)
if not single then call('ZREMRANGEBYSCORE', key, '0', ms) end
-- The leases that are live, and the waiter for which the name is reserved.
local live, kept
local function read()
  live, kept = {{}}, nil
  -- Without the scores: there may be many leases, and to write a score as text takes longest.
  for _, lease in ipairs(single and {{single}} or call('ZRANGEBYSCORE', key, '0', '+inf')) do
    if sub(lease, 1, 5) == 'kept ' then kept = sub(lease, 6) else live[#live + 1] = lease end
  end
end
-- Returns the milliseconds until the first lease or reservation ends.
local function left()
  if not single then
    return call('ZRANGEBYSCORE', key, '0', '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2] - ms
  end
  local left = call('PTTL', key)
  -- A key of another program may have no end.
  return left < 0 and 2^52 or left
end
-- Returns where in `live` the lease is that ends with this text.
local function find(text)
  for at, lease in ipairs(live) do
    if sub(lease, -#text) == text then return at end
  end
end
-- Returns whether a lease of this mode can be granted beside those that are live, which agree with each
-- other; and their limit if it is another one.
local function fits(mode)
  local held = live[1] and (match(live[1], '^%S+ %d*(%S+)') or '')
  if held and held ~= mode then
    return false, match(mode .. held, '^/%d+/(%d+)$')
  end
  return mode == 's' or #live < (tonumber(sub(mode, 2)) or 1)
end
-- Makes the sorted set last for at least so long.
local function keep_for(span)
  call('PEXPIRE', key, math.max(live[1] and call('PTTL', key) or 0, span, {QUEUE_MS}))
end
-- Adds what the string was, or a lease, or moves its end.
local function put(lease, ttl)
  call('ZADD', key, ms + ttl, lease)
  keep_for(ttl)
end
-- Removes the waiter.
local function forget()
  if not single then
    call('ZREM', key, me, 'kept ' .. me)
  elseif kept == me then
    call('DEL', key)
  end
  if kept == me then kept = nil end
end
-- Returns the first waiter. Those before it are gone: no process listens for them. NUMSUB counts these, since the
-- reply to PUBLISH includes the subscribers of patterns, such as a monitor.
local function first_waiter()
  while not single do
    local first = call('ZRANGEBYSCORE', key, '-inf', '(0', 'LIMIT', '0', '1')[1]
    if not first or first == me then return first end
    local channel = '{WAKE_CHANNEL}' .. match(first, '^[^.]*')
    if call('PUBSUB', 'NUMSUB', channel)[2] > 0 then return first, channel end
    call('ZREM', key, first)
  end
end
-- Wakes the first waiter if there is something for it, and reserves the name for it. If it only keeps others out, asks
-- its process to take it out of the queue unless it still waits.
local function wake(first, channel, keeps_out)
  if not channel then return end
  local fit, other = fits(match(first, '[^.]*$'))
  if fit or other then
    call('ZREM', key, first)
    local reserved = 'kept ' .. first
    if call('SET', key, reserved, 'NX', 'PX', '{RESERVED_MS}') then
      single = reserved
    else
      call('ZADD', key, ms + {RESERVED_MS}, reserved)
    end
    call('PUBLISH', channel, first .. ' ' .. key)
  elseif keeps_out then
    call('PUBLISH', channel, first .. '? ' .. key)
  end
end
"
    )
}

/// Tries to acquire a name.
///
/// Key: lock. The arguments are the latest time for a grant in microseconds of the server's clock, mode and
/// owner, ttl in milliseconds, and the epoch key. In a cluster the epoch key is the second key as well. An
/// attempt of a waiter adds the waiter and its state. The state is `new`, `queued` (it is in the queue) or `last`
/// (it will not wait longer).
///
/// The reply is a [`Reply`]. A double holds its times exactly until 2255.
pub(crate) static ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| acquire("local me, state = ARGV[5], ARGV[6]\n", MINT));

/// Tries to acquire a name with an epoch that the request proposes. It is [`ACQUIRE`] with a further
/// argument, the proposed time of the epoch in microseconds. The waiter and its state are empty.
pub(crate) static PROPOSE: LazyLock<Script> =
    LazyLock::new(|| acquire("local me, state = nil, nil\n", PROPOSED));

/// Gives a lease to another holder, with a larger epoch.
///
/// Key and arguments are those of [`ACQUIRE`], and instead of a waiter the part of the lease that stays the same: ` x `,
/// and what the owner begins with. The reply is that of an attempt, busy without that lease.
pub(crate) static RESUME: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "{BEGIN}{VALUES}{MINT}local id, me = ARGV[5], nil
local single = call('MGET', key)[1]
if single and not is_lease(single) then return foreign(key) end
{}read()
for _, lease in ipairs(live) do
  if string.find(lease, id, 1, true) then
    local failed = mint()
    if failed then return failed end
    if single then
      call('SET', key, stamp .. owner, 'PX', ttl)
    else
      call('ZREM', key, lease)
      put(stamp .. owner, ttl)
    end
    return minted
  end
end
return {{'busy', 0, 0}}
",
        state_of_name()
    ))
});

/// Recognises the values that these scripts write. Other values belong to other programs, and are not
/// changed.
const VALUES: &str = "-- Microseconds since 1970.
local function is_time(text) return #text <= 16 and string.find(text, '^%d+$') end
-- A lease names its host, also that of an earlier version.
local function is_lease(text)
  return string.find(text, '^kept ') or string.find(text, ' host=', 1, true)
end
local function foreign(key) return {err = 'WRONGTYPE the value of ' .. key .. ' is not one of lockkeeper'} end
";

/// Makes the time of the epoch larger than the last one.
const MINT: &str = "local minted, stamp = now, time[1] .. '.' .. time[2] .. ' '
-- Makes the time of the epoch larger than the last one. Returns an error if that fails.
local function mint()
  local last = redis.pcall('SET', ARGV[4], now, 'GET')
  if last and last.err then return last end
  if last and not is_time(last) then
    call('SET', ARGV[4], last)
    return foreign(ARGV[4])
  end
  if last and last - now >= 0 then
    minted = last + 1
    call('SET', ARGV[4], minted)
    local micros = minted % 1000000
    stamp = string.format('%.0f.%.0f ', (minted - micros) / 1000000, micros)
  end
end
";

/// Takes the proposed time for the epoch if it is larger than the last one.
const PROPOSED: &str = "local minted = tonumber(ARGV[7])
local micros = minted % 1000000
local stamp = string.format('%.0f.%.0f ', (minted - micros) / 1000000, micros)
-- Returns an error if that fails.
local function mint()
  local last = redis.pcall('MGET', ARGV[4])
  if last.err then return last end
  if last[1] and not is_time(last[1]) then return foreign(ARGV[4]) end
  if last[1] and last[1] - minted >= 0 then return {'small', tonumber(last[1])} end
  local set = redis.pcall('SET', ARGV[4], ARGV[7])
  if set.err then return set end
end
";

/// Reads the arguments, and refuses a request that is late.
const BEGIN: &str = "local call, key, owner, ttl = redis.call, KEYS[1], ARGV[2], ARGV[3]
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > tonumber(ARGV[1]) then return {'late', now} end
-- On a node of a cluster that gives the slot away, a key that this script deletes is not found again, and the script
-- would end with half of its work. A key that never was ends it there before it changes anything.
if KEYS[2] then call('PTTL', KEYS[2] .. ':none') end
";

/// Returns the script that acquires a name, with the code that reads its waiter, and that sets the time of its epoch.
fn acquire(waiter: &str, mint: &str) -> Script {
    Script::new(format!(
        "{BEGIN}{VALUES}{waiter}{mint}local taken = stamp
if call('SET', key, stamp .. owner, 'NX', 'PX', ttl) then
  local failed = mint()
  if failed then
    -- A script is not rolled back: a name that cannot be granted must not stay taken.
    call('DEL', key)
    return failed
  end
  if stamp ~= taken then call('SET', key, stamp .. owner, 'PX', ttl) end
  return minted
end
local single = call('MGET', key)[1]
if single and not is_lease(single) then return foreign(key) end
{state_of_name}
local function use_set()
  if single then
    local span = left()
    call('DEL', key)
    put(single, span)
    single = false
  end
end
read()
local own = live[find(owner)]
if own then
  if single then
    call('PEXPIRE', key, ttl)
  else
    put(own, ttl)
    if me then forget() end
  end
  local seconds, micros, slot = match(own, '^(%d+)%.(%d+) (%d*)')
  return {{seconds * 1000000 + micros, tonumber(slot) or 0}}
end
local mode = match(owner, '^%S+')
local fit, other = fits(mode)
if other then return {{'limit', tonumber(other)}} end
local first, channel = kept, nil
if not kept then first, channel = first_waiter() end
if fit and (not first or first == me) then
  local failed = mint()
  if failed then return failed end
  if single and kept then
    call('SET', key, stamp .. owner, 'PX', ttl)
    return minted
  end
  use_set()
  if me then forget() end
  local slot, used = 0, {{}}
  if mode ~= 's' then
    for _, lease in ipairs(live) do
      used[tonumber(match(lease, '^%S+ (%d*)')) or 0] = true
    end
    while used[slot] do slot = slot + 1 end
  end
  local lease = stamp .. (slot > 0 and slot or '') .. owner
  put(lease, ttl)
  live[#live + 1] = lease
  if first and mode ~= 'x' then wake(first_waiter()) end
  return {{minted, slot}}
end
local before = 0
if state == 'last' then
  forget()
  if not kept then first, channel = first_waiter() end
elseif me then
  use_set()
  local score = state == 'new' and now + {FIRST_WAITER} or {FIRST_WAITER}
  call('ZADD', key, 'NX', score, me)
  keep_for(0)
  before = call('ZRANK', key, me)
end
wake(first, channel, fit)
return {{'busy', left(), before}}
",
        state_of_name = state_of_name()
    ))
}

/// Renews a lease. Key: lock. Arguments: the lease, ttl in milliseconds.
///
/// Replies with the server's time in microseconds, below zero if the lease is lost.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local call, key, lease, ttl = redis.call, KEYS[1], ARGV[1], tonumber(ARGV[2])
local single, time = call('MGET', key)[1], call('TIME')
local now = time[1] * 1000000 + time[2]
if single then
  if single ~= lease then return -now end
  call('PEXPIRE', key, ttl)
  return now
end
local ms = math.floor(now / 1000)
local ends = call('ZSCORE', key, lease)
if not ends or tonumber(ends) <= ms then return -now end
-- First, since a full server takes a script's ZADD only after another write.
call('PEXPIRE', key, math.max(ttl, call('PTTL', key)))
call('ZADD', key, ms + ttl, lease)
return now
",
    )
});

/// Releases a lease. Key: lock. Argument: the lease, or only its mode and owner if the reply to the
/// grant was lost. Replies with 1, or 0 if the lease was lost.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "local call, key, lease = redis.call, KEYS[1], ARGV[1]
local single, me = call('MGET', key)[1], nil
if single then
  if string.sub(single, -#lease) ~= lease then return 0 end
  return call('DEL', key)
end
local time = call('TIME')
{}-- There may be many leases. They are read if only the owner is known, or if there is a waiter.
if call('ZREM', key, lease) == 0 then
  read()
  lease = live[find(lease)]
  if not lease then return 0 end
  call('ZREM', key, lease)
end
local first, channel = first_waiter()
if channel then
  -- Beside an exclusive lease there is no other.
  if match(lease, '^%S+ x ') then live = {{}} else read() end
  if not kept then wake(first, channel) end
end
return 1
",
        state_of_name()
    ))
});

/// Removes a waiter. Key: lock. Argument: the waiter. Its reservation, or a name that only it waited for,
/// goes to the next waiter.
pub(crate) static LEAVE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "local call, key, me = redis.call, KEYS[1], ARGV[1]
local single, time = call('MGET', key)[1], call('TIME')
{}read()
forget()
if not kept then wake(first_waiter()) end
return 1
",
        state_of_name()
    ))
});

/// Inspects a name without a change. Key: lock. Replies with the number of waiters, and for each lease with
/// its text and the milliseconds until it ends.
pub(crate) static INSPECT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local call, key = redis.call, KEYS[1]
local single = call('MGET', key)[1]
if single and string.sub(single, 1, 5) == 'kept ' then return {0, {}} end
if single then return {0, {{single, call('PTTL', key)}}} end
local time = call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local leases = {}
local found = call('ZRANGEBYSCORE', key, '(' .. ms, '+inf', 'WITHSCORES')
for at = 1, #found, 2 do
  if string.sub(found[at], 1, 5) ~= 'kept ' then
    leases[#leases + 1] = {found[at], found[at + 1] - ms}
  end
end
return {call('ZCOUNT', key, '-inf', '(0'), leases}
",
    )
});

/// Runs every command that the other scripts use, so that a missing permission or command shows on
/// opening. Key: that of the empty name, which no lock has. Arguments: a waiter; the epoch key, which in a cluster is the
/// second key as well.
///
/// Replies with the server's time in microseconds, or with the first command that failed and its
/// error. The error alone does not name the command.
pub(crate) static PROBE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(format!(
        "{VALUES}local failed = nil
local function try(...)
  local answer = redis.pcall(...)
  if not failed and type(answer) == 'table' and answer.err then
    failed = {{(...), answer.err}}
  end
  return answer
end
local time = try('TIME')
try('SET', KEYS[1], ARGV[1], 'NX', 'PX', 1000)
try('SET', KEYS[1], ARGV[1], 'PX', 1000, 'GET')
try('MGET', KEYS[1])
try('PTTL', KEYS[1])
try('PEXPIRE', KEYS[1], 1000)
try('DEL', KEYS[1])
try('ZADD', KEYS[1], 'NX', 0, ARGV[1])
try('PEXPIRE', KEYS[1], 1000)
try('ZREMRANGEBYSCORE', KEYS[1], 1, 1)
try('ZRANGEBYSCORE', KEYS[1], 0, '+inf', 'WITHSCORES')
try('ZRANK', KEYS[1], ARGV[1])
try('ZSCORE', KEYS[1], ARGV[1])
try('ZREM', KEYS[1], ARGV[1])
try('DEL', KEYS[1])
local channel = '{WAKE_CHANNEL}' .. string.match(ARGV[1], '^[^.]*')
try('PUBSUB', 'NUMSUB', channel)
try('PUBLISH', channel, '')
-- The value stays as it is. If it cannot be read, nothing may be written.
local last = try('MGET', ARGV[2])
if failed then return failed end
last = last[1]
if last and not is_time(last) then return {{'SET', foreign(ARGV[2]).err}} end
try('SET', ARGV[2], last or '0', 'GET')
if not last and not failed then try('DEL', ARGV[2]) end
return failed or time[1] * 1000000 + time[2]
"
    ))
});
