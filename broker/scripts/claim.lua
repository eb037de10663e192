-- claim: compare-and-set queued → running on (run, attempt). Exactly one of several claimers wins.
-- Repeated by the winner, whose reply was lost, it answers OK again.
--
-- KEYS  1 record   2 bus
-- ARGV  1 run id   2 attempt   3 owner: a token of the claimer's own, unique for each claim, not empty
--       4 "lingers": the claimer says when all is cleared up that the run leaves behind its fence (session.lua, free), and
--         until then its session's next run does not begin; or "". May be left out
-- Reply {"OK", now, [field, value, …]}   the run is this owner's; the record as HGETALL gives it.
--                                        Append with this owner, the record's `epoch`, from seq `last` + 1.
--       {"REFUSED", reason}              reason: "gone", "ended", "claimed", "attempt", or "waits": it is not its turn
--                                        in its session yet, and it is queued again when it is.
--                                        The queue's entry is then of no use: acknowledge and delete it.

local run, attempt, owner = ARGV[1], ARGV[2], ARGV[3]
if not owner or owner == '' then
  return redis.error_reply('ERR claim: the owner must not be empty')
end
local record = redis.call('HMGET', KEYS[1], 'status', 'owner', 'attempt', 'session', 'limits', 'started', 'last',
  'waits')
local status = record[1]
if not status then
  return { 'REFUSED', 'gone' }
end
if status ~= 'queued' and status ~= 'running' then
  return { 'REFUSED', 'ended' }
end
if record[3] ~= attempt then
  return { 'REFUSED', 'attempt' }
end
if status == 'running' and record[2] ~= owner then
  return { 'REFUSED', 'claimed' }
end
if record[8] then
  return { 'REFUSED', 'waits' }
end

local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
if status == 'queued' then
  redis.call('HSET', KEYS[1], 'status', 'running', 'owner', owner, 'beat', now, 'queue_entry', '')
  if ARGV[4] == 'lingers' then
    redis.call('HSET', KEYS[1], 'lingers', 1)
  end
  if record[6] == '' then
    redis.call('HSET', KEYS[1], 'started', now)
  end
  redis.call('XADD', KEYS[2], 'MAXLEN', string.match(record[5], '(%d+)$'), '*',
    'kind', 'run.started', 'run_id', run, 'session_id', record[4], 'ts', now,
    'd', '{"status":"running","attempt":' .. attempt .. ',"last_seq":' .. record[7] .. '}')
end
return { 'OK', now, redis.call('HGETALL', KEYS[1]) }
