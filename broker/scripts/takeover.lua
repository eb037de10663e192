-- takeover: ends, or queues again, a run whose owner was not heard of for a lease. Compare-and-set on (owner, beat):
-- one of several racing sweepers wins, and an owner that was heard of meanwhile keeps its run. The old owner, awake
-- again, is fenced by the epoch. The lease is the caller's to measure.
--
-- KEYS  1 record   2 items   3 control   4 live   5 runs   6 bus   [7 ids]
-- ARGV  1 run id   2 owner and   3 beat, as they were seen
--       4 how many attempts a run may have that asked for "retry", or is relayed
--       5 d of the `failed` fence and   6 d of the `cancelled` fence, both without ts: JSON objects with at least one field
-- Reply {"FAILED", seq} or {"CANCELLED", seq}   the run has that fence now; `cancelled` if that had been asked
--       {"QUEUED", attempt}   it waits for this next attempt: put it into the queue
--       {"WAITS", session id} it is queued and waits for its turn in its session: nobody but this caller is to look now
--                             whether that has come
--       {"REQUEUE", attempt}  it was queued, and nobody but this caller is to put it into the queue (again) now
--       {"KEPT"}              owner or beat are others by now
--       {"ENDED"}             it has ended
--       {"NOTFOUND"}          it has no record; `live` and `runs` have forgotten it

local run = ARGV[1]
local record = redis.call('HMGET', KEYS[1], 'status', 'owner', 'beat', 'attempt', 'last', 'bytes', 'limits',
  'cancel_requested', 'on_worker_lost', 'session', 'source', 'waits')
local status, attempt, last = record[1], record[4], record[5]
if not status then
  redis.call('ZREM', KEYS[4], run)
  redis.call('ZREM', KEYS[5], run)
  return { 'NOTFOUND' }
end
if status ~= 'queued' and status ~= 'running' then
  redis.call('ZREM', KEYS[4], run)
  return { 'ENDED' }
end
if record[2] ~= ARGV[2] or record[3] ~= ARGV[3] then
  return { 'KEPT' }
end

local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
if status == 'queued' then
  redis.call('HSET', KEYS[1], 'beat', now, 'queue_entry', '')
  if record[12] then
    return { 'WAITS', record[10] }
  end
  return { 'REQUEUE', tonumber(attempt) }
end

local run_ttl, record_ttl, bus_max = string.match(record[7], ' (%d+) (%d+) (%d+)$')
local function announce(kind, state)
  redis.call('XADD', KEYS[6], 'MAXLEN', bus_max, '*', 'kind', kind, 'run_id', run, 'session_id', record[10],
    'ts', now, 'd', '{"status":"' .. state .. '","attempt":' .. attempt .. ',"last_seq":' .. last .. '}')
end

local function fence_off_the_owner()
  redis.call('DEL', KEYS[3])
  redis.call('HINCRBY', KEYS[1], 'epoch', 1)
  redis.call('HDEL', KEYS[1], 'lingers')
  redis.call('HSET', KEYS[1], 'rewound_to', record[5], 'rewound_from', '', 'beat', now)
end

-- A run that its owner only relays from elsewhere (`source`) is not executed again by a further attempt: it goes on,
-- also to carry a cancel there.
local again = record[11] or (record[9] == 'retry' and record[8] == '')
if again and tonumber(attempt) < tonumber(ARGV[4]) then
  fence_off_the_owner()
  if not record[11] then
    -- The lost attempt is void, but paid for: what it told of its cost stays, a line an attempt.
    local told = redis.call('HMGET', KEYS[1], 'cost', 'earlier')
    redis.call('HSET', KEYS[1], 'earlier', (told[2] or '') .. (told[1] or '{}') .. '\n')
    redis.call('HDEL', KEYS[1], 'usage', 'cost')
  end
  attempt = redis.call('HINCRBY', KEYS[1], 'attempt', 1)
  redis.call('HSET', KEYS[1], 'status', 'queued', 'owner', '', 'queue_entry', '')
  announce('run.requeued', 'queued')
  return { 'QUEUED', attempt }
end

local fence = record[8] == '' and 'failed' or 'cancelled'
local d = '{"ts":' .. now .. ',' .. string.sub(fence == 'failed' and ARGV[5] or ARGV[6], 2)
last = string.format('%.0f', tonumber(last) + 1)
redis.call('XADD', KEYS[2], last .. '-0', 't', fence, 'd', d)
fence_off_the_owner()
redis.call('HSET', KEYS[1], 'status', fence, 'ended', now, 'last', last,
  'bytes', string.format('%.0f', tonumber(record[6]) + #fence + #d),
  'outcome', '{"type":"' .. fence .. '","seq":' .. last .. ',"item":' .. d .. '}')
redis.call('PEXPIRE', KEYS[2], math.min(tonumber(run_ttl), tonumber(record_ttl)))
if KEYS[7] then
  redis.call('PEXPIRE', KEYS[7], math.min(tonumber(run_ttl), tonumber(record_ttl)))
end
redis.call('PEXPIRE', KEYS[1], record_ttl)
redis.call('ZREM', KEYS[4], run)
announce('run.' .. fence, fence)
return { string.upper(fence), tonumber(last) }
