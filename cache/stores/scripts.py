"""The Lua scripts of the Redis store, and the keys they work on.

All keys of a shard share a hash tag, so one script may touch them together on a cluster, too:

    {fbN}:1:entry:OWNER:ID   hash, expires by itself   one entry; OWNER is a digest of its tenant
    {fbN}:1:use              sorted set   ids by when they were used last, in microseconds
    {fbN}:1:vec              sorted set   the same, of those that the semantic layer has
    {fbN}:1:exp              sorted set   ids by when they expire, in microseconds
    {fbN}:1:meta             hash         id to "SIZE OWNER"
    {fbN}:1:sum              hash         seq (number of the last event), bytes, evicted, expired
    {fbN}:1:log              stream       events, numbered without a gap: p = id that was put, g = ids that are gone

`1` is the version of this layout: another one never reads it. Time is the server's. The books outlive the entries a
while and then expire, too, so nothing stays behind when nobody writes any more.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b

from core.redis_link import Script

SCHEMA = 1
_ID = re.compile(r"[0-9a-f]{32}")


def is_id(key: str) -> bool:
    """Whether this may be the id of an entry."""
    return _ID.fullmatch(key) is not None


def shard_of(key: str, shards: int) -> int:
    """Which shard an id lies in."""
    return int(key[:8], 16) % shards


def owner(tenant: str) -> str:
    """The tenant as it stands in keys: of one length, without characters that mean something there."""
    return blake2b(tenant.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Keys:
    """The keys of one shard."""

    shard: str

    def of(self, name: str) -> str:
        """A key that is there once."""
        return f"{self.entries.removesuffix('entry:')}{name}"

    def entry(self, tenant: str, key: str) -> str:
        """The key of one entry."""
        return f"{self.entries}{owner(tenant)}:{key}"

    @property
    def entries(self) -> str:
        """What the keys of entries begin with."""
        return f"{{fb{self.shard}}}:{SCHEMA}:entry:"

    @property
    def books(self) -> list[str]:
        """The keys that `BOOKS` names."""
        return [self.of(name) for name in ("use", "vec", "exp", "meta", "sum", "log")]


# KEYS[1] to KEYS[6] are Keys.books, ARGV[1] what the keys of entries begin with.
BOOKS = """
local use, vec, exp, meta, sum, log = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local gone = {}
local function strike(id)
  local kept = redis.call('HGET', meta, id)
  if not kept then
    redis.call('ZREM', use, id); redis.call('ZREM', vec, id); redis.call('ZREM', exp, id)
    return 0
  end
  local size, owner = string.match(kept, '^(%d+) (%x+)$')
  local there = redis.call('DEL', ARGV[1] .. owner .. ':' .. id)
  redis.call('ZREM', use, id); redis.call('ZREM', vec, id); redis.call('ZREM', exp, id)
  redis.call('HDEL', meta, id)
  redis.call('HINCRBY', sum, 'bytes', -size)
  return there
end
local function sweep(most)
  local late = redis.call('ZRANGEBYSCORE', exp, '-inf', now, 'LIMIT', 0, most)
  for _, id in ipairs(late) do strike(id) end
  if #late > 0 then redis.call('HINCRBY', sum, 'expired', #late) end
  return #late
end
local function tell(put, cap)
  if redis.call('HSETNX', sum, 'seq', string.format('%.0f', now)) == 1 then redis.call('PEXPIRE', sum, 86400000) end
  if not put and #gone == 0 then return end
  local seq = redis.call('HINCRBY', sum, 'seq', 1)
  local number = string.format('%.0f-0', seq)
  redis.call('XADD', log, 'MAXLEN', '~', cap, number, 'p', put or '', 'g', table.concat(gone, ' '))
  return seq
end
"""

# KEYS: an entry, use, vec. ARGV: its id, 1 to mark it as used.
READ = Script("""
local found = redis.call('HMGET', KEYS[1], 'fp', 'tenant', 'tier', 'partition', 'body', 'life')
local left = redis.call('PTTL', KEYS[1])
if not found[1] or left < 0 then return false end
if ARGV[2] == '1' then
  local clock = redis.call('TIME')
  local now = clock[1] * 1000000 + clock[2]
  redis.call('ZADD', KEYS[2], 'XX', now, ARGV[1])
  redis.call('ZADD', KEYS[3], 'XX', now, ARGV[1])
end
found[6] = found[6] - left
return found
""")

# ARGV: 2 id, 3 owner, 4 lifetime in ms, 5 size, 6 most bytes, 7 most vectors, 8 events kept, 9 1 where it has a vector,
# then names and values of the entry's fields. Returns 0 where it is too large, else the event's number and who is gone.
# What leaves at one time is limited: each call adds one entry, so the bounds are reached all the same.
WRITE = Script(
    BOOKS
    + """
