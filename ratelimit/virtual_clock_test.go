package ratelimit_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
	"github.com/cogwheel-go/cogwheel/internal/scripts"
)

// virtualServer executes a script at instants that the test chooses.
type virtualServer struct {
	t      *testing.T
	rdb    *redis.Client
	script *redis.Script
}

// newVirtualServer returns a server for one script. replaced are pairs of what is broken in the script, for controls.
func newVirtualServer(t *testing.T, s *scripts.Script, replaced ...string) *virtualServer {
	t.Helper()
	for i := 0; i < len(replaced); i += 2 {
		require.Contains(t, s.Source(), replaced[i])
	}
	text := virtualClock + strings.NewReplacer(replaced...).Replace(s.Source())
	return &virtualServer{t, redistest.Shared(t).Client(t), redis.NewScript(text)}
}

// execute executes a call at an instant in us.
func (s *virtualServer) execute(call scripts.Call, micros int64) []int64 {
	s.t.Helper()
	keys := append(call.Keys, strconv.FormatInt(micros, 10))
	reply, err := s.script.Run(s.t.Context(), s.rdb, keys, call.Args...).Int64Slice()
	require.NoError(s.t, err)
	return reply
}

// virtualClock precedes the text of a script. The last key is the present instant in us. The other keys expire by it too:
// beside each, a key holds the last ms in which it is there. A command that could change that in another way is refused.
const virtualClock = `
local server, micros = redis, tonumber(KEYS[#KEYS])
KEYS[#KEYS] = nil
local millis = math.floor(micros / 1000)
local function last_of(key) return key .. ':last' end
for i = 1, #KEYS do
  if tonumber(server.call('GET', last_of(KEYS[i])) or millis) < millis then
    server.call('DEL', KEYS[i], last_of(KEYS[i]))
  end
end
local redis = setmetatable({}, {__index = server})
function redis.call(command, key, ...)
  local value, option, ttl = ...
  if command == 'TIME' then
    return {0, micros}
  elseif command == 'PTTL' then
    local last = server.call('GET', last_of(key))
    return last and last - millis or server.call('PTTL', key)
  elseif command == 'SET' and option == 'PX' then
    server.call('SET', last_of(key), millis + ttl)
    return server.call('SET', key, value)
  elseif command == 'SET' and (not option or option == 'XX') then
    server.call('DEL', last_of(key))
  elseif command == 'SET' and option ~= 'KEEPTTL' or command == 'PEXPIRE' then
    error('the virtual clock does not know this ' .. command)
  end
  return server.call(command, key, ...)
end
function redis.pcall(command, ...)
  return command == 'SET' and redis.call(command, ...) or server.pcall(command, ...)
end
`
