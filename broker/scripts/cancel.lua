-- cancel: a durable request to stop. A queued run is fenced at once, unless it is relayed; the owner of a running one
-- is told through the control stream, once, and finds `cancel_requested` in the reply to each beat besides. Repeats are
-- harmless.
--
-- KEYS  1 record   2 items   3 control   4 live   5 bus   [6 ids]
-- ARGV  1 run id   2 d of the `cancelled` fence without ts: a JSON object with at least one field
-- Reply {"OK", "running"}          its owner is asked to stop
--       {"OK", "queued"}           its next owner is: it is a relayed run (it has a `source`) between two of them
--       {"OK", "cancelled", seq}   it was queued, and has its fence now
--       {"ENDED", status, asked}   it had ended; asked: 1 if a cancel had been asked before it ended, else 0
--       {"NOTFOUND"}

local run = ARGV[1]
local record = redis.call('HMGET', KEYS[1], 'status', 'cancel_requested', 'last', 'bytes', 'attempt', 'limits',
  'session', 'source')
local status, last = record[1], record[3]
if not status then
  return { 'NOTFOUND' }
end
if status ~= 'queued' and status ~= 'running' then
  return { 'ENDED', status, record[2] ~= '' and 1 or 0 }
end

local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
local run_ttl, record_ttl, bus_max = string.match(record[6], ' (%d+) (%d+) (%d+)$')
local function announce(kind, state)
  redis.call('XADD', KEYS[5], 'MAXLEN', bus_max, '*', 'kind', kind, 'run_id', run, 'session_id', record[7],
    'ts', now, 'd', '{"status":"' .. state .. '","attempt":' .. record[5] .. ',"last_seq":' .. last .. '}')
end

-- A run that its owner relays from elsewhere goes on after its worker was lost, also to carry the cancel there.
if status == 'running' or record[8] then
  if record[2] == '' then
    redis.call('HSET', KEYS[1], 'cancel_requested', now)
    redis.call('XADD', KEYS[3], '*', 't', 'cancel', 'd', '{"ts":' .. now .. '}')
    announce('run.cancel_requested', status)
  end
  return { 'OK', status }
end

local d = '{"ts":' .. now .. ',' .. string.sub(ARGV[2], 2)
last = string.format('%.0f', tonumber(last) + 1)
redis.call('XADD', KEYS[2], last .. '-0', 't', 'cancelled', 'd', d)
redis.call('HSET', KEYS[1], 'status', 'cancelled', 'cancel_requested', now, 'ended', now, 'last', last,
  'bytes', string.format('%.0f', tonumber(record[4]) + 9 + #d), 'queue_entry', '',
  'outcome', '{"type":"cancelled","seq":' .. last .. ',"item":' .. d .. '}')
redis.call('PEXPIRE', KEYS[2], math.min(tonumber(run_ttl), tonumber(record_ttl)))
if KEYS[6] then
  redis.call('PEXPIRE', KEYS[6], math.min(tonumber(run_ttl), tonumber(record_ttl)))
end
redis.call('PEXPIRE', KEYS[1], record_ttl)
redis.call('DEL', KEYS[3])
redis.call('ZREM', KEYS[4], run)
announce('run.cancelled', 'cancelled')
return { 'OK', 'cancelled', tonumber(last) }
