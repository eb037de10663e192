-- answer: settles what a run asked a person (ask.lua). Compare-and-set: the first answer wins, whoever gives it; every
-- later one is told what it was. A person's answer goes to the run's owner through the control stream; it stays in the
-- record besides, where the owner finds it should that entry not reach it.
--
-- KEYS  1 record   2 control   3 bus
-- ARGV  1 run id   2 request id   3 the answer, at most 16384 bytes
--       4 how: "answered" by a person; or by the owner itself: "expired" at the time limit, "stopped" where the run
--         stops, or where what it asked for is of no use any more
--       5 principal of the person, or ""
-- Reply, in the order of the checks:
--       {"NOTFOUND"}                     no such run
--       {"UNKNOWN"}                      no such ask, or it was settled long ago and is forgotten
--       {"SETTLED", how, answer, by}     it has its answer: that one
--       {"ENDED", status}                the run has ended
--       {"VOID"}                         an earlier attempt of the run asked that
--       {"TOOBIG", bytes, allowed}
--       {"BADANSWER", kind, choice, …}   ("answered" only) none of the choices, and no other text is allowed
--       {"OK", kind}                     this is the answer

local MOST_BYTES, MOST_CONTROL = 16384, 256

local run, id, answer, how, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if how ~= 'answered' and how ~= 'expired' and how ~= 'stopped' then
  return redis.error_reply('ERR answer: how must be answered, expired or stopped')
end
local record = redis.call('HMGET', KEYS[1], 'status', 'attempt', 'last', 'limits', 'session', 'asks', 'ask:' .. id)
local status, attempt, asks, known = record[1], record[2], record[6] or '', record[7]
if not status then
  return { 'NOTFOUND' }
end
local of = known and string.match(known, '^{"attempt":(%d+),')
if not of then
  return { 'UNKNOWN' }
end
local readable, ask = pcall(cjson.decode, known)
if not readable then
  return { 'UNKNOWN' }
end
if ask.how then
  return { 'SETTLED', ask.how, ask.answer, ask.by }
end
if status ~= 'queued' and status ~= 'running' then
  return { 'ENDED', status }
end
if of ~= attempt then
  return { 'VOID' }
end
if #answer > MOST_BYTES then
  return { 'TOOBIG', #answer, MOST_BYTES }
end
if how == 'answered' and not ask.free then
  local allowed = false
  for _, choice in ipairs(ask.choices) do
    allowed = allowed or choice == answer
  end
  if not allowed then
    return { 'BADANSWER', ask.kind, unpack(ask.choices) }
  end
end

local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
-- The times as they stand there: a number that goes through cjson loses digits.
local times = string.match(known, '^{"attempt":%d+,("asked_at":[%d.]+,"expires_at":[%d.]+)')
local given = cjson.encode({ answer = answer, by = by, how = how, kind = ask.kind })
redis.call('HSET', KEYS[1], 'ask:' .. id, '{"attempt":' .. of .. ',' .. times .. ',' .. string.sub(given, 2))

local from, to = string.find(' ' .. asks .. ' ', ' ' .. of .. '+' .. id .. ' ', 1, true)
if from then
  local before, after = string.sub(asks, 1, from - 1), string.sub(asks, to - 1)
  redis.call('HSET', KEYS[1], 'asks', before .. of .. '-' .. id .. after)
end

if how == 'answered' then
  redis.call('XADD', KEYS[2], 'MAXLEN', MOST_CONTROL, '*', 't', 'input', 'd',
    '{"ts":' .. now .. ',"request_id":"' .. id .. '",' .. string.sub(given, 2))
end
redis.call('XADD', KEYS[3], 'MAXLEN', string.match(record[4], '(%d+)$'), '*', 'kind', 'run.input_answered',
  'run_id', run, 'session_id', record[5], 'ts', now, 'd', '{"status":"' .. status .. '","attempt":' .. attempt ..
  ',"last_seq":' .. record[3] .. ',"request_id":"' .. id .. '","kind":"' .. ask.kind .. '","how":"' .. how .. '"}')
return { 'OK', ask.kind }
