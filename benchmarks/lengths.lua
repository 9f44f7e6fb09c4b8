-- POST one file after the other: wrk ... -s lengths.lua URL -- FOLDER COUNT
-- Each file has the length of its JSON head in its first line. Requests are built once a thread.
local requests = {}
local at = 0

function init(args)
   for number = 0, tonumber(args[2]) - 1 do
      local file = assert(io.open(args[1] .. "/" .. number, "rb"))
      local head = file:read("*l")
      local headers = { ["Content-Type"] = "application/octet-stream", ["Inference-Header-Content-Length"] = head }
      requests[number + 1] = wrk.format("POST", nil, headers, file:read("*a"))
      file:close()
   end
end

function request()
   at = at % #requests + 1
   return requests[at]
end
