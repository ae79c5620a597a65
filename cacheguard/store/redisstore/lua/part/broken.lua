-- What was read from the record is not whole, and there is something.
return redis.error_reply('DATA the lease record is not one: '
  .. (v.err and 'wrong type' or v[1] and 'a field is not a number' or 'no birth mark'))
