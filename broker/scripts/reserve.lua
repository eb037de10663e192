-- reserve: what a run may cost is held back before the run is made, or the run is refused. Check and reservation are one
-- step, so of any number of callers at once no more get through than the cap allows.
-- Amounts are whole nano-dollars, below 2^53. A day is counted from 1970-01-01, UTC, by the store's clock.
--
-- KEYS  1 day (hash of day ARGV[2])   2 held   3 open   4 costs (of the model)   5 audit
-- ARGV  1 run id
--       2 number of the day that KEYS[1] is of
--       3 principal
--       4 cap of all together, or ""   5 cap of a principal, or ""
--       6 reservation, or "": the highest cost of the model's last runs
--       7 reservation of a model without such runs
--       8 how long a day is kept, in seconds
--       9 most entries of the audit, 0: there is none   10 d of its entry about a refusal, a JSON object
-- Reply {"OK", amount}                            held; repeated: what is held
--       {"DAY", number}                           KEYS[1] is not of today; that is the number of today
--       {"REFUSED", "total" or "principal", cap, spent, reserved, seconds left of the day}
--       `spent` and `reserved` are those that count towards that cap. The first refusal of a principal and day is
--       audited, all are counted.

local run, principal = ARGV[1], ARGV[3]
local call = redis.call
local time = call('TIME')
local today = math.floor(tonumber(time[1]) / 86400)

local held = call('HGET', KEYS[2], run)
if held then
  return { 'OK', tonumber(string.match(held, '^%d+ (%d+) ')) }
end
if today ~= tonumber(ARGV[2]) then
  return { 'DAY', today }
end

local booked = call('HMGET', KEYS[1], 'spent', 'reserved', 'spent:' .. principal, 'reserved:' .. principal)
local function refusal(scope, cap, spent, reserved)
  spent, reserved = tonumber(spent or '0'), tonumber(reserved or '0')
  if cap ~= '' and spent + reserved >= tonumber(cap) then
    return { 'REFUSED', scope, tonumber(cap), spent, reserved, (today + 1) * 86400 - tonumber(time[1]) }
  end
end

local refused = refusal('total', ARGV[4], booked[1], booked[2]) or
  refusal('principal', ARGV[5], booked[3], booked[4])
if refused then
  call('HINCRBY', KEYS[1], 'refused', 1)
  local times = call('HINCRBY', KEYS[1], 'refused:' .. principal, 1)
  call('EXPIRE', KEYS[1], ARGV[8])
  if times == 1 and tonumber(ARGV[9]) > 0 then
    call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*', 'kind', 'cost_cap', 'run_id', '', 'd', ARGV[10])
  end
  return refused
end

local amount = ARGV[6]
if amount == '' then
  local highest
  for _, cost in ipairs(call('LRANGE', KEYS[4], 0, -1)) do
    highest = math.max(highest or 0, tonumber(cost))
  end
  amount = highest and string.format('%.0f', highest) or ARGV[7]
end

local now = time[1] .. '.' .. string.format('%06d', time[2])
call('HINCRBY', KEYS[1], 'reserved', amount)
call('HINCRBY', KEYS[1], 'reserved:' .. principal, amount)
call('EXPIRE', KEYS[1], ARGV[8])
call('HSET', KEYS[2], run, string.format('%.0f', today) .. ' ' .. amount .. ' ' .. principal)
call('ZADD', KEYS[3], now, run)
return { 'OK', tonumber(amount) }
