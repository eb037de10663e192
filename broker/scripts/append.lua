-- append: the only writer of an items stream. It checks everything, then writes everything: a batch is stored whole
-- or not at all, so a writer may repeat a call whose reply it did not get.
--
-- KEYS  1 record   2 items   3 control   4 live   5 bus   [6 ids: where items have a source_id]
-- ARGV  1 run id   2 owner   3 epoch   4 seq of the first item   then, for each item: t (type), d (JSON)
--       t matches [a-z_.]{1,64} and is none of end, reset, gap, cursor, open, error.
--       d is one JSON object, UTF-8, beginning {"ts": and a number, in seconds; no CR, LF or other control byte in
--       it; no run_id and no seq at its top level, since they are spliced in front of it when it is sent.
--       U+0085, U+2028 and U+2029 in it are stored escaped: many clients take them for the end of a line.
--       A source_id in d, the id that a service gave the item, is null or 1 to 256 printable ASCII characters without a
--       blank at either end; `ids` leads from it to the seq, from that of the newest item where several have it.
--       final, failed and cancelled are fences: one, as the last item of the run, and so of its batch.
-- Reply, in the order of the checks:
--       {"NOTFOUND"}                     no such run
--       {"FENCED"}                       the run is not (any more) of this owner and epoch: stop, write nothing more
--       {"OK", last}                     stored; or all of it was stored before, the fence included
--       {"SEALED", last}                 the run has its fence
--       {"GAP", last}                    the log ends at `last`: send what follows it
--       {"TOOBIG", seq, bytes, allowed}  t and d of the item `seq` are too long together
--       {"BADITEM", seq, reason}
-- Items that are stored already are skipped, unread. Every OK counts as a beat while the run is open.

local run, first = ARGV[1], tonumber(string.match(ARGV[4] or '', '^%d+$'))
local count = (#ARGV - 4) / 2
if not first or first < 1 or count % 1 ~= 0 then
  return redis.error_reply('ERR append: expected run, owner, epoch, first seq (1 or more), then pairs of t and d')
end

local record = redis.call('HMGET', KEYS[1], 'status', 'owner', 'epoch', 'last', 'first', 'bytes', 'limits',
  'attempt', 'session')
if not record[1] then
  return { 'NOTFOUND' }
end
if record[2] == '' or record[2] ~= ARGV[2] or record[3] ~= ARGV[3] then
  return { 'FENCED' }
end
local last = tonumber(record[4])
local newest = first + count - 1
if newest <= last then
  if record[1] == 'running' then
    local time = redis.call('TIME')
    redis.call('HSET', KEYS[1], 'beat', time[1] .. '.' .. string.format('%06d', time[2]))
  end
  return { 'OK', last }
end
if record[1] ~= 'running' then
  return { 'SEALED', last }
end
if first > last + 1 then
  return { 'GAP', last }
end

local item_max, max_items, max_bytes, run_ttl, record_ttl, bus_max =
  string.match(record[7], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
item_max, max_items, max_bytes = tonumber(item_max), tonumber(max_items), tonumber(max_bytes)
local find, decode = string.find, cjson.decode
-- Most items are text deltas without an escape in them. What this matches is a JSON object of the right form, which
-- need not be decoded to know it; that spares a third of the checking. (\194 and \226 begin what LINE_ENDS has.)
local PLAIN_DELTA = '^{"ts":[1-9]%d*%.%d+,"component_id":"[%w_:.-]*","round":[1-9]?%d,"index":[1-9]?%d,' ..
  '"text":"[^"\\%c\194\226]*"}$'

local LINE_ENDS = { ['\194\133'] = '\\u0085', ['\226\128\168'] = '\\u2028', ['\226\128\169'] = '\\u2029' }
local function one_line(d)
  for character, escape in pairs(LINE_ENDS) do
    if find(d, character, 1, true) then
      d = string.gsub(d, character, escape)
    end
  end
  return d
end

local from = 5 + 2 * (last + 1 - first)
local added = 0
local odd = {} -- place of d → how it is stored, for all but plain deltas
for i = from, #ARGV, 2 do
  if not find(ARGV[i + 1], PLAIN_DELTA) then
    odd[i + 1] = one_line(ARGV[i + 1])
  end
  local size = #ARGV[i] + #(odd[i + 1] or ARGV[i + 1])
  if size > item_max then
    return { 'TOOBIG', first + (i - 5) / 2, size, item_max }
  end
  added = added + size
end

local FENCES = { final = 'completed', failed = 'failed', cancelled = 'cancelled' }
local CONTROL = { ['end'] = true, reset = true, gap = true, cursor = true, open = true, error = true }

local function wrong_type(t, is_last)
  if #t > 64 or not find(t, '^[a-z_.]+$') then
    return 'the type must match [a-z_.]{1,64}'
  elseif CONTROL[t] then
    return 'the type is the name of a control frame'
  elseif FENCES[t] and not is_last then
    return 'a fence must be the last item'
  end
end

local function wrong_object(d)
  if not find(d, '^{"ts":') then
    return 'd must begin with {"ts":'
  elseif not find(d, '^%C*$') and find(d, '[%z\1-\31]') then
    return 'd must have no CR, LF or other control byte'
  end
  local valid, object = pcall(decode, d)
  if not valid or type(object) ~= 'table' then
    return 'd must be one JSON object'
  elseif type(object.ts) ~= 'number' then
    return 'ts must be a number'
  elseif object.run_id ~= nil or object.seq ~= nil then
    return 'd must not have run_id or seq: they are added when it is sent'
  end
  return nil, object.source_id
end

local function wrong_source(id)
  if id == nil or id == cjson.null then
    return nil
  elseif type(id) ~= 'string' or #id > 256 or not find(id, '^[!-~]') or find(id, '[^ -~]') or find(id, ' $') then
    return 'source_id must be null or 1 to 256 printable ASCII characters, no blank at either end'
  end
end

local usage, cost
local ids = {} -- score, member, …
local function first_fault()
  local known = {}
  for i = from, #ARGV, 2 do
    local t, d = ARGV[i], ARGV[i + 1]
    local reason, source_id = not known[t] and wrong_type(t, i + 1 == #ARGV) or nil, nil
    if not reason and odd[i + 1] then
      reason, source_id = wrong_object(d)
      reason = reason or wrong_source(source_id)
    end
    if reason then
      return { 'BADITEM', first + (i - 5) / 2, reason }
    end
    known[t] = true
    if type(source_id) == 'string' then
      ids[#ids + 1] = first + (i - 5) / 2
      ids[#ids + 1] = source_id
    end
    if t == 'usage' then
      usage = d
    elseif t == 'cost' then
      cost = d
    end
  end
end

-- NaN and hexadecimal numbers are no JSON, but cjson takes them unless told. Other scripts share its setting.
local lenient = cjson.decode_invalid_numbers
local before = lenient and lenient()
if lenient then
  lenient(false)
end
local fault = first_fault()
if lenient then
  lenient(before)
end
if fault then
  return fault
end

-- Nothing below may fail: everything has been checked.
local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
local call, seq = redis.call, last
for i = from, #ARGV, 2 do
  seq = seq + 1
  call('XADD', KEYS[2], seq .. '-0', 't', ARGV[i], 'd', odd[i + 1] or ARGV[i + 1])
end

local ids_key = KEYS[6]
if ids_key then
  if last == 0 then
    call('DEL', ids_key) -- of an earlier run under this id
  end
  for i = 1, #ids, 2 do
    call('ZADD', ids_key, string.format('%.0f', ids[i]), ids[i + 1])
  end
end

-- Retention: exact, at the head; the newest item always stays. `bytes` counts t and d of what is kept.
local kept_from, bytes = tonumber(record[5]), tonumber(record[6]) + added
local trim_to = kept_from
while trim_to < newest and (newest - trim_to + 1 > max_items or bytes > max_bytes) do
  local head = call('XRANGE', KEYS[2], trim_to .. '-0', '+', 'COUNT', 16)
  if #head == 0 then
    break
  end
  for _, entry in ipairs(head) do
    if trim_to >= newest or (newest - trim_to + 1 <= max_items and bytes <= max_bytes) then
      break
    end
    bytes = bytes - #entry[2][2] - #entry[2][4]
    trim_to = tonumber(string.match(entry[1], '^%d+')) + 1
  end
end
if trim_to > kept_from then
  call('XTRIM', KEYS[2], 'MINID', '=', trim_to .. '-0')
  call('HSET', KEYS[1], 'first', string.format('%.0f', trim_to))
  if ids_key then
    -- Whoever stands at the last item that went misses nothing: its id stays.
    call('ZREMRANGEBYSCORE', ids_key, '-inf', '(' .. string.format('%.0f', trim_to - 1))
  end
end

local last_text = string.format('%.0f', newest)
call('HSET', KEYS[1], 'last', last_text, 'bytes', string.format('%.0f', bytes), 'beat', now)
if usage then
  call('HSET', KEYS[1], 'usage', usage)
end
if cost then
  call('HSET', KEYS[1], 'cost', cost)
end

local fence = ARGV[#ARGV - 1]
local status = FENCES[fence]
if status then
  call('HSET', KEYS[1], 'status', status, 'ended', now,
    'outcome', '{"type":"' .. fence .. '","seq":' .. last_text .. ',"item":' .. (odd[#ARGV] or ARGV[#ARGV]) .. '}')
  -- The items never outlive their record: without it they could not be told from a later run's.
  call('PEXPIRE', KEYS[2], math.min(tonumber(run_ttl), tonumber(record_ttl)))
  if ids_key then
    call('PEXPIRE', ids_key, math.min(tonumber(run_ttl), tonumber(record_ttl)))
  end
  call('PEXPIRE', KEYS[1], record_ttl)
  call('DEL', KEYS[3])
  call('ZREM', KEYS[4], run)
  call('XADD', KEYS[5], 'MAXLEN', bus_max, '*', 'kind', 'run.' .. status, 'run_id', run,
    'session_id', record[9], 'ts', now,
    'd', '{"status":"' .. status .. '","attempt":' .. record[8] .. ',"last_seq":' .. last_text .. '}')
end
return { 'OK', newest }
