-- GET of the first twenty posts, in turn.
local requests, sent = {}, 0

function init()
  for id = 1, 20 do
    requests[id] = wrk.format("GET", "/post/" .. id)
  end
end

function request()
  sent = sent + 1
  return requests[sent % 20 + 1]
end
