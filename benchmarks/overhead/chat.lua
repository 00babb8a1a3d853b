-- wrk script: one chat request, streamed if STREAM_EVENTS is set, with an id of its own for each if OWN_IDS is.
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
local events = os.getenv("STREAM_EVENTS")
local stream = "false"
if events then
  stream = "true"
  wrk.headers["x-stub-events"] = events
  wrk.headers["x-stub-gap-ms"] = os.getenv("STREAM_GAP_MS")
end
wrk.body = '{"model":"stub","max_tokens":256,"stream":' .. stream .. ',"messages":[' ..
  '{"role":"system","content":"You answer questions about rivers, weirs and turbines in short sentences."},' ..
  '{"role":"user","content":"Why does a hydro plant need a basin just above its turbines? ' ..
  'Explain what happens when more water comes than the turbines can use, and what becomes of the rest."}]}'
if os.getenv("OWN_IDS") then
  local number = 0
  request = function()
    number = number + 1
    wrk.headers["x-request-id"] = "call-" .. number
    return wrk.format()
  end
end
