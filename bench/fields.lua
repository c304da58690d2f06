-- Each request has the next line of a file as a header field. A run that comes to the end of the file fails.
local fields, sent = {}, 0

function init(arguments)
  for field in io.lines(arguments[1]) do
    fields[#fields + 1] = field
  end
end

function request()
  sent = sent + 1
  return "GET /post HTTP/1.1\r\nHost: 127.0.0.1\r\n" .. fields[sent] .. "\r\n\r\n"
end
