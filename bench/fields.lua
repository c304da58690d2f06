-- Each request has the next line of a file as a header field, and the optional second argument as another.
-- A run that reaches the end of the file fails.
local fields, always, sent = {}, "", 0

function init(arguments)
  for field in io.lines(arguments[1]) do
    fields[#fields + 1] = field
  end
  if arguments[2] then
    always = arguments[2] .. "\r\n"
  end
end

function request()
  sent = sent + 1
  return "GET /post HTTP/1.1\r\nHost: 127.0.0.1\r\n" .. always .. fields[sent] .. "\r\n\r\n"
end
