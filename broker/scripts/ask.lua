-- ask: registers what the owner of a run asks a person: an approval, or a question. To be called before the item that
-- shows it is appended, so that whoever sees it can answer it. Repeated, since the reply was lost, it answers the same.
--
-- KEYS  1 record   2 bus
-- ARGV  1 run id   2 owner   3 epoch
--       4 request id: [A-Za-z0-9_.-]{1,128}, unique within the run
--       5 how long a person has, in seconds. The owner itself settles the ask then, see answer.lua
--       6 d, a JSON object of at most 131072 bytes:
--           kind     "approval" or "question"
--           choices  the answers that are allowed, up to 64 strings; may be empty where any text is
--           free     true where any other text is allowed, too
--           payload  an object: what the person is to see
-- Reply, in the order of the checks:
--       {"NOTFOUND"}
--       {"FENCED"}                       the run is not (any more) of this owner and epoch
--       {"SEALED", last}                 the run has its fence
--       {"OK", asked at, expires at}     seconds by the store's clock, as text. Also where it was registered before,
--                                        whether it was answered since or not
--       {"TOOBIG", bytes, allowed}, {"BADASK", reason}
--       {"TOOMANY", allowed}             so many asks of this attempt wait for an answer already
--
-- In the record, field `ask:ID` holds d with attempt, asked_at and expires_at in front; once settled a marker without
-- choices and payload, see answer.lua. Field `asks` lists them, oldest first: attempt, "+" (open) or "-" (settled), and
-- the id. Asks of an earlier attempt are void. More than 200 are not kept: the oldest settled or void ones go.

local MOST_OPEN, MOST_KEPT, MOST_BYTES, MOST_CHOICES = 100, 200, 131072, 64

local run, id, timeout, d = ARGV[1], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local record = redis.call('HMGET', KEYS[1], 'status', 'owner', 'epoch', 'last', 'attempt', 'limits', 'session',
  'asks', 'ask:' .. id)
local attempt, asks, known = record[5], record[8] or '', record[9]
if not record[1] then
  return { 'NOTFOUND' }
end
if record[2] == '' or record[2] ~= ARGV[2] or record[3] ~= ARGV[3] then
  return { 'FENCED' }
end
if record[1] ~= 'running' then
  return { 'SEALED', tonumber(record[4]) }
end
if known then
  return { 'OK', string.match(known, '"asked_at":([%d.]+),"expires_at":([%d.]+)') }
end

if #d > MOST_BYTES then
  return { 'TOOBIG', #d, MOST_BYTES }
end

local function wrong()
  if #id > 128 or not string.find(id, '^[%w_.-]+$') then
    return 'the request id must match [A-Za-z0-9_.-]{1,128}'
  elseif not timeout or not (timeout > 0 and timeout <= 31536000) then
    return 'the time limit must be seconds, more than 0 and at most a year'
  end
  local valid, ask = pcall(cjson.decode, d)
  if not valid or type(ask) ~= 'table' or string.sub(d, 1, 2) ~= '{"' then
    return 'd must be one JSON object'
  elseif ask.kind ~= 'approval' and ask.kind ~= 'question' then
    return 'kind must be approval or question'
  elseif type(ask.choices) ~= 'table' or type(ask.free) ~= 'boolean' or type(ask.payload) ~= 'table' then
    return 'choices must be an array, free a boolean, payload an object'
  elseif ask.attempt or ask.asked_at or ask.expires_at or ask.how or ask.answer or ask.by then
    return 'attempt, asked_at, expires_at, how, answer and by are added by the scripts'
  elseif #ask.choices > MOST_CHOICES then
    return 'there may be 64 choices at most'
  elseif #ask.choices == 0 and not ask.free then
    return 'without choices it must be free: nobody could answer it'
  end
  for _, choice in ipairs(ask.choices) do
    if type(choice) ~= 'string' or choice == '' then
      return 'choices must be strings, not empty'
    end
  end
  return nil, ask.kind
end

local reason, kind = wrong()
if reason then
  return { 'BADASK', reason }
end

local tokens, open = {}, 0
for of, state, ask in string.gmatch(asks, '(%d+)([+-])(%S+)') do
  local is_open = state == '+' and of == attempt
  open = open + (is_open and 1 or 0)
  tokens[#tokens + 1] = { text = of .. state .. ask, id = ask, is_open = is_open }
end
if open >= MOST_OPEN then
  return { 'TOOMANY', MOST_OPEN }
end

-- Nothing below may fail: everything has been checked.
local surplus, kept = #tokens + 1 - MOST_KEPT, {}
for _, token in ipairs(tokens) do
  if surplus > 0 and not token.is_open then
    redis.call('HDEL', KEYS[1], 'ask:' .. token.id)
    surplus = surplus - 1
  else
    kept[#kept + 1] = token.text
  end
end
kept[#kept + 1] = attempt .. '+' .. id

local time = redis.call('TIME')
local now = time[1] .. '.' .. string.format('%06d', time[2])
local expires = string.format('%.6f', tonumber(now) + timeout)
redis.call('HSET', KEYS[1], 'asks', table.concat(kept, ' '), 'ask:' .. id,
  '{"attempt":' .. attempt .. ',"asked_at":' .. now .. ',"expires_at":' .. expires .. ',' .. string.sub(d, 2))
redis.call('XADD', KEYS[2], 'MAXLEN', string.match(record[6], '(%d+)$'), '*', 'kind', 'run.input_requested',
  'run_id', run, 'session_id', record[7], 'ts', now, 'd', '{"status":"running","attempt":' .. attempt ..
  ',"last_seq":' .. record[4] .. ',"request_id":"' .. id .. '","kind":"' .. kind .. '"}')
return { 'OK', now, expires }
