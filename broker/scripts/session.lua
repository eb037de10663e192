-- session: what a session knows of its runs, and what its channel tells, in one step. A session has a slot of its own,
-- so this follows what create, append, cancel and takeover did to a run. Every verb may be repeated, by anybody: what
-- is known already changes nothing and is not told again.
--
-- KEYS  1 session   2 runs   3 open   4 messages   5 events
-- ARGV  1 verb
--       2 run id, or ""
--       3 how long a session without an open run is kept, in ms
--       4 most entries of the channel
--       5… by verb; FIELDS are pairs of a field of the session and its value, an empty value is left out
--   make     FIELDS
--            the session is there, whether it has runs or not; a field that has a value keeps it
--   reserve  nothing more; a run of that id is about to be made, and no other one is open
--   begin    created, then FIELDS; the run was made. `title` is kept where there is one, other fields are replaced
--   enter    nothing more, no run id; who has the turn? Where nobody has it, the oldest open run has it from now on
--   free     nothing more; the turn of that run is over: what it left behind has been cleared up
--   end      created, ended, number of its messages, its hermes session id, "" or "-" (Hermes knows the one no more that the
--            session has), "lingers" (its turn goes on until it is freed) or "",
--            COUNTS: "n name amount name amount …" added to what the session has, n pairs, then FIELDS as in begin
--   forget   nothing more; the run's record is gone
--   note     mark, name of the event, its data (a JSON object), then FIELDS, all replaced. A mark "SOURCE MS-SEQ" is
--            done once, in the order of a source's marks; "" is always done
-- Times are in seconds. Reply:
--       {"OK", changed (0 or 1), updated, message count, next}   next: an open run whose turn it may be, or ""
--       {"OK", run id, score}   enter: it has the turn; when it was made, or "" where it is open no more. Or {"OK", "", ""}
--       {"BUSY", run id}     reserve: that run is open
--       {"NONE"}             note, forget: no such session

local verb, run, ttl, cap = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local call = redis.call

local function now()
  local time = call('TIME')
  return time[1] .. '.' .. string.format('%06d', time[2])
end

local function answer(changed)
  local values = call('HMGET', KEYS[1], 'updated', 'message_count', 'turn')
  local next = values[3] and '' or call('ZRANGE', KEYS[3], 0, 0)[1] or ''
  return { 'OK', changed, values[1] or '0', tonumber(values[2] or '0'), next }
end

local function leave()
  if call('HGET', KEYS[1], 'turn') == run then
    call('HDEL', KEYS[1], 'turn')
  end
end

-- A session is kept for ever while a run of it is open, and for its time from then on. One that is only reserved for
-- is open to nobody who might be left waiting.
local function keep(reserved)
  local is_open = not reserved and call('ZCARD', KEYS[3]) > 0
  for _, key in ipairs(KEYS) do
    if is_open then
      call('PERSIST', key)
    else
      call('PEXPIRE', key, ttl)
    end
  end
end

local function ensure(created)
  if call('HSETNX', KEYS[1], 'created', created) == 1 then
    call('HSET', KEYS[1], 'updated', created, 'message_count', 0)
  end
end

local function moved(at)
  if tonumber(at) > tonumber(call('HGET', KEYS[1], 'updated') or '0') then
    call('HSET', KEYS[1], 'updated', at)
  end
end

local function set(from, keeps)
  for i = from, #ARGV, 2 do
    local name, value = ARGV[i], ARGV[i + 1]
    if value ~= '' then
      if keeps == 'all' or (keeps == 'title' and name == 'title') then
        call('HSETNX', KEYS[1], name, value)
      else
        call('HSET', KEYS[1], name, value)
      end
    end
  end
end

local function tell(name, data)
  call('XADD', KEYS[5], 'MAXLEN', cap, '*', 'name', name, 'run', run, 'd', data)
end

if verb == 'make' then
  local is_new = call('EXISTS', KEYS[1]) == 0
  ensure(now())
  set(5, 'all')
  keep()
  return answer(is_new and 1 or 0)
end

