-- task_commit: the worker that has a task makes its next version known: first here, then in the checkpoint, then in
-- the task's stream. Whoever takes the task over finds in `change` what the checkpoint may lack, and does it again.
-- A version that people's decisions have overtaken is refused: they come first.
--
-- KEYS  1 record of the task's run   2 task   3 decisions   4 bus
-- ARGV  1 run id   2 owner   3 version   4 id of the last decision that is in it   5 state, JSON
--       6 the change that led to it, JSON   7 its name   8 d of the bus entry, JSON   9 "1" where it ends the task
--       10 "1" where the version is one of people's decision, which need not wait for the decisions behind it
-- Reply, in the order of the checks:
--       {"NOTFOUND"}        no such run
--       {"FENCED"}          the run is not (any more) this owner's: stop, write nothing more, the checkpoint neither
--       {"SEALED"}          the run has its fence
--       {"OK"}              known now; or this same change was known before
--       {"AHEAD", version}  a later version is known: the caller's checkpoint is not the newest
--       {"MOVED"}           there are decisions behind the one in argument 4

local record = redis.call('HMGET', KEYS[1], 'status', 'owner', 'session', 'limits')
if not record[1] then
  return { 'NOTFOUND' }
end
if record[2] == '' or record[2] ~= ARGV[2] then
  return { 'FENCED' }
end
if record[1] ~= 'running' then
  return { 'SEALED' }
end
local known = redis.call('HMGET', KEYS[2], 'version', 'change')
local version, newest = tonumber(ARGV[3]), tonumber(known[1] or '0')
if version == newest and known[2] == ARGV[6] then
  return { 'OK' }
end
if version <= newest then
  return { 'AHEAD', newest }
end
if ARGV[10] ~= '1' and #redis.call('XRANGE', KEYS[3], '(' .. ARGV[4], '+', 'COUNT', 1) > 0 then
  return { 'MOVED' }
end

local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
local record_ttl, bus_max = string.match(record[4], ' (%d+) (%d+)$')
redis.call('HSET', KEYS[2], 'version', ARGV[3], 'decision', ARGV[4], 'state', ARGV[5], 'change', ARGV[6])
-- What is in the version before this one is in the checkpoint; what is in this one is in `change`.
redis.call('XTRIM', KEYS[3], 'MINID', ARGV[4])
if ARGV[9] == '1' then
  redis.call('PEXPIRE', KEYS[2], record_ttl)
  redis.call('PEXPIRE', KEYS[3], record_ttl)
end
redis.call('XADD', KEYS[4], 'MAXLEN', bus_max, '*', 'kind', 'task.' .. ARGV[7], 'run_id', ARGV[1],
  'session_id', record[3], 'ts', now, 'd', ARGV[8])
return { 'OK' }
