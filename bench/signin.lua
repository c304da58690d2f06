-- Each request signs in another user. Arguments: the prefix of the user names, the first number after it, the password.
local user, number, password

function init(arguments)
  user, number, password = arguments[1], tonumber(arguments[2]), arguments[3]:gsub(" ", "+")
  wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
end

function request()
  local form = "username=" .. user .. number .. "&password=" .. password
  number = number + 1
  return wrk.format("POST", "/login", nil, form)
end