if verb == 'reserve' then
  local open = call('ZRANGE', KEYS[3], 0, 0)[1]
  if open and open ~= run then
    return { 'BUSY', open }
  end
  if not open then
    local at = now()
    ensure(at)
    call('ZADD', KEYS[3], at, run)
    keep('reserved')
  end
  return answer(open and 0 or 1)
end

if verb == 'begin' then
  if call('ZSCORE', KEYS[2], run) then
    return answer(0)
  end
  ensure(ARGV[5])
  call('ZADD', KEYS[2], ARGV[5], run)
  call('ZADD', KEYS[3], ARGV[5], run)
  set(6, 'title')
  moved(ARGV[5])
  tell('server_turn_started', '{"pending_started_at":' .. ARGV[5] .. '}')
  keep()
  return answer(1)
end

if verb == 'enter' then
  local turn = call('HGET', KEYS[1], 'turn')
  if not turn and call('HEXISTS', KEYS[1], 'created') == 1 then
    turn = call('ZRANGE', KEYS[3], 0, 0)[1]
    if turn then
      call('HSET', KEYS[1], 'turn', turn)
    end
  end
  return { 'OK', turn or '', turn and call('ZSCORE', KEYS[3], turn) or '' }
end

if verb == 'free' then
  if not call('ZSCORE', KEYS[3], run) then
    leave()
  end
  return answer(0)
end

if verb == 'end' then
  if ARGV[9] ~= 'lingers' then
    leave()
  end
  if call('HEXISTS', KEYS[4], run) == 1 then
    return answer(0)
  end
  ensure(ARGV[5])
  call('ZADD', KEYS[2], ARGV[5], run)
  call('ZREM', KEYS[3], run)
  call('HSET', KEYS[4], run, ARGV[7])
  local count = call('HINCRBY', KEYS[1], 'message_count', ARGV[7])
  -- Ends may come in another order than their runs: the newest run's id counts.
  if ARGV[8] ~= '' and tonumber(ARGV[5]) >= tonumber(call('HGET', KEYS[1], 'hermes_since') or '0') then
    call('HSET', KEYS[1], 'hermes_session_id', ARGV[8], 'hermes_since', ARGV[5])
    if ARGV[8] == '-' then
      call('HDEL', KEYS[1], 'hermes_session_id')
    end
  end
  local pairs_of_counts = tonumber(ARGV[10])
  for i = 11, 10 + 2 * pairs_of_counts, 2 do
    call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
  end
  set(11 + 2 * pairs_of_counts, 'title')
  moved(ARGV[6])
  tell('session-updated', '{"message_count":' .. count .. '}')
  keep()
  return answer(1)
end

if call('HEXISTS', KEYS[1], 'created') == 0 then
  return { 'NONE' }
end

if verb == 'forget' then
  local known = call('ZREM', KEYS[2], run) + call('ZREM', KEYS[3], run)
  leave()
  local count = tonumber(call('HGET', KEYS[4], run) or '0')
  call('HDEL', KEYS[4], run)
  if count > 0 then -- minus nought is “-0” here, which is no number to Redis
    call('HINCRBY', KEYS[1], 'message_count', -count)
  end
  if known > 0 and not (call('PTTL', KEYS[1]) > 0) then
    keep()
  end
  return answer(known > 0 and 1 or 0)
end

if verb == 'note' then
  if ARGV[5] ~= '' then
    local source, ms, seq = string.match(ARGV[5], '^(%S+) (%d+)%-(%d+)$')
    if not source then
      return redis.error_reply('ERR session: a mark is "SOURCE MS-SEQ"')
    end
    local field = 'noted:' .. source
    local last_ms, last_seq = string.match(call('HGET', KEYS[1], field) or '0-0', '^(%d+)%-(%d+)$')
    ms, seq, last_ms, last_seq = tonumber(ms), tonumber(seq), tonumber(last_ms), tonumber(last_seq)
    if ms < last_ms or (ms == last_ms and seq <= last_seq) then
      return answer(0)
    end
    call('HSET', KEYS[1], field, string.match(ARGV[5], '%S+$'))
  end
  set(8, 'none')
  moved(now())
  tell(ARGV[6], ARGV[7])
  keep()
  return answer(1)
end

return redis.error_reply('ERR session: the verbs are make, reserve, begin, enter, free, end, forget, note')
