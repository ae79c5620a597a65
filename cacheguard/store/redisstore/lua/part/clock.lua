local time = redis.call('TIME')
local t = time[1] * 1000000 + time[2]
