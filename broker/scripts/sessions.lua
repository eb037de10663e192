-- sessions: the index of all sessions, by when something last happened to them, and what its followers are told.
-- It follows `session` from the same caller (another slot); whoever repeats that repeats this, so a crash between the
-- two is mended, and nothing is told twice.
--
-- KEYS  1 index   2 changes   3 version
-- ARGV  1 session id
--       2 when it was updated, in seconds
--       3 reason, [a-z_]{1,32}
--       4 most entries of the changes
-- Reply {"OK", 0}             that, or something newer, is known
--       {"OK", version}       told, under this version: the number of changes so far

local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
if known and tonumber(known) >= tonumber(ARGV[2]) then
  return { 'OK', 0 }
end
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[1])
local version = redis.call('INCR', KEYS[3])
redis.call('XADD', KEYS[2], 'MAXLEN', ARGV[4], '*', 'session', ARGV[1], 'reason', ARGV[3], 'version', version)
return { 'OK', version }
