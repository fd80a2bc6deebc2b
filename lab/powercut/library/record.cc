#include "record.h"

#include <ctime>
#include <tuple>

namespace powercut {

uint64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
}

void Record::add_point(Kind kind, const char* function, const CallStack& stack) {
  const auto number = static_cast<uint32_t>(places_.size());
  points_.push_back(places_.try_emplace({kind, function, stack}, number).first->second);
}

void Record::add_site(const char* function, const char* what, const std::string& site) {
  auto& [name, calls] = sites_[{site, what}];
  name = function;
  ++calls;
}

void Record::add_useful(const char* what, const char* function, const CallStack& stack, bool useless,
                        uint64_t lines, uint64_t clean) {
  Use& use = uses_[{what, {Kind::kFlush, function, stack}}];
  ++use.calls;
  use.useless += useless ? 1 : 0;
  use.lines += lines;
  use.clean += clean;
}

void Record::describe(Json& json) const {
  std::vector<const Place*> places(places_.size());
  for (const auto& [place, number] : places_) places[number] = &place;
  json.pair("duration_us", now_us() - begun_us).key("places").open('[');
  for (const Place* place : places) {
    json.open('{').pair("kind", name_of(place->kind)).pair("function", place->function);
    json.list("frames", place->stack).close('}');
  }
  json.close(']').list("points", points_).key("sites").open('[');
  for (const auto& [key, held] : sites_) {
    json.open('{').pair("site", key.first).pair("what", key.second);
    json.pair("function", held.first).pair("calls", held.second).close('}');
  }
  json.close(']').key("uses").open('[');
  for (const auto& [key, use] : uses_) {
    json.open('{').pair("what", key.first).pair("function", key.second.function);
    json.pair("calls", use.calls).pair("useless_calls", use.useless);
    json.pair("lines", use.lines).pair("clean_lines", use.clean);
    json.list("frames", key.second.stack).close('}');
  }
  json.close(']');
}

}  // namespace powercut
