-- task_decide: a person's decision about a task, durable once it is taken. Compare-and-set: it is taken only if nothing
-- has happened to the task since the caller looked and found the decision to be allowed.
--
-- KEYS  1 record of the task's run   2 task   3 decisions
-- ARGV  1 version and   2 id of the last decision, as the caller saw them ("0" and "0-0": none)
--       3 the decision, JSON   4 how many may wait for a worker
-- Reply {"OK", id}           it is the decision of that id; the worker that has the task obeys it, now or later
--       {"NOTFOUND"}         no such run
--       {"ENDED", status}    the run has ended
--       {"MOVED"}            something happened meanwhile: look again
--       {"TOOMANY", n}       so many wait already

local status = redis.call('HGET', KEYS[1], 'status')
if not status then
  return { 'NOTFOUND' }
end
if status ~= 'queued' and status ~= 'running' then
  return { 'ENDED', status }
end
if (redis.call('HGET', KEYS[2], 'version') or '0') ~= ARGV[1] then
  return { 'MOVED' }
end
if #redis.call('XRANGE', KEYS[3], '(' .. ARGV[2], '+', 'COUNT', 1) > 0 then
  return { 'MOVED' }
end
local waiting = redis.call('XLEN', KEYS[3])
if waiting >= tonumber(ARGV[4]) then
  return { 'TOOMANY', waiting }
end
return { 'OK', redis.call('XADD', KEYS[3], '*', 'd', ARGV[3]) }
