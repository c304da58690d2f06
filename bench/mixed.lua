-- Nine requests for the list of twenty posts, then one that replaces a post of it with a text of the same length, which
-- no post had at the start.
local reading, writing, sent = nil, {}, 0
local text = '{"post": "Post %06d says little, but it is as long as most posts are."}'

function init()
  reading = wrk.format("GET", "/post")
  local fields = { ["Content-Type"] = "application/json" }
  for number = 1, 40 do
    local id = (number - 1) % 20 + 1
    writing[number] = wrk.format("PUT", "/post/" .. id, fields, text:format(100 + number))
  end
end

function request()
  sent = sent + 1
  if sent % 10 > 0 then
    return reading
  end
  return writing[sent / 10 % 40 + 1]
end