local id, owner, life, size = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local most_bytes, most_vectors, cap, vector = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9] == '1'
sweep(100)
local before = strike(id)
if size > most_bytes then
  if before == 1 then gone[1] = id end
  tell(nil, cap)
  return {0, gone}
end
local key = ARGV[1] .. owner .. ':' .. id
redis.call('HSET', key, 'life', life, unpack(ARGV, 10))
redis.call('PEXPIRE', key, life)
redis.call('ZADD', use, now, id)
if vector then redis.call('ZADD', vec, now, id) end
redis.call('ZADD', exp, now + life * 1000, id)
redis.call('HSET', meta, id, string.format('%.0f', size) .. ' ' .. owner)
local bytes = redis.call('HINCRBY', sum, 'bytes', size)
local function evict(from)
  local oldest = redis.call('ZRANGE', from, 0, 0)[1]
  if not oldest then return false end
  strike(oldest)
  gone[#gone + 1] = oldest
  return true
end
while #gone < 200 and redis.call('ZCARD', vec) > most_vectors do
  if not evict(vec) then break end
end
while #gone < 200 and tonumber(redis.call('HGET', sum, 'bytes')) > most_bytes do
  if not evict(use) then break end
end
if #gone > 0 then redis.call('HINCRBY', sum, 'evicted', #gone) end
local seq = tell(id, cap)
redis.call('HSET', key, 'seq', string.format('%.0f', seq))
for number = 1, 6 do
  if redis.call('PTTL', KEYS[number]) < 2 * life then redis.call('PEXPIRE', KEYS[number], 3 * life) end
end
return {seq, gone}
"""
)

# ARGV: 2 events kept, then ids. Returns how many were there.
REMOVE = Script(
    BOOKS
    + """
local count = 0
for number = 3, #ARGV do
  if strike(ARGV[number]) == 1 then
    count = count + 1
    gone[#gone + 1] = ARGV[number]
  end
end
tell(nil, ARGV[2])
return count
"""
)

# ARGV: 2 events kept, 3 cursor, 4 owner or nothing for all. Returns the next cursor and how many were there.
PURGE = Script(
    BOOKS
    + """
local page = redis.call('HSCAN', meta, ARGV[3], 'COUNT', 200)
local count = 0
for number = 1, #page[2], 2 do
  local id, owner = page[2][number], string.match(page[2][number + 1], '^%d+ (%x+)$')
  if ARGV[4] == '' or ARGV[4] == owner then
    count = count + strike(id)
    gone[#gone + 1] = id
  end
end
tell(nil, ARGV[2])
return {page[1], count}
"""
)

# Returns how many had expired (at most 1000 at a time), entries, vectors, bytes, evicted, expired.
SIZES = Script(
    BOOKS
    + """
local late = sweep(1000)
local found = redis.call('HMGET', sum, 'bytes', 'evicted', 'expired')
return {late, redis.call('HLEN', meta), redis.call('ZCARD', vec), tonumber(found[1] or 0), tonumber(found[2] or 0),
  tonumber(found[3] or 0)}
"""
)

# ARGV: 2 number of an event, 3 how many. Returns the last event's number, and those after the given one.
FOLLOW = Script(
    BOOKS
    + """
tell(nil, 0)
local last = tonumber(redis.call('HGET', sum, 'seq'))
return {last, redis.call('XRANGE', log, '(' .. ARGV[2] .. '-0', '+', 'COUNT', ARGV[3])}
"""
)

# KEYS: vec. ARGV: cursor. Returns the next cursor and ids.
LIST = Script("""
local page = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', 500)
local ids = {}
for number = 1, #page[2], 2 do ids[#ids + 1] = page[2][number] end
return {page[1], ids}
""")

# KEYS: meta. ARGV: 1 what the keys of entries begin with, 2 namespace, then ids and the versions that are known of them
# (0: none). Returns for each: 0 not there, or of another embedder; 1 still that version; else version, age in ms,
# partition, text, vector.
FETCH = Script("""
local found = {}
for number = 3, #ARGV, 2 do
  local id, version = ARGV[number], ARGV[number + 1]
  local kept, answer = redis.call('HGET', KEYS[1], id), 0
  if kept then
    local key = ARGV[1] .. string.match(kept, '^%d+ (%x+)$') .. ':' .. id
    local row = redis.call('HMGET', key, 'seq', 'ns', 'life')
    if row[1] and row[2] == ARGV[2] then
      answer = 1
      if row[1] ~= version then
        local rest = redis.call('HMGET', key, 'partition', 'text', 'vec')
        answer = {tonumber(row[1]), row[3] - redis.call('PTTL', key), rest[1], rest[2], rest[3]}
      end
    end
  end
  found[#found + 1] = answer
end
return found
""")
