-- POST one file again and again: wrk ... -s post.lua URL -- BODY_FILE "Name: value" ...
-- The request is built once a thread, so Lua costs nothing while the load runs.
function init(args)
   local file = assert(io.open(args[1], "rb"))
   wrk.method = "POST"
   wrk.body = file:read("*a")
   file:close()
   for i = 2, #args do
      local name, value = args[i]:match("^([^:]+):%s*(.*)$")
      wrk.headers[name] = value
   end
end
