-- Binary trees, tables, closures, coroutines and strings.
local function tree(depth)
  if depth == 0 then return {} end
  return { tree(depth - 1), tree(depth - 1) }
end

local function nodes(t)
  if t[1] then return 1 + nodes(t[1]) + nodes(t[2]) end
  return 1
end

local long_lived = tree(15)
for depth = 4, 14, 2 do
  local rounds, sum = 1 << (14 - depth + 4), 0
  for _ = 1, rounds do sum = sum + nodes(tree(depth)) end
  print(rounds, depth, sum)
end
print(nodes(long_lived))

local parts, text = {}, ""
for number = 1, 20000 do
  parts[#parts + 1] = ("part %d of %s"):format(number, ("x"):rep(number % 50))
  if number % 20 == 0 then text = text .. parts[#parts] .. "\n" end
end
print(#table.concat(parts, ","), #text, select(2, text:gsub("part (%d+)", "%1 part")))

local count, words = {}, {}
for word in table.concat(parts, " "):gmatch("%w+") do
  if not count[word] then words[#words + 1] = word end
  count[word] = (count[word] or 0) + 1
end
table.sort(words)
for at = 1, #words, 997 do print(words[at], count[words[at]]) end

local function numbers(limit)
  return coroutine.wrap(function()
    for number = 1, limit do coroutine.yield({ value = number }) end
  end)
end
local sum = 0
for round = 1, 200 do
  for item in numbers(500) do sum = sum + item.value * round end
end
print(sum)
collectgarbage()
