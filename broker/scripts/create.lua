-- create: a run's record, its place in `live` and `runs`, its idempotency entry and its bus entry, in one step.
-- The queue entry follows from the caller (another slot); a crash between is mended, see takeover.lua, REQUEUE.
--
-- KEYS  1 record   2 items   3 control   4 live   5 runs   6 bus   [7 idempotency entry]
-- ARGV  1 run id
--       2 request, JSON
--       3 session id, or ""
--       4 principal, or ""
--       5 what to do when its worker is lost: "fail" or "retry"
--       6 limits, six integers: "item_max_bytes run_max_items run_max_bytes run_ttl_ms record_ttl_ms bus_max_entries";
--         they stay with the run, so that workers in any language need not know them
--       7 name of the queue that it waits in
--       8 digest of the body, no spaces (with KEYS[7])
--       9 run id of an idempotency entry that may be replaced, since its record is gone, or "" (with KEYS[7])
--       10 traceparent of what made it, or "" (8 and 9 are "" then, where there is no KEYS[7]); may be left out
--       11 "wait": it may not be claimed before it was admitted (beat.lua), since its session has one run at a time; or ""
--          (8 to 10 are there then); may be left out
-- Reply {"OK", now, [field, value, …]}   created; the record as HGETALL gives it
--       {"SAME", run id}                 that key and body made this run already
--       {"CONFLICT", run id}             that key made this run from another body
--       {"EXISTS"}                       the run id is taken: a run id is not reused while its record lives

local run = ARGV[1]
local limits = { string.match(ARGV[6], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$') }
if not limits[1] then
  return redis.error_reply('ERR create: limits must be six integers, separated by single spaces')
end

if KEYS[7] then
  local entry = redis.call('GET', KEYS[7])
  if entry then
    local digest, known = string.match(entry, '^(%S+) (%S+)$')
    if known ~= ARGV[9] then
      return { digest == ARGV[8] and 'SAME' or 'CONFLICT', known }
    end
  end
end
if redis.call('EXISTS', KEYS[1]) == 1 then
  return { 'EXISTS' }
end

local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])

-- What an earlier run of that id left behind, should its record have gone first, would be read as this run's items.
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1],
  'status', 'queued', 'owner', '', 'attempt', 1, 'epoch', 1, 'rewound_to', 0, 'rewound_from', '',
  'first', 1, 'last', 0, 'bytes', 0, 'beat', now, 'cancel_requested', '', 'created', now,
  'started', '', 'ended', '', 'session', ARGV[3], 'principal', ARGV[4],
  'request', ARGV[2], 'on_worker_lost', ARGV[5], 'limits', ARGV[6], 'queue', ARGV[7], 'queue_entry', '')
if ARGV[10] and ARGV[10] ~= '' then
  redis.call('HSET', KEYS[1], 'trace', ARGV[10])
end
if ARGV[11] == 'wait' then
  redis.call('HSET', KEYS[1], 'waits', 1)
end
redis.call('ZADD', KEYS[4], now, run)
redis.call('ZADD', KEYS[5], now, run)
redis.call('XADD', KEYS[6], 'MAXLEN', limits[6], '*', 'kind', 'run.created', 'run_id', run, 'session_id', ARGV[3],
  'ts', now, 'd', '{"status":"queued","attempt":1,"last_seq":0}')
if KEYS[7] then
  redis.call('SET', KEYS[7], ARGV[8] .. ' ' .. run, 'PX', limits[5])
end
return { 'OK', now, redis.call('HGETALL', KEYS[1]) }
