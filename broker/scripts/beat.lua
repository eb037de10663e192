-- beat: what the owner, or whoever queues the run, says about a run that goes on. Five forms, told apart by ARGV[4].
--
-- KEYS  1 record
-- ARGV  1 run id   2 owner   3 epoch
--           "I am alive": the record's `beat` moves. On a run that this owner has sealed: OK, and nothing moves.
--       1 run id   2 owner   3 epoch   4 "rewound"
--           The store lost items that the owner cannot send again: epoch + 1, rewound_to = last, so that viewers who
--           saw the lost items are reset. Repeated with the old epoch, since the reply was lost, it answers the same.
--       1 run id   2 owner   3 epoch   4 "source"   5 text
--           Keeps in the record where the owner stands in what it relays: opaque here, for the owner's next attempt.
--       1 run id   2 ""   3 attempt   4 "enqueued"   5 id of the queue's entry
--           Notes where a queued attempt lies in the queue. Anything else than that attempt, queued: nothing to do.
--       1 run id   2 ""   3 attempt   4 "admitted"
--           It is the run's turn in its session: whoever finds it in the queue may claim it from now on.
-- Reply {"OK", last, epoch, cancel_requested}   cancel_requested: 1 or 0
--       {"NOTFOUND"}, {"FENCED"}
--                                               "admitted" has a fifth part: 1 where it waited for this, and the caller
--                                               is to put it into the queue, else 0
--       {"SEALED", last}                        "rewound" and "source" only

local record = redis.call('HMGET', KEYS[1], 'status', 'owner', 'epoch', 'last', 'cancel_requested', 'rewound_from',
  'attempt', 'waits')
local status, owner, epoch, last = record[1], record[2], record[3], tonumber(record[4])
if not status then
  return { 'NOTFOUND' }
end
local cancel = record[5] ~= '' and 1 or 0

if ARGV[4] == 'enqueued' then
  if status == 'queued' and record[7] == ARGV[3] then
    redis.call('HSET', KEYS[1], 'queue_entry', ARGV[5])
  end
  return { 'OK', last, tonumber(epoch), cancel }
end

if ARGV[4] == 'admitted' then
  local waited = status == 'queued' and record[7] == ARGV[3] and record[8]
  if waited then
    local time = redis.call('TIME')
    redis.call('HDEL', KEYS[1], 'waits')
    redis.call('HSET', KEYS[1], 'beat', time[1] .. '.' .. string.format('%06d', time[2]))
  end
  return { 'OK', last, tonumber(epoch), cancel, waited and 1 or 0 }
end

if owner == '' or owner ~= ARGV[2] then
  return { 'FENCED' }
end
local repeated = ARGV[4] == 'rewound' and record[6] == ARGV[3] and tonumber(epoch) == tonumber(ARGV[3]) + 1
if epoch ~= ARGV[3] and not repeated then
  return { 'FENCED' }
end
if status ~= 'running' then
  if ARGV[4] == 'rewound' or ARGV[4] == 'source' then
    return { 'SEALED', last }
  end
  return { 'OK', last, tonumber(epoch), cancel }
end

local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'beat', time[1] .. '.' .. string.format('%06d', time[2]))
if ARGV[4] == 'source' then
  redis.call('HSET', KEYS[1], 'source', ARGV[5])
end
if ARGV[4] == 'rewound' and not repeated then
  redis.call('HSET', KEYS[1], 'rewound_from', epoch, 'rewound_to', last)
  epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
end
return { 'OK', last, tonumber(epoch), cancel }
