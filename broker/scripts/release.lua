-- release: a run that was reserved for was not made: what was held for it is free again. Repeatable.
--
-- KEYS  1 day (hash of day ARGV[2])   2 held   3 open
-- ARGV  1 run id   2 number of the day that KEYS[1] is of
-- Reply {"OK", amount}     free again; -1: nothing is held for that run
--       {"DAY", number}    it was reserved for on another day than KEYS[1] is of

local held = redis.call('HGET', KEYS[2], ARGV[1])
if not held then
  redis.call('ZREM', KEYS[3], ARGV[1])
  return { 'OK', -1 }
end
local day, amount, principal = string.match(held, '^(%d+) (%d+) (.*)$')
if tonumber(day) ~= tonumber(ARGV[2]) then
  return { 'DAY', tonumber(day) }
end
if tonumber(amount) > 0 then
  redis.call('HINCRBY', KEYS[1], 'reserved', '-' .. amount)
  redis.call('HINCRBY', KEYS[1], 'reserved:' .. principal, '-' .. amount)
end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return { 'OK', tonumber(amount) }
