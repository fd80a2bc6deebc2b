// The record of a run: its calls, their places, and how many were useless.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "call_stack.h"
#include "json.h"
#include "settings.h"

namespace powercut {

uint64_t now_us();  // on the monotonic clock

class Record {
 public:
  // Adds a cut point.
  void add_point(Kind kind, const char* function, const CallStack& stack);
  // Adds a call that makes something durable. what: flush, drain or sync, which can each be taken out.
  void add_site(const char* function, const char* what, const std::string& site);
  // Adds a use of a call. lines, clean: of a flush; else 0.
  void add_useful(const char* what, const char* function, const CallStack& stack, bool useless,
                  uint64_t lines, uint64_t clean);
  void describe(Json& json) const;

  uint64_t begun_us = 0;  // on the monotonic clock

 private:
  struct Place {
    Kind kind;
    std::string function;
    CallStack stack;
    bool operator<(const Place& other) const {
      return std::tie(kind, function, stack) < std::tie(other.kind, other.function, other.stack);
    }
  };
  struct Use {
    uint64_t calls = 0, useless = 0, lines = 0, clean = 0;
  };

  std::map<Place, uint32_t> places_;
  std::vector<uint32_t> points_;  // for each point, its place
  std::map<std::pair<std::string, std::string>, std::pair<std::string, uint64_t>>
      sites_;  // (site, what): function, calls
  std::map<std::pair<std::string, Place>, Use> uses_;
};

}  // namespace powercut
