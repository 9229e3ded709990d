-- What Argo CD says of a GRPOJob: the same as of a Job of Kubernetes, so Healthy once it is complete.
local conditions = {}
if obj.status ~= nil and obj.status.conditions ~= nil then
  for _, condition in ipairs(obj.status.conditions) do
    conditions[condition.type] = condition
  end
end
local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end
local health = {status = "Progressing", message = "no operator has seen the job"}
if conditions.Ready ~= nil then
  health.message = conditions.Ready.message
end
if is_true("Complete") then
  health.status = "Healthy"
elseif is_true("Failed") or is_true("Stalled") then
  health.status = "Degraded"
elseif is_true("Suspended") and conditions.Suspended.reason == "Suspended" then
  health.status = "Suspended"
end
return health
