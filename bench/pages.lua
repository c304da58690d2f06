-- Nine requests for the first page of twenty posts, then one that adds a post.
local reading, adding, sent = nil, nil, 0

function init()
  reading = wrk.format("GET", "/post?limit=20")
  local fields = { ["Content-Type"] = "application/json" }
  adding = wrk.format("POST", "/post", fields, '{"post": "A post that says nothing new, but is as long as most are"}')
end

function request()
  sent = sent + 1
  if sent % 10 > 0 then
    return reading
  end
  return adding
end
