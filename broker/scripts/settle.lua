-- settle: a run has ended: its cost is booked, its reservation given back and its audit entry written, in one step and
-- once, whoever calls it and however often.
-- Amounts are whole nano-dollars, below 2^53. A day is counted from 1970-01-01, UTC.
--
-- KEYS  1 day (hash of day ARGV[2])   2 held   3 open   4 settled (of the run)   5 costs (of the model)   6 audit
-- ARGV  1 run id
--       2 number of the day that KEYS[1] is of: the day that the run was made on
--       3 principal
--       4 cost, as far as it is known   5 1: that is all of it; 0: it is not known how much more it was
--       6 1: a cost to go by when the model's next run is reserved for
--       7 what is booked at least where not all is known and nothing was reserved
--       8 input tokens   9 output tokens
--       10 how long it is remembered that the run is settled, in ms   11 how long a day is kept, in seconds
--       12 most entries of the audit, 0: there is none   13 how long they are kept, in ms   14 d of the entry
--       15 how many costs of a model are remembered
-- Reply {"OK", booked, reserved (-1: nothing was), now}
--       {"DONE", booked}    it was settled before
--       {"DAY", number}     it was reserved for on another day than KEYS[1] is of: it is booked on that one

local run, principal, known = ARGV[1], ARGV[3], ARGV[5] == '1'
local call = redis.call

local before = call('GET', KEYS[4])
if before then
  return { 'DONE', tonumber(before) }
end

local reserved
local held = call('HGET', KEYS[2], run)
if held then
  local day, amount, whose = string.match(held, '^(%d+) (%d+) (.*)$')
  if tonumber(day) ~= tonumber(ARGV[2]) then
    return { 'DAY', tonumber(day) }
  end
  reserved, principal = tonumber(amount), whose
end

local booked = tonumber(ARGV[4])
if not known then
  booked = math.max(booked, reserved or tonumber(ARGV[7]))
end
booked = string.format('%.0f', booked)

local function add(name, amount)
  if tonumber(amount) ~= 0 then
    call('HINCRBY', KEYS[1], name, amount)
    call('HINCRBY', KEYS[1], name .. ':' .. principal, amount)
  end
end
add('spent', booked)
add('runs', 1)
add('unknown', known and 0 or 1)
add('input_tokens', ARGV[8])
add('output_tokens', ARGV[9])
if reserved and reserved > 0 then
  add('reserved', string.format('%.0f', -reserved))
end
call('EXPIRE', KEYS[1], ARGV[11])
call('HDEL', KEYS[2], run)
call('ZREM', KEYS[3], run)
call('SET', KEYS[4], booked, 'PX', ARGV[10])

if ARGV[6] == '1' then
  call('LPUSH', KEYS[5], ARGV[4])
  call('LTRIM', KEYS[5], 0, tonumber(ARGV[15]) - 1)
  call('EXPIRE', KEYS[5], ARGV[11])
end

local time = call('TIME')
if tonumber(ARGV[12]) > 0 then
  call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[12], '*', 'kind', 'run', 'run_id', run, 'booked', booked,
    'reserved', string.format('%.0f', reserved or 0), 'd', ARGV[14])
  local oldest = tonumber(time[1]) * 1000 - tonumber(ARGV[13])
  if oldest > 0 then
    call('XTRIM', KEYS[6], 'MINID', '~', string.format('%.0f', oldest))
  end
end
return { 'OK', tonumber(booked), reserved or -1, time[1] .. '.' .. string.format('%06d', time[2]) }
